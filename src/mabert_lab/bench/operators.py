"""Compares the two operators with their alternatives on the same tensors, in one run.

The rivals are code of installed packages: the sequential scan of transformers' Mamba, the parallel scan of mamba.py,
and torch's convolution with the transposes it needs. On a GPU the scan's rival is mamba-ssm's, where its kernels are
built. Nothing is timed unless the operators agree with the reference on this machine.
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.nn.functional import conv1d, silu, softplus

from mabert.machine.rounds import Spread, interleave, timed
from mabert.ops import depthwise_conv1d, explain, selective_scan, use_backend
from mabert_lab.bench.results import measured_on, place_of, record, table, times_of
from mabert_lab.bench.tables import digits

CHANNELS, STATE, WIDTH = 1536, 16, 4
_SCAN_INPUTS = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")
PASSES = ("forward", "forward+backward")
LEAST, MOST, BUDGET = 3, 25, 5.0  # least and most rounds of the calls that take turns, and seconds for each call
GPU_SHAPES, GPU_BUDGET = ((32, 512), (8, 4096), (1, 65536)), 0.5  # rows and steps on a GPU, and seconds for each call
SAMPLE = 0.01  # seconds of a GPU's sample, so that waiting for it counts little: as many calls as that takes
WRONG = {torch.float32: 1e-5, torch.bfloat16: 2**-7}  # shares of the largest number that refuse a timing

Call = Callable[..., Tensor]


def run(quick: bool = False, output: Path | None = None, device: str = "cpu", resume: bool = False) -> dict[str, Any]:
    """Measures both operators; see `mabert_lab.bench.results`.

    The result's ``rows`` have the ``ratio`` of a median to mabert's, and of ``backward`` alone to the forward pass;
    on a GPU also ``peak_mib`` beyond the inputs. ``agreement`` is the largest difference from each rival's output,
    relative to its largest value.

    Raises RuntimeError if an operator disagrees with the reference on this machine, and ModuleNotFoundError on a CPU
    without mamba.py, which the extra lab brings; nothing is timed then.
    """
    on_gpu = device == "cuda"
    environment = {**measured_on(), "backend": str(explain(torch.zeros(1, device=device)))}
    if not on_gpu:
        import_module("mambapy")  # fail before anything is timed
        environment["mambapy"] = metadata.version("mambapy")
    refuse_unless_correct(device)
    result: dict[str, Any] = {"environment": environment, "quick": quick, "device": device, "rows": []}
    result["agreement"] = {}

    def job(cell: str, operator: str, dtype: torch.dtype, batch: int, length: int) -> None:
        inputs = scan_inputs(length, dtype) if operator == "selective_scan" else conv_inputs(length, dtype)
        inputs = _laid_out(inputs, batch, device)
        sides = _sides(operator, dtype, length, device)
        result["agreement"] |= {f"{cell}, {side}": share for side, share in _agreement(sides, inputs).items()}
        calls = _calls(sides, inputs)
        budget = 0.0 if quick else (GPU_BUDGET if on_gpu else BUDGET) * len(calls)
        time_all = _on_gpu if on_gpu else interleave
        found = time_all(calls, least=1 if quick else LEAST, most=MOST, budget=budget)
        for (side, task), spread in found.items():
            row = {"operator": operator, "side": side, "dtype": _name(dtype), "batch": batch, "time": length}
            row |= {"task": task, **asdict(spread), "updates_per_second": None}
            row["ratio"] = spread.median_ms / found["mabert", task].median_ms
            if task != "forward":
                row["backward"] = spread.median_ms / found[side, "forward"].median_ms - 1
            elif operator == "selective_scan":
                row["updates_per_second"] = 1e3 * batch * length * CHANNELS * STATE / spread.median_ms
            if on_gpu:
                row["peak_mib"] = _peak(calls[side, task]) / 2**20
            result["rows"].append(row)

    jobs: dict[str, Callable[[], None]] = {}
    for operator, dtype, batch, length in _plan(quick, on_gpu):
        cell = f"{operator}, {_name(dtype)}, {f'{batch} x ' * on_gpu}{length}"
        jobs[f"{cell} steps"] = partial(job, cell, operator, dtype, batch, length)
    return record(result, jobs, show, output, "operators", resume)


def _plan(quick: bool, on_gpu: bool) -> list[tuple[str, torch.dtype, int, int]]:
    """Lists the measurements: operator, dtype, rows and steps."""
    f32, bf16 = torch.float32, torch.bfloat16
    if quick:
        return [("selective_scan", f32, 1, 16), ("depthwise_conv1d", f32, 1, 128)]
    if on_gpu:
        operators = ("selective_scan", "depthwise_conv1d")
        return [(each, dtype, *shape) for dtype in (bf16, f32) for each in operators for shape in GPU_SHAPES]
    scans = product(["selective_scan"], (f32, bf16), [1], (128, 512, 2048, 4096, 16384))
    convolutions = product(["depthwise_conv1d"], (f32, bf16), [1], (512, 4096))
    return [*scans, *convolutions]


def _laid_out(inputs: dict[str, Tensor], batch: int, device: str) -> dict[str, Tensor]:
    """Moves inputs to a device, in as many equal rows as a batch has."""
    there = {name: tensor.to(device) for name, tensor in inputs.items()}
    return _of_steps(there, lambda tensor: tensor.expand(batch, -1, -1).contiguous())


def _of_steps(inputs: dict[str, Tensor], change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Changes those inputs that have a value a step, (batch, time, channel)."""
    return {name: change(tensor) if tensor.dim() == 3 else tensor for name, tensor in inputs.items()}


