"""Kernels of the scan. Each program, one warp, carries a block of channels through one part of one row.

If rows and channels alone would leave most of the GPU idle, rows are cut into splits: `scan_ends` runs each split from
a zero state to its end, `combine` carries the states across splits, and `scan_forward` starts each split from its true
state. The backward is split in the same way, from its end.

States are in registers, one for each state and channel of a thread. `mabert.ops.cpu.scan_backward` has the backward's
equations.
"""

import triton
import triton.language as tl

from mabert.ops.triton.functions import LN_2, sigmoid, softplus
from mabert.ops.triton.walk import both, read, read_resets, read_valid


@triton.jit
def _step_size(raw, bias, valid, SOFTPLUS: tl.constexpr):
    """Returns Δ; 0 at invalid steps, so that the state neither decays nor changes."""
    delta = raw.to(tl.float32) + bias
    if SOFTPLUS:
        delta = softplus(delta)
    return tl.where(valid, delta, 0.0)


@triton.jit
def _decay(step_size, a, valid, FULL: tl.constexpr):
    """Returns exp(ΔA); 1 at invalid steps, even if A is infinite. ``FULL``: all steps are valid."""
    decay = tl.exp2(step_size * a)
    if not FULL:
        decay = tl.where(valid, decay, 1.0)
    return decay


@triton.jit
def _coefficient(at, valid, FULL: tl.constexpr):
    """Reads one entry of B or C, float32; 0 at invalid steps."""
    if FULL:
        value = tl.load(at)
    else:
        value = tl.load(at, mask=valid, other=0.0)
    return value


