"""The specification itself: against NumPy written from the equations. `test_transforms.py` has its gradients."""

import itertools

import numpy as np
import torch
from hypothesis import given, settings

from tests.ops.cases import Case, convolutions, scans
from tests.tolerances import assert_close


def _sequences(case: Case) -> list[tuple[int, int, int]]:
    batch, time, _ = case.inputs["u"].shape
    cuts = case.options.get("cu_seqlens")
    if cuts is None:
        return [(row, 0, time) for row in range(batch)]
    return [(0, start, end) for start, end in itertools.pairwise(cuts.tolist())]


def _sigmoid(x: float) -> float:
    return 1 / (1 + np.exp(-x)) if x >= 0 else np.exp(x) / (1 + np.exp(x))


def _scan_by_equation(case: Case) -> np.ndarray:
    x = {name: tensor.numpy() for name, tensor in case.inputs.items()}
    mask = case.options["mask"]
    y = np.zeros(x["u"].shape)
    for row, start, end in _sequences(case):
        for c in range(y.shape[2]):
            h = np.zeros(x["A"].shape[1])
            for t in range(end - 1, start - 1, -1) if case.options["reverse"] else range(start, end):
                if mask is not None and not mask[row, t]:
                    continue
                delta = x["delta"][row, t, c] + (x["delta_bias"][c] if "delta_bias" in x else 0)
                if case.options["delta_softplus"]:
                    delta = np.logaddexp(0, delta)
                h = np.exp(delta * x["A"][c]) * h + delta * x["B"][row, t] * x["u"][row, t, c]
                y[row, t, c] = h @ x["C"][row, t] + (x["D"][c] * x["u"][row, t, c] if "D" in x else 0)
                if "z" in x:
                    y[row, t, c] *= x["z"][row, t, c] * _sigmoid(x["z"][row, t, c])
    return y


def _convolution_by_equation(case: Case) -> np.ndarray:
    u, weight = case.inputs["u"].numpy(), case.inputs["weight"].numpy()
    bias = case.inputs["bias"].numpy() if "bias" in case.inputs else np.zeros(u.shape[2])
    mask, width = case.options["mask"], weight.shape[1]
    before = width - 1 if case.options["mode"] == "causal" else (width - 1) // 2
    y = np.zeros(u.shape)
    for row, start, end in _sequences(case):
        for t in range(start, end):
            if mask is not None and not mask[row, t]:
                continue
            total = bias.copy()
            for k in range(width):
                s = t - (k - before) if case.options["reverse"] else t + (k - before)
                if start <= s < end and (mask is None or mask[row, s]):
                    total += weight[:, k] * u[row, s]
            y[row, t] = [v * _sigmoid(v) if case.options["activation"] else v for v in total]
    return y


@settings(max_examples=25)
@given(scans(dtypes=(torch.float64,)).filter(lambda case: case.inputs["u"].numel() < 4000))
def test_scan_is_the_recurrence(case: Case) -> None:
    expected = torch.from_numpy(_scan_by_equation(case))
    assert_close("reference", "output", case.run("reference"), expected)


@settings(max_examples=25)
@given(convolutions(dtypes=(torch.float64,)).filter(lambda case: case.inputs["u"].numel() < 4000))
def test_convolution_is_the_sum_over_taps(case: Case) -> None:
    expected = torch.from_numpy(_convolution_by_equation(case))
    assert_close("reference", "output", case.run("reference"), expected)
