"""Kernels of the scan. Each program, one warp, carries one channel a thread through one part of one row.

If rows and channels alone would leave most of the GPU idle, rows are cut into splits: `scan_ends` runs each split from
a zero state to its end, `combine` carries the states across splits, and `scan_forward` starts each split from its true
state. The backward is split in the same way, from its end.

Each thread keeps its states in registers and reads B and C as words of several numbers, a few steps ahead. No store
stands before a load that could be issued early: the compiler never moves a load above a store.
`mabert.ops.cpu.scan_backward` has the backward's equations.
"""

import triton
import triton.language as tl

from mabert.ops.triton.functions import LN_2, LOG2_E, sigmoid, softplus
from mabert.ops.triton.walk import both, columns, entry, is_valid, read, read_words, reset_of, unit_of

_LARGEST: tl.constexpr = tl.constexpr(3.0e38)


@triton.jit
def _step_size(raw, bias, valid, SOFTPLUS: tl.constexpr):
    """Returns Δ; 0 at invalid steps, so that the state neither decays nor changes."""
    delta = raw.to(tl.float32) + bias
    if SOFTPLUS:
        delta = softplus(delta)
    return tl.where(valid, delta, 0.0)


@triton.jit
def _finite(a):
    """Replaces infinity by the largest number, which times a Δ of 0 is 0: an invalid step keeps the state."""
    return tl.where(a < -_LARGEST, -_LARGEST, tl.where(a > _LARGEST, _LARGEST, a))


@triton.jit
def _of_channels(vector, c, BLOCK: tl.constexpr):
    if vector is None:
        values = tl.zeros((BLOCK,), tl.float32)
    else:
        values = tl.load(vector + c).to(tl.float32)
    return values


@triton.jit
def _channels(block, channels, BLOCK: tl.constexpr):
    """Returns the channels that a block reads, the last one again past the end, and which of them it writes."""
    c = block * BLOCK + tl.arange(0, BLOCK)
    return tl.minimum(c, channels - 1), c < channels