@triton.jit
def _of_channels(vector, c, inside, BLOCK: tl.constexpr):
    if vector is None:
        values = tl.zeros((BLOCK,), tl.float32)
    else:
        values = tl.load(vector + c, mask=inside, other=0.0).to(tl.float32)
    return values


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
    T,
    channels,
    splits,
    split_steps,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    CHUNK: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    FULL: tl.constexpr,
    REVERSE: tl.constexpr,
):
    """Runs the recurrence of one split, from the state in ``starts`` or from zero."""
    SIGN: tl.constexpr = -1 if REVERSE else 1
    block, split, row, begin, count = _place(channels, splits, T, split_steps, BLOCK)
    origin = _origin(T, begin, count, False, REVERSE)
    c = block * BLOCK + tl.arange(0, BLOCK)
    inside = c < channels
    u += row * u_row
    delta += row * delta_row
    B += row * B_row
    C += row * C_row
    y += row * T * channels
    if z is not None:
        z += row * z_row
    if mask is not None:
        mask += row * mask_row

    a, h = (), ()
    for n in tl.static_range(N):
        a += (tl.load(A + n * channels + c, mask=inside, other=0.0),)
        if starts is None:
            h += (tl.zeros((BLOCK,), tl.float32),)
        else:
            h += (tl.load(starts + ((row * splits + split) * N + n) * channels + c, mask=inside, other=0.0),)
    skip = _of_channels(D, c, inside, BLOCK)
    shift = _of_channels(bias, c, inside, BLOCK)

    # The next few steps' inputs are loaded before these are computed: a single warp must hide the memory's latency.
    valid = read_valid(mask, mask_time, origin, 0, count, STEPS, SIGN)
    u_k = read(u, u_time, origin, 0, c, inside, valid, STEPS, SIGN)
    delta_k = read(delta, delta_time, origin, 0, c, inside, valid, STEPS, SIGN)
    for step in range(0, count, STEPS):
        ahead = step + STEPS
        next_valid = read_valid(mask, mask_time, origin, ahead, count, STEPS, SIGN)
        next_u = read(u, u_time, origin, ahead, c, inside, next_valid, STEPS, SIGN)
        next_delta = read(delta, delta_time, origin, ahead, c, inside, next_valid, STEPS, SIGN)
        resets = read_resets(first, origin, step, count, STEPS, SIGN)
        if z is not None:
            z_k = read(z, z_time, origin, step, c, inside, valid, STEPS, SIGN)
        if saved is not None:
            position = begin + step
            if (position % CHUNK == 0) & (position > 0):
                boundary = row * ((T - 1) // CHUNK) + position // CHUNK - 1
                for n in tl.static_range(N):
                    tl.store(saved + (boundary * N + n) * channels + c, h[n], mask=inside)
        for k in tl.static_range(STEPS):
            t = origin + SIGN * (step + k)
            step_size = _step_size(delta_k[k], shift, valid[k], SOFTPLUS)
            u_t = u_k[k].to(tl.float32)
            x = step_size * u_t
            y_t = skip * u_t
            after = ()
            for n in tl.static_range(N):
                B_n = _coefficient(B + t * B_time + n, valid[k], FULL)
                C_n = _coefficient(C + t * C_time + n, valid[k], FULL)
                before = h[n]
                if first is not None:
                    before = tl.where(resets[k], 0.0, before)
                h_n = _decay(step_size, a[n], valid[k], FULL) * before + x * B_n
                y_t += h_n * C_n
                after += (h_n,)
            h = after
            if z is not None:
                z_t = z_k[k].to(tl.float32)
                y_t *= z_t * sigmoid(z_t)
            y_t = tl.where(valid[k], y_t, 0.0)
            tl.store(y + t * channels + c, y_t.to(y.dtype.element_ty), mask=both(inside, step + k < count))
        valid, u_k, delta_k = next_valid, next_u, next_delta


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
    T,
    channels,
    splits,
    split_steps,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    FULL: tl.constexpr,
    REVERSE: tl.constexpr,
    BACK: tl.constexpr,
):
    """Runs one split from zero to its end: the state from u and B, or for the backward its gradient from dy and C.

    Stores that end, the sum of Δ (the split multiplies the state that enters it by exp(A ΣΔ)), and whether a sequence
    starts inside, after which the state that entered has no effect.
    """
    SIGN: tl.constexpr = -1 if REVERSE != BACK else 1
    block, split, row, begin, count = _place(channels, splits, T, split_steps, BLOCK)
    origin = _origin(T, begin, count, BACK, REVERSE)
    c = block * BLOCK + tl.arange(0, BLOCK)
    inside = c < channels
    source += row * source_row
    delta += row * delta_row
    matrix += row * matrix_row
    if z is not None:
        z += row * z_row
    if mask is not None:
        mask += row * mask_row

    a, h = (), ()
    for n in tl.static_range(N):
        a += (tl.load(A + n * channels + c, mask=inside, other=0.0),)
        h += (tl.zeros((BLOCK,), tl.float32),)
    shift = _of_channels(bias, c, inside, BLOCK)
    duration = tl.zeros((BLOCK,), tl.float32)
    reset = tl.full((), 0, tl.int32)

    valid = read_valid(mask, mask_time, origin, 0, count, STEPS, SIGN)
    source_k = read(source, source_time, origin, 0, c, inside, valid, STEPS, SIGN)
    delta_k = read(delta, delta_time, origin, 0, c, inside, valid, STEPS, SIGN)
    for step in range(0, count, STEPS):
        ahead = step + STEPS
        next_valid = read_valid(mask, mask_time, origin, ahead, count, STEPS, SIGN)
        next_source = read(source, source_time, origin, ahead, c, inside, next_valid, STEPS, SIGN)
        next_delta = read(delta, delta_time, origin, ahead, c, inside, next_valid, STEPS, SIGN)
        resets = read_resets(first, origin, step, count, STEPS, SIGN)
        if z is not None:
            z_k = read(z, z_time, origin, step, c, inside, valid, STEPS, SIGN)
        for k in tl.static_range(STEPS):
            t = origin + SIGN * (step + k)
            step_size = _step_size(delta_k[k], shift, valid[k], SOFTPLUS)
            duration += step_size
            value = source_k[k].to(tl.float32)
            if z is not None:
                z_t = z_k[k].to(tl.float32)
                value *= z_t * sigmoid(z_t)
            if not BACK:
                value *= step_size
            after = ()
            for n in tl.static_range(N):
                entry = value * _coefficient(matrix + t * matrix_time + n, valid[k], FULL)
                decay = _decay(step_size, a[n], valid[k], FULL)
                if BACK:
                    h_n = decay * (h[n] + entry)
                    if first is not None:
                        h_n = tl.where(resets[k], 0.0, h_n)
                else:
                    before = h[n]
                    if first is not None:
                        before = tl.where(resets[k], 0.0, before)
                    h_n = decay * before + entry
                after += (h_n,)
            h = after
            reset |= resets[k].to(tl.int32)
        valid, source_k, delta_k = next_valid, next_source, next_delta

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
    a = tl.load(A + n * channels + c, mask=c < channels, other=0.0)
    reset = tl.load(broken + part, mask=turn < splits, other=0)
    # A split whose steps are all masked passes on the state that enters it, even if A is infinite.
    decay = tl.where(duration == 0.0, 1.0, tl.exp2(duration * a[None, :]))
    resets = tl.broadcast_to(reset[:, None], (SPLITS, BLOCK))
    _, entering, _ = tl.associative_scan((decay, end, resets), 0, _then)
    following = part - 1 if BACK else part + 1
    target = starts + ((following * N + n) * channels)[:, None] + c[None, :]
    tl.store(target, entering, mask=(turn + 1 < splits)[:, None] & (c < channels)[None, :])


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
    """Sums each of 16 steps over the 32 lanes of a warp; lane k gets step k modulo 16.

    This takes sixteen exchanges; sixteen separate sums would take eighty.
    """
    values = _halve(values, lane, 8)
    values = _halve(values, lane, 4)
    values = _halve(values, lane, 2)
    values = _halve(values, lane, 1)
    return values[0] + tl.gather(values[0], lane ^ 16, 0)


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
    channels,
    rows,
    splits,
    split_steps,
    N,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    FULL: tl.constexpr,
    REVERSE: tl.constexpr,
):
    """Computes the gradients of one split, chunk by chunk from its end.

    ``carry`` holds the gradient of the state at the end of each split and is overwritten; ``dA`` starts at zero. B and
    C, and the parts of their gradients, are ``(row, state, time)``, so each state's entries are contiguous. Within a
    chunk, states are processed one after another, so that the 16 values and decays of one fit the registers.
    """
    SIGN: tl.constexpr = -1 if REVERSE else 1
    block, split, row, begin, count = _place(channels, splits, T, split_steps, BLOCK)
    lane = tl.arange(0, BLOCK)
    c = block * BLOCK + lane
    inside = c < channels
    grad += row * grad_row
    u += row * u_row
    delta += row * delta_row
    B += row * N * T
    C += row * N * T
    du += row * T * channels
    ddelta += row * T * channels
    if z is not None:
        z += row * z_row
        dz += row * T * channels
    if mask is not None:
        mask += row * mask_row
    part = row * splits + split
    carry += part * N * channels
    dA += part * N * channels
    dB += (block * rows + row) * T * N
    dC += (block * rows + row) * T * N
    skip = _of_channels(D, c, inside, BLOCK)
    shift = _of_channels(bias, c, inside, BLOCK)
    of_skip = tl.zeros((BLOCK,), tl.float32)
    of_shift = tl.zeros((BLOCK,), tl.float32)

    chunks = tl.cdiv(count, CHUNK)
    for turn in range(chunks):
        start = begin + (chunks - 1 - turn) * CHUNK
        length = tl.minimum(CHUNK, begin + count - start)
        origin = _origin(T, start, length, False, REVERSE)
        valid = read_valid(mask, mask_time, origin, 0, length, CHUNK, SIGN)
        resets = read_resets(first, origin, 0, length, CHUNK, SIGN)
        step_size, x, g, y, dx, through = (), (), (), (), (), ()
        for k in tl.static_range(CHUNK):
            t = origin + SIGN * k
            counts = both(inside, valid[k])
            raw = tl.load(delta + t * delta_time + c, mask=counts, other=0.0)
            u_t = tl.load(u + t * u_time + c, mask=counts, other=0.0).to(tl.float32)
            g_t = tl.load(grad + t * grad_time + c, mask=counts, other=0.0).to(tl.float32)
            if z is not None:
                z_t = tl.load(z + t * z_time + c, mask=counts, other=0.0).to(tl.float32)
                g_t *= z_t * sigmoid(z_t)
            step_size_t = _step_size(raw, shift, valid[k], SOFTPLUS)
            step_size += (step_size_t,)
            x += (step_size_t * u_t,)
            g += (g_t,)
            y += (skip * u_t,)
            dx += (tl.zeros((BLOCK,), tl.float32),)
            through += (tl.zeros((BLOCK,), tl.float32),)

        lane_time = origin + SIGN * lane
        own = (lane < CHUNK) & (lane < length)
        counting = own
        if mask is not None:
            counting = tl.load(mask + lane_time * mask_time, mask=own, other=0) != 0
        boundary = row * ((T - 1) // CHUNK) + start // CHUNK - 1
        for n in range(N):
            B_here = B + n * T + origin
            C_here = C + n * T + origin
            a = tl.load(A + n * channels + c, mask=inside, other=0.0)
            h = tl.load(saved + (boundary * N + n) * channels + c, mask=both(inside, start > 0), other=0.0)
            dh = tl.load(carry + n * channels + c, mask=inside, other=0.0)
            before, decays, reads, new_y = (), (), (), ()
            for k in tl.static_range(CHUNK):
                B_n = _coefficient(B_here + SIGN * k, valid[k], FULL)
                C_n = _coefficient(C_here + SIGN * k, valid[k], FULL)
                if first is not None:
                    h = tl.where(resets[k], 0.0, h)
                before += (h,)
                decay = _decay(step_size[k], a, valid[k], FULL)
                decays += (decay,)
                h = decay * h + x[k] * B_n
                reads += (h * g[k],)
                new_y += (y[k] + h * C_n,)
            y = new_y
            tl.store(dC + n * T + lane_time, tl.where(counting, _sum_over_lanes(reads, lane), 0.0), mask=own)

            writes, new_dx, new_through = (), (), ()
            of_decay = tl.zeros((BLOCK,), tl.float32)
            for k in tl.static_range(CHUNK - 1, -1, -1):
                B_n = _coefficient(B_here + SIGN * k, valid[k], FULL)
                C_n = _coefficient(C_here + SIGN * k, valid[k], FULL)
                dh += g[k] * C_n
                writes = (dh * x[k],) + writes
                new_dx = (dx[k] + dh * B_n,) + new_dx
                dh *= decays[k]
                of_exponent = dh * before[k]
                new_through = (through[k] + of_exponent * a,) + new_through
                of_decay += of_exponent * step_size[k]
                if first is not None:
                    dh = tl.where(resets[k], 0.0, dh)
            dx, through = new_dx, new_through
            tl.store(dB + n * T + lane_time, tl.where(counting, _sum_over_lanes(writes, lane), 0.0), mask=own)
            tl.store(carry + n * channels + c, dh, mask=inside)
            of_decay += tl.load(dA + n * channels + c, mask=inside, other=0.0)
            tl.store(dA + n * channels + c, of_decay, mask=inside)

        for k in tl.static_range(CHUNK):
            # Read again, from the cache: kept until here, these values would take the states' registers.
            t = origin + SIGN * k
            counts = both(inside, valid[k])
            written = both(inside, k < length)
            u_t = tl.load(u + t * u_time + c, mask=counts, other=0.0).to(tl.float32)
            du_t = dx[k] * step_size[k] + skip * g[k]
            ddelta_t = dx[k] * u_t + through[k] * LN_2
            if SOFTPLUS:
                raw = tl.load(delta + t * delta_time + c, mask=counts, other=0.0).to(tl.float32)
                ddelta_t *= sigmoid(raw + shift)
            ddelta_t = tl.where(valid[k], ddelta_t, 0.0)
            of_skip += g[k] * u_t
            of_shift += ddelta_t
            tl.store(du + t * channels + c, tl.where(valid[k], du_t, 0.0).to(du.dtype.element_ty), mask=written)
            tl.store(ddelta + t * channels + c, ddelta_t.to(ddelta.dtype.element_ty), mask=written)
            if z is not None:
                z_t = tl.load(z + t * z_time + c, mask=counts, other=0.0).to(tl.float32)
                grad_t = tl.load(grad + t * grad_time + c, mask=counts, other=0.0).to(tl.float32)
                s = sigmoid(z_t)
                dz_t = tl.where(valid[k], grad_t * y[k] * s * (1 + z_t * (1 - s)), 0.0)
                tl.store(dz + t * channels + c, dz_t.to(dz.dtype.element_ty), mask=written)

    tl.store(dD + part * channels + c, of_skip, mask=inside)
    tl.store(dbias + part * channels + c, of_shift, mask=inside)
