"""Compares the two operators with their alternatives on the same tensors, in one run.

The rivals are code of installed packages: the sequential scan of transformers' Mamba, the parallel scan of mamba.py,
and torch's convolution with the transposes it needs. If a C++ compiler is installed, the scan also runs as a plain C++
loop. Nothing is timed unless the operators agree with the reference on this machine.
"""

import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.nn.functional import conv1d, silu, softplus

from mabert.machine.rounds import Spread, interleave
from mabert.ops import depthwise_conv1d, explain, selective_scan, use_backend
from mabert.ops.library import scan_op
from mabert_lab.bench import native
from mabert_lab.bench.results import measured_on, record, table

CHANNELS, STATE, WIDTH = 1536, 16, 4
_SCAN_INPUTS = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")
TASKS = ("forward", "forward+backward")
LEAST, MOST, BUDGET = 3, 25, 5.0
"""Rounds of the calls that take turns, at least and at most, and seconds for each call."""

Call = Callable[..., Tensor]


def run(quick: bool = False, output: Path | None = None) -> dict[str, Any]:
    """Measures both operators; see `mabert_lab.bench.results`.

    Returns:
        ``environment``, ``rows`` (one per operator, side, dtype, length and task), ``ratios`` (speed-up over each
        rival, from medians), ``backward`` (time of the backward pass alone over the forward pass), ``memory`` (bytes
        that the scan saves for its backward pass, and bytes of all states) and ``agreement`` (largest difference from
        each rival's output, relative to its largest value).

    Raises:
        RuntimeError: An operator disagrees with the reference on this machine; nothing was timed.
        ModuleNotFoundError: mamba.py, part of mabert's extra lab, is not installed.
    """
    import_module("mambapy")  # fail before anything is timed
    refuse_unless_correct()
    environment = {**measured_on(), "backend": str(explain(torch.zeros(1))), "mambapy": metadata.version("mambapy")}
    memory = [_memory(length) for length in ((512,) if quick else (512, 4096, 16384))]
    result: dict[str, Any] = {"environment": environment, "quick": quick, "memory": memory}
    result |= {"rows": [], "ratios": {}, "backward": {}, "agreement": {}}

    def job(operator: str, dtype: torch.dtype, length: int, slow_rivals: bool) -> None:
        inputs = scan_inputs(length, dtype) if operator == "selective_scan" else conv_inputs(length, dtype)
        sides = _sides(operator, dtype, slow_rivals)
        cell = f"{operator}, {_name(dtype)}, {length}"
        result["agreement"] |= {f"{cell}, {side}": share for side, share in _agreement(sides, inputs).items()}
        calls = _calls(sides, inputs)
        found = interleave(calls, least=1 if quick else LEAST, most=MOST, budget=0.0 if quick else BUDGET * len(calls))
        result["rows"] += [_row(operator, side, dtype, length, task, spread) for (side, task), spread in found.items()]
        ours = {task: found["mabert", task].median_ms for task in TASKS}
        result["backward"][cell] = ours["forward+backward"] / ours["forward"] - 1
        result["ratios"] |= {
            f"{cell}, {task}: {side} / mabert": spread.median_ms / ours[task]
            for (side, task), spread in found.items()
            if side != "mabert"
        }

    jobs = {f"{each[0]}, {_name(each[1])}, {each[2]} steps": partial(job, *each) for each in _plan(quick)}
    return record(result, jobs, show, output, "operators")


def _plan(quick: bool) -> list[tuple[str, torch.dtype, int, bool]]:
    """Lists the measurements: operator, dtype, steps, and whether slow rivals run too."""
    f32, bf16 = torch.float32, torch.bfloat16
    if quick:
        return [("selective_scan", f32, 16, True), ("depthwise_conv1d", f32, 128, True)]
    lengths = [(dtype, length) for dtype in (f32, bf16) for length in (128, 512, 2048, 4096, 16384)]
    scans = [("selective_scan", dtype, length, (dtype, length) == (f32, 512)) for dtype, length in lengths]
    convolutions = [("depthwise_conv1d", dtype, length, True) for dtype in (f32, bf16) for length in (512, 4096)]
    return scans + convolutions


