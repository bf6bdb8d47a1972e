"""Tokens a second over many texts: what is run, and how the best batch is found."""

import json

import pytest
import torch

from mabert.baselines.registry import FAMILIES
from mabert.ops import backends
from mabert.ops.cpu import amx
from mabert_lab.bench import tasks, throughput
from mabert_lab.bench.profiles import Cell
from mabert_lab.bench.tasks import Throughput
from mabert_lab.bench.throughput import SHARES, ManyTexts, best_of, collections, speed
from mabert_lab.bench.turns import Protocol
from mabert_lab.bench.worker import CellError

TEXTS = (5, 30, 12, 7, 22)


def task(name, texts=TEXTS):
    return Throughput(FAMILIES[name], Cell("throughput", "best", "float32", max(texts), small=True, texts=tuple(texts)))


@pytest.mark.parametrize("batch", [1, 2, 4, 5])
def test_every_text_comes_once_in_its_order(batch):
    many = task("bert")
    many.cut(batch)
    masks = [torch.ones_like(ids) if mask is None else mask for ids, mask in many._batches]
    assert [int(length) for mask in masks for length in mask.sum(1)] == list(TEXTS)
    assert [len(mask) for mask in masks] == [min(batch, 5 - first) for first in range(0, 5, batch)]
    assert [mask is None for _, mask in many._batches] == [bool(mask.all()) for mask in masks], "a mask only of padding"
    for (ids, _), mask in zip(many._batches, masks, strict=True):
        assert mask.shape[1] == mask.sum(1).max()
        assert (ids[mask == 0] == many.model.config.pad_token_id).all()
        assert (ids[mask == 1] >= 1000).all()


class Scripted:
    """A worker whose seconds depend on the batch; None is too much memory."""

    def __init__(self, name, seconds):
        self.name, self.seconds, self.batch, self.log = name, seconds, 0, []

    def cut(self, batch):
        self.batch = batch
        return f"attention of {batch}"

    def prepare(self, cell, limit):
        self.log.append("anew")

    def call(self, limit):
        self.log.append(self.batch)
        if self.seconds[self.batch] is None:
            raise CellError("out of memory", "can't allocate memory")
        return self.seconds[self.batch]


def chosen(name, seconds, texts=20, budget=30.0, lengths=None):
    worker = Scripted(name, seconds)
    bench = ManyTexts(Protocol(budget=budget))
    asked = Cell("throughput", "best", "float32", 9, texts=lengths or (9,) * texts)
    bench.warm(asked, worker)
    assert worker.batch == best_of(bench.tried[name])
    assert bench.settings == {name: f"attention of {worker.batch}"}
    told = speed("texts", asked.texts, bench.tried[name], bench.blank(asked, name))
    assert told.batch == worker.batch
    tried = {int(batch): ms for batch, ms in told.tried_ms.items()}
    assert tried == {batch: 1e3 * seconds[batch] for batch in tried}
    assert set(tried) == {batch for batch in worker.log if batch != "anew" and seconds[batch] is not None}
    return worker.batch, worker.log


def test_the_fastest_batch_is_kept_and_the_first_call_only_warms():
    assert chosen("bert", {1: 3.0, 4: 1.0, 16: 2.0, 20: 4.0}) == (4, [1] * 4 + [4] * 4 + [16] * 4 + [20] * 4)
    assert chosen("bert", {1: 3.0, 2: 1.5}, texts=2, budget=3.5) == (2, [1, 1, 2, 2, 2])
    assert chosen("bert", {1: 3.0, 2: 4.0}, texts=2, budget=2.0) == (1, [1, 2])


def test_the_fastest_call_of_a_batch_counts():
    class Disturbed(Scripted):
        def call(self, limit):
            return super().call(limit) * (5 if self.log.count(self.batch) != 3 else 1)

    worker, bench = Disturbed("bert", {1: 2.0, 2: 1.0}), ManyTexts(Protocol())
    bench.warm(Cell("throughput", "best", "float32", 9, texts=(9, 9)), worker)
    assert bench.tried == {"bert": {1: 2.0, 2: 1.0}}


def test_a_batch_that_does_not_fit_ends_the_search():
    assert chosen("bert", {1: 3.0, 4: None}) == (1, [1, 1, 1, 1, 4, "anew", 1])


