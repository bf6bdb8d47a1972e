"""The GPU kernels against the float64 reference: at real sizes on a GPU, at small ones by Triton's interpreter without.

The interpreter (``TRITON_INTERPRET=1``, from the start of the process on) runs the same kernel source one program after
the other on the CPU; it checks the arithmetic, the masks and the addresses. What only a GPU can show is marked ``gpu``.
"""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from mabert.ops import use_backend
from mabert.ops.backends import interprets_triton
from tests.ops.agreement import assert_agrees, assert_masked_is_nothing, assert_same_are_finite, opcheck
from tests.ops.cases import PLAIN, Case, convolutions, plain_convolution, plain_scan, scans

pytest.importorskip("triton", reason="Triton is not installed")
from mabert.ops.triton import conv, launch, scan
from tests.tolerances import OUTPUTS

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
SETTINGS = settings(
    max_examples=4 if GPU else 6,
    # Shrinking takes minutes: each try is interpreted, or on a GPU compiled anew.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
PARTS = pytest.mark.parametrize("part", range(5 if GPU else 1))
"""On a GPU nearly each example is compiled anew, which takes half a minute: in parts several processes share them."""

SIZES = {} if GPU else {"times": (1, 2, 17, 33), "channels": (1, 3, 37)}
WIDTHS = (1, 2, 3, 4, 7)  # filters are unrolled: one of 40 takes minutes to compile


def needs_gpu(test):
    return pytest.mark.gpu(pytest.mark.skipif(not GPU, reason="needs a GPU")(test))


pytestmark = [
    pytest.mark.triton,
    pytest.mark.slow,  # each example is interpreted, or on a GPU compiled
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy's, of the infinities that are tested
    pytest.mark.skipif(
        not GPU and not interprets_triton(), reason="without a GPU, run these by TRITON_INTERPRET=1 pytest -m triton"
    ),
]


@pytest.fixture(autouse=True)
def rounding(monkeypatch):
    """Have the interpreter round float32 to bfloat16 as a GPU does, to nearest; by itself it cuts the bits off."""
    if GPU:
        return
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def converted(data, source, target, mode):
        if (source, target) != (tl.float32, tl.bfloat16):
            return convert(data, source, target, mode)
        numbers = torch.from_numpy(np.ascontiguousarray(data.view(np.float32)))
        return numbers.bfloat16().view(torch.int16).numpy().view(np.uint16)

    monkeypatch.setattr(interpreter, "_convert_float", converted)


@pytest.fixture
def splits(monkeypatch):
    """Cut every row as finely as the kernels can."""
    monkeypatch.setattr(scan, "split_steps", lambda *_: launch.GPU_CHUNK)


@pytest.fixture
def poisoned():
    """Fill all memory that torch hands out unwritten with NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3, device=DEVICE).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@PARTS
@SETTINGS
@given(case=scans(**SIZES, **({} if GPU else {"states": (1, 2, 5)})))
def test_scan_agrees_with_the_reference(case: Case, part: int) -> None:
    assert_agrees(case, "triton", DEVICE)


@PARTS
@SETTINGS
@given(case=convolutions(**SIZES, widths=WIDTHS))
def test_convolution_agrees_with_the_reference(case: Case, part: int) -> None:
    assert_agrees(case, "triton", DEVICE)


@PARTS
@settings(SETTINGS, max_examples=4 if GPU else 2)
@given(case=scans(times=(17, 40, 64, 97) if GPU else (17, 40), channels=(3, 70) if GPU else (3,), states=(2, 5)))
def test_a_scan_in_splits_agrees_with_the_reference(splits, case: Case, part: int) -> None:
    assert_agrees(case, "triton", DEVICE)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_packed_scan_in_splits_keeps_sequences_apart(splits, reverse: bool) -> None:
    cuts = torch.tensor([0, 5, 5, 16, 19, 40], dtype=torch.int32)
    case = plain_scan(1, 40, 3, 2).with_options(cu_seqlens=cuts, reverse=reverse)
    assert_agrees(case, "triton", DEVICE)
    spoiled = case.inputs["u"].clone()
    spoiled[0, 17] = float("nan")
    assert_same_are_finite(case.with_inputs(u=spoiled), "triton", DEVICE)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_masked_split_passes_on_what_enters_it_under_an_infinite_a(splits, reverse: bool) -> None:
    mask = torch.ones(1, 80, dtype=torch.bool)
    mask[0, 16:48], mask[0, 66:] = False, False  # two splits and part of the last, which one of them enters backward
    case = plain_scan(1, 80, 3, 2)
    forgetting = case.inputs["A"].clone()
    forgetting[1, 0] = -float("inf")
    case = case.with_inputs(A=forgetting).with_options(mask=mask, reverse=reverse)
    assert_same_are_finite(case, "triton", DEVICE)
    expected, actual = (case.on(DEVICE).run(backend) for backend in ("reference", "triton"))
    assert expected.isfinite().all()
    torch.testing.assert_close(actual, expected, **OUTPUTS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("states", [4, 8])
@pytest.mark.parametrize("shift", [0, 1])
def test_b_and_c_agree_however_many_numbers_a_load_takes(states: int, shift: int, dtype: torch.dtype) -> None:
    case = plain_scan(2, 21, 3, states).over_time(lambda tensor: tensor.to(dtype))
    beside = torch.cat([torch.zeros(2, 21, 8 - shift, dtype=dtype), case.inputs["B"], case.inputs["C"]], dim=2)
    B, C = beside[..., 8 - shift :].split(states, dim=2)
    size = dtype.itemsize
    words = size // 4 if shift else min(4, states * size // 4)  # two bytes beside a word's border, none can be read
    assert GPU or [launch.words_of(each)[0] for each in (B, C)] == [words, words]
    assert_agrees(case.with_inputs(B=B, C=C), "triton", DEVICE)


@pytest.fixture
def walks(monkeypatch):
    """Cut every row into walks of 8 steps."""
    monkeypatch.setattr(conv, "WALKED", 8)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", [{}, {"mode": "centered"}, {"reverse": True}, {"activation": None}], ids=str)
def test_a_convolution_of_several_walks_agrees_with_the_reference(walks, options, masked: bool) -> None:
    mask = torch.ones(2, 19, dtype=torch.bool)
    mask[0, 6:10], mask[1, 15:] = False, False
    case = plain_convolution(2, 19, 3).with_options(**options, mask=mask if masked else None)
    assert_agrees(case, "triton", DEVICE)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_packed_convolution_of_several_walks_keeps_sequences_apart(walks, reverse: bool) -> None:
    cuts = torch.tensor([0, 5, 5, 8, 9, 19], dtype=torch.int32)
    assert_agrees(plain_convolution(1, 19, 3).with_options(cu_seqlens=cuts, reverse=reverse), "triton", DEVICE)


@pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("masked", [False, True])
def test_every_number_of_the_results_is_written(poisoned, plain, masked: bool) -> None:
    mask = torch.arange(35).expand(2, 35) < torch.tensor([[35], [20]])
    assert_agrees(plain(2, 35, 35, 3).with_options(mask=mask if masked else None), "triton", DEVICE)


@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3), (2, 5, 0)])
@pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN)
def test_empty_inputs_give_empty_outputs(plain, shape: tuple[int, int, int]) -> None:
    assert_agrees(plain(*shape, 4), "triton", DEVICE)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    ("case", "name"),
    [(case, name) for case in (plain_scan(1, 20, 3, 2), plain_convolution(2, 40, 3)) for name in case.inputs],
)
def test_nan_and_infinity_travel(case: Case, name: str, value: float) -> None:
    assert_same_are_finite(case.spoiled(name, value), "triton", DEVICE)


@pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("reverse", [False, True])
def test_what_stands_at_masked_steps_has_no_effect(plain, reverse: bool) -> None:
    mask = torch.ones(2, 35, dtype=torch.bool)
    mask[0, :9], mask[1, 30:], mask[1, 3] = False, False, False
    case = plain(2, 35, 5, 3).with_options(mask=mask, reverse=reverse)
    assert_masked_is_nothing(case, "triton", DEVICE)


def test_offsets_that_are_no_boundaries_are_refused() -> None:
    case = plain_convolution(1, 6, 3)
    for cuts in ([0, 4], [1, 6], [0, 5, 3, 6]):
        with pytest.raises(ValueError, match="cu_seqlens must"):
            case.with_options(cu_seqlens=torch.tensor(cuts, dtype=torch.int32)).on(DEVICE).run("triton")


def test_changed_offsets_are_read_again() -> None:
    case = plain_convolution(1, 6, 3).on(DEVICE)
    cuts = torch.tensor([0, 3, 6], dtype=torch.int32, device=DEVICE)
    packed = case.with_options(cu_seqlens=cuts)
    before = packed.run("triton")
    assert torch.equal(packed.run("triton"), before)
    cuts[1] = 4
    moved = packed.run("triton")
    assert not torch.equal(moved, before)
    assert torch.equal(moved, case.with_options(cu_seqlens=cuts.clone()).run("triton"))
    cuts[1] = 7
    with pytest.raises(ValueError, match="cu_seqlens must not fall"):
        packed.run("triton")


def test_offsets_are_told_apart_from_others_in_the_same_memory() -> None:
    memory = torch.tensor([0, 2, 4, 6, 6, 6, 6], dtype=torch.int32, device=DEVICE)
    near, far = memory[:4], memory[::2]
    assert (near.data_ptr(), near.numel()) == (far.data_ptr(), far.numel())
    assert launch.numbered(near, 6).numbers.tolist() == [1, 1, 2, 2, 3, 3]
    assert launch.numbered(far, 6).numbers.tolist() == [1, 1, 1, 1, 2, 2]


def test_threads_that_ask_for_more_offsets_than_are_kept_all_get_their_own(monkeypatch) -> None:
    monkeypatch.setattr(launch, "_KEPT_NUMBERS", 1)
    monkeypatch.setattr(launch, "_numbered", Yielding())
    cuts = [torch.tensor([0, cut, 6], dtype=torch.int32, device=DEVICE) for cut in range(1, 6)]

    def ask(turn: int) -> bool:
        cut = turn % len(cuts)
        return launch.numbered(cuts[cut], 6).numbers.tolist() == [1] * (cut + 1) + [2] * (5 - cut)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(300)))


class Yielding(dict):
    """A dictionary that lets other threads run between any two uses of it."""

    def get(self, key, default=None):
        found = super().get(key, default)
        time.sleep(1e-5)
        return found

    def __iter__(self):
        first = list(super().__iter__())
        time.sleep(1e-5)
        return iter(first)


def test_offsets_on_a_gpu_are_refused_while_a_graph_is_captured(monkeypatch) -> None:
    class OnGpu(SimpleNamespace):
        is_cuda, device = True, "cuda"

    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="cu_seqlens on a GPU cannot go into a CUDA graph"):
        launch.numbered(OnGpu(), 6)


def test_trusted_offsets_are_not_looked_at_and_give_the_same(monkeypatch) -> None:
    case = plain_scan(1, 9, 3, 2).with_options(cu_seqlens=torch.tensor([0, 4, 9], dtype=torch.int32)).on(DEVICE)
    cuts = case.options["cu_seqlens"]
    expected = case.run("triton")
    monkeypatch.setattr(launch, "_numbered", {})
    monkeypatch.setattr(launch, "spans", None)
    with launch.trusting(cuts, 9):
        assert torch.equal(case.run("triton"), expected)
    with pytest.raises(TypeError):
        case.run("triton")


def test_offsets_on_another_stream_are_numbered_anew(monkeypatch) -> None:
    stream = SimpleNamespace(cuda_stream=1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    told = {"data_ptr": lambda: 8, "numel": lambda: 3, "stride": lambda: (1,)}
    offsets = SimpleNamespace(is_cuda=True, device="cuda", dtype=torch.int32, _version=0, **told)
    first = launch._key_of(offsets, 6)
    assert launch._key_of(offsets, 6) == first
    stream.cuda_stream = 2
    assert launch._key_of(offsets, 6) != first


@pytest.mark.parametrize("name", PLAIN)
def test_opcheck_passes(name: str) -> None:
    opcheck(name, "triton", DEVICE)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 4096, 1536), (3, 517, 1536)])
@pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN)
def test_real_sizes_agree_with_the_reference(plain, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    case = plain(*shape, 16 if plain is plain_scan else 4).over_time(lambda tensor: tensor.to(dtype))
    assert_agrees(case.on(DEVICE), "triton", DEVICE)  # the reference too: thousands of steps with their gradients


@needs_gpu
@pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN)
def test_results_repeat_to_the_last_bit(plain) -> None:
    case = plain(2, 1000, 300, 4).on(DEVICE)
    grad = torch.ones_like(case.inputs["u"])
    first, second = (case.run_with_gradients(grad, "triton") for _ in range(2))
    for name, expected in first.items():
        assert torch.equal(second[name], expected), name


@needs_gpu
@pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN)
def test_offsets_past_two_to_the_31_are_reached(plain) -> None:
    rows, time, channels = 3, 500_000, 1536  # 2.3 billion elements a tensor; the last row lies past 2**31
    torch.cuda.empty_cache()
    case = plain(1, 64, channels, 4)
    wide = {
        name: tensor.bfloat16().to(DEVICE).repeat(rows, -(-time // 64), 1)[:, :time]
        if tensor.dim() == 3
        else tensor.to(DEVICE)
        for name, tensor in case.inputs.items()
    }
    with torch.no_grad():
        long = Case(case.operator, wide).run("triton")
        # What the state still holds of the steps before these is nothing, even in the slowest channel.
        last = Case(case.operator, {n: t[-1:, -4096:] if t.dim() == 3 else t for n, t in wide.items()}).run("triton")
    assert torch.equal(long[0], long[2])
    torch.testing.assert_close(long[-1:, -128:], last[:, -128:], rtol=2**-7, atol=1e-2)


@pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN)
def test_a_compiled_call_gives_the_same(plain) -> None:
    case = (plain(2, 100, 64, 16) if GPU else plain(2, 40, 8, 4)).on(DEVICE)
    names = list(case.inputs)

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        return case.function(**dict(zip(names, tensors, strict=True)))

    with use_backend("triton"):  # outside, since torch cannot trace it
        backend = "inductor" if GPU else "aot_eager"  # the former would need a C++ compiler
        compiled = torch.compile(run, fullgraph=True, backend=backend)(*case.inputs.values())
    torch.testing.assert_close(compiled, case.run("triton"))
