"""What must not matter, and what must: padding, packing, direction, causality, content of masked steps."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad

from tests.ops.agreement import assert_masked_is_nothing
from tests.ops.cases import PLAIN, Case, any_case, masks, offsets
from tests.tolerances import OUTPUTS

SETTINGS = settings(max_examples=40)
BACKENDS = st.sampled_from(("cpu", "cpu", "cpu", "reference"))
plain_cases = st.sampled_from([plain(2, 97, 70) for plain in PLAIN.values()])
options = st.fixed_dictionaries({"reverse": st.booleans()})


def _same(actual: Tensor, expected: Tensor, backend: str = "cpu") -> None:
    """Require the same bits; torch's own functions, in the reference, may differ in the last one with the shape."""
    if backend == "reference":
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
        return
    assert torch.equal(actual, expected), f"off by {(actual - expected).abs().max().item():.3e}"


@SETTINGS
@given(plain_cases, options, BACKENDS, st.data())
def test_masked_steps_come_out_as_zero_and_their_content_is_irrelevant(case: Case, options, backend, data) -> None:
    mask = data.draw(masks(2, 97).filter(lambda mask: mask is not None))
    assert_masked_is_nothing(case.with_options(mask=mask, **options), backend)


@SETTINGS
@given(plain_cases, options, BACKENDS, st.integers(1, 40), st.booleans(), st.sampled_from(("causal", "centered")))
def test_padding_on_either_side_changes_nothing(case: Case, options, backend, extra, left, mode) -> None:
    if case.operator == "depthwise_conv1d":
        options = {**options, "mode": mode}
    case = case.with_options(**options)
    sides = (0, 0, extra, 0) if left else (0, 0, 0, extra)
    mask = pad(torch.ones(2, 97, dtype=torch.bool), sides[2:])
    padded = case.over_time(lambda tensor: pad(tensor, sides, value=3.0)).with_options(mask=mask)
    torch.testing.assert_close(padded.run(backend)[mask].view(2, 97, -1), case.run(backend), rtol=0, atol=1e-5)


@SETTINGS
@given(plain_cases, options, BACKENDS, offsets(97))
def test_packing_is_separate_rows(case: Case, options, backend, cu_seqlens: Tensor) -> None:
    case = case.over_time(lambda tensor: tensor[:1]).with_options(**options)
    packed = case.with_options(cu_seqlens=cu_seqlens).run(backend)
    rows = [
        case.over_time(lambda tensor, a=start, b=end: tensor[:, a:b]).run(backend)
        for start, end in itertools.pairwise(cu_seqlens.tolist())
    ]
    _same(packed, torch.cat(rows, dim=1), backend)


@SETTINGS
@given(any_case(dtypes=(torch.float32,)), BACKENDS)
def test_reverse_is_flip_run_flip(case: Case, backend) -> None:
    cu_seqlens, mask = case.options.get("cu_seqlens"), case.options["mask"]
    time = case.inputs["u"].shape[1]
    order = torch.arange(time).flip(0)
    if cu_seqlens is not None:
        order = torch.cat([torch.arange(a, b).flip(0) for a, b in itertools.pairwise(cu_seqlens.tolist())])
    flipped = case.over_time(lambda tensor: tensor[:, order]).with_options(
        reverse=not case.options["reverse"], mask=None if mask is None else mask[:, order]
    )
    torch.testing.assert_close(flipped.run(backend)[:, order], case.run(backend), **OUTPUTS)


@SETTINGS
@given(plain_cases, options, BACKENDS, st.integers(0, 96))
def test_a_causal_operator_does_not_look_ahead(case: Case, options, backend, t: int) -> None:
    case = case.with_options(**options)
    unseen = slice(0, t) if options["reverse"] else slice(t + 1, None)
    seen = slice(t, None) if options["reverse"] else slice(0, t + 1)

    def change(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor[:, unseen] = 7.0
        return tensor

    _same(case.over_time(change).run(backend)[:, seen], case.run(backend)[:, seen], backend)


@pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN)
def test_rows_of_a_batch_do_not_meet(plain) -> None:
    case = plain(3, 97, 70)
    alone = [case.over_time(lambda tensor, row=row: tensor[row : row + 1]).run() for row in range(3)]
    _same(case.run(), torch.cat(alone))