def _on_gpu(calls: dict[tuple[str, str], Callable[[], object]], **limits: Any) -> dict[tuple[str, str], Spread]:
    """Times calls as `interleave` does, in samples of as many calls as fill `SAMPLE`."""

    def waited(call: Callable[[], object], times: int) -> None:
        for _ in range(times):
            call()
        synchronise("cuda")

    counts = {}
    for side, call in calls.items():
        waited(call, 1)
        counts[side] = max(1, round(SAMPLE / timed(partial(waited, call, 1))))
    found = interleave({side: partial(waited, call, counts[side]) for side, call in calls.items()}, **limits)
    return {
        side: Spread(each.median_ms / n, each.fastest_ms / n, each.slowest_ms / n, each.samples)
        for (side, each), n in zip(found.items(), counts.values(), strict=True)
    }


def _peak(call: Callable[[], object]) -> int:
    """Returns the peak bytes of a call on a GPU beyond what is there already."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated() - before


def refuse_unless_correct(device: str = "cpu") -> None:
    """Compares both operators with their gradients to the reference in float64; RuntimeError if one is wrong here."""
    torch.manual_seed(0)
    for (batch, length), dtype in product(((1, 70), (2, 400)), WRONG):
        for function, make in ((selective_scan, scan_inputs), (depthwise_conv1d, conv_inputs)):
            inputs = _laid_out(make(length, dtype, channels=70), batch, "cpu")
            actual = _with_gradients(function, {name: tensor.to(device) for name, tensor in inputs.items()})
            with use_backend("reference"):
                expected = _with_gradients(function, {name: tensor.double() for name, tensor in inputs.items()})
            for name, tensor in actual.items():
                error = ((tensor.cpu() - expected[name]).abs().max() / expected[name].abs().max()).item()
                if not error < WRONG[tensor.dtype]:
                    raise RuntimeError(
                        f"{function.__name__}: {name} is off by {error:.1e} of its largest number in {_name(dtype)} at "
                        f"{batch} x {length} steps; no timing"
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

    turned = _of_steps(inputs, lambda x: x.mT)
    return mamba_selective_scan(*(turned[name] for name in _SCAN_INPUTS), delta_softplus=True).mT


def _mambapy_scan(**inputs: Tensor) -> Tensor:
    from mambapy.mamba import MambaBlock

    delta = softplus(inputs["delta"] + inputs["delta_bias"])
    order = [inputs[name] for name in ("A", "B", "C", "D")]
    return MambaBlock.selective_scan(None, inputs["u"], delta, *order) * silu(inputs["z"])


def _mamba_ssm_scan(**inputs: Tensor) -> Tensor:
    """Runs mamba-ssm's kernel, whose layout is batch, channel, time; see `_calls`."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    return selective_scan_fn(**_of_steps(inputs, lambda x: x.mT), delta_softplus=True).mT


