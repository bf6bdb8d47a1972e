"""The two operators on a GPU, against the least time the chip could take and against mamba-ssm's CUDA scan.

A floor is the larger of two: bytes over the measured copy rate (each input read once, each output written once), and
for the scan, exponentials over the measured rate of the special-function units (one for each state of each step, in
the forward and again in the backward).
"""

import functools
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from mabert.ops import depthwise_conv1d, selective_scan
from mabert_lab.bench.gpu.clock import copy_rate, interleave, peak_bytes
from mabert_lab.bench.gpu.pieces import Pieces, in_a_line
from mabert_lab.bench.operators import CHANNELS, STATE, conv_inputs, scan_inputs

SHAPES = ((32, 512), (8, 4096), (1, 4096), (1, 65536))
DTYPES = (torch.bfloat16, torch.float32)
TASKS = ("forward", "forward+backward")
Call = Callable[..., Tensor]
OPERATORS: dict[str, Call] = {"selective_scan": selective_scan, "depthwise_conv1d": depthwise_conv1d}


def measure(pieces: Pieces) -> dict[str, Any]:
    """Time both operators, forward and forward + backward, at every shape.

    Args:
        pieces: Keeps each combination's times.

    Returns:
        ``limits`` (bytes and exponentials a second) and ``rows``: operator, side, dtype, batch, time, task, the times,
        ``floor_ms``, ``floor_share`` (floor over median), achieved ``bytes_per_second`` and
        ``exponentials_per_second``, and ``peak_bytes``; or after operator, side, dtype, batch, time and task, the
        ``error``. A limit that could not be measured is left out of the floor; without both there is none.
    """
    version = _cuda_scan_version()
    rates: dict[str, Callable[[], float]] = {
        "bytes_per_second": copy_rate,
        "exponentials_per_second": _exponential_rate,
    }
    combinations = {
        f"{operator}, {_name(dtype)}, {batch} x {time}, {task}": (operator, dtype, batch, time, task)
        for dtype in DTYPES
        for batch, time in SHAPES
        for operator in OPERATORS
        for task in TASKS
    }
    measured = pieces.measure(
        {
            **rates,
            **{name: functools.partial(_rows, *how, version is not None) for name, how in combinations.items()},
        },
        _wrong,
    )
    limits = {name: measured[name] for name in rates if name in measured}
    rows: list[dict[str, Any]] = []
    for name, how in combinations.items():
        if name in measured:
            rows += [_against_limits(row, limits) for row in measured[name]]
        else:
            rows.append({**_what(*how), "side": "mabert", "error": pieces.errors.get(name)})
    return {"limits": limits, "rows": rows, "cuda_scan": version}


def _wrong(result: Any) -> str | None:
    """The first error among a combination's rows."""
    rows = result if isinstance(result, list) else []
    return next((f"{row['side']}: {row['error']}" for row in rows if "error" in row), None)


def _exponential_rate() -> float:
    from mabert.ops.triton.limits import exponential_rate

    return exponential_rate(torch.device("cuda"))


def _what(operator: str, dtype: torch.dtype, batch: int, time: int, task: str) -> dict[str, Any]:
    return {"operator": operator, "dtype": _name(dtype), "batch": batch, "time": time, "task": task}


def _rows(
    operator: str, dtype: torch.dtype, batch: int, time: int, task: str, beside_cuda_scan: bool
) -> list[dict[str, Any]]:
    """Time the sides of one combination: times, ``work`` in bytes and exponentials, peak. A rival that fails has its
    error instead."""
    what, inputs = _what(operator, dtype, batch, time, task), _inputs(operator, dtype, batch, time)
    calls = {"mabert": _call(OPERATORS[operator], inputs, task)}
    rows: list[dict[str, Any]] = []
    if operator == "selective_scan" and beside_cuda_scan:
        rival = _call(_cuda_scan, _channels_first(inputs), task)
        try:
            rival()
            torch.cuda.synchronize()
            calls["mamba-ssm"] = rival
        except Exception as error:
            rows.append({**what, "side": "mamba-ssm", "error": in_a_line(error)})
    work = _work(operator, inputs, task)
    for side, spread in interleave(calls, queued=True).items():
        peak = peak_bytes(calls[side])
        rows.append({**what, "side": side, **asdict(spread), "work": work, "peak_bytes": peak})
    return rows


@functools.lru_cache(maxsize=1)
def _inputs(operator: str, dtype: torch.dtype, batch: int, time: int) -> dict[str, Tensor]:
    """The inputs on the GPU; the last ones serve both tasks."""
    made = scan_inputs(time, dtype) if operator == "selective_scan" else conv_inputs(time, dtype)
    return {
        name: tensor.cuda().expand(batch, -1, -1).contiguous() if tensor.dim() == 3 else tensor.cuda()
        for name, tensor in made.items()
    }


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _call(function: Call, inputs: dict[str, Tensor], task: str) -> Callable[[], object]:
    if task == "forward":
        return functools.partial(torch.no_grad()(function), **inputs)
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    grad = torch.ones_like(inputs["u"])
    return lambda: torch.autograd.grad(function(**leaves), list(leaves.values()), grad)


def _work(operator: str, inputs: dict[str, Tensor], task: str) -> dict[str, float]:
    """Count the bytes and exponentials that a task cannot do without."""
    u = inputs["u"]
    read = sum(tensor.nbytes for tensor in inputs.values())
    bytes_, exponentials = read + u.nbytes, 2.0 * u.numel()
    if operator == "selective_scan":
        exponentials = float(u.shape[0] * u.shape[1] * CHANNELS * STATE)
    if task == "forward+backward":
        bytes_ += 2 * read + u.nbytes
        exponentials *= 2
    return {"bytes": bytes_, "exponentials": exponentials}


def _against_limits(row: dict[str, Any], limits: dict[str, float]) -> dict[str, Any]:
    """A row with its work as rates, and against the least time of it."""
    if "error" in row:
        return row
    amounts = row["work"]
    rates = {f"{what}_per_second": amount / (1e-3 * row["median_ms"]) for what, amount in amounts.items()}
    least = [
        amount / limits[f"{what}_per_second"] for what, amount in amounts.items() if f"{what}_per_second" in limits
    ]
    floor = 1e3 * max(least) if least else None
    against = {"floor_ms": floor, "floor_share": None if floor is None else floor / row["median_ms"], **rates}
    return {**{name: value for name, value in row.items() if name != "work"}, **against}


def _channels_first(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Turn inputs to the layout that mamba-ssm wants, so that its time is without its copies of ours."""
    return {
        name: tensor.transpose(1, 2).contiguous() if tensor.dim() == 3 else tensor for name, tensor in inputs.items()
    }


def _cuda_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, delta_bias: Tensor
) -> Tensor:
    """Run mamba-ssm's scan on its own layout; it has no convolution of its own."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    return selective_scan_fn(u, delta, A, B, C, D, z, delta_bias, delta_softplus=True)


def _cuda_scan_version() -> str | None:
    """mamba-ssm's version; None where it is not there, was installed without its CUDA scan, as it is by default, or was
    built for another torch."""
    try:
        import mamba_ssm.ops.selective_scan_interface
        import selective_scan_cuda  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError:
        return None
    except Exception as error:  # of a library that does not fit, any
        sys.stdout.write(f"mamba-ssm is left out: {in_a_line(error)}\n")
        return None
    return str(mamba_ssm.__version__)
