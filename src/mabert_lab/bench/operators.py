"""The two operators beside what one would use without them, on the same tensors, in one run.

Rivals are the real code of the installed packages: the sequential scan of transformers' Mamba and the parallel scan of
mamba.py, and torch's own convolution with the transposes it needs. Where a C++ compiler is installed, the scan as a
plain C++ loop runs beside them. Rounds interleave the sides, so that whatever else the machine does falls on all of
them alike. Nothing is timed unless the operators agree with the reference here.
"""

import functools
import gc
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor
from torch.nn.functional import conv1d, silu, softplus

from mabert.ops import depthwise_conv1d, explain, selective_scan, use_backend
from mabert.ops.library import scan_op
from mabert.rounds import Spread, timed
from mabert_lab.bench import native
from mabert_lab.bench.results import measured_on, write

CHANNELS, STATE, WIDTH = 1536, 16, 4
_SCAN_INPUTS = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")
_SLOW = ("transformers", "mamba.py")
_REPETITIONS = 5  # of a fast side, for one call of a slow one

Call = Callable[..., Tensor]


@dataclass(frozen=True)
class Row:
    """One side's times for one task; all times in milliseconds."""

    operator: str
    side: str
    dtype: str
    time: int
    task: str
    median_ms: float
    fastest_ms: float
    slowest_ms: float
    samples: int
    updates_per_second: float | None


def run(quick: bool = False, output: Path | None = None) -> dict[str, Any]:
    """Measure both operators, print tables, and return (and write) what was measured.

    Args:
        quick: Few rounds and short sequences, to see that everything runs; its numbers are not worth quoting.
        output: Folder for the dated JSON file, made where it is missing; None writes nothing.

    Returns:
        ``environment``, ``rows`` (one for each operator, side, dtype, length and task), ``ratios`` (how many times
        faster than each rival, medians over medians), ``backward`` (how many times a forward the backward alone takes),
        ``memory`` (bytes the scan saves for its backward beside the bytes of every state) and ``agreement`` (largest
        difference to each rival's output, as a share of its largest number).

    Raises:
        RuntimeError: An operator disagrees with the reference on this machine; nothing was timed.
        ModuleNotFoundError: mamba.py is not installed, of mabert's extra lab.
    """
    import_module("mambapy")  # before anything is timed
    refuse_unless_correct()
    console = Console()
    rows: list[Row] = []
    agreement: dict[str, float] = {}
    plan = _plan(quick)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("operators", total=len(plan))
        for operator, dtype, length, slow_rivals, rounds in plan:
            progress.update(task, description=f"{operator}, {_name(dtype)}, {length} steps")
            inputs = scan_inputs(length, dtype) if operator == "selective_scan" else conv_inputs(length, dtype)
            sides = _sides(operator, dtype, slow_rivals)
            agreement |= _agreement(operator, dtype, length, sides, inputs)
            rows += _measure(operator, dtype, length, sides, inputs, rounds)
            progress.advance(task)
    memory = [_memory(length) for length in ((512,) if quick else (512, 4096, 16384))]
    result = {
        "environment": _environment(),
        "quick": quick,
        "rows": [asdict(row) for row in rows],
        "ratios": _ratios(rows),
        "backward": _backward(rows),
        "memory": memory,
        "agreement": agreement,
    }
    _show(console, rows, result)
    if output is not None:
        console.print(f"written to {write(result, output, 'operators')}")
    return result


def _plan(quick: bool) -> list[tuple[str, torch.dtype, int, bool, int]]:
    """List what is measured: operator, dtype, steps, whether beside the slow rivals, rounds."""
    f32, bf16 = torch.float32, torch.bfloat16
    if quick:
        return [("selective_scan", f32, 16, True, 1), ("depthwise_conv1d", f32, 128, True, 1)]
    lengths = [(dtype, length) for dtype in (f32, bf16) for length in (128, 512, 2048, 4096, 16384)]
    scans = [("selective_scan", dtype, length, (dtype, length) == (f32, 512), 3) for dtype, length in lengths]
    convolutions = [("depthwise_conv1d", dtype, length, True, 5) for dtype in (f32, bf16) for length in (512, 4096)]
    return scans + convolutions


