"""The attention matrix that a selective scan implies, so that `output_attentions` covers Mamba layers too.

Unrolled, the scan of one channel is õ = M ũ with M_ts = Σ_n C_tn exp(A_n Σ_{s<k<=t} Δ_k) Δ_s B_sn for s <= t, plus D on
the diagonal: the "hidden attention" of Ali, Zimerman and Wolf (2024, arXiv 2403.01590). Each channel has its own
matrix. The channels are averaged in as many groups as the Transformer layers have heads, so that all shapes agree.
"""

import torch
from torch import Tensor

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
