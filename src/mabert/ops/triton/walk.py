"""Walks through one row a few steps at a time, in either direction, with each step in its own registers.

A walk has an origin (the time of its first step), a sign (the direction of time) and a number of steps. Its values are
tuples with one block of channels per step: a block is one or a few elements per thread, so neither the recurrence along
time nor the sums over states move data between threads.

Origin and row are 64 bits wide, and so is every offset computed from them.
"""

import triton
import triton.language as tl


@triton.jit
def both(block, step):
    """Tells for which channels of a block a condition holds, given that it holds for the step.

    The comparison is for the interpreter, which broadcasts a step's truth value over the block as an integer.
    """
    return (block & step) != 0


@triton.jit
def read_valid(mask, mask_time, origin, step, count, STEPS: tl.constexpr, SIGN: tl.constexpr):
    """Tells for each step whether it is in the walk and not masked."""
    valid = ()
    for k in tl.static_range(STEPS):
        present = step + k < count
        if mask is not None:
            present = tl.load(mask + (origin + SIGN * (step + k)) * mask_time, mask=present, other=0) != 0
        valid += (present,)
    return valid


@triton.jit
def read_resets(first, origin, step, count, STEPS: tl.constexpr, SIGN: tl.constexpr):
    """Tells for each step whether a sequence starts there (in scan direction); the row's own start does not count."""
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
    """Reads one block of channels at each step; zeros at invalid steps."""
    values = ()
    for k in tl.static_range(STEPS):
        at = source + (origin + SIGN * (step + k)) * time + c
        values += (tl.load(at, mask=both(inside, valid[k]), other=0.0),)
    return values
