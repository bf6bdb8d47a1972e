"""Elementary functions on a GPU, built on its hardware powers of two."""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def sigmoid(x):
    """Returns 1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + tl.exp2(-x * LOG2_E))


@triton.jit
def softplus(x):
    """Returns log(1 + exp(x)), as max(x, 0) + log1p(exp(-|x|)).

    Adding small e to 1 loses digits of e, so a series is used there; at its end, e = 1/16, the next term adds 5e-9.
    """
    e = tl.exp2(-tl.abs(x) * LOG2_E)
    series = e * (1 - e * (0.5 - e * (1 / 3 - e * (0.25 - e * (0.2 - e * (1 / 6))))))
    return tl.where(e < 0.0625, series, tl.log2(1.0 + e) * LN_2) + tl.maximum(x, 0.0)