def test_a_batch_that_does_not_fit_a_second_time_is_not_chosen():
    class Once(Scripted):
        def call(self, limit):
            if self.log.count(4) == 1:
                self.seconds = {**self.seconds, 4: None}
            return super().call(limit)

    bench = ManyTexts(Protocol())
    worker = Once("bert", {1: 3.0, 4: 1.0})
    bench.warm(Cell("throughput", "best", "float32", 9, texts=(9,) * 16), worker)
    assert (bench.tried, worker.batch) == ({"bert": {1: 3.0}}, 1)


def test_what_fails_is_not_taken_for_too_large():
    class Broken(Scripted):
        def call(self, limit):
            if self.batch > 1:
                raise CellError("failed", "RuntimeError: odd")
            return 1.0

    with pytest.raises(CellError, match="odd"):
        ManyTexts(Protocol()).warm(Cell("throughput", "best", "float32", 9, texts=(9,) * 4), Broken("bert", {}))


def test_bigbird_reads_one_text_at_a_time_where_its_blocks_depend_on_the_others():
    assert chosen("bigbird", {1: 3.0}, lengths=(800, 900)) == (1, [1] * 4)
    assert chosen("bigbird", {1: 3.0, 2: 1.0}, lengths=(900, 900)) == (2, [1] * 4 + [2] * 4)
    assert chosen("bigbird", {1: 3.0, 2: 1.0}, lengths=(100, 704)) == (2, [1] * 4 + [2] * 4)


@pytest.mark.parametrize("name", ["mabert", "longformer"])
def test_batches_give_each_text_its_own_vectors(name):
    many = task(name)
    with torch.no_grad():
        many.cut(5)
        ((ids, mask),) = many._batches
        together = many.model(input_ids=ids, attention_mask=mask).last_hidden_state
        for row, text in enumerate(TEXTS):
            alone = many.model(input_ids=ids[row : row + 1, :text]).last_hidden_state[0]
            torch.testing.assert_close(together[row, :text], alone, rtol=1e-4, atol=1e-4)


def test_a_row_names_the_attention_of_its_batch(monkeypatch):
    monkeypatch.setattr(backends, "_instructions", lambda: frozenset({"avx512_bf16", "amx_bf16"}))
    monkeypatch.setattr(amx, "may_use_amx", lambda: True)
    asked = Cell("throughput", "best", "bfloat16", 30, small=True, texts=TEXTS)
    many = Throughput(FAMILIES["mabert"], asked)
    alone, first, together = (many.cut(batch).split(",")[0] for batch in (1, 4, 5))
    assert (alone, together) == ("sdpa", "mabert::softmax_attention")
    assert first == "mabert::softmax_attention and sdpa", "four texts, and the fifth alone"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_texts_of_one_length_are_compiled_for_before_they_are_timed(monkeypatch):
    monkeypatch.setattr(tasks, "is_compiled", lambda *_: True)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=False):  # and back when this is over
        many = task("modernbert", texts=(30, 30, 30))
        for batch in (1, 2):
            assert many.cut(batch) == "mabert" + tasks.COMPILED
            with torch._dynamo.config.patch(error_on_recompile=True), torch.compiler.set_stance("fail_on_recompile"):
                assert many() > 0


def test_collections_are_those_of_the_protocol():
    drawn = collections()
    assert {name: len(texts) for name, texts in drawn.items()} == SHARES
    assert set(drawn["512 each"]) == {512}
    assert set(drawn["8,192 each"]) == {8192}
    many = collections(200)
    for name, mean, deviation, longest in (("N(256,64)", 256, 64, 512), ("N(4096,1024)", 4096, 1024, 8192)):
        lengths = torch.tensor(many[name], dtype=torch.float)
        assert lengths.min() >= 16
        assert lengths.max() <= longest
        assert lengths.mean().item() == pytest.approx(mean, rel=0.05)
        assert lengths.std().item() == pytest.approx(deviation, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_writes_rows_in_the_fast_dtype(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(throughput, "fast_dtype", lambda device: {"cpu": dtype}[device])
    result = throughput.run(("bert", "mabert"), quick=True, output=tmp_path)
    assert result["dtype"] == dtype
    (path,) = tmp_path.glob("*-throughput.json")
    assert json.loads(path.read_text()) == result
    assert [(row["model"], row["status"], row["tokens"]) for row in result["rows"]] == [
        ("bert", "measured", 39),
        ("mabert", "measured", 39),
    ]
    for row in result["rows"]:
        assert row["batch"] in (1, 2)
        assert row["tokens_per_second"] == pytest.approx(39e3 / row["median_ms"])
