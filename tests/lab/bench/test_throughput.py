"""Tokens a second over many texts: what is run, and how the best batch is found."""

import json

import pytest
import torch

from mabert_lab.bench import throughput
from mabert_lab.bench.profiles import Cell
from mabert_lab.bench.tasks import Sample
from mabert_lab.bench.throughput import SHARES, ManyTexts, best_of, collections, speed
from mabert_lab.bench.turns import Protocol
from mabert_lab.bench.worker import CellError, Ready


class Scripted:
    """A worker whose seconds depend on the batch; an error is raised."""

    def __init__(self, name, seconds):
        self.name, self.seconds, self.batch, self.log = name, seconds, 0, []

    def ask(self, question, *arguments, limit=0.0):
        if question == "cut":
            (self.batch,) = arguments
            return f"attention of {self.batch}"
        if question == "prepare":
            self.log.append("anew")
            return Ready("attention", 1, 1)
        if question == "bound":
            return None
        self.log.append(self.batch)
        seconds = self.seconds(self.batch, self.log.count(self.batch))
        if isinstance(seconds, CellError):
            raise seconds
        return Sample(seconds, seconds)

    def release(self):
        pass


LARGE = CellError("out of memory", "can't allocate memory")


def chosen(seconds, texts=(9,) * 20, name="bert", **fields):
    """The batch a model is timed with, what it ran before that, and its row."""
    worker = Scripted(name, seconds)
    bench = ManyTexts(Protocol(least=1, most=1, **fields), {name: worker})
    cell = Cell("throughput", "best", "float32", max(texts), texts=texts)
    (row,) = bench.measure(cell)
    told = speed("texts", texts, bench.tried[texts, name], row)
    if row.status == "measured":
        assert told["batch"] == worker.batch == best_of(bench.tried[texts, name])
        assert told["setting"] == f"attention of {worker.batch}"
        assert told["tokens_per_second"] == pytest.approx(1e3 * sum(texts) / row.median_ms)
    return told["batch"], worker.log[1:-1], told


@pytest.mark.parametrize(
    ("seconds", "texts", "budget", "batch", "log"),
    [
        ({1: 3.0, 4: 1.0, 16: 2.0, 20: 4.0}, 20, 30.0, 4, [1] * 4 + [4] * 4 + [16] * 4 + [20] * 4),
        ({1: 3.0, 2: 1.5}, 2, 3.5, 2, [1, 1, 2, 2, 2]),
        ({1: 3.0, 2: 4.0}, 2, 2.0, 1, [1, 2]),
        ({1: 3.0, 4: LARGE}, 20, 30.0, 1, [1, 1, 1, 1, 4, "anew", 1]),
    ],
    ids=["the fastest", "as the budget allows", "the first call counts where there is no other", "one does not fit"],
)
def test_the_best_batch_is_kept(seconds, texts, budget, batch, log):
    found = chosen(lambda size, _: seconds[size], (9,) * texts, budget=budget)
    assert found[:2] == (batch, log)
    assert found[2]["tried_ms"] == {str(size): 1e3 * each for size, each in seconds.items() if each is not LARGE}


def test_the_fastest_call_of_a_batch_counts():
    told = chosen(lambda size, call: {1: 2.0, 2: 1.0}[size] * (5 if call != 3 else 1), (9, 9))[2]
    assert told["tried_ms"] == {"1": 2000, "2": 1000}


def test_a_batch_that_does_not_fit_a_second_time_is_not_chosen():
    batch, _, told = chosen(lambda size, call: LARGE if (size, call) == (4, 2) else {1: 3.0, 4: 1.0}[size], (9,) * 16)
    assert (batch, told["tried_ms"]) == (1, {"1": 3000})


@pytest.mark.parametrize("error", [CellError("failed", "RuntimeError: odd"), LARGE])
def test_what_fails_is_a_row_that_tells_why(error):
    batch, _, told = chosen(lambda size, _: error if size > 1 or error is LARGE else 1.0, (9,) * 4)
    assert (batch, told["status"], told["reason"]) == (None, error.status, error.reason)
    assert told["tokens_per_second"] is None


@pytest.mark.parametrize(("lengths", "sizes"), [((800, 900), {1}), ((900, 900), {1, 2}), ((100, 704), {1, 2})])
def test_bigbird_reads_one_text_at_a_time_where_its_blocks_depend_on_the_others(lengths, sizes):
    assert set(chosen(lambda size, _: 1.0, lengths, "bigbird")[1]) == sizes


def test_collections_are_those_of_the_protocol():
    drawn = collections()
    assert {name: len(texts) for name, texts in drawn.items()} == SHARES
    assert set(drawn["512 each"]) == {512}
    assert set(drawn["8,192 each"]) == {8192}
    many = collections(200)
    for name, mean, deviation, longest in (("N(256,64)", 256, 64, 512), ("N(4096,1024)", 4096, 1024, 8192)):
        lengths = torch.tensor(many[name], dtype=torch.float)
        assert 16 <= lengths.min() <= lengths.max() <= longest
        assert lengths.mean().item() == pytest.approx(mean, rel=0.05)
        assert lengths.std().item() == pytest.approx(deviation, rel=0.1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_writes_rows_in_the_fast_dtype(tmp_path, monkeypatch, in_this_process, dtype):
    monkeypatch.setattr(throughput, "fast_dtype", lambda device: {"cpu": dtype}[device])
    result = throughput.run(("bert", "mabert"), quick=True, output=tmp_path)
    assert result["dtype"] == dtype
    (path,) = tmp_path.glob("*-throughput.json")
    assert json.loads(path.read_text()) == result
    assert [(row["model"], row["status"], row["tokens"]) for row in result["rows"]] == [
        ("bert", "measured", 39),
        ("mabert", "measured", 39),
    ]
    assert all(row["batch"] in (1, 2) for row in result["rows"])
