"""Inference by CUDA graphs, on a stand-in that runs again what a GPU would replay: the same vectors as without."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mabert import MaBertForMaskedLM, MaBertModel
from mabert.infer.loaded import cast_products
from mabert.model import attention, graphs
from mabert.model.graphs import Captured, GraphMemory, Shape
from tests.model.helpers import VOCAB, build, config
from tests.model.launches import GPU, move, stand_in

close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)
LENGTHS = st.lists(st.integers(1, 70), min_size=1, max_size=9)


class Again:
    """Stands in for a graph: runs its function at each replay."""

    made = 0
    replayed = 0

    def __init__(self, function, place):
        Again.made += 1
        self.function = function
        function()

    def replay(self):
        Again.replayed += 1
        self.function()


def attended(query, key, value, starts, _, *longest):
    """Stands in for torch's variable-length attention, (tokens, heads, head_size)."""
    lengths = starts.diff().tolist()
    assert max(lengths) <= longest[0]
    texts = zip(*(x.transpose(0, 1).split(lengths, dim=1) for x in (query, key, value)), strict=True)
    parts = [torch.nn.functional.scaled_dot_product_attention(*text) for text in texts]
    return torch.cat(parts, dim=1).transpose(0, 1)


@pytest.fixture(scope="module", autouse=True)
def by_stand_in():
    from torch.nn.attention import varlen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "Captured", Again)
        patch.setattr(graphs, "LONGEST_ROW", 512)
        patch.setattr(graphs.GraphMemory, "new", lambda: None)
        for module in (attention, graphs):
            patch.setattr(module, "has_variable_length", lambda *_: True)
        patch.setattr(varlen, "varlen_attn", attended)
        yield


def models(**fields):
    """A model, and the same one by graphs."""
    settings = config(layer_pattern="MMT", max_position_embeddings=512, **fields)
    plain, by_graphs = (build(MaBertModel, settings, dtype=torch.float32) for _ in range(2))
    by_graphs.use_graphs()
    return plain, by_graphs


@pytest.fixture(scope="module")
def both():
    return models(position_embedding="rotary", ssm_direction="bidirectional")


def batch(lengths, seed=0):
    longest = max(lengths)
    mask = torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)
    mask[0] = mask[0].flip(0)
    return torch.randint(1, VOCAB, mask.shape, generator=torch.Generator().manual_seed(seed)), mask.long()