def refuse_unless_correct(device: str = "cpu") -> None:
    """Compares both operators, forward and backward, with the reference in float64.

    Raises:
        RuntimeError: An operator is wrong on this machine.
    """
    torch.manual_seed(0)
    for function, inputs in (
        (selective_scan, scan_inputs(70, torch.float32, channels=70)),
        (depthwise_conv1d, conv_inputs(70, torch.float32, channels=70)),
    ):
        actual = _with_gradients(function, {name: tensor.to(device) for name, tensor in inputs.items()})
        with use_backend("reference"):
            expected = _with_gradients(function, {name: tensor.double() for name, tensor in inputs.items()})
        for name, tensor in actual.items():
            error = ((tensor.cpu() - expected[name]).abs().max() / expected[name].abs().max()).item()
            if not error < 1e-5:
                raise RuntimeError(
                    f"{function.__name__}: {name} is off by {error:.1e} of its largest number; no timing"
                )


def _with_gradients(function: Call, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    y = function(**leaves)
    gradients = torch.autograd.grad(y, list(leaves.values()), torch.ones_like(y))
    return {"output": y.detach(), **dict(zip(leaves, gradients, strict=True))}


def scan_inputs(length: int, dtype: torch.dtype, channels: int = CHANNELS) -> dict[str, Tensor]:
    """Makes tensors like those of a newly initialised Mamba layer: A = -(1..state), step sizes from 0.001 to 0.1."""
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    step = torch.exp(torch.empty(channels).uniform_(-6.9, -2.3, generator=generator))
    return {
        "u": normal(1, length, channels).to(dtype),
        "delta": (0.1 * normal(1, length, channels)).to(dtype),
        "A": -torch.arange(1, STATE + 1).float().repeat(channels, 1),
        "B": normal(1, length, STATE).to(dtype),
        "C": normal(1, length, STATE).to(dtype),
        "D": torch.ones(channels),
        "z": normal(1, length, channels).to(dtype),
        "delta_bias": step + torch.log(-torch.expm1(-step)),
    }


def conv_inputs(length: int, dtype: torch.dtype, channels: int = CHANNELS) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "u": torch.randn(1, length, channels, generator=generator).to(dtype),
        "weight": torch.randn(channels, WIDTH, generator=generator).to(dtype) / WIDTH,
        "bias": torch.randn(channels, generator=generator).to(dtype),
    }


def _transformers_scan(**inputs: Tensor) -> Tensor:
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    turned = {name: tensor.transpose(1, 2) if tensor.dim() == 3 else tensor for name, tensor in inputs.items()}
    order = [turned[name] for name in _SCAN_INPUTS]
    return mamba_selective_scan(*order, delta_softplus=True).transpose(1, 2)


def _mambapy_scan(**inputs: Tensor) -> Tensor:
    from mambapy.mamba import MambaBlock

    delta = softplus(inputs["delta"] + inputs["delta_bias"])
    order = [inputs[name] for name in ("A", "B", "C", "D")]
    return MambaBlock.selective_scan(None, inputs["u"], delta, *order) * silu(inputs["z"])


