"""The compiled kernels against the float64 reference: outputs and every gradient, over sizes, dtypes and options."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from tests.ops.agreement import assert_agrees, assert_same_are_finite
from tests.ops.cases import PLAIN, Case, convolutions, plain_scan, scans

SETTINGS = settings(max_examples=25)
QUARTERS = pytest.mark.parametrize("quarter", range(4))
"""Of the examples, so that no test is long."""


@QUARTERS
@SETTINGS
@given(case=scans())
def test_scan_agrees_with_the_reference(quarter: int, case: Case) -> None:
    assert_agrees(case)


@QUARTERS
@SETTINGS
@given(case=convolutions())
def test_convolution_agrees_with_the_reference(quarter: int, case: Case) -> None:
    assert_agrees(case)


@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3), (2, 5, 0)])
@pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN)
def test_empty_inputs_give_empty_outputs(plain, shape: tuple[int, int, int]) -> None:
    assert_agrees(plain(*shape, 4))


def test_an_output_whose_states_cancel_in_every_channel_is_as_near_as_its_terms_allow() -> None:
    case = plain_scan(batch=1, time=1, channel=130, state=2)
    cancelling = case.with_inputs(B=torch.tensor([[[0.7, -1.1]]]), C=torch.tensor([[[1.1, 0.70001]]]))
    inputs = {name: tensor for name, tensor in cancelling.inputs.items() if name not in ("D", "z")}
    assert_agrees(replace(cancelling, inputs=inputs))


def test_gradients_that_are_one_sum_over_channels_which_cancels_are_as_near_as_its_terms_allow() -> None:
    case = plain_scan(batch=1, time=1, channel=16, state=16)
    grad = torch.randn(1, 1, 16, generator=torch.Generator().manual_seed(1)).double()  # that of `assert_agrees`

    def gradient(u: torch.Tensor) -> torch.Tensor:
        return case.with_inputs(u=u).in_float64().run_with_gradients(grad, "reference")["B"][0, 0, 0]

    last = torch.eye(16)[-1].expand(1, 1, 16)
    u = case.inputs["u"]
    cancelling = u - last * (gradient(u) / gradient(last)).float()
    assert abs(gradient(cancelling)) < 1e-6 * abs(gradient(u))
    assert_agrees(case.with_inputs(u=cancelling))


def test_a_wide_batch_of_long_rows() -> None:
    assert_agrees(plain_scan(batch=3, time=300, channel=200, state=16))


def test_many_short_sequences_and_boundaries_that_are_written_anew() -> None:
    cuts = torch.arange(0, 301, dtype=torch.int32)
    case = plain_scan(batch=1, time=300, channel=5).with_options(cu_seqlens=cuts)
    assert_agrees(case)
    cuts[1:-1] = 7
    assert_agrees(case)


@pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN)
def test_an_expanded_gradient_is_read_right(plain) -> None:
    case = plain()
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in case.inputs.items()}
    case.with_inputs(**leaves).run().sum().backward()
    ones = torch.ones_like(case.inputs["u"])
    for name, gradient in case.run_with_gradients(ones).items():
        if name != "output":
            torch.testing.assert_close(leaves[name].grad, gradient, rtol=0, atol=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    ("case", "name"),
    [(case, name) for case in (plain_scan(2, 70, 20, 3), PLAIN["convolution"](2, 70, 20)) for name in case.inputs],
)
def test_nan_and_infinity_travel(case: Case, name: str, value: float) -> None:
    assert_same_are_finite(case.spoiled(name, value))