@given(LENGTHS, st.sampled_from(["padded", "packed", "whole"]), st.integers(0, 99))
@torch.inference_mode()
def test_a_graph_gives_the_vectors_of_the_layers(both, lengths, layout, seed):
    plain, by_graphs = both
    if layout == "packed":
        ids, inputs = batch([sum(lengths)], seed)[0], {"cu_seq_lens_q": torch.tensor([0, *lengths]).cumsum(0).int()}
    elif layout == "whole":
        ids, inputs = batch([lengths[0]] * len(lengths), seed)[0], {}
    else:
        ids, mask = batch(lengths, seed)
        inputs = {"attention_mask": mask}
    expected = plain(ids, **inputs).last_hidden_state
    before = Again.replayed
    for _ in range(graphs.SEEN):
        close(by_graphs(ids, **inputs).last_hidden_state, expected)
    assert Again.replayed > before or ids.numel() > graphs.LONGEST_ROW


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=300))
def test_a_shape_serves_its_row(lengths):
    shape, total = Shape.for_row(tuple(lengths)), sum(lengths)
    assert total <= shape.tokens <= total + max(63, total // 8)
    assert len(lengths) < shape.sequences <= max(2, 4 * len(lengths))
    assert max(*lengths, shape.tokens - total) <= shape.longest <= shape.tokens


def test_rows_are_few_shapes():
    assert len({Shape.for_row((total,)) for total in range(1, graphs.LONGEST_ROW + 1)}) <= 64


@torch.inference_mode()
def test_a_graph_is_made_the_second_time_and_the_oldest_goes(monkeypatch):
    plain, by_graphs = models()
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
    before = Again.made
    for time, made in ((60, 0), (60, 1), (60, 1), (120, 1), (120, 2), (180, 2), (180, 2), (180, 2), (180, 3), (120, 3)):
        ids = batch([time], seed=made)[0]
        close(by_graphs(ids).last_hidden_state, plain(ids).last_hidden_state)
        assert Again.made - before == made, time
    assert len(by_graphs.graphs.graphs) == 2


@pytest.mark.parametrize(
    "asked", [{"output_hidden_states": True}, {"output_attentions": True}, {"training": True}, {"gradients": True}]
)
def test_what_a_graph_does_not_record_runs_without_one(asked):
    _, by_graphs = models()
    ids, before = batch([30])[0], Again.made
    by_graphs.train(asked.pop("training", False))
    with torch.inference_mode(not asked.pop("gradients", False)):
        for _ in range(3):
            outputs = by_graphs(ids, **asked)
    assert Again.made == before
    assert outputs.last_hidden_state.shape == (1, 30, 8)


@torch.inference_mode()
def test_a_vector_keeps_its_bits_when_its_shape_gets_a_graph():
    _, by_graphs = models()
    ids = batch([50, 20])[0]
    first, *others = (by_graphs(ids).last_hidden_state for _ in range(4))
    assert all(torch.equal(first, other) for other in others)


@torch.inference_mode()
def test_threads_get_their_own_vectors(both):
    plain, by_graphs = both
    texts = [batch([40], seed)[0] for seed in range(8)]
    expected = [plain(ids).last_hidden_state for ids in texts]

    def ask(turn):
        with torch.inference_mode():
            return by_graphs(texts[turn % 8]).last_hidden_state

    with ThreadPoolExecutor(4) as threads:
        for turn, found in enumerate(threads.map(ask, range(64))):
            close(found, expected[turn % 8])


@torch.inference_mode()
def test_where_memory_is_full_no_more_graphs_are_made(monkeypatch):
    plain, by_graphs = models()
    captured = Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory"))
    monkeypatch.setattr(graphs, "Captured", captured)
    ids = batch([30])[0]
    for _ in range(4):
        close(by_graphs(ids).last_hidden_state, plain(ids).last_hidden_state)
    assert captured.call_count == 1


@torch.inference_mode()
def test_vectors_keep_the_dtype_of_the_layers():
    """A projection under autocast leaves the short float, the last LayerNorm the wide one."""
    stack = graphs.Graphs(lambda hidden, *_: hidden.double(), "exact")
    hidden, positions = torch.randn(1, 20, 4), torch.arange(20)[None]
    for _ in range(3):
        assert torch.equal(stack(hidden, positions, (20,)), hidden.double())
    assert stack(hidden.double(), positions, (20,)) is None


@torch.inference_mode()
def test_what_cannot_be_captured_names_the_way_out(monkeypatch):
    _, by_graphs = models()
    fails = RuntimeError("operation not permitted when stream is capturing\nand more")
    monkeypatch.setattr(graphs, "Captured", Mock(side_effect=fails))
    ids = batch([30])[0]
    by_graphs(ids)
    with pytest.raises(RuntimeError, match=r"as a CUDA graph \(operation not .* capturing\); .* graphs=False"):
        by_graphs(ids)


def test_weights_of_products_are_cast_once_and_tables_stay():
    plain, cast = (build(MaBertForMaskedLM, config(), dtype=torch.float32) for _ in range(2))
    cast_products(cast)
    assert cast.mabert.embeddings.word_embeddings.weight.dtype == torch.float32
    assert cast.mabert.layers[0].mixer.in_proj.weight.dtype == torch.bfloat16
    assert cast.mabert.layers[0].mixer.cores[0].recurrence.A_log.dtype == torch.float32
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(cast(batch([9])[0]).logits, plain(batch([9])[0]).logits, rtol=0, atol=0)


def test_windows_and_own_mixers_have_no_graphs():
    windowed = build(MaBertModel, config(layer_pattern="TT", attention_window=[4, None]))
    windowed.use_graphs()
    assert windowed.graphs is None


def test_a_captured_row_waits_for_nothing(monkeypatch):
    model = build(MaBertModel, config(layer_pattern="MMT", max_position_embeddings=512)).to(torch.bfloat16)
    ids = batch([200])[0]
    waited = []

    class Noting(Again):
        def __init__(self, function, place):
            gpu.waits.clear()
            with graphs.holding() as self.held:
                function()
            waited.append(list(gpu.waits))

        def replay(self):
            pass

    monkeypatch.setattr(graphs, "Captured", Noting)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", lambda query, *_: query.clone())
    with stand_in() as gpu, torch.inference_mode():
        given = ids.to(GPU)
        move(model).use_graphs()
        for _ in range(graphs.SEEN):
            model(given)
    assert waited == [[]]


def test_a_capture_warms_up_on_its_stream_between_waits_and_replays(monkeypatch):
    asked, on = [], []

    class Stream(SimpleNamespace):
        def wait_stream(self, other):
            asked.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def within(stream):
        on.append(stream)
        yield
        on.pop()

    @contextmanager
    def capture(graph, *, pool, stream, capture_error_mode):
        asked.append(f"capture begins in {pool}, {capture_error_mode}")
        with within(stream):
            yield
        asked.append("capture ends")

    on.append(Stream(name="current"))
    graph = SimpleNamespace(replay=lambda: asked.append("replay"))
    fakes = {"current_stream": lambda: on[-1], "stream": within, "graph": capture, "CUDAGraph": lambda: graph}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    place = GraphMemory("the pool", Stream(name="own"))
    captured = Captured(lambda: asked.append(f"function on {on[-1].name}"), place)
    captured.replay()
    assert asked == [
        "own waits for current",
        *["function on own"] * 2,
        "current waits for own",
        "capture begins in the pool, thread_local",
        "function on own",
        "capture ends",
        "replay",
    ]
