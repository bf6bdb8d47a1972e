"""Timing on a GPU: by its own clock, with its cache emptied before each sample, sides in turns."""

import time
from collections.abc import Callable, Mapping

import torch

from mabert.rounds import Spread

_FLUSHED_BYTES = 256 << 20  # more than the second-level cache of any GPU this runs on
_WARM_CALLS = 3
_SLEEP_CYCLES = 20_000_000  # some ten milliseconds, longer than queueing any of our operators takes
_LONGEST_SLEEP_CYCLES = 16 * _SLEEP_CYCLES


def interleave(
    sides: Mapping[str, Callable[[], object]],
    *,
    least: int = 10,
    most: int = 100,
    budget: float = 5.0,
    queued: bool = False,
) -> dict[str, Spread]:
    """Time the sides in turns, each sample on an empty cache, after a few calls that are not counted.

    Args:
        sides: Name to what is timed; it may leave work queued on the GPU.
        least: Rounds that are made whatever they cost.
        most: Rounds that are never exceeded.
        budget: Seconds after which no round past ``least`` is begun.
        queued: Whether the GPU is kept waiting until a sample's work is queued, so that the time is the kernels' alone;
            otherwise it is what a person waits, Python included.

    Returns:
        One spread for each side.

    Raises:
        RuntimeError: ``queued``, and a call is not queued while the GPU waits, be it that it waits for the GPU itself.
    """
    flush = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    for function in sides.values():
        for _ in range(_WARM_CALLS):
            function()
    samples: dict[str, list[float]] = {side: [] for side in sides}
    torch.cuda.synchronize()
    started = time.perf_counter()
    for done in range(most):
        if done >= least and time.perf_counter() - started > budget:
            break
        for side, function in sides.items():
            samples[side].append(_sample(function, flush, queued))
    return {side: Spread.of(seconds) for side, seconds in samples.items()}


def _sample(function: Callable[[], object], flush: torch.Tensor, queued: bool) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cycles = _SLEEP_CYCLES
    while True:
        flush.zero_()
        if queued:
            torch.cuda._sleep(cycles)
        else:
            torch.cuda.synchronize()  # else the first of the host's time is hidden behind the flush
        start.record()
        function()
        end.record()
        # Where the clock started before all was queued, the sample has the host's time in it, and is not counted.
        late = queued and start.query()
        end.synchronize()
        if not late:
            return 1e-3 * start.elapsed_time(end)
        cycles *= 2
        if cycles > _LONGEST_SLEEP_CYCLES:
            raise RuntimeError("queueing a call took longer than the GPU was kept waiting, so it cannot be timed alone")


def peak_bytes(function: Callable[[], object]) -> int:
    """Return the most bytes of tensors that a call held at once beyond those that were there before it."""
    function()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def copy_rate() -> float:
    """Copy a gigabyte within the GPU's memory; return the best bytes a second, read and written together."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    fastest = interleave({"copy": lambda: target.copy_(source)}, most=20, queued=True)["copy"].fastest_ms
    return 2 * source.nbytes / (1e-3 * fastest)