def refuse_unless_correct(device: str = "cpu") -> None:
    """Holds both operators, forward and backward, against the reference in float64.

    Raises:
        RuntimeError: One is wrong on this machine.
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
    """Make tensors as a Mamba layer has them at initialisation: A = -(1..state), step sizes from 0.001 to 0.1."""
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


def _agreement(
    operator: str, dtype: torch.dtype, length: int, sides: dict[str, Call], inputs: dict[str, Tensor]
) -> dict[str, float]:
    with torch.no_grad():
        outputs = {side: function(**inputs).float() for side, function in sides.items()}
    ours = outputs.pop("mabert")
    return {
        f"{operator}, {_name(dtype)}, {length}, {side}": ((theirs - ours).abs().max() / theirs.abs().max()).item()
        for side, theirs in outputs.items()
    }


def _measure(
    operator: str, dtype: torch.dtype, length: int, sides: dict[str, Call], inputs: dict[str, Tensor], rounds: int
) -> list[Row]:
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    grad = torch.ones_like(inputs["u"])
    tasks: dict[tuple[str, str], Callable[[], object]] = {}
    for side, function in sides.items():
        tasks[side, "forward"] = functools.partial(torch.no_grad()(function), **inputs)
        if side != "C++":
            tasks[side, "forward+backward"] = functools.partial(_differentiate, function, leaves, grad)
    for (side, _), task in tasks.items():
        if side not in _SLOW:
            task()  # the first call of a fast side compiles or warms
    gc.collect()
    samples: dict[tuple[str, str], list[float]] = {key: [] for key in tasks}
    for _ in range(rounds):
        for repetition in range(_REPETITIONS):
            for (side, name), task in tasks.items():
                if repetition == 0 or side not in _SLOW:
                    samples[side, name].append(timed(task))
    return [_row(operator, side, dtype, length, task, seconds) for (side, task), seconds in samples.items()]


def _differentiate(function: Call, leaves: dict[str, Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(function(**leaves), list(leaves.values()), grad)


def _row(operator: str, side: str, dtype: torch.dtype, length: int, task: str, seconds: list[float]) -> Row:
    spread = Spread.of(seconds)
    is_scan = operator == "selective_scan" and task == "forward"
    updates = 1e3 * length * CHANNELS * STATE / spread.median_ms if is_scan else None
    return Row(operator, side, _name(dtype), length, task, **asdict(spread), updates_per_second=updates)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _ratios(rows: list[Row]) -> dict[str, float]:
    """Divide each rival's median by ours."""
    ours = {(row.operator, row.dtype, row.time, row.task): row.median_ms for row in rows if row.side == "mabert"}
    return {
        f"{row.operator}, {row.dtype}, {row.time}, {row.task}: {row.side} / mabert": row.median_ms
        / ours[row.operator, row.dtype, row.time, row.task]
        for row in rows
        if row.side != "mabert"
    }


def _backward(rows: list[Row]) -> dict[str, float]:
    """Divide the time our backward alone takes, forward+backward less forward, by the forward's."""
    ours = {(row.operator, row.dtype, row.time, row.task): row.median_ms for row in rows if row.side == "mabert"}
    return {
        f"{operator}, {dtype}, {time}": ours[operator, dtype, time, "forward+backward"] / milliseconds - 1
        for (operator, dtype, time, task), milliseconds in ours.items()
        if task == "forward"
    }


def _memory(length: int) -> dict[str, float]:
    """Compare what the scan holds for its backward, beside inputs and gradients, with every state in float32."""
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


def _environment() -> dict[str, Any]:
    return {
        **measured_on(),
        "backend": str(explain(torch.zeros(1))),
        "mambapy": metadata.version("mambapy"),
    }


def _three_digits(number: float) -> str:
    return f"{number:,.{max(0, 2 - math.floor(math.log10(number)))}f}"


def _remark(row: Row, backward: float) -> str:
    if row.updates_per_second:
        return f"{row.updates_per_second / 1e9:.2f} G/s"
    if row.side == "mabert" and row.task != "forward":
        return f"bwd {backward:.1f}x"
    return ""


def _show(console: Console, rows: list[Row], result: dict[str, Any]) -> None:
    for operator in dict.fromkeys(row.operator for row in rows):
        threads = result["environment"]["threads"]
        title = f"{operator}, batch 1, {CHANNELS} channels, {threads} thread{'s' * (threads > 1)}"
        table = Table(
            title=title,
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 1, 0, 0),
            caption="ratio: its time over mabert's",
        )
        for column in ("dtype", "steps", "task", "side"):
            table.add_column(column, no_wrap=True)
        for column in ("ms", "range", "ratio", ""):
            table.add_column(column, justify="right", no_wrap=True)
        for row in sorted((row for row in rows if row.operator == operator), key=lambda row: (row.dtype, row.time)):
            cell = f"{row.operator}, {row.dtype}, {row.time}"
            ratio = result["ratios"].get(f"{cell}, {row.task}: {row.side} / mabert")
            table.add_row(
                {"float32": "fp32", "bfloat16": "bf16"}[row.dtype],
                f"{row.time:,}",
                {"forward": "fwd", "forward+backward": "fwd+bwd"}[row.task],
                row.side,
                _three_digits(row.median_ms),
                f"{_three_digits(row.fastest_ms)}-{_three_digits(row.slowest_ms)}",
                f"{_three_digits(ratio)}x" if ratio else "",
                _remark(row, result["backward"][cell]),
            )
        console.print(table)
    if native.missing():
        console.print(f"without the C++ loop: {native.missing()}")
    for memory in result["memory"]:
        console.print(
            f"{memory['time']} steps: {memory['saved_bytes'] / 2**20:,.1f} MiB saved, "
            f"{memory['backward_bytes'] / 2**20:,.1f} MiB in the backward: {memory['share']:.2%} of every state's "
            f"{memory['every_state_bytes'] / 2**20:,.0f} MiB"
        )