@triton.jit
def _place(channels, splits, T, split_steps, BLOCK: tl.constexpr):
    """Returns block, split, row, the split's first step and its number of steps."""
    pid = tl.program_id(0)
    blocks = tl.cdiv(channels, BLOCK)
    split = (pid // blocks) % splits
    begin = split * split_steps
    return pid % blocks, split, (pid // blocks // splits).to(tl.int64), begin, tl.minimum(split_steps, T - begin)


@triton.jit
def _origin(T, begin, count, BACK: tl.constexpr, REVERSE: tl.constexpr):
    """Returns the time at which a walk starts: a split's first step, or for the backward its last."""
    first = begin + count - 1 if BACK else begin
    return (T - 1 - first if REVERSE else first).to(tl.int64)


@triton.jit
def _advance(h, a, step_size, x, B_t, reset, N: tl.constexpr, WIDTH: tl.constexpr, HALVES: tl.constexpr):
    """Returns h_t = exp(Δ A) h_{t-1} + x B_t for every state, x = Δ u; ``reset``: a sequence starts at the step."""
    after = ()
    for n in tl.static_range(N):
        before = h[n]
        if reset is not None:
            before = tl.where(reset, 0.0, before)
        after += (tl.exp2(step_size * a[n]) * before + x * entry(B_t, n, WIDTH, HALVES),)
    return after


@triton.jit
def _retreat(dh, a, step_size, g, C_t, reset, N: tl.constexpr, WIDTH: tl.constexpr, HALVES: tl.constexpr):
    """Returns dh_{t-1} = exp(Δ A) (dh_t + g C_t) for every state; 0 if a sequence starts at the step."""
    after = ()
    for n in tl.static_range(N):
        dh_n = tl.exp2(step_size * a[n]) * (dh[n] + g * entry(C_t, n, WIDTH, HALVES))
        if reset is not None:
            dh_n = tl.where(reset, 0.0, dh_n)
        after += (dh_n,)
    return after


@triton.jit
def _output(h, u, skip, z, C_t, N: tl.constexpr, WIDTH: tl.constexpr, HALVES: tl.constexpr):
    """Returns y_t = (C_t·h_t + D u_t), times SiLU(z_t) where z is given."""
    y = skip * u
    for n in tl.static_range(N):
        y += h[n] * entry(C_t, n, WIDTH, HALVES)
    if z is not None:
        z = z.to(tl.float32)
        y *= z * sigmoid(z)
    return y


@triton.jit
def _save(saved, h, position, row, T, channels, c, inside, N: tl.constexpr, SAVED: tl.constexpr):
    """Stores the state before a step if it is one of those that the backward starts from."""
    if (position % SAVED == 0) & (position > 0):
        boundary = row * ((T - 1) // SAVED) + position // SAVED - 1
        for n in tl.static_range(N):
            tl.store(saved + (boundary * N + n) * channels + c, h[n], mask=inside)


@triton.jit
def _input(source, z, step_size, valid, BACK: tl.constexpr):
    """Returns what drives a state: Δ u, or for the backward dy times SiLU(z); 0 at invalid steps."""
    value = source.to(tl.float32)
    if z is not None:
        z = z.to(tl.float32)
        value *= z * sigmoid(z)
    if not BACK:
        value *= step_size
    return tl.where(valid, value, 0.0)


@triton.jit(do_not_specialize=["T", "splits", "split_steps", "mask_row"])
def scan_forward(
    u,
    delta,
    A,
    B,
    C,
    D,
    z,
    bias,
    mask,
    first,
    starts,
    y,
    saved,
    u_row,
    u_time,
    delta_row,
    delta_time,
    B_row,
    B_time,
    C_row,
    C_time,
    z_row,
    z_time,
    mask_row,
    mask_time,
    A_channel,
    A_state,
    T,
    channels,
    splits,
    split_steps,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    AHEAD: tl.constexpr,
    SAVED: tl.constexpr,
    B_WIDTH: tl.constexpr,
    C_WIDTH: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    REVERSE: tl.constexpr,
):
    """Runs the recurrence of one split, from the state in ``starts`` or from zero.

    It reads u, Δ and z ``STEPS`` steps ahead and B and C ``AHEAD`` steps, and writes y after every ``STEPS``.
    """
    SIGN: tl.constexpr = -1 if REVERSE else 1
    MASKED: tl.constexpr = mask is not None
    B_HALVES: tl.constexpr = B.dtype.element_ty.primitive_bitwidth == 16
    C_HALVES: tl.constexpr = C.dtype.element_ty.primitive_bitwidth == 16
    B_UNIT: tl.constexpr = unit_of(B_WIDTH, B_HALVES)
    C_UNIT: tl.constexpr = unit_of(C_WIDTH, C_HALVES)
    block, split, row, begin, count = _place(channels, splits, T, split_steps, BLOCK)
    origin = _origin(T, begin, count, False, REVERSE)
    c, inside = _channels(block, channels, BLOCK)
    u_at = u + row * u_row + origin * u_time + c
    delta_at = delta + row * delta_row + origin * delta_time + c
    z_at = delta_at
    if z is not None:
        z_at = z + row * z_row + origin * z_time + c
    B_at = B + (row * B_row + origin * B_time) * B_UNIT
    C_at = C + (row * C_row + origin * C_time) * C_UNIT
    y_at = y + (row * T + origin) * channels + c
    mask_at = None if mask is None else mask + row * mask_row + origin * mask_time
    first_at = None if first is None else first + origin

    a, h = (), ()
    for n in tl.static_range(N):
        a += (_finite(tl.load(A + c * A_channel + n * A_state).to(tl.float32) * LOG2_E),)
        if starts is None:
            h += (tl.zeros((BLOCK,), tl.float32),)
        else:
            h += (tl.load(starts + ((row * splits + split) * N + n) * channels + c, mask=inside, other=0.0),)
    skip = _of_channels(D, c, BLOCK)
    shift = _of_channels(bias, c, BLOCK)

    # A step's registers are free once it is computed, and what is read ahead takes them.
    valid, u_k, delta_k, z_k, B_k, C_k = (), (), (), (), (), ()
    for k in tl.static_range(STEPS):
        valid += (is_valid(mask_at, SIGN * k * mask_time, k < count),)
        u_k += (read(u_at, SIGN * k * u_time, valid[k], True),)
        delta_k += (read(delta_at, SIGN * k * delta_time, valid[k], True),)
        z_k += (delta_k[k] if z is None else read(z_at, SIGN * k * z_time, valid[k], True),)
    for k in tl.static_range(AHEAD):
        B_k += (read_words(B_at, SIGN * k * B_time, valid[k], N, BLOCK, B_WIDTH, True),)
        C_k += (read_words(C_at, SIGN * k * C_time, valid[k], N, BLOCK, C_WIDTH, True),)
    if not MASKED:  # in whole groups each step counts, and the compiler may know
        valid = (tl.full((), 1, tl.int1),) * STEPS
    groups = count // STEPS
    for group in range(groups):
        # After the last whole group there may be nothing to read: it reads itself again.
        hop = tl.where(group + 1 < groups, SIGN * STEPS, 0)
        next_u, next_delta, next_z = u_at + hop * u_time, delta_at + hop * delta_time, z_at + hop * z_time
        next_B, next_C = B_at + hop * B_time * B_UNIT, C_at + hop * C_time * C_UNIT
        next_mask = None if mask is None else mask_at + hop * mask_time
        if saved is not None:
            _save(saved, h, begin + group * STEPS, row, T, channels, c, inside, N, SAVED)
        y_k = ()
        for k in tl.static_range(STEPS):
            step_size = _step_size(delta_k[k], shift, valid[k], SOFTPLUS)
            u_t = tl.where(valid[k], u_k[k].to(tl.float32), 0.0)
            h = _advance(h, a, step_size, step_size * u_t, B_k[0], reset_of(first_at, SIGN * k), N, B_WIDTH, B_HALVES)
            y_t = _output(h, u_t, skip, None if z is None else z_k[k], C_k[0], N, C_WIDTH, C_HALVES)
            y_k += (tl.where(valid[k], y_t, 0.0),)
            ahead = SIGN * k
            valid += (valid[k] if mask is None else tl.load(next_mask + ahead * mask_time) != 0,)
            u_k += (read(next_u, ahead * u_time, valid[STEPS + k], MASKED),)
            delta_k += (read(next_delta, ahead * delta_time, valid[STEPS + k], MASKED),)
            z_k += (delta_k[STEPS + k] if z is None else read(next_z, ahead * z_time, valid[STEPS + k], MASKED),)
            B_soon = B_at if k + AHEAD < STEPS else next_B
            C_soon = C_at if k + AHEAD < STEPS else next_C
            distance = SIGN * ((k + AHEAD) % STEPS)
            B_k = B_k[1:] + (read_words(B_soon, distance * B_time, valid[k + AHEAD], N, BLOCK, B_WIDTH, MASKED),)
            C_k = C_k[1:] + (read_words(C_soon, distance * C_time, valid[k + AHEAD], N, BLOCK, C_WIDTH, MASKED),)
        for k in tl.static_range(STEPS):
            tl.store(y_at + SIGN * k * channels, y_k[k].to(y.dtype.element_ty), mask=inside)
        valid, u_k, delta_k, z_k = valid[STEPS:], u_k[STEPS:], delta_k[STEPS:], z_k[STEPS:]
        u_at, delta_at, z_at, B_at, C_at = next_u, next_delta, next_z, next_B, next_C
        if mask is not None:
            mask_at = next_mask
        y_at += SIGN * STEPS * channels
        if first is not None:
            first_at += SIGN * STEPS

    for step in range(groups * STEPS, count):
        t = origin + SIGN * step
        counts = is_valid(mask, row * mask_row + t * mask_time, step < count)
        delta_t = read(delta + row * delta_row + c, t * delta_time, counts, MASKED)
        u_t = tl.where(counts, read(u + row * u_row + c, t * u_time, counts, MASKED).to(tl.float32), 0.0)
        z_t = None if z is None else read(z + row * z_row + c, t * z_time, counts, MASKED)
        B_t = read_words(B + row * B_row * B_UNIT, t * B_time, counts, N, BLOCK, B_WIDTH, MASKED)
        C_t = read_words(C + row * C_row * C_UNIT, t * C_time, counts, N, BLOCK, C_WIDTH, MASKED)
        if saved is not None:
            _save(saved, h, begin + step, row, T, channels, c, inside, N, SAVED)
        step_size = _step_size(delta_t, shift, counts, SOFTPLUS)
        h = _advance(h, a, step_size, step_size * u_t, B_t, reset_of(first, t), N, B_WIDTH, B_HALVES)
        y_t = tl.where(counts, _output(h, u_t, skip, z_t, C_t, N, C_WIDTH, C_HALVES), 0.0)
        tl.store(y + (row * T + t) * channels + c, y_t.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["T", "splits", "split_steps", "mask_row"])
def scan_ends(
    source,
    delta,
    A,
    matrix,
    z,
    bias,
    mask,
    first,
    ends,
    durations,
    broken,
    source_row,
    source_time,
    delta_row,
    delta_time,
    matrix_row,
    matrix_time,
    z_row,
    z_time,
    mask_row,
    mask_time,
    A_channel,
    A_state,
    T,
    channels,
    splits,
    split_steps,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    AHEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    REVERSE: tl.constexpr,
    BACK: tl.constexpr,
):
    """Runs one split from zero to its end: the state from u and B, or for the backward its gradient from dy and C.

    Stores that end, the sum of Δ (the split multiplies the state that enters it by exp(A ΣΔ)), and whether a sequence
    starts inside, after which the state that entered has no effect.
    """
    SIGN: tl.constexpr = -1 if REVERSE != BACK else 1
    MASKED: tl.constexpr = mask is not None
    HALVES: tl.constexpr = matrix.dtype.element_ty.primitive_bitwidth == 16
    UNIT: tl.constexpr = unit_of(WIDTH, HALVES)
    block, split, row, begin, count = _place(channels, splits, T, split_steps, BLOCK)
    origin = _origin(T, begin, count, BACK, REVERSE)
    c, inside = _channels(block, channels, BLOCK)
    source_at = source + row * source_row + origin * source_time + c
    delta_at = delta + row * delta_row + origin * delta_time + c
    z_at = delta_at if z is None else z + row * z_row + origin * z_time + c
    matrix_at = matrix + (row * matrix_row + origin * matrix_time) * UNIT
    mask_at = None if mask is None else mask + row * mask_row + origin * mask_time
    first_at = None if first is None else first + origin

    a, h = (), ()
    for n in tl.static_range(N):
        a += (_finite(tl.load(A + c * A_channel + n * A_state).to(tl.float32) * LOG2_E),)
        h += (tl.zeros((BLOCK,), tl.float32),)
    shift = _of_channels(bias, c, BLOCK)
    duration = tl.zeros((BLOCK,), tl.float32)
    reset = tl.full((), 0, tl.int32)

    valid, source_k, delta_k, z_k, matrix_k = (), (), (), (), ()
    for k in tl.static_range(STEPS):
        valid += (is_valid(mask_at, SIGN * k * mask_time, k < count),)
        source_k += (read(source_at, SIGN * k * source_time, valid[k], True),)
        delta_k += (read(delta_at, SIGN * k * delta_time, valid[k], True),)
        z_k += (delta_k[k] if z is None else read(z_at, SIGN * k * z_time, valid[k], True),)
    for k in tl.static_range(AHEAD):
        matrix_k += (read_words(matrix_at, SIGN * k * matrix_time, valid[k], N, BLOCK, WIDTH, True),)
    if not MASKED:  # in whole groups each step counts, and the compiler may know
        valid = (tl.full((), 1, tl.int1),) * STEPS
    groups = count // STEPS
    for group in range(groups):
        hop = tl.where(group + 1 < groups, SIGN * STEPS, 0)
        next_source, next_delta = source_at + hop * source_time, delta_at + hop * delta_time
        next_z, next_matrix = z_at + hop * z_time, matrix_at + hop * matrix_time * UNIT
        next_mask = None if mask is None else mask_at + hop * mask_time
        for k in tl.static_range(STEPS):
            step_size = _step_size(delta_k[k], shift, valid[k], SOFTPLUS)
            value = _input(source_k[k], None if z is None else z_k[k], step_size, valid[k], BACK)
            is_first = reset_of(first_at, SIGN * k)
            if BACK:
                h = _retreat(h, a, step_size, value, matrix_k[0], is_first, N, WIDTH, HALVES)
            else:
                h = _advance(h, a, step_size, value, matrix_k[0], is_first, N, WIDTH, HALVES)
            duration += step_size
            if first is not None:
                reset |= is_first.to(tl.int32)
            ahead = SIGN * k
            valid += (valid[k] if mask is None else tl.load(next_mask + ahead * mask_time) != 0,)
            source_k += (read(next_source, ahead * source_time, valid[STEPS + k], MASKED),)
            delta_k += (read(next_delta, ahead * delta_time, valid[STEPS + k], MASKED),)
            z_k += (delta_k[STEPS + k] if z is None else read(next_z, ahead * z_time, valid[STEPS + k], MASKED),)
            matrix_soon = matrix_at if k + AHEAD < STEPS else next_matrix
            distance = SIGN * ((k + AHEAD) % STEPS) * matrix_time
            matrix_k = matrix_k[1:] + (read_words(matrix_soon, distance, valid[k + AHEAD], N, BLOCK, WIDTH, MASKED),)
        valid, source_k, delta_k, z_k = valid[STEPS:], source_k[STEPS:], delta_k[STEPS:], z_k[STEPS:]
        source_at, delta_at, z_at, matrix_at = next_source, next_delta, next_z, next_matrix
        if mask is not None:
            mask_at = next_mask
        if first is not None:
            first_at += SIGN * STEPS

    for step in range(groups * STEPS, count):
        t = origin + SIGN * step
        counts = is_valid(mask, row * mask_row + t * mask_time, step < count)
        step_size = _step_size(
            read(delta + row * delta_row + c, t * delta_time, counts, MASKED), shift, counts, SOFTPLUS
        )
        source_t = read(source + row * source_row + c, t * source_time, counts, MASKED)
        z_t = None if z is None else read(z + row * z_row + c, t * z_time, counts, MASKED)
        value = _input(source_t, z_t, step_size, counts, BACK)
        matrix_t = read_words(matrix + row * matrix_row * UNIT, t * matrix_time, counts, N, BLOCK, WIDTH, MASKED)
        is_first = reset_of(first, t)
        if BACK:
            h = _retreat(h, a, step_size, value, matrix_t, is_first, N, WIDTH, HALVES)
        else:
            h = _advance(h, a, step_size, value, matrix_t, is_first, N, WIDTH, HALVES)
        duration += step_size
        if first is not None:
            reset |= is_first.to(tl.int32)

    part = row * splits + split
    for n in tl.static_range(N):
        tl.store(ends + (part * N + n) * channels + c, h[n], mask=inside)
    tl.store(durations + part * channels + c, duration, mask=inside)
    tl.store(broken + part, reset)


@triton.jit
def _then(decay, end, reset, next_decay, next_end, next_reset):
    """Composes two neighbouring splits; a sequence that starts in the second blocks even a NaN from the first."""
    return (
        decay * next_decay,
        tl.where(next_reset != 0, next_end, next_decay * end + next_end),
        reset | next_reset,
    )


@triton.jit(do_not_specialize=["splits"])
def combine(
    ends,
    durations,
    broken,
    A,
    starts,
    A_channel,
    A_state,
    channels,
    splits,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    BACK: tl.constexpr,
):
    """Turns the ends of splits run from zero into the states that enter each split; for the backward, in reverse."""
    pid = tl.program_id(0)
    blocks = tl.cdiv(channels, BLOCK)
    row = (pid // blocks // N).to(tl.int64)
    n = (pid // blocks) % N
    c = pid % blocks * BLOCK + tl.arange(0, BLOCK)
    turn = tl.arange(0, SPLITS)
    split = splits - 1 - turn if BACK else turn
    part = row * splits + split
    present = (turn < splits)[:, None] & (c < channels)[None, :]
    end = tl.load(ends + ((part * N + n) * channels)[:, None] + c[None, :], mask=present, other=0.0)
    duration = tl.load(durations + (part * channels)[:, None] + c[None, :], mask=present, other=0.0)
    a = tl.load(A + c * A_channel + n * A_state, mask=c < channels, other=0.0).to(tl.float32) * LOG2_E
    reset = tl.load(broken + part, mask=turn < splits, other=0)
    # A split whose steps are all masked passes on the state that enters it, even if A is infinite.
    decay = tl.where(duration == 0.0, 1.0, tl.exp2(duration * a[None, :]))
    resets = tl.broadcast_to(reset[:, None], (SPLITS, BLOCK))
    _, entering, _ = tl.associative_scan((decay, end, resets), 0, _then)
    at_first = starts + ((part * N + n) * channels)[:, None] + c[None, :]
    tl.store(at_first, tl.zeros_like(entering), mask=(turn == 0)[:, None] & (c < channels)[None, :])
    following = part - 1 if BACK else part + 1
    target = starts + ((following * N + n) * channels)[:, None] + c[None, :]
    tl.store(target, entering, mask=(turn + 1 < splits)[:, None] & (c < channels)[None, :])


@triton.jit
def _turn(
    matrix, turned, mask, row, s, n, row_stride, time_stride, mask_row, mask_time, T, padded, N, REVERSE: tl.constexpr
):
    """Copies one tile of B or C, see `turn`."""
    t = (T - 1 - s if REVERSE else s).to(tl.int64)
    counts = s < T
    if mask is not None:
        counts &= tl.load(mask + row * mask_row + t * mask_time, mask=counts, other=0) != 0
    at = matrix + row * row_stride + (t * time_stride)[:, None] + n[None, :]
    entries = tl.load(at, mask=counts[:, None] & (n < N)[None, :], other=0.0).to(tl.float32)
    target = turned + ((row * N + n) * padded)[None, :] + s[:, None]
    tl.store(target, entries, mask=(s < padded)[:, None] & (n < N)[None, :])


@triton.jit(do_not_specialize=["T", "mask_row"])
def turn(
    B,
    C,
    mask,
    turned_B,
    turned_C,
    B_row,
    B_time,
    C_row,
    C_time,
    mask_row,
    mask_time,
    T,
    padded,
    N,
    STEPS: tl.constexpr,
    STATES: tl.constexpr,
    REVERSE: tl.constexpr,
):
    """Copies B and C to (row, state, step), in the scan's order, with zeros at masked steps and past the end."""
    pid = tl.program_id(0) // 2
    tiles = tl.cdiv(padded, STEPS)
    row = (pid // tiles).to(tl.int64)
    s, n = pid % tiles * STEPS + tl.arange(0, STEPS), tl.arange(0, STATES)
    if tl.program_id(0) % 2 == 0:
        _turn(B, turned_B, mask, row, s, n, B_row, B_time, mask_row, mask_time, T, padded, N, REVERSE)
    else:
        _turn(C, turned_C, mask, row, s, n, C_row, C_time, mask_row, mask_time, T, padded, N, REVERSE)


@triton.jit
def _turn_back(parts, grad, mask, row, s, n, mask_row, mask_time, T, padded, rows, blocks, N, REVERSE: tl.constexpr):
    t = (T - 1 - s if REVERSE else s).to(tl.int64)
    there = (s < T)[None, :] & (n < N)[:, None]
    total = tl.zeros((n.shape[0], s.shape[0]), tl.float32)
    for block in range(blocks):
        part = parts + (((block * rows + row) * N + n) * padded)[:, None] + s[None, :]
        total += tl.load(part, mask=there, other=0.0)
    if mask is not None:
        counts = tl.load(mask + row * mask_row + t * mask_time, mask=s < T, other=0) != 0
        total = tl.where(counts[None, :], total, 0.0)
    target = grad + ((row * T + t) * N)[None, :] + n[:, None]
    tl.store(target, total.to(grad.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["T", "rows", "blocks", "mask_row"])
def turn_back(
    parts_B,
    parts_C,
    mask,
    dB,
    dC,
    mask_row,
    mask_time,
    T,
    padded,
    rows,
    blocks,
    N,
    STEPS: tl.constexpr,
    STATES: tl.constexpr,
    REVERSE: tl.constexpr,
):
    """Sums the parts of the gradients of B and C over blocks of channels, in order; returns to (row, time, state)."""
    pid = tl.program_id(0) // 2
    tiles = tl.cdiv(T, STEPS)
    row = (pid // tiles).to(tl.int64)
    s, n = pid % tiles * STEPS + tl.arange(0, STEPS), tl.arange(0, STATES)
    if tl.program_id(0) % 2 == 0:
        _turn_back(parts_B, dB, mask, row, s, n, mask_row, mask_time, T, padded, rows, blocks, N, REVERSE)
    else:
        _turn_back(parts_C, dC, mask, row, s, n, mask_row, mask_time, T, padded, rows, blocks, N, REVERSE)


@triton.jit
def _halve(values, lane, HALF: tl.constexpr):
    """Exchanges halves between lanes that differ in one bit: each keeps the sums of the steps that share its bit."""
    kept = ()
    upper = (lane & HALF) != 0
    for k in tl.static_range(HALF):
        mine = tl.where(upper, values[k + HALF], values[k])
        other = tl.where(upper, values[k], values[k + HALF])
        kept += (mine + tl.gather(other, lane ^ HALF, 0),)
    return kept


@triton.jit
def _sum_over_lanes(values, lane):
    """Sums each of 8 steps over the 32 lanes of a warp; lane k gets step k modulo 8.

    This takes nine exchanges; eight separate sums would take forty.
    """
    values = _halve(values, lane, 4)
    values = _halve(values, lane, 2)
    values = _halve(values, lane, 1)
    total = values[0] + tl.gather(values[0], lane ^ 8, 0)
    return total + tl.gather(total, lane ^ 16, 0)


@triton.jit
def _read_row(at, BLOCK: tl.constexpr):
    """Reads 8 neighbouring numbers for every thread."""
    numbers = ()
    for i in tl.static_range(2):
        numbers += columns(
            tl.load(at + (4 * i + tl.arange(0, 4)[None, :] + tl.arange(0, BLOCK)[:, None] * 0)), BLOCK, 4
        )
    return numbers


@triton.jit(do_not_specialize=["T", "rows", "splits", "split_steps", "mask_row"])
def scan_backward(
    grad,
    u,
    delta,
    A,
    B,
    C,
    D,
    z,
    bias,
    mask,
    first,
    saved,
    carry,
    du,
    ddelta,
    dz,
    dA,
    dB,
    dC,
    dD,
    dbias,
    grad_row,
    grad_time,
    u_row,
    u_time,
    delta_row,
    delta_time,
    z_row,
    z_time,
    mask_row,
    mask_time,
    T,
    padded,
    channels,
    rows,
    splits,
    split_steps,
    N,
    BLOCK: tl.constexpr,
    SAVED: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    REVERSE: tl.constexpr,
):
    """Computes the gradients of one split, chunk by chunk of 8 steps from its end.

    ``A`` is (state, channel), times log2(e). ``B`` and ``C``, and the parts of their gradients, are as `turn` makes
    them. ``carry`` holds the gradient of the state at the end of each split, unless there is but one, and is
    overwritten. Within a chunk, states are processed one after another, so that the values and decays of one fit the
    registers. Its numbers are read while the one before it is computed.
    """
    CHUNK: tl.constexpr = 8
    SIGN: tl.constexpr = -1 if REVERSE else 1
    MASKED: tl.constexpr = mask is not None
    block, split, row, begin, count = _place(channels, splits, T, split_steps, BLOCK)
    lane = tl.arange(0, BLOCK)
    c, inside = _channels(block, channels, BLOCK)
    B += row * N * padded
    C += row * N * padded
    part = row * splits + split
    carry += part * N * channels
    dA += part * N * channels
    dB += (block * rows + row) * N * padded
    dC += (block * rows + row) * N * padded
    skip = _of_channels(D, c, BLOCK)
    shift = _of_channels(bias, c, BLOCK)
    of_skip = tl.zeros((BLOCK,), tl.float32)
    of_shift = tl.zeros((BLOCK,), tl.float32)

    chunks = tl.cdiv(count, CHUNK)
    for chunk in range(chunks):
        start = tl.multiple_of(begin + (chunks - 1 - chunk) * CHUNK, CHUNK)
        length = tl.minimum(CHUNK, begin + count - start)
        origin = _origin(T, start, length, False, REVERSE)
        u_at = u + row * u_row + origin * u_time + c
        delta_at = delta + row * delta_row + origin * delta_time + c
        grad_at = grad + row * grad_row + origin * grad_time + c
        mask_at = None if mask is None else mask + row * mask_row + origin * mask_time
        first_at = None if first is None else first + origin
        valid, resets, raw, u_k, g, z_k = (), (), (), (), (), ()
        z_at = grad_at if z is None else z + row * z_row + origin * z_time + c
        for k in tl.static_range(CHUNK):
            valid += (is_valid(mask_at, SIGN * k * mask_time, k < length),)
            resets += (valid[k] if first is None else reset_of(first_at, SIGN * tl.minimum(k, length - 1)),)
            raw += (read(delta_at, SIGN * k * delta_time, valid[k], True),)
            u_k += (read(u_at, SIGN * k * u_time, valid[k], True),)
            g += (read(grad_at, SIGN * k * grad_time, valid[k], True),)
            z_k += (g[k] if z is None else read(z_at, SIGN * k * z_time, valid[k], True),)
        step_size, x, gated, y, dx, through = (), (), (), (), (), ()
        for k in tl.static_range(CHUNK):
            counts = both(inside, valid[k])
            u_t = tl.where(counts, u_k[k].to(tl.float32), 0.0)
            g_t = tl.where(counts, g[k].to(tl.float32), 0.0)
            if z is not None:
                z_t = z_k[k].to(tl.float32)
                g_t = tl.where(counts, g_t * z_t * sigmoid(z_t), 0.0)
            step_size_t = _step_size(raw[k], shift, valid[k], SOFTPLUS)
            step_size += (step_size_t,)
            x += (step_size_t * u_t,)
            gated += (g_t,)
            y += (skip * u_t,)
            dx += (tl.zeros((BLOCK,), tl.float32),)
            through += (tl.zeros((BLOCK,), tl.float32),)

        # The state is saved before every second chunk; before the others it is computed again, from one chunk earlier.
        again = start % SAVED != 0
        earlier = start
        earlier_resets, earlier_size, earlier_x = resets, step_size, x
        if again:
            earlier = start - CHUNK
            earlier_resets, earlier_size, earlier_x = (), (), ()
            for k in tl.static_range(CHUNK):
                back = SIGN * (k - CHUNK)
                earlier_valid = is_valid(mask_at, back * mask_time, length > 0)
                earlier_resets += (earlier_valid if first is None else reset_of(first_at, back),)
                earlier_raw = read(delta_at, back * delta_time, earlier_valid, MASKED)
                earlier_u = read(u_at, back * u_time, earlier_valid, MASKED)
                step_size_t = _step_size(earlier_raw, shift, earlier_valid, SOFTPLUS)
                earlier_size += (step_size_t,)
                earlier_x += (tl.where(earlier_valid, step_size_t * earlier_u.to(tl.float32), 0.0),)
        earlier = tl.multiple_of(earlier, CHUNK)

        boundary = row * ((T - 1) // SAVED) + earlier // SAVED - 1
        saved_here = saved + boundary * N * channels + c
        continues = (chunk > 0) | (splits > 1)
        next_a = tl.load(A + c)
        next_h = tl.load(saved_here, mask=both(inside, earlier > 0), other=0.0)
        next_dh = tl.load(carry + c, mask=both(inside, continues), other=0.0)
        next_dA = tl.load(dA + c, mask=both(inside, chunk > 0), other=0.0)
        for n in range(N):
            true_a, h, dh, of_decay = next_a, next_h, next_dh, next_dA
            following = tl.minimum(n + 1, N - 1)
            next_a = tl.load(A + following * channels + c)
            next_h = tl.load(saved_here + following * channels, mask=both(inside, earlier > 0), other=0.0)
            next_dh = tl.load(carry + following * channels + c, mask=both(inside, continues), other=0.0)
            next_dA = tl.load(dA + following * channels + c, mask=both(inside, chunk > 0), other=0.0)
            B_n = _read_row(B + n * padded + start, BLOCK)
            C_n = _read_row(C + n * padded + start, BLOCK)
            a = _finite(true_a)
            if again:
                earlier_B = _read_row(B + n * padded + earlier, BLOCK)
                for k in tl.static_range(CHUNK):
                    if first is not None:
                        h = tl.where(earlier_resets[k], 0.0, h)
                    h = tl.exp2(earlier_size[k] * a) * h + earlier_x[k] * earlier_B[k]
            before, decays, reads, new_y = (), (), (), ()
            for k in tl.static_range(CHUNK):
                if first is not None:
                    h = tl.where(resets[k], 0.0, h)
                before += (h,)
                decay = tl.where(k < length, tl.exp2(step_size[k] * a), 1.0)  # even if A is NaN
                decays += (decay,)
                h = decay * h + x[k] * B_n[k]
                reads += (h * gated[k],)
                new_y += (y[k] + h * C_n[k],)
            y = new_y

            writes, new_dx, new_through = (), (), ()
            for k in tl.static_range(CHUNK - 1, -1, -1):
                dh += gated[k] * C_n[k]
                writes = (dh * x[k],) + writes
                new_dx = (dx[k] + dh * B_n[k],) + new_dx
                dh *= decays[k]
                of_exponent = dh * before[k]
                new_through = (through[k] + of_exponent * true_a,) + new_through
                of_decay += of_exponent * step_size[k]
                if first is not None:
                    dh = tl.where(resets[k], 0.0, dh)
            dx, through = new_dx, new_through
            tl.store(dC + n * padded + start + lane, _sum_over_lanes(reads, lane), mask=lane < CHUNK)
            tl.store(dB + n * padded + start + lane, _sum_over_lanes(writes, lane), mask=lane < CHUNK)
            tl.store(carry + n * channels + c, dh, mask=inside)
            tl.store(dA + n * channels + c, of_decay, mask=inside)

        # Read again, from the cache, backwards: values or addresses kept until here would take the states' registers.
        delta_at += SIGN * CHUNK * delta_time
        u_at += SIGN * CHUNK * u_time
        grad_at += SIGN * CHUNK * grad_time
        z_at += SIGN * CHUNK * z_time
        at = (row * T + origin + SIGN * CHUNK) * channels + c
        for k in tl.static_range(CHUNK - 1, -1, -1):
            delta_at -= SIGN * delta_time
            u_at -= SIGN * u_time
            grad_at -= SIGN * grad_time
            z_at -= SIGN * z_time
            at -= SIGN * channels
            written = both(inside, k < length)
            u_t = tl.where(valid[k], read(u_at, 0, valid[k], True).to(tl.float32), 0.0)
            ddelta_t = dx[k] * u_t + through[k] * LN_2
            if SOFTPLUS:
                ddelta_t *= sigmoid(read(delta_at, 0, valid[k], True).to(tl.float32) + shift)
            ddelta_t = tl.where(valid[k], ddelta_t, 0.0)
            of_skip += gated[k] * u_t
            of_shift += ddelta_t
            du_t = tl.where(valid[k], dx[k] * step_size[k] + skip * gated[k], 0.0)
            tl.store(du + at, du_t.to(du.dtype.element_ty), mask=written)
            tl.store(ddelta + at, ddelta_t.to(ddelta.dtype.element_ty), mask=written)
            if z is not None:
                z_t = read(z_at, 0, valid[k], True).to(tl.float32)
                g_t = read(grad_at, 0, valid[k], True).to(tl.float32)
                s = sigmoid(z_t)
                dz_t = tl.where(valid[k], g_t * y[k] * s * (1 + z_t * (1 - s)), 0.0)
                tl.store(dz + at, dz_t.to(dz.dtype.element_ty), mask=written)

    tl.store(dD + part * channels + c, of_skip, mask=inside)
    tl.store(dbias + part * channels + c, of_shift, mask=inside)
