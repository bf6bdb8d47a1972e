"""What the operators refuse, and which backend serves what."""

import re
import threading
import warnings
from types import SimpleNamespace

import pytest
import torch

from mabert.ops import SlowBackendWarning, backends, explain, softmax_attention, use_backend
from tests.ops.cases import plain_convolution, plain_scan

SCAN_ERRORS = {
    "u": (torch.zeros(2, 3), "u must have 3 dimensions (batch, time, channel), got shape (2, 3)"),
    "delta": (torch.zeros(2, 5, 3), "delta must have shape (batch, time, channel) = (2, 6, 3), got (2, 5, 3)"),
    "A": (torch.zeros(4, 5), "A must have shape (channel, state) = (3, 5), got (4, 5)"),
    "B": (torch.zeros(2, 6, 4), "B must have shape (batch, time, state) = (2, 6, 5), got (2, 6, 4)"),
    "C": (torch.zeros(2, 6, 5).int(), "C must be float32, bfloat16, float16 or float64, got torch.int32"),
    "D": (torch.zeros(4), "D must have shape (channel,) = (3,), got (4,)"),
    "z": (torch.zeros(2, 6, 3, device="meta"), "z must lie on the device of the first argument, cpu, got meta"),
    "delta_bias": (torch.zeros(3, 1), "delta_bias must have shape (channel,) = (3,), got (3, 1)"),
    "mask": (torch.ones(2, 6), "mask must be bool, got torch.float32"),
    "cu_seqlens": (torch.tensor([0, 6], dtype=torch.int32), "cu_seqlens needs batch size 1 (one packed row), got"),
}


@pytest.mark.parametrize(
    ("plain", "changed", "message"),
    [
        *((plain_scan, {name: wrong}, message) for name, (wrong, message) in SCAN_ERRORS.items()),
        (plain_convolution, {"mode": "same"}, "mode must be 'causal' or 'centered', got 'same'"),
        (plain_convolution, {"activation": "gelu"}, "activation must be 'silu' or None, got 'gelu'"),
        (
            plain_convolution,
            {"weight": torch.zeros(3, 0)},
            "weight must have shape (channel, width) with width >= 1, got (3, 0)",
        ),
        (plain_convolution, {"bias": torch.zeros(2)}, "bias must have shape (channel,) = (3,), got (2,)"),
    ],
)
def test_what_is_wrong_is_named(plain, changed: dict, message: str) -> None:
    case = plain(2, 6, 3)
    with pytest.raises(ValueError, match=re.escape(message)):
        case.function(**{**case.inputs, **changed})


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        ([0, 5], "cu_seqlens must run from 0 to time=6, got 0 to 5"),
        ([1, 6], "cu_seqlens must run from 0 to time=6, got 1 to 6"),
        ([0, 4, 3, 6], "cu_seqlens must not fall, got 4 followed by 3"),
    ],
)
@pytest.mark.parametrize("plain", [plain_scan, plain_convolution])
def test_offsets_must_cover_the_row(plain, cuts: list[int], message: str, backend: str) -> None:
    case = plain(1, 6, 3).with_options(cu_seqlens=torch.tensor(cuts, dtype=torch.int32))
    with pytest.raises(ValueError, match=message):
        case.run(backend)


def test_the_automatic_choice_is_explained() -> None:
    choice = explain(torch.zeros(1))
    assert (choice.name, choice.slow) == ("cpu", False)
    assert explain(torch.zeros(1), torch.zeros(1, dtype=torch.bfloat16), None).name == "cpu"
    assert explain(torch.zeros(1, dtype=torch.float16)).name == "cpu"
    slow = explain(torch.zeros(1, dtype=torch.float64))
    assert (slow.name, slow.slow) == ("reference", True)
    assert "float64" in str(slow)
    with use_backend("reference"):
        assert str(explain(torch.zeros(1))) == "reference: asked for by use_backend"
    assert explain(torch.zeros(1)).name == "cpu"


def test_a_request_that_cannot_be_met_says_what_is_missing() -> None:
    case = plain_scan(1, 6, 3)
    with pytest.raises(ValueError, match="'triton' was asked for, but its kernels run on cuda and a tensor lies on"):
        case.run("triton")
    with pytest.raises(ValueError, match=r"'cpu' was asked for, but .* float32 and bfloat16, .*float64"):
        case.in_float64().run("cpu")
    with pytest.raises(ValueError, match="backend must be one of reference, cpu, triton, auto, portable, got 'cuda'"):
        case.run("cuda")


def test_a_slow_fallback_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_warned", set())
    case = plain_scan(1, 6, 3).in_float64()
    with pytest.warns(SlowBackendWarning, match="slow step-by-step reference: .*float64"):
        case.run("auto")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        case.run("auto")
        case.run("reference")


def test_a_request_holds_in_its_own_thread_only() -> None:
    names = []
    with use_backend("reference"):
        thread = threading.Thread(target=lambda: names.append(explain(torch.zeros(1)).name))
        thread.start()
        thread.join()
    assert names == ["cpu"]


@pytest.mark.parametrize("plain", [plain_scan, plain_convolution])
def test_float16_is_float32_inside(plain) -> None:
    case, ones = plain(2, 6, 3), torch.ones(2, 6, 3)
    short = case.with_inputs(**{name: tensor.half() for name, tensor in case.inputs.items()})
    widened = case.with_inputs(**{name: tensor.float() for name, tensor in short.inputs.items()})
    found = short.run_with_gradients(ones, "auto")
    expected = {name: tensor.half() for name, tensor in widened.run_with_gradients(ones, "auto").items()}
    assert torch.equal(found.pop("output"), expected.pop("output"))
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-4)


def test_an_operator_without_a_kernel_on_the_device_says_so() -> None:
    query = torch.zeros(1, 4, 64)
    with use_backend("triton"), pytest.raises(ValueError, match="'triton' was asked for, but it lacks this operator"):
        softmax_attention(query, query, query, 2)


def test_tensors_on_a_gpu_get_the_gpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_gpu(dtype: torch.dtype) -> SimpleNamespace:
        return SimpleNamespace(device=torch.device("cuda", 0), dtype=dtype, is_floating_point=lambda: True)

    monkeypatch.setattr(backends, "_is_installed", lambda module: True)
    assert backends.choose("auto", on_gpu(torch.bfloat16)).name == "triton"
    assert backends.choose("auto", on_gpu(torch.bfloat16), among=("reference", "cpu")).name == "reference"
    choice = backends.choose("auto", on_gpu(torch.float64))
    assert (choice.name, choice.slow) == ("reference", True)
    monkeypatch.setattr(backends, "_is_installed", lambda module: module != "triton")
    told = "triton, which compiles the kernels, is not installed"
    assert told in backends.choose("auto", on_gpu(torch.float32)).reason
