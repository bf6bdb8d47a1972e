"""Going through one row a few steps at a time, in either direction, with every step in registers of its own.

A walk has an origin (the time of its first step), a sign (which way time goes) and a number of steps. Its values are
tuples with one block of channels for each step: a block is one element, or a few, for each thread, so neither the
recurrence along time nor the sums over states ever move anything between threads.

Offsets are 64 bits wide: origin and row are, and what is added to them becomes so.
"""

import triton
import triton.language as tl


@triton.jit
def both(block, step):
    """Tell for which channels of a block something holds that must hold for the step as well.

    The comparison is for the interpreter, which spreads a step's truth value over the block as an integer.
    """
    return (block & step) != 0


@triton.jit
def read_valid(mask, mask_time, origin, step, count, STEPS: tl.constexpr, SIGN: tl.constexpr):
    """Tell for each step whether it lies in the walk and is not masked."""
    valid = ()
    for k in tl.static_range(STEPS):
        present = step + k < count
        if mask is not None:
            present = tl.load(mask + (origin + SIGN * (step + k)) * mask_time, mask=present, other=0) != 0
        valid += (present,)
    return valid


@triton.jit
def read_resets(first, origin, step, count, STEPS: tl.constexpr, SIGN: tl.constexpr):
    """Tell for each step whether a sequence starts there (in the direction of the scan); a row's own start is none."""
    resets = ()
    for k in tl.static_range(STEPS):
        if first is None:
            resets += (tl.full((), 0, tl.int1),)
        else:
            resets += (tl.load(first + origin + SIGN * (step + k), mask=step + k < count, other=0) != 0,)
    return resets


@triton.jit
def read(
    source,
    time,
    origin,
    step,
    c,
    inside,
    valid,
    STEPS: tl.constexpr,
    SIGN: tl.constexpr,
):
    """Read one block of channels at each step, zeros at those that do not count."""
    values = ()
    for k in tl.static_range(STEPS):
        at = source + (origin + SIGN * (step + k)) * time + c
        values += (tl.load(at, mask=both(inside, valid[k]), other=0.0),)
    return values
