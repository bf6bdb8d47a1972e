"""Reads one step of a row at a time, each into registers of its own.

A value is a block of channels, one for each thread, so neither the recurrence along time nor the sums over states move
data between threads. Pointers have 64 bits; distances from them may have 32.
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
def is_valid(mask_at, distance, there):
    """Tells whether a step is there and not masked."""
    valid = there
    if mask_at is not None:
        valid = (tl.load(mask_at + distance, mask=there, other=0) != 0) & there
    return valid


@triton.jit
def reset_of(first_at, distance):
    """Tells whether a sequence starts at a step (in scan direction), or returns None if no row holds several."""
    reset = None
    if first_at is not None:
        reset = tl.load(first_at + distance) != 0
    return reset


@triton.jit
def read(at, distance, valid, PERHAPS: tl.constexpr):
    """Reads a block of channels at one step; undefined if the step is not valid.

    Args:
        at: Pointers to the channels at some step.
        distance: Distance in memory from there.
        valid: Whether the step counts.
        PERHAPS: Whether it may not count, in which case nothing is read: an address may not exist, and NaN may stand at
            padding.
    """
    if PERHAPS:
        values = tl.load(at + distance, mask=valid)
    else:
        values = tl.load(at + distance)
    return values


@triton.jit
def columns(tile, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Splits (BLOCK, WIDTH) into its columns. Each thread has a whole row, so nothing moves."""
    columns = (tile,)
    LEVELS: tl.constexpr = 2 if WIDTH == 4 else WIDTH - 1
    for level in tl.static_range(LEVELS):
        evens, odds = (), ()
        for i in tl.static_range(1 << level):
            even, odd = tl.split(tl.reshape(columns[i], (BLOCK, WIDTH >> (level + 1), 2)))
            evens += (even,)
            odds += (odd,)
        columns = evens + odds
    flat = ()
    for i in tl.static_range(WIDTH):
        flat += (tl.reshape(columns[i], (BLOCK,)),)
    return flat


@triton.jit
def unit_of(WIDTH: tl.constexpr, HALVES: tl.constexpr):
    """Returns the numbers that one load of `read_words` takes, in which the strides of B and C are counted."""
    return 1 if WIDTH == 0 else WIDTH * (2 if HALVES else 1)


@triton.jit
def read_words(at, distance, valid, N: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, PERHAPS: tl.constexpr):
    """Reads one step of B or C for every thread of a block; `entry` takes the numbers apart.

    Args:
        at: Pointer to the first number of some step.
        distance: Distance of the step from there, in loads, see `unit_of`.
        valid: Whether the step counts.
        N: States.
        BLOCK: Channels.
        WIDTH: Words of 32 bits that one load takes; 0 if the numbers are not aligned to words.
        PERHAPS: Whether the step may not count, in which case zeros are read.
    """
    words = ()
    if WIDTH == 0:
        for n in tl.static_range(N):
            if PERHAPS:
                number = tl.load(at + distance + n, mask=valid, other=0.0)
            else:
                number = tl.load(at + distance + n)
            words += (number.to(tl.float32),)
    else:
        COUNT: tl.constexpr = N * at.dtype.element_ty.primitive_bitwidth // 32
        start = at.to(tl.pointer_type(tl.int32), bitcast=True) + distance * WIDTH
        lane = tl.arange(0, BLOCK)[:, None] * 0
        for i in tl.static_range(COUNT // WIDTH):
            pointers = start + (i * WIDTH + tl.arange(0, WIDTH)[None, :] + lane)
            if PERHAPS:
                tile = tl.load(pointers, mask=valid, other=0)
            else:
                tile = tl.load(pointers)
            words += columns(tile, BLOCK, WIDTH)
    return words


@triton.jit
def entry(words, n: tl.constexpr, WIDTH: tl.constexpr, HALVES: tl.constexpr):
    """Returns number ``n`` of what `read_words` read, in float32. ``HALVES``: two bfloat16 stand in a word."""
    if WIDTH == 0:
        number = words[n]
    elif not HALVES:
        number = words[n].to(tl.float32, bitcast=True)
    elif n % 2 == 0:
        number = (words[n // 2] << 16).to(tl.float32, bitcast=True)
    else:
        number = (words[n // 2] & -65536).to(tl.float32, bitcast=True)
    return number
