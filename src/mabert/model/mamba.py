"""The Mamba core of the sequential blocks: steps (i) to (iii) of the paper, Eqs. 4 to 9."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.utils import logging

from mabert.model.config import MaBertConfig
from mabert.model.kept import KeepsValues, kept
from mabert.model.masking import PaddingMask
from mabert.model.packing import is_tracing
from mabert.ops import depthwise_conv1d, selective_scan

logger = logging.get_logger(__name__)

DIRECTIONS = {"forward": ("forward",), "backward": ("backward",), "bidirectional": ("forward", "backward")}

DT_INIT_FLOOR = 1e-4
"""Smallest step size that an initial Δ bias may stand for (Mamba-1's `dt_init_floor`)."""

SHORT = (torch.bfloat16, torch.float16)


class LocalMixing(nn.Module):
    """ũ of one direction: SiLU of a depthwise convolution of the input path (Eq. 5)."""

    def __init__(self, config: MaBertConfig, direction: str) -> None:
        super().__init__()
        self.mode = config.ssm_conv_mode
        self.reverse = direction == "backward"
        self.weight = nn.Parameter(torch.empty(config.ssm_inner_size, config.ssm_conv_kernel))
        self.bias = nn.Parameter(torch.empty(config.ssm_inner_size))

    def forward(self, u: Tensor, mask: PaddingMask) -> Tensor:
        """Mixes u (batch, time, D_m) along each of the mask's sequences; returns the same shape."""
        return depthwise_conv1d(
            u, self.weight, self.bias, mode=self.mode, mask=mask.inner, cu_seqlens=mask.cu_seqlens, reverse=self.reverse
        )


class Recurrence(KeepsValues):
    """The selective scan (Eq. 8) and its own parameters.

    The parameters stay float32 when the model is made in a shorter float or cast to one: the recurrence multiplies
    exp(Δ A) over thousands of steps, and Mamba-1 is known to need float32 for it. They are in a module of their own
    because sharding (FSDP) needs one dtype and one precision per module.
    """

    FLOAT32 = ("A_log", "D", "delta_bias")

    def __init__(self, channels: int, states: int) -> None:
        super().__init__()
        wide = torch.promote_types(torch.get_default_dtype(), torch.float32)
        self.delta_bias = nn.Parameter(torch.empty(channels, dtype=wide))
        self.A_log = nn.Parameter(torch.empty(channels, states, dtype=wide))
        self.D = nn.Parameter(torch.empty(channels, dtype=wide))

    def forward(
        self, steps: tuple[Tensor, ...], z: Tensor, mask: PaddingMask, *, reverse: bool, heads: int | None
    ) -> tuple[Tensor, Tensor | None]:
        """Scans; returns SiLU(z) ⊙ õ (batch, time, D_m), and the hidden attention if asked for.

        Args:
            steps: ũ and Δ before its bias, both (batch, time, D_m); B and C, both (batch, time, N).
            z: Gating path (batch, time, D_m).
            mask: The batch's padding.
            reverse: Whether to scan from the end.
            heads: Number of channel groups to report the hidden attention of; None to report none.
        """
        if self.A_log.dtype in SHORT:
            logger.warning_once(
                f"the recurrence's parameters are {self.A_log.dtype}; the scan needs float32: give the "
                "modules of class Recurrence a precision of their own (docs/many-machines.md)"
            )
        u, delta, B, C = steps
        inputs = (u, delta, kept(self, decay_rates, self.A_log), B, C, self.D)
        how: dict[str, Any] = {"delta_bias": self.delta_bias, "mask": mask.inner, "reverse": reverse}
        gated = selective_scan(*inputs, z, cu_seqlens=mask.cu_seqlens, **how)
        return gated, None if heads is None else hidden_attention(*inputs, heads=heads, **how)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Recurrence":
        before = {name: getattr(self, name).data for name in self.FLOAT32}
        super()._apply(fn, recurse)
        for name, value in before.items():
            parameter = getattr(self, name)
            if parameter.dtype in SHORT and value.dtype == torch.float32:
                parameter.data = value.to(parameter.device)
        return self


def decay_rates(A_log: Tensor) -> Tensor:
    """Returns A = -exp(A_log), (channel, state)."""
    return -A_log.exp()


class SelectiveCore(nn.Module):
    """One direction: local mixing (Eq. 5), token-wise parameters (Eqs. 6-7) and the selective scan (Eq. 8).

    `MambaMixer` calls `local_mixing`, in all directions before the first scan, so that u is freed while they scan.
    """

    def __init__(self, config: MaBertConfig, direction: str) -> None:
        super().__init__()
        channels, states, rank = config.ssm_inner_size, config.ssm_state_size, config.ssm_dt_rank
        assert rank is not None
        self.reverse = direction == "backward"
        self.split = (rank, states, states)
        self.dt_range = (config.ssm_dt_min, config.ssm_dt_max)
        self.local_mixing = LocalMixing(config, direction)
        # Modules are made in the order of the first version's parameters, which a checkpoint's optimizer state follows.
        with torch.random.fork_rng(devices=[]):
            self.dt_proj = nn.Linear(rank, channels, bias=False)
        # `init_weights` alone draws this weight, so a seed gives the same model as when it was a bare parameter.
        vars(self.dt_proj)["_is_hf_initialized"] = True
        self.recurrence = Recurrence(channels, states)
        self.x_proj = nn.Linear(channels, sum(self.split), bias=False)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Applies Mamba-1's initialisation (Gu and Dao, 2023).

        softplus(Δ bias) is log-uniform over the range of step sizes, A = -(1..N), D = 1, the Δ projection uniform ±
        r^-½, the convolution uniform ± width^-½.
        """
        scan = self.recurrence
        channels, states = scan.A_log.shape
        low, high = (math.log(bound) for bound in self.dt_range)
        step = torch.empty_like(scan.delta_bias).uniform_(low, high).exp().clamp(min=DT_INIT_FLOOR)
        init.copy_(scan.delta_bias, step + torch.log(-torch.expm1(-step)))
        init.copy_(scan.A_log, torch.arange(1, states + 1, dtype=torch.float32).log().expand(channels, states))
        init.ones_(scan.D)
        bound = self.dt_proj.in_features**-0.5
        init.uniform_(self.dt_proj.weight, -bound, bound)
        bound = self.local_mixing.weight.shape[1] ** -0.5
        init.uniform_(self.local_mixing.weight, -bound, bound)
        init.uniform_(self.local_mixing.bias, -bound, bound)

    def forward(
        self, mixed: Tensor, z: Tensor, mask: PaddingMask, heads: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Runs Eqs. 6 to 8 on ũ (batch, time, D_m), the output of `local_mixing`; z, heads and what is returned are
        those of `Recurrence.forward`."""
        d, B, C = self.x_proj(mixed).split(self.split, dim=-1)
        return self.recurrence((mixed, self.dt_proj(d), B, C), z, mask, reverse=self.reverse, heads=heads)


class MambaMixer(nn.Module):
    """SSM(Ĥ) of Eq. 2: input and gate split, one core or two, gated readout, output projection."""

    def __init__(self, config: MaBertConfig) -> None:
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.in_proj = nn.Linear(config.hidden_size, 2 * config.ssm_inner_size, bias=config.ssm_bias)
        self.cores = nn.ModuleList([SelectiveCore(config, name) for name in DIRECTIONS[config.ssm_direction]])
        self.out_proj = nn.Linear(config.ssm_inner_size, config.hidden_size, bias=config.ssm_bias)

    def forward(
        self, hidden: Tensor, mask: PaddingMask, output_attentions: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Runs Eqs. 4 to 9 on Ĥ (batch, time, D), normalised and masked.

        Returns:
            Y (batch, time, D), and if asked for the scan's hidden attention, (batch, heads, time, time), else None.
        """
        u, z = self.in_proj(hidden).chunk(2, dim=-1)  # Eq. 4
        mixed = [core.get_submodule("local_mixing")(u, mask) for core in self.cores]  # Eq. 5
        if z.device.type == "cpu" and not (z.requires_grad or is_tracing()):
            # u is no longer needed, and the scan can use its memory. On a GPU a copy costs time, and memory is reused.
            z = z.contiguous()
            del u
        heads = self.num_attention_heads if output_attentions else None
        outputs = [core(ũ, z, mask, heads) for core, ũ in zip(self.cores, mixed, strict=True)]  # Eqs. 6 to 8
        gated = sum_of([output[0] for output in outputs])
        attention = sum_of([output[1] for output in outputs]) if output_attentions else None
        return self.out_proj(gated), attention  # Eq. 9


def sum_of(terms: list[Tensor]) -> Tensor:
    """Sums one tensor per direction, without a first addition to zero."""
    return terms[0] if len(terms) == 1 else torch.stack(terms).sum(dim=0)


CHANNELS_AT_ONCE = 32
"""Channels whose matrices are in memory together; limits memory, not the result."""


@torch.no_grad()
def hidden_attention(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    *,
    heads: int,
    delta_bias: Tensor,
    mask: Tensor | None = None,
    reverse: bool = False,
) -> Tensor:
    """Returns the mean matrix of each of `heads` groups of neighbouring channels, float32 (batch, heads, time, time);
    row t is what output t takes from each input.

    The other arguments are those of `mabert.ops.selective_scan`. Of u only the shape is used, since the matrices are
    what multiplies it; rows and columns of masked steps are zero. It takes time x time x channel x state operations:
    fit for inspection, not for training.
    """
    batch, time, channels = u.shape
    step = torch.nn.functional.softplus(delta.float() + delta_bias.float())
    if mask is not None:
        step = step.masked_fill(~mask.unsqueeze(-1), 0)
    step = step.transpose(1, 2)
    passed = step.flip(-1).cumsum(-1).flip(-1) if reverse else step.cumsum(-1)
    B, C, A = B.float(), C.float(), A.float()
    seen = torch.ones(time, time, dtype=torch.bool, device=u.device).tril()
    seen = seen.T if reverse else seen
    group = torch.arange(channels, device=u.device) * heads // channels  # of neighbours, as evenly as possible
    total = u.new_zeros(batch, heads, time, time, dtype=torch.float32)
    for some in torch.arange(channels, device=u.device).split(CHANNELS_AT_ONCE):
        elapsed = (passed[:, some, :, None] - passed[:, some, None, :]).masked_fill(~seen, 0)
        matrix = torch.zeros_like(elapsed)
        for n in range(A.shape[1]):
            reads = C[:, None, :, None, n] * B[:, None, None, :, n]
            matrix += (elapsed * A[some, n, None, None]).exp_() * reads
        matrix = (matrix * step[:, some, None, :]).masked_fill(~seen, 0)
        matrix.diagonal(dim1=-2, dim2=-1).add_(D[some].float().unsqueeze(-1))
        total.index_add_(1, group[some], matrix)
    if mask is not None:
        total = total.masked_fill(~(mask[:, None, :, None] & mask[:, None, None, :]), 0)
    return total / torch.bincount(group, minlength=heads).clamp(min=1).view(1, heads, 1, 1)
