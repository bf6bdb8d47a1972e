"""The two operators on a GPU, against the least time the chip could take and against mamba-ssm's CUDA scan.

A floor is the larger of two: bytes over the measured copy rate (each input read once, each output written once), and
for the scan, exponentials over the measured rate of the special-function units (one for each state of each step, in
the forward and again in the backward).
"""

import functools
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from mabert.bench.gpu.clock import copy_rate, interleave, peak_bytes
from mabert.bench.operators import CHANNELS, STATE, conv_inputs, scan_inputs
from mabert.ops import depthwise_conv1d, selective_scan

SHAPES = ((32, 512), (8, 4096), (1, 4096), (1, 65536))
DTYPES = (torch.bfloat16, torch.float32)
Call = Callable[..., Tensor]


def measure() -> dict[str, Any]:
    """Time both operators, forward and forward + backward, at every shape.

    Returns:
        ``limits`` (bytes and exponentials a second) and ``rows``: operator, side, dtype, batch, time, task, the times,
        ``floor_ms``, ``floor_share`` (floor over median), achieved ``bytes_per_second`` and
        ``exponentials_per_second``, and ``peak_bytes``.
    """
    from mabert.ops.triton.limits import exponential_rate

    limits = {"bytes_per_second": copy_rate(), "exponentials_per_second": exponential_rate(torch.device("cuda"))}
    rows = []
    for dtype in DTYPES:
        for batch, time in SHAPES:
            for operator, (function, inputs) in _tasks(batch, time, dtype).items():
                sides = {"mabert": (function, inputs)}
                if operator == "selective_scan" and _cuda_scan_version() is not None:
                    sides["mamba-ssm"] = (_cuda_scan, _channels_first(inputs))
                for task in ("forward", "forward+backward"):
                    spreads = interleave({side: _call(*call, task) for side, call in sides.items()}, queued=True)
                    for side, spread in spreads.items():
                        work = _work(operator, inputs, task)
                        peak = peak_bytes(_call(*sides[side], task))
                        rows.append(
                            {
                                "operator": operator,
                                "side": side,
                                "dtype": str(dtype).removeprefix("torch."),
                                "batch": batch,
                                "time": time,
                                "task": task,
                                **asdict(spread),
                                **_against_floor(work, limits, spread.median_ms),
                                "peak_bytes": peak,
                            }
                        )
    return {"limits": limits, "rows": rows, "cuda_scan": _cuda_scan_version()}


def _tasks(batch: int, time: int, dtype: torch.dtype) -> dict[str, tuple[Call, dict[str, Tensor]]]:
    def on_gpu(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: tensor.cuda().expand(batch, -1, -1).contiguous() if tensor.dim() == 3 else tensor.cuda()
            for name, tensor in inputs.items()
        }

    return {
        "selective_scan": (selective_scan, on_gpu(scan_inputs(time, dtype))),
        "depthwise_conv1d": (depthwise_conv1d, on_gpu(conv_inputs(time, dtype))),
    }


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


def _against_floor(work: dict[str, float], limits: dict[str, float], milliseconds: float) -> dict[str, float]:
    seconds = 1e-3 * milliseconds
    rates = {f"{what}_per_second": amount / seconds for what, amount in work.items()}
    floor = 1e3 * max(amount / limits[f"{what}_per_second"] for what, amount in work.items())
    return {"floor_ms": floor, "floor_share": floor / milliseconds, **rates}


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
    """mamba-ssm's version; None where it is not there, or was installed without its CUDA scan, as it is by default."""
    try:
        import mamba_ssm.ops.selective_scan_interface
        import selective_scan_cuda  # noqa: F401
    except ImportError:
        return None
    return str(mamba_ssm.__version__)
