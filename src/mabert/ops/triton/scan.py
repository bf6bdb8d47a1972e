"""The scan on a GPU: chooses splits, buffers and kernels, and sums the kernels' partial results.

All sums run in a fixed order, without atomic additions, so results repeat to the last bit.
"""

from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from mabert.ops.layout import GPU_CHUNK, gpu_states_shape, readable
from mabert.ops.triton import scan_kernels as kernels
from mabert.ops.triton.functions import LOG2_E
from mabert.ops.triton.launch import as_bytes, launch, numbered, split_steps, strides, words_of

BLOCK = 32
"""Channels of a program, one per thread of its warp."""

STEPS, AHEAD = 4, 2
"""Steps that the forward reads u, Δ and z ahead, and B and C."""

WARPS_A_PROCESSOR = 12
"""Warps of each kernel that are resident on a multiprocessor, by the registers that the compiler gives a thread."""

BACKWARD_REGISTERS = 168
"""Most registers of a thread of the backward: by itself the compiler takes 255, for 8 warps a multiprocessor."""

TILE = 32
"""Steps of a program that turns B and C."""


class _Scan:
    """The inputs in the form that all kernels of one call take, and their shape."""

    def __init__(self, *inputs: Any) -> None:
        u, delta, A, B, C, D, z, delta_bias, mask, cu_seqlens, delta_softplus, reverse = inputs
        self.u, self.delta, self.z = readable(u), readable(delta), readable(z)
        self.B, self.C = readable(B), readable(C)
        self.A, self.D, self.bias = A, readable(D), readable(delta_bias)
        self.mask = as_bytes(mask)
        self.first = None if cu_seqlens is None else numbered(cu_seqlens, u.shape[1]).starts(reverse)
        self.rows, self.time, self.channels = u.shape
        self.states = A.shape[1]
        self.blocks = triton.cdiv(self.channels, BLOCK)
        self.options = {"SOFTPLUS": delta_softplus, "REVERSE": reverse}

    def cut(self) -> tuple[int, int]:
        """Returns the number of splits per row, and the steps of each."""
        steps = split_steps(self.rows * self.blocks, self.time, WARPS_A_PROCESSOR, self.u.device)
        return -(-self.time // steps), steps

    def entering(self, source: Tensor, matrix: Tensor, z: Tensor | None, splits: int, steps: int, back: bool) -> Tensor:
        """Returns the state that enters each split (backward: its gradient), ``(row, split, state, channel)``."""
        of_splits = (self.rows, splits, self.states, self.channels)
        ends, starts = (self.u.new_empty(of_splits, dtype=torch.float32) for _ in range(2))
        durations = self.u.new_empty((self.rows, splits, self.channels), dtype=torch.float32)
        broken = self.u.new_empty((self.rows, splits), dtype=torch.int32)
        width, *matrix_strides = words_of(matrix)
        tensors = source, self.delta, self.A, matrix, z, self.bias, self.mask, self.first, ends, durations, broken
        distances = *strides(source, self.delta), *matrix_strides, *strides(z, self.mask), *self.A.stride()
        sizes, form = (self.time, self.channels, splits, steps), {"N": self.states, "BLOCK": BLOCK, "BACK": back}
        ahead = {"STEPS": STEPS, "AHEAD": AHEAD, "WIDTH": width, **self.options}
        launch(kernels.scan_ends, self.rows * splits * self.blocks, *tensors, *distances, *sizes, **form, **ahead)
        joined, lengths = (ends, durations, broken, self.A, starts), (*self.A.stride(), self.channels, splits)
        power, programs = triton.next_power_of_2(splits), self.rows * self.states * self.blocks
        launch(kernels.combine, programs, *joined, *lengths, **form, SPLITS=power, warps=4)
        return starts


def scan_forward(*inputs: Any, keep_states: bool) -> tuple[Tensor, Tensor]:
    """Runs the scan; returns y and, if ``keep_states``, the states at chunk boundaries."""
    u, A = inputs[0], inputs[2]
    scan = _Scan(*inputs)
    y = torch.empty(u.shape, dtype=u.dtype, device=u.device)
    states = u.new_empty(gpu_states_shape(u, A) if keep_states else (0,), dtype=torch.float32)
    if y.numel() == 0:
        return y, states
    splits, steps = scan.cut()
    starts = scan.entering(scan.u, scan.B, None, splits, steps, False) if splits > 1 else None
    (B_width, *B_strides), (C_width, *C_strides) = words_of(scan.B), words_of(scan.C)
    given = scan.u, scan.delta, scan.A, scan.B, scan.C, scan.D, scan.z, scan.bias, scan.mask, scan.first
    distances = *strides(scan.u, scan.delta), *B_strides, *C_strides, *strides(scan.z, scan.mask), *scan.A.stride()
    places = *given, starts, y, states if keep_states else None, *distances, scan.time, scan.channels, splits, steps
    form = {"N": scan.states, "BLOCK": BLOCK, "STEPS": STEPS, "AHEAD": AHEAD, "SAVED": GPU_CHUNK, **scan.options}
    programs = scan.rows * splits * scan.blocks
    launch(kernels.scan_forward, programs, *places, **form, B_WIDTH=B_width, C_WIDTH=C_width)
    return y, states


def scan_backward(grad: Tensor, states: Tensor, *inputs: Any) -> list[Tensor | None]:
    """Returns the gradients of the floating inputs, in the order of the arguments; None of those that are absent."""
    u, delta, A, B, C, D, z, delta_bias = inputs[:8]
    scan = _Scan(*inputs)
    if u.numel() == 0:
        return [None if tensor is None else torch.zeros_like(tensor) for tensor in inputs[:8]]
    grad = readable(grad)
    new = partial(torch.empty, dtype=torch.float32, device=u.device)
    du, ddelta, dB, dC = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (u, delta, B, C))
    dz = None if z is None else torch.empty(z.shape, dtype=z.dtype, device=z.device)
    splits, steps = scan.cut()
    padded = triton.cdiv(scan.time, GPU_CHUNK) * GPU_CHUNK
    decays = torch.mul(A.t().float(), LOG2_E.value, out=new((scan.states, scan.channels)))
    turned_B, turned_C = (new((scan.rows, scan.states, padded)) for _ in range(2))
    parts_B, parts_C = (new((scan.blocks, *turned_B.shape)) for _ in range(2))
    dA = new((scan.rows, splits, scan.states, scan.channels))
    dD, dbias = (new((scan.rows, splits, scan.channels)) for _ in range(2))
    tiles, back = 2 * scan.rows * triton.cdiv(padded, TILE), 2 * scan.rows * triton.cdiv(scan.time, TILE)
    turning = {"STEPS": TILE, "STATES": triton.next_power_of_2(scan.states), "REVERSE": scan.options["REVERSE"]}
    lengths = *strides(scan.B, scan.C, scan.mask), scan.time, padded, scan.states
    launch(kernels.turn, tiles, scan.B, scan.C, scan.mask, turned_B, turned_C, *lengths, **turning)
    carry = scan.entering(grad, scan.C, scan.z, splits, steps, True) if splits > 1 else torch.empty_like(dA)
    given = grad, scan.u, scan.delta, decays, turned_B, turned_C, scan.D, scan.z, scan.bias, scan.mask, scan.first
    made = du, ddelta, dz, dA, parts_B, parts_C, dD, dbias
    distances = strides(grad, scan.u, scan.delta, scan.z, scan.mask)
    sizes = *distances, scan.time, padded, scan.channels, scan.rows, splits, steps, scan.states
    form = {"BLOCK": BLOCK, "SAVED": GPU_CHUNK, "maxnreg": BACKWARD_REGISTERS, **scan.options}
    launch(kernels.scan_backward, scan.rows * splits * scan.blocks, *given, states, carry, *made, *sizes, **form)
    back_sizes = *strides(scan.mask), scan.time, padded, scan.rows, scan.blocks, scan.states
    launch(kernels.turn_back, back, parts_B, parts_C, scan.mask, dB, dC, *back_sizes, **turning)
    of_D = None if D is None else dD.sum((0, 1)).to(D.dtype)
    of_bias = None if delta_bias is None else dbias.sum((0, 1)).to(delta_bias.dtype)
    return [du, ddelta, dA.sum((0, 1)).t().contiguous().to(A.dtype), dB, dC, of_D, dz, of_bias]