def _torch_conv(u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    channels, width = weight.shape
    y = conv1d(u.transpose(1, 2), weight.unsqueeze(1), bias, padding=width - 1, groups=channels)
    return silu(y[..., : u.shape[1]]).transpose(1, 2).contiguous()


def _sides(operator: str, dtype: torch.dtype, slow_rivals: bool) -> dict[str, Call]:
    if operator == "depthwise_conv1d":
        return {"mabert": depthwise_conv1d, "torch": _torch_conv}
    sides: dict[str, Call] = {"mabert": selective_scan}
    if dtype == torch.float32 and not native.missing():
        sides["C++"] = native.scan
    if slow_rivals:
        sides |= {"transformers": _transformers_scan, "mamba.py": _mambapy_scan}
    return sides


def _agreement(sides: dict[str, Call], inputs: dict[str, Tensor]) -> dict[str, float]:
    """Returns the largest difference from each rival's output, relative to its largest value."""
    with torch.no_grad():
        outputs = {side: function(**inputs).float() for side, function in sides.items()}
    ours = outputs.pop("mabert")
    return {side: ((theirs - ours).abs().max() / theirs.abs().max()).item() for side, theirs in outputs.items()}


def _calls(sides: dict[str, Call], inputs: dict[str, Tensor]) -> dict[tuple[str, str], Callable[[], object]]:
    """Returns the timed calls by side and task; the C++ loop has no backward pass."""
    return {
        (side, task): task_of(function, inputs, task)
        for side, function in sides.items()
        for task in (TASKS[:1] if side == "C++" else TASKS)
    }


def task_of(function: Call, inputs: dict[str, Tensor], task: str) -> Callable[[], object]:
    """Returns a call of an operator: forward only, or with all gradients."""
    if task == "forward":
        return partial(torch.no_grad()(function), **inputs)
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    grad = torch.ones_like(inputs["u"])
    return lambda: torch.autograd.grad(function(**leaves), list(leaves.values()), grad)


def _row(operator: str, side: str, dtype: torch.dtype, length: int, task: str, spread: Spread) -> dict[str, Any]:
    is_scan = operator == "selective_scan" and task == "forward"
    updates = 1e3 * length * CHANNELS * STATE / spread.median_ms if is_scan else None
    what = {"operator": operator, "side": side, "dtype": _name(dtype), "time": length, "task": task}
    return {**what, **asdict(spread), "updates_per_second": updates}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _memory(length: int) -> dict[str, float]:
    """Compares the bytes held for the scan's backward pass, without inputs and gradients, with all float32 states."""
    from mabert.ops.cpu.scan_backward import working_bytes

    inputs = scan_inputs(length, torch.float32)
    tensors = [inputs[name] for name in _SCAN_INPUTS]
    _, states = scan_op(*tensors, None, None, True, False, True, "cpu")
    every_state = 4 * inputs["u"].numel() * STATE
    backward = working_bytes(inputs["u"], inputs["A"])
    return {
        "time": length,
        "saved_bytes": states.nbytes,
        "backward_bytes": backward,
        "every_state_bytes": every_state,
        "share": (states.nbytes + backward) / every_state,
    }


def show(console: Console, result: dict[str, Any]) -> None:
    """Prints a table per operator, and the memory of the scan's backward pass."""
    threads = result["environment"]["threads"]
    for operator in dict.fromkeys(row["operator"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["operator"] == operator]
        rows.sort(key=lambda row: (row["dtype"], row["time"]))
        title = f"{operator}, batch 1, {CHANNELS} channels, {threads} thread{'s' * (threads > 1)}"
        heads = ("dtype", "steps", "task", "side"), ("ms", "range", "ratio", "")
        lines = [_line(row, result) for row in rows]
        console.print(table(title, *heads, lines, "ratio: its time over mabert's"))
    if native.missing():
        console.print(f"without the C++ loop: {native.missing()}")
    for memory in result["memory"]:
        console.print(
            f"{memory['time']} steps: {memory['saved_bytes'] / 2**20:,.1f} MiB saved, "
            f"{memory['backward_bytes'] / 2**20:,.1f} MiB in the backward: {memory['share']:.2%} of every state's "
            f"{memory['every_state_bytes'] / 2**20:,.0f} MiB"
        )


def _line(row: dict[str, Any], result: dict[str, Any]) -> tuple[str, ...]:
    cell = f"{row['operator']}, {row['dtype']}, {row['time']}"
    ratio = result["ratios"].get(f"{cell}, {row['task']}: {row['side']} / mabert")
    remark = ""
    if row["updates_per_second"]:
        remark = f"{row['updates_per_second'] / 1e9:.2f} G/s"
    elif row["side"] == "mabert" and row["task"] != "forward":
        remark = f"bwd {result['backward'][cell]:.1f}x"
    return (
        {"float32": "fp32", "bfloat16": "bf16"}[row["dtype"]],
        f"{row['time']:,}",
        {"forward": "fwd", "forward+backward": "fwd+bwd"}[row["task"]],
        row["side"],
        _three_digits(row["median_ms"]),
        f"{_three_digits(row['fastest_ms'])}-{_three_digits(row['slowest_ms'])}",
        f"{_three_digits(ratio)}x" if ratio else "",
        remark,
    )


def _three_digits(number: float) -> str:
    return f"{number:,.{max(0, 2 - math.floor(math.log10(number)))}f}"
