"""Throughput of a GPU's special-function units: the scan needs one exponential for every state of every step."""

import torch
import triton
import triton.language as tl

from mabert.ops.triton.launch import launch

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
