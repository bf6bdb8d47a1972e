"""The first tables say how many situations a verdict on padding has, and what numbers an open claim on costs has."""

from types import SimpleNamespace

import pytest

from mabert_lab.report.costs_page import machines
from mabert_lab.report.found import Found
from mabert_lab.report.verdicts import claim_tables, judged
from tests.lab.report.rows import LOWEST, curves, far, measured, rivals


def tables(drifts=(), results=None):
    found = [Found(costs=results, drifts=tuple(drifts))]
    return claim_tables(found, judged(found))


def rows(frame):
    return {row[0]: " | ".join(row[1:]) for row in frame.itertuples(index=False, name=None)}


def test_situations_are_counted_by_what_attention_sees_and_the_papers_apart():
    (one,), (other,) = curves(**far(0.3, 0.2, 0.1, 0.01)), curves(scan="backward", **far(0.3, 0.1, 0.2, 0.2))
    found = tables([one, ("other.json", other[1])])
    order = next(told for claim, told in rows(found["decided"]).items() if claim.startswith("Masking after a block"))
    best, worse = "(pre 0.2, post 0.1, pre and post 0.01)", "(pre 0.1, post 0.2, pre and post 0.2)"
    assert (
        f"**holds:** the paper's setting, 1 of 1 {best}; attention masked, 1 of 3 {best}; attention unmasked, 2 of 4 "
        f"{best}. **does not hold:** attention masked, 2 of 3 {worse}; attention unmasked, 2 of 4 {worse} |"
    ) in order
    assert found["devices"] == []


def test_a_verdict_that_other_places_leave_open_says_on_how_many_it_rests():
    (strongly,), (hardly,) = curves(**far(0.3, 0, 0, 0.02)), curves(scan="backward", **far(0.3, 0, 0, 0.1))
    for drifts, told in (([strongly], "**holds**"), ([strongly, hardly], "**holds** where decided (4 of 8)")):
        decided = tables(drifts)["decided"]
        (verdict,) = decided["verdict"][decided["claim"].str.startswith("With the paper's two masks")]
        assert verdict == told


def test_an_open_claim_on_costs_has_its_numbers():
    still_open = rows(tables(results=rivals(3, 2.0))["open"])[LOWEST.claim]
    assert "bf16, cuda: Longformer 2.00 [1.64, 2.44] times MaBERT" in still_open


def test_growth_names_both_lengths_and_verdicts_on_costs_their_device():
    found = tables(results=measured(rounds=9, spread=1e-9))
    (growth,) = (told for claim, told in rows(found["decided"]).items() if "training step grows least" in claim)
    assert "512 to 4,096 tokens" in growth
    assert found["devices"] == ["GPUs"]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([("cpu", "")], "1 processor"),
        ([("cpu", "A"), ("cpu", ""), ("cpu", "B"), ("cuda", "")], "2 processors and 1 GPU"),
    ],
)
def test_machines_are_counted_by_kind(names, told):
    kinds = [SimpleNamespace(device=device, machine=machine) for device, machine in names]
    assert machines(SimpleNamespace(tables=kinds)) == told
