"""The scan on a GPU: chooses splits, buffers and kernels, and sums the kernels' partial results.

All sums run in a fixed order, without atomic additions, so results repeat to the last bit.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from mabert.ops.layout import GPU_CHUNK, gpu_states_shape, readable
from mabert.ops.triton import scan_kernels as kernels
from mabert.ops.triton.launch import (
    as_bytes,
    blocks_of,
    decays_of,
    launch,
    split_steps,
    starts_of_sequences,
    strides,
)

BLOCK = 64
"""Channels of a program of the forward: two per thread of its warp, which share the loaded B and C."""

BACKWARD_BLOCK = 32
STEPS = 4
"""Steps whose inputs the forward holds at a time, besides as many prefetched."""


class _Scan:
    """The inputs in the form that all kernels of one call take, and their shape."""

    def __init__(
        self,
        u: Tensor,
        delta: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        z: Tensor | None,
        delta_bias: Tensor | None,
        mask: Tensor | None,
        cu_seqlens: Tensor | None,
        delta_softplus: bool,
        reverse: bool,
    ) -> None:
        self.u, self.delta, self.z = readable(u), readable(delta), readable(z)
        self.B, self.C = (readable(tensor).float() for tensor in (B, C))  # every block of channels reads them again
        self.D, self.bias = readable(D), readable(delta_bias)
        self.decays = decays_of(A)
        self.mask = as_bytes(mask)
        self.first = starts_of_sequences(cu_seqlens, u.shape[1], reverse)
        self.rows, self.time, self.channels = u.shape
        self.states = A.shape[1]
        full = mask is None and self.time % GPU_CHUNK == 0
        self.options = {"SOFTPLUS": delta_softplus, "FULL": full, "REVERSE": reverse}

    def cut(self, block: int) -> tuple[int, int]:
        """Returns the number of splits per row, and the steps of each."""
        steps = split_steps(self.rows * blocks_of(self.channels, block), self.time, self.u.device)
        return -(-self.time // steps), steps

    def entering(self, source: Tensor, matrix: Tensor, z: Tensor | None, splits: int, steps: int, back: bool) -> Tensor:
        """Returns the state that enters each split (backward: its gradient), ``(row, split, state, channel)``."""
        of_splits = (self.rows, splits, self.states, self.channels)
        ends, starts = (
            self.u.new_empty(of_splits, dtype=torch.float32),
            self.u.new_zeros(of_splits, dtype=torch.float32),
        )
        if splits == 1:
            return starts
        durations = self.u.new_empty((self.rows, splits, self.channels), dtype=torch.float32)
        broken = self.u.new_empty((self.rows, splits), dtype=torch.int32)
        blocks = blocks_of(self.channels, BLOCK)
        launch(
            kernels.scan_ends,
            self.rows * splits * blocks,
            source,
            self.delta,
            self.decays,
            matrix,
            z,
            self.bias,
            self.mask,
            self.first,
            ends,
            durations,
            broken,
            *strides(source, self.delta, matrix, z, self.mask),
            self.time,
            self.channels,
            splits,
            steps,
            N=self.states,
            BLOCK=BLOCK,
            STEPS=STEPS,
            BACK=back,
            **self.options,
        )
        block = 32
        launch(
            kernels.combine,
            self.rows * self.states * blocks_of(self.channels, block),
            ends,
            durations,
            broken,
            self.decays,
            starts,
            self.channels,
            splits,
            N=self.states,
            BLOCK=block,
            SPLITS=1 << (splits - 1).bit_length(),
            BACK=back,
            warps=4,
        )
        return starts


def scan_forward(*inputs: Any, keep_states: bool) -> tuple[Tensor, Tensor]:
    """Runs the scan; returns y and, if ``keep_states``, the states at chunk boundaries."""
    u, A = inputs[0], inputs[2]
    scan = _Scan(*inputs)
    y = torch.empty(u.shape, dtype=u.dtype, device=u.device)
    states = u.new_empty(gpu_states_shape(u, A) if keep_states else (0,), dtype=torch.float32)
    if y.numel() == 0:
        return y, states
    splits, steps = scan.cut(BLOCK)
    starts = scan.entering(scan.u, scan.B, None, splits, steps, False) if splits > 1 else None
    launch(
        kernels.scan_forward,
        scan.rows * splits * blocks_of(scan.channels, BLOCK),
        scan.u,
        scan.delta,
        scan.decays,
        scan.B,
        scan.C,
        scan.D,
        scan.z,
        scan.bias,
        scan.mask,
        scan.first,
        starts,
        y,
        states if keep_states else None,
        *strides(scan.u, scan.delta, scan.B, scan.C, scan.z, scan.mask),
        scan.time,
        scan.channels,
        splits,
        steps,
        N=scan.states,
        BLOCK=BLOCK,
        STEPS=STEPS,
        CHUNK=GPU_CHUNK,
        **scan.options,
    )
    return y, states


def scan_backward(grad: Tensor, states: Tensor, *inputs: Any) -> list[Tensor]:
    """Returns the gradients of the floating inputs that are present, in the order of the arguments."""
    u, delta, A, B, C, D, z, delta_bias = inputs[:8]
    scan = _Scan(*inputs)
    grad = readable(grad)
    new = partial(torch.empty, dtype=torch.float32, device=u.device)
    du, ddelta = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (u, delta))
    dz = None if z is None else torch.empty(z.shape, dtype=z.dtype, device=z.device)
    splits, steps = scan.cut(BACKWARD_BLOCK) if u.numel() else (1, 1)
    blocks = blocks_of(scan.channels, BACKWARD_BLOCK)
    dA = torch.zeros((scan.rows, splits, scan.states, scan.channels), dtype=torch.float32, device=u.device)
    B_turned, C_turned = (tensor.transpose(1, 2).contiguous() for tensor in (scan.B, scan.C))
    dB, dC = new((blocks, *B_turned.shape)), new((blocks, *C_turned.shape))
    dD, dbias = (
        torch.zeros((scan.rows, splits, scan.channels), dtype=torch.float32, device=u.device) for _ in range(2)
    )
    if u.numel():
        launch(
            kernels.scan_backward,
            scan.rows * splits * blocks,
            grad,
            scan.u,
            scan.delta,
            scan.decays,
            B_turned,
            C_turned,
            scan.D,
            scan.z,
            scan.bias,
            scan.mask,
            scan.first,
            states,
            scan.entering(grad, scan.C, scan.z, splits, steps, True),
            du,
            ddelta,
            dz,
            dA,
            dB,
            dC,
            dD,
            dbias,
            *strides(grad, scan.u, scan.delta, scan.z, scan.mask),
            scan.time,
            scan.channels,
            scan.rows,
            splits,
            steps,
            scan.states,
            BLOCK=BACKWARD_BLOCK,
            CHUNK=GPU_CHUNK,
            **scan.options,
        )
    gradients = [du, ddelta, dA.sum((0, 1)).t().contiguous().to(A.dtype)]
    gradients += [parts.sum(0).transpose(1, 2).to(matrix.dtype).contiguous() for parts, matrix in ((dB, B), (dC, C))]
    if D is not None:
        gradients.append(dD.sum((0, 1)).to(D.dtype))
    if dz is not None:
        gradients.append(dz)
    if delta_bias is not None:
        gradients.append(dbias.sum((0, 1)).to(delta_bias.dtype))
    return gradients
