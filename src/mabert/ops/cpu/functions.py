"""The operators' transcendental functions, on vectors, accurate to the last bits of float32.

NaN and infinity give the same results as torch's functions. Polynomials are minimax in the relative error, fitted in
float64; the bounds beside them hold in float32 arithmetic.
"""

from typing import Any

from numba import float32, njit

from mabert.ops.cpu.simd import at_least, at_most, magnitude, power_of_two, splat

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453

# 1.5 * 2**23 + 127: adding it rounds to an integer, which ends up in the lowest bits, biased like an exponent.
_ROUND = 12582912.0 + 127.0


@njit
def exp2(x: Any) -> Any:
    """Computes 2**x to 1.7e-7; below 2**-126 it is 0, from 2**127.5 it is infinity, and 2**0 is exactly 1."""
    x = at_most(at_least(x, splat(float32(-127.0))), splat(float32(128.0)))
    shifted = x + splat(float32(_ROUND))
    r = x - (shifted - splat(float32(_ROUND)))
    p = splat(float32(0.0013264727197433296)) * r + splat(float32(0.009671512639666487))
    p = p * r + splat(float32(0.05550733743251511))
    p = p * r + splat(float32(0.2402224208537476))
    p = p * r + splat(float32(0.6931469775991653))
    p = p * r + splat(float32(1.0))
    return p * power_of_two(shifted)


@njit
def exp2_short(x: Any) -> Any:
    """Computes 2**x for x <= 0 (larger x count as 0) to 1.02e-4, a twentieth of bfloat16's rounding; else as `exp2`."""
    x = at_most(at_least(x, splat(float32(-127.0))), splat(float32(0.0)))
    shifted = x + splat(float32(_ROUND))
    r = x - (shifted - splat(float32(_ROUND)))
    p = splat(float32(0.05500893)) * r + splat(float32(0.24221096))
    p = p * r + splat(float32(0.69328293))
    p = p * r + splat(float32(1.0))
    return p * power_of_two(shifted)


@njit
def sigmoid(x: Any) -> Any:
    """Computes 1 / (1 + exp(-x))."""
    return splat(float32(1.0)) / (splat(float32(1.0)) + exp2(x * splat(float32(-LOG2_E))))


@njit
def softplus(x: Any) -> Any:
    """Computes log(1 + exp(x)), by log1p(e) = 2 atanh(e / (2 + e)) with e = exp(-|x|), to 3e-7 even if it is tiny."""
    e = exp2(magnitude(x) * splat(float32(-LOG2_E)))
    s = e / (e + splat(float32(2.0)))
    q = s * s
    p = splat(float32(0.14005993406698658)) * q + splat(float32(0.14000902638766713))
    p = p * q + splat(float32(0.20010763619270924))
    p = p * q + splat(float32(0.33333208142840715))
    p = p * q + splat(float32(1.0))
    return at_least(x, splat(float32(0.0))) + (s + s) * p
