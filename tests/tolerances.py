"""The one table of tolerances: how far a fast path may be from the float64 reference.

``relative`` is a share of the expected number itself, ``absolute`` a share of the largest expected number of the
tensor. bfloat16 keeps 8 bits: rounding a result once costs half of 2**-8. Nothing in the environment changes these.
"""

from typing import NamedTuple

import torch


class Tolerance(NamedTuple):
    relative: float
    absolute: float


TOLERANCES = {
    ("selective_scan", torch.float32): Tolerance(relative=2e-6, absolute=3e-6),
    ("selective_scan", torch.bfloat16): Tolerance(relative=2**-8, absolute=3e-6),
    ("depthwise_conv1d", torch.float32): Tolerance(relative=2e-6, absolute=2e-6),
    ("depthwise_conv1d", torch.bfloat16): Tolerance(relative=2**-8, absolute=2e-6),
    ("softmax_attention", torch.float32): Tolerance(relative=2e-6, absolute=2e-6),
    ("softmax_attention", torch.bfloat16): Tolerance(relative=2**-8, absolute=2**-8),  # weights are rounded as well
    ("prepacked model", torch.float32): Tolerance(relative=2e-6, absolute=2e-6),
    ("reference", torch.float64): Tolerance(relative=1e-12, absolute=1e-12),
}

OUTPUTS = {"rtol": 1e-5, "atol": 1e-5}
"""Of float32 outputs by another way (captured, compiled, prepacked, merged, flipped): a sum of n terms in another order
differs by at most n * 2**-24 of their magnitudes, which is 1e-5 for 168, more terms than in most sums of the tests."""

VECTORS = {"rtol": 1e-5, "atol": 2e-6}
"""Of float32 vectors of texts in other batches: only the order of some sums differs."""


def assert_close(
    operator: str, name: str, actual: torch.Tensor, expected: torch.Tensor, largest: float | None = None
) -> None:
    """Compare with the float64 expectation, by the table's row for the operator and the dtype of what came out.

    ``largest`` is what the absolute part is a share of; None stands for the largest expected number.
    """
    tolerance = TOLERANCES[operator, actual.dtype]
    assert actual.shape == expected.shape, f"{name}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if actual.numel() == 0:
        return
    largest = expected.abs().max().item() if largest is None else largest
    # Of numbers below the smallest normal one a format keeps fewer digits, down to one, however exact a computation is.
    if largest:
        largest = max(largest, torch.finfo(actual.dtype).tiny)
    error = (actual.double() - expected).abs()
    worst = (error - tolerance.relative * expected.abs() - tolerance.absolute * largest).max().item()
    assert worst <= 0, f"{name}: off by {error.max().item():.3e}, {worst:.3e} more than allowed"
