"""Elementary functions on a GPU, built on its hardware powers of two, and how many of these it computes a second: the
scan needs one for every state of every step."""

import torch
import triton
import triton.language as tl

from mabert.ops.triton.launch import launch

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def sigmoid(x):
    """Returns 1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + tl.exp2(-x * LOG2_E))


@triton.jit
def softplus(x):
    """Returns log(1 + exp(x)), as max(x, 0) + log1p(exp(-|x|)).

    Adding small e to 1 loses digits of e, so a series is used there; at its end, e = 1/16, the next term adds 5e-9.
    """
    e = tl.exp2(-tl.abs(x) * LOG2_E)
    series = e * (1 - e * (0.5 - e * (1 / 3 - e * (0.25 - e * (0.2 - e * (1 / 6))))))
    return tl.where(e < 0.0625, series, tl.log2(1.0 + e) * LN_2) + tl.maximum(x, 0.0)


_CHAINS, _ROUNDS, _PROGRAMS_A_PROCESSOR, _TRIES = 1024, 4096, 16, 5


@triton.jit
def _chains(target, ROUNDS: tl.constexpr, WIDTH: tl.constexpr):
    """Chains powers of two in registers, eight chains per thread."""
    lane = tl.arange(0, WIDTH)
    x = lane.to(tl.float32) / WIDTH
    for _ in range(ROUNDS):
        x = tl.exp2(-x)
    tl.store(target + tl.program_id(0) * WIDTH + lane, x)


def exponential_rate(device: torch.device) -> float:
    """Measures exponentials per second, the best of a few tries, without memory access."""
    programs = _PROGRAMS_A_PROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count
    times = []
    with torch.cuda.device(device):  # events belong to the current device
        target = torch.empty(programs * _CHAINS, device=device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(_TRIES):
            start.record()
            launch(_chains, programs, target, ROUNDS=_ROUNDS, WIDTH=_CHAINS, warps=4)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
    return programs * _CHAINS * _ROUNDS / (1e-3 * min(times))