def _torch_conv(u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    channels, width = weight.shape
    y = conv1d(u.mT, weight.unsqueeze(1), bias, padding=width - 1, groups=channels)
    return silu(y[..., : u.shape[1]]).mT.contiguous()


def _sides(operator: str, dtype: torch.dtype, length: int, device: str) -> dict[str, Call]:
    if operator == "depthwise_conv1d":
        return {"mabert": depthwise_conv1d, "torch": _torch_conv}
    sides: dict[str, Call] = {"mabert": selective_scan}
    if device == "cuda":  # what mamba-ssm's usual installation lacks
        return sides | ({"mamba-ssm": _mamba_ssm_scan} if find_spec("selective_scan_cuda") else {})
    if dtype == torch.float32 and length in (16, 512):  # they are slow
        sides |= {"transformers": _transformers_scan, "mamba.py": _mambapy_scan}
    return sides


def _agreement(sides: dict[str, Call], inputs: dict[str, Tensor]) -> dict[str, float]:
    """Returns the largest difference from each rival's output, relative to its largest value."""
    with torch.no_grad():
        outputs = {side: function(**inputs).float() for side, function in sides.items()}
    ours = outputs.pop("mabert")
    return {side: ((theirs - ours).abs().max() / theirs.abs().max()).item() for side, theirs in outputs.items()}


def _calls(sides: dict[str, Call], inputs: dict[str, Tensor]) -> dict[tuple[str, str], Callable[[], object]]:
    """Returns the timed calls by side and task; mamba-ssm's inputs lie as it takes them, so that it copies nothing."""
    as_taken = _of_steps(inputs, lambda x: x.mT.contiguous().mT) if "mamba-ssm" in sides else {}
    return {
        (side, task): task_of(function, as_taken if side == "mamba-ssm" else inputs, task)
        for side, function in sides.items()
        for task in PASSES
    }


def task_of(function: Call, inputs: dict[str, Tensor], task: str) -> Callable[[], object]:
    """Returns a call of an operator: forward only, or with all gradients."""
    if task == "forward":
        return partial(torch.no_grad()(function), **inputs)
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    grad = torch.ones_like(inputs["u"])
    return lambda: torch.autograd.grad(function(**leaves), list(leaves.values()), grad)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def show(console: Console, result: dict[str, Any]) -> None:
    """Prints a table per operator."""
    for operator in dict.fromkeys(row["operator"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["operator"] == operator]
        rows.sort(key=lambda row: (row["dtype"], row["time"]))
        title = f"{operator}, {CHANNELS} channels, {place_of(result)}"
        heads = ("dtype", "steps", "task", "side"), ("ms", "range", "ratio", "")
        console.print(table(title, *heads, map(_line, rows), "ratio: its time over mabert's"))


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    remark = ""
    if row["updates_per_second"]:
        remark = f"{row['updates_per_second'] / 1e9:.2f} G/s"
    elif row["side"] == "mabert" and row["task"] != "forward":
        remark = f"bwd {row['backward']:.1f}x"
    return (
        {"float32": "fp32", "bfloat16": "bf16"}[row["dtype"]],
        f"{row['batch']} x {row['time']:,}",
        {"forward": "fwd", "forward+backward": "fwd+bwd"}[row["task"]],
        row["side"],
        *times_of(row),
        "" if row["side"] == "mabert" else f"{digits(row['ratio'])}x",
        remark,
    )


def synchronise(device: str) -> None:
    """Waits for a GPU to finish."""
    if device == "cuda":
        torch.cuda.synchronize()
