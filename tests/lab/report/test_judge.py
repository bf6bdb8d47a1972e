"""Each claim of the paper is judged by its rule, and numbers that bear it out, that refute it and that cannot tell are
told apart."""

import re
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert_lab.bench.turns import Bounded
from mabert_lab.report import paper
from mabert_lab.report.claims import least_calls
from mabert_lab.report.costs import NAMES
from mabert_lab.report.drift import SITUATIONS
from mabert_lab.report.paper import CLAIMS, DEPENDS, FAILS, HOLDS, LEARNT_BELOW, OPEN, UNMEASURED, judge, overall
from mabert_lab.report.studies import ArmRun
from mabert_lab.report.verdicts import of_paper, papers_study, verdicts_on
from mabert_lab.study.grid import load_scale, load_study
from tests.lab.report.rows import COSTS, LOWEST, curves, far, measured, rivals, source
from tests.lab.report.studies import LABELS

QUIET, LOUD = 1e-5, 0.3
"""Deviations of scores over seeds: below and above all differences of the paper's."""

SCORES, DRIFT = ([claim for claim in CLAIMS if claim.kind == kind] for kind in ("scores", "drift"))
UNSUPPORTED = {"Sparse attention", "Without PSM, MAP is better than [CLS] pooling", "varies least on CoLA"}
"""What the paper's own tables do not bear out."""


def short(claim):
    return claim.claim[:60]


def verdicts(claim, studies=(), results=None, drifts=()):
    return {each.verdict for each in verdicts_on(claim, studies, results, drifts)}


def supported(claim):
    return not any(text in claim.claim for text in UNSUPPORTED)


def study(claim, height=lambda arm, mean: mean, seeds=5, noise=QUIET, seconds=100.0, dear=100.0):
    """The paper's scores measured again, every arm with noise of its own, each pretraining with a time."""
    made, first = papers_study(claim.rule["asks"][-1]), claim.rule["first"][0]
    drawn = np.random.default_rng(1)

    def scores(arm):
        chance = drawn.normal(0, noise, (seeds, len(paper.TASKS)))
        return pd.DataFrame(chance, columns=list(paper.TASKS)) + height(arm.paper, arm.scores.loc[0])

    arms = [
        replace(arm, pretraining={"seconds": dear if arm.paper == first else seconds}, scores=scores(arm))
        for arm in made.arms
    ]
    return replace(made, arms=tuple(arms), exact=False)


def with_floors(made, constant):
    """The study, in which one answer for all has such a score on each task."""
    return replace(made, columns=tuple(replace(column, constant=constant) for column in made.columns))


def with_pretraining(made, of):
    """The study with what is known of each arm's pretraining."""
    return replace(made, arms=tuple(replace(arm, pretraining={**arm.pretraining, **of(arm)}) for arm in made.arms))


def mirrored(arm, mean):
    return 1 - mean


def lifted(claim):
    """The paper's scores; of what they refute, others that bear it out."""
    on = [claim.rule["widest"]] if "widest" in claim.rule else list(paper.TASKS)
    lift = pd.Series(0.0 if supported(claim) else 0.3, on).reindex(list(paper.TASKS), fill_value=0.0)
    return lambda arm, mean: mean + lift * (arm in claim.rule["first"])


def test_a_lead_that_varies_as_much_on_every_task_varies_least_on_none():
    (claim,) = (claim for claim in SCORES if claim.rule.get("form") == "steady")
    made = study(claim, noise=LOUD)
    arms = [replace(arm, scores=arm.scores.apply(lambda _, own=arm.scores: own["cola"])) for arm in made.arms]
    assert verdicts(claim, [replace(made, arms=tuple(arms))]) == {FAILS}


@pytest.mark.parametrize("claim", SCORES, ids=short)
def test_scores_that_bear_a_claim_out_refute_it_or_cannot_tell(claim):
    assert verdicts(claim, [study(claim, lifted(claim))]) == {HOLDS}
    assert verdicts(claim, [study(claim, mirrored, dear=1000.0)]) == {FAILS}
    assert verdicts(claim, [study(claim, seeds=4)]) == {OPEN}, "too few seeds"
    assert verdicts(claim, [study(claim, noise=LOUD)]) == {OPEN}, "too much noise"
    assert verdicts(claim, []) == {UNMEASURED}


TRADE = next(claim for claim in SCORES if claim.rule.get("form") == "trade")


@pytest.mark.parametrize(
    ("height", "dear", "verdict"),
    [
        (lambda arm, mean: mean, 1000.0, HOLDS),
        (mirrored, 10.0, HOLDS),
        (mirrored, 100.0, FAILS),
        (mirrored, 1000.0, FAILS),
        (lambda arm, mean: 0.5 + 0 * mean, 10.0, HOLDS),
        (lambda arm, mean: 0.5 + 0 * mean, 1000.0, OPEN),
    ],
    ids=["better and dearer", "worse and cheaper", "worse at a like cost", "worse and dearer", "cheaper", "dearer"],
)
def test_a_trade_falls_by_what_is_better_and_not_dearer(height, dear, verdict):
    assert verdicts(TRADE, [study(TRADE, height, dear=dear)]) == {verdict}


def test_a_cost_alone_decides_no_trade():
    cheap = study(TRADE, mirrored, seeds=4, dear=10.0)
    assert verdicts(TRADE, [cheap]) == {OPEN}, "too few seeds"
    made = study(TRADE, mirrored, dear=10.0)
    assert verdicts(TRADE, [with_floors(made, 1.0)]) == {OPEN}, "nothing was learnt"


@pytest.mark.parametrize("claim", [claim for claim in SCORES if len(claim.rule.get("budgets", ())) > 1], ids=short)
def test_a_claim_over_several_budgets_needs_each_and_falls_by_one(claim):
    made, odd = study(claim, lifted(claim)), study(claim, mirrored)
    for budget in claim.rule["budgets"]:
        few = replace(made, arms=tuple(arm for arm in made.arms if arm.budget != budget))
        (found,) = verdicts_on(claim, [few])
        assert (found.verdict, found.takes) == (UNMEASURED, (f"budgets: {100 * budget:g}%",))
        one = [there if there.budget == budget else here for here, there in zip(made.arms, odd.arms, strict=True)]
        assert "form" in claim.rule or verdicts(claim, [replace(made, arms=tuple(one))]) == {FAILS}


def as_claimed(claim):
    """The paper's numbers; of what they refute, others that bear it out."""
    known = supported(claim)
    return lambda measure, model, length, value: value if known or model in claim.rule["less"] else 10 * value


def against(claim):
    """The paper's numbers, what is claimed to need less having ten times as much."""
    return lambda measure, model, length, value: value * (10 if model in claim.rule["less"] else 1)


def rivals_at(claim, factor):
    """The same cost a token for all models, for those that are claimed to need more by a factor."""
    return lambda measure, model, length, value: length * (1.0 if model in claim.rule["less"] else factor)


@pytest.mark.parametrize("claim", COSTS, ids=short)
def test_costs_that_bear_a_claim_out_refute_it_or_cannot_tell(claim):
    assert verdicts(claim, results=measured(rounds=9, spread=1e-9, change=as_claimed(claim))) == {HOLDS}
    assert verdicts(claim, results=measured(rounds=9, change=against(claim))) == {FAILS}
    assert verdicts(claim, results=None) == {UNMEASURED}
    if claim.rule["measure"] == "memory":
        alike = rivals_at(claim, 1.2 if "substantial" in claim.rule else 1.0)
        assert verdicts(claim, results=measured(change=alike)) == {OPEN}
    else:
        assert verdicts(claim, results=measured(rounds=3, spread=1e-9)) == {OPEN}, "too few calls"
        assert verdicts(claim, results=measured(rounds=99, spread=0.9)) == {OPEN}, "too uneven ones"


@pytest.mark.parametrize("claim", [claim for claim in COSTS if "substantial" in claim.rule], ids=short)
@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.02, FAILS), (1.09, FAILS), (1.1, OPEN), (1.24, OPEN), (1.25, HOLDS)]
)
def test_substantially_less_is_more_than_a_little_less(claim, factor, verdict):
    assert verdicts(claim, results=measured(change=rivals_at(claim, factor), rounds=9)) == {verdict}


@pytest.mark.parametrize("claim", [claim for claim in COSTS if "from" in claim.rule], ids=short)
def test_what_does_not_grow_grows_least(claim):
    def flat(models):
        return lambda measure, model, length, value: 100.0 if model in models else 1.0 * length

    ours, theirs = claim.rule["less"], {model for group in claim.rule["than"] for model in group}
    assert verdicts(claim, results=measured(rounds=9, change=flat(ours))) == {HOLDS}
    assert verdicts(claim, results=measured(rounds=9, change=flat(theirs))) == {FAILS}


@pytest.mark.parametrize("claim", [claim for claim in COSTS if "from" in claim.rule], ids=short)
@pytest.mark.parametrize(("growth", "verdict"), [(0.03, HOLDS), (0.009, OPEN)])
def test_of_memory_that_hardly_grows_nothing_is_told_and_what_shrinks_grows_by_nothing(claim, growth, verdict):
    def rising(measure, model, length, value):
        if model in claim.rule["less"]:
            return 1000.0 - length / 100
        return 1000.0 * (1 + growth * (length >= 4096))

    results = measured(rounds=9, change=rising)
    (found,) = verdicts_on(claim, results=results)
    assert found.verdict == (verdict if claim.rule["measure"] == "memory" else HOLDS)
    assert "-" not in found.numbers
    assert "\u221e times" in found.numbers


@pytest.mark.parametrize("claim", [claim for claim in COSTS if len(claim.rule["at"]) > 1], ids=short)
def test_a_claim_over_several_lengths_needs_each_and_falls_by_one(claim):
    made = measured(rounds=9, spread=1e-9, change=as_claimed(claim))
    odd = measured(rounds=9, spread=1e-9, change=against(claim))
    for length in claim.rule["at"]:
        without = replace(made, rows=made.rows.query(f"length != {length}"))
        (found,) = verdicts_on(claim, results=without)
        assert found.verdict == UNMEASURED
        assert all(f"{NAMES[model]} at {length:,}" in found.takes[0] for model in claim.rule["less"])
        one = made.rows.where(made.rows["length"] != length, odd.rows)
        assert verdicts(claim, results=replace(made, rows=one)) == {FAILS}


DRIFTS = {
    "moves": (far(0.3, 0, 0, 0), far(1e-15, 0, 0, 0), far(2e-9, 0, 0, 0)),
    "grows": ({"none": [0.0, 0.1, 0.2, 0.3]}, {"none": [0.0, 0.3, 0.2]}, {"none": [0.0, 0.1, 0.05, 0.3]}),
    "suppressed": (far(0.3, 0, 0, 0.02), far(0.3, 0, 0, 0.16), far(0.3, 0, 0, 0.14)),
    "ordered": (far(0, 0.2, 0.1, 0.01), far(0, 0.1, 0.2, 0.1), far(0, 1e-15, 1e-15, 1e-15)),
}


@pytest.mark.parametrize("claim", DRIFT, ids=short)
def test_drift_that_bears_a_claim_out_refutes_it_or_cannot_tell(claim):
    holds, fails, cannot = (verdicts(claim, drifts=curves(**each)) for each in DRIFTS[claim.rule["rule"]])
    assert (holds, fails, cannot) == ({HOLDS}, {FAILS}, {OPEN})
    assert verdicts(claim) == {UNMEASURED}
    for each in DRIFTS[claim.rule["rule"]]:
        assert verdicts(claim, drifts=curves(texts=15, **each)) == {OPEN}, "by so few texts"


@pytest.mark.parametrize("claim", DRIFT, ids=short)
def test_drift_is_judged_for_each_model_at_its_own_place(claim):
    one, other = (curves(scan=scan, **far(0.3, 0.2, 0.1, 0.01)) for scan in ("forward", "backward"))
    named = [(f"{number}.json", result) for number, ((_, result),) in enumerate((one, other))]
    places = [each.place for each in verdicts_on(claim, drifts=named)]
    assert len(set(places)) == len(places) == 2 * len(SITUATIONS)
    (papers,) = (place for place in places if "paper's setting" in place)
    assert papers == "forward scan, padding right, attention masked, the paper's setting, 0.json"
    twice = [(file, {**result, "source": {"model": "runs/same"}}) for file, result in named]
    told = {each.place.partition(", same ")[2] for each in verdicts_on(claim, drifts=twice)}
    assert told == {"(0.json)", "(1.json)"}


def test_what_is_rounding_is_shown_as_0():
    rounding = {masking: [2.4e-15, 2.4e-15] for masking in ("none", "pre", "post", "pre+post")}
    found = [each for claim in CLAIMS for each in verdicts_on(claim, (), None, curves(**rounding))]
    assert not [each.numbers for each in found if re.search(r"e-1\d", each.numbers)]
    assert "no mask 0" in {each.numbers for each in found}


@pytest.mark.parametrize("claim", [*SCORES, *COSTS], ids=short)
def test_the_papers_own_numbers_bear_out_what_its_tables_support(claim):
    assert of_paper(claim).verdict == (HOLDS if supported(claim) else FAILS)
    assert claim.note or supported(claim), "what the paper does not support must be said with the claim"


@pytest.mark.parametrize("claim", CLAIMS, ids=short)
def test_each_claim_names_its_place_and_words_that_stand_there(claim):
    assert claim.source
    assert 1 < len(claim.quote.split()) < 15
    text = source()
    for label in re.findall(r"(?:tab|fig|sec):\w+", claim.source):
        assert f"\\label{{{label}}}" in text
    told = " ".join(re.sub(r"\$\\times\$", "x", text).replace("--", "-").split())
    assert all(part.strip() in told for part in claim.quote.split("[...]"))


@pytest.mark.parametrize(
    ("signs", "verdict"),
    [([1, 1], HOLDS), ([1, 0], OPEN), ([1, -1], FAILS), ([None, -1], FAILS), ([None, 1], UNMEASURED), ([], UNMEASURED)],
)
def test_a_claim_needs_every_comparison_and_falls_by_one(signs, verdict):
    assert judge(signs) == judge(signs[::-1]) == verdict


@pytest.mark.parametrize(
    ("places", "verdict"),
    [
        ([HOLDS, OPEN, UNMEASURED], HOLDS),
        ([FAILS, OPEN], FAILS),
        ([HOLDS, FAILS, OPEN], DEPENDS),
        ([OPEN, UNMEASURED], OPEN),
        ([UNMEASURED], UNMEASURED),
    ],
)
def test_a_claim_is_decided_where_any_place_decides_it_and_depends_where_they_differ(places, verdict):
    assert overall(places) == overall(places[::-1]) == verdict


def too_slow(made, late):
    """The results, with a limit of 99 seconds in place of some numbers."""
    rows = made.rows.assign(value=made.rows["value"].mask(late), at_least=made.rows["at_least"].mask(late, 99.0))
    return replace(made, rows=rows)


@pytest.mark.parametrize(
    ("calls", "factor", "verdict"),
    [(4, 2.0, HOLDS), (3, 2.0, OPEN), (5, 0.5, FAILS), (4, 0.5, OPEN), (9, 1.1, OPEN), (5, 1.3, HOLDS)],
)
def test_lowest_holds_with_four_calls_and_falls_with_five(calls, factor, verdict):
    assert verdicts(LOWEST, results=rivals(calls, factor)) == {verdict}


def test_too_few_calls_are_said_with_how_many_are_needed():
    (found,) = verdicts_on(LOWEST, results=rivals(4, 0.5))
    assert found.place.startswith("bf16, cuda")
    assert found.takes == ("calls: 5 of each model or more",)
    assert "Longformer 0.50 [0.41, 0.61] times MaBERT at 2,048 tokens, 4 calls or more" in found.numbers
    assert (least_calls(), least_calls(5), least_calls(10)) == ((4, 4), (4, 5), (5, 5))


def timed(calls, factor, seed, noise=0.05):
    """Times as they are measured, each call with noise of its own."""
    drawn = np.random.default_rng(seed)
    made = rivals(calls, factor)
    spreads = [Bounded.of(list(value * drawn.lognormal(0, noise, calls) / 1e3)) for value in made.rows["value"]]
    bounds = pd.DataFrame(map(asdict, spreads))[["fastest_ms", "slowest_ms", "low_ms", "high_ms"]]
    return replace(made, rows=made.rows.assign(**bounds))


@pytest.mark.parametrize("factor", [1.1, 0.9, 1.0])
def test_more_calls_tell_more(factor):
    right = {1.1: HOLDS, 0.9: FAILS, 1.0: OPEN}[factor]
    found = [
        sum(verdicts(LOWEST, results=timed(calls, factor, seed)) == {right} for seed in range(5)) for calls in (9, 100)
    ]
    assert found == sorted(found)
    assert found[-1] == 5


@settings(max_examples=10)
@given(st.integers(4, 30), st.floats(0.2, 5.0), st.floats(0.0, 0.4))
def test_the_more_a_rival_needs_the_better_for_the_claim(calls, factor, spread):
    order = [FAILS, OPEN, HOLDS]
    (less,), (more,) = (verdicts(LOWEST, results=rivals(calls, each, spread)) for each in (factor, 1.5 * factor))
    assert order.index(less) <= order.index(more)


def test_a_missing_rival_is_named_and_one_too_slow_bounds_the_ratio():
    made = rivals(9, 2.0)
    without = replace(made, rows=made.rows.query("model != 'deberta'"))
    (found,) = verdicts_on(LOWEST, results=without)
    assert (found.verdict, found.takes) == (UNMEASURED, ("a number of: DeBERTa at 2,048, DeBERTa at 4,096",))
    assert verdicts(LOWEST, results=too_slow(made, made.rows["model"] == "deberta")) == {HOLDS}


@pytest.mark.parametrize(("status", "takes"), [("failed", "a number of"), ("out of memory", "more memory for")])
def test_what_a_missing_number_would_take_depends_on_why_it_is_missing(status, takes):
    made = rivals(9, 2.0)
    numbers, late = ["value", "fastest_ms", "slowest_ms"], made.rows["model"] == "deberta"
    rows = made.rows.assign(status=status)
    rows.loc[late, numbers] = np.nan
    (found,) = verdicts_on(LOWEST, results=replace(made, rows=rows))
    assert found.takes == (f"{takes}: DeBERTa at 2,048, DeBERTa at 4,096",)


def test_a_model_that_is_too_slow_itself_is_not_the_fastest():
    made = rivals(9, 2.0)
    late = (made.rows["model"] == "mabert") & (made.rows["length"] == 4096)
    (found,) = verdicts_on(LOWEST, results=too_slow(made, late))
    assert found.verdict == FAILS
    assert "times MaBERT at 4,096 tokens" in found.numbers


@pytest.mark.parametrize("ours", ["mabert", "bert"])
def test_a_model_measured_in_a_faster_hour_is_compared_by_mabert_in_the_same_turns(ours):
    made = measured(0.01, 9, lambda measure, model, length, value: 1.0 if model == ours else 1.5)
    claim = LOWEST if ours == "mabert" else next(claim for claim in COSTS if claim.rule["less"] == ["bert"])
    hour, rows = made.rows["model"] == "bigbird", made.rows.copy()
    anchor = rows.loc[rows["model"] == "mabert", "value"].iloc[0]
    rows.loc[hour, ["anchor_ms", "anchor_samples"]] = [anchor / 2, 9.0]
    rows.loc[hour, ["value", "fastest_ms", "slowest_ms"]] /= 2
    assert verdicts(claim, results=replace(made, rows=rows)) == {HOLDS}


BEST = next(claim for claim in SCORES if claim.claim.startswith("Padding-safe masking (PSM) and"))
ONE_BEST = {"full": 0.5, "psm_only": 0.4, "map_only": 0.4, "none": 0.4}
TWO_ALIKE = {**ONE_BEST, "map_only": 0.5}


def components(heights, seeds=5, **changes):
    made = papers_study("components")
    noise = pd.DataFrame(dict.fromkeys(("cola", "rte"), QUIET * np.arange(seeds)))
    arms = tuple(ArmRun(name, name, 1.0, {}, noise + height) for name, height in heights.items())
    return replace(made, arms=arms, scale="tiny", exact=False, **changes)


def test_arms_that_are_equal_in_every_pair_refute_only_with_seeds_enough():
    (found,) = verdicts_on(BEST, [components(TWO_ALIKE)])
    assert (found.verdict, "one model" in found.numbers) == (FAILS, False), "of unlike pretrainings nothing tells why"
    assert verdicts(BEST, [components(TWO_ALIKE, seeds=4)]) == {OPEN}


def test_a_difference_of_0_says_why_where_two_arms_are_one_model():
    made = components(TWO_ALIKE)
    asked = {arm.name: {"finetune": {"masking": "on" if arm.name == "full" else "off"}} for arm in made.arms}
    one = replace(with_pretraining(made, lambda arm: {"cell": "one"}), settings={"arms": asked})
    (found,) = verdicts_on(BEST, [one])
    same = "both are one pretrained model, and score the same with `masking` on and off"
    assert f"Full over MAP only on CoLA, RTE; {same}" in found.numbers


def test_what_is_no_better_than_one_answer_for_all_decides_nothing():
    (found,) = verdicts_on(BEST, [with_floors(components(ONE_BEST), 0.6)])
    assert found.verdict == OPEN
    assert found.takes == ("longer pretraining, for neither model beats one answer for all on: CoLA, RTE",)


WORST = next(claim for claim in SCORES if claim.claim.startswith("Mamba layers alone are the worst"))
TRANSFORMER = "TTTTTTTTTTTT"


def with_losses(made, losses):
    """The study with held-out losses by arm, 5.0 where none is given."""
    return with_pretraining(made, lambda arm: {"held_out_loss": losses.get(arm.name, 5.0)})


@pytest.mark.parametrize("loss", [LEARNT_BELOW, 6.48, float("inf")])
def test_an_arm_that_hardly_learnt_is_marked_and_decides_nothing_alone(loss):
    mark = f"{TRANSFORMER} had hardly learnt: held-out loss {loss:.2f}, not below {LEARNT_BELOW}"
    by_it_alone = study(WORST, lambda arm, mean: mean - 0.5 * (arm == TRANSFORMER))
    (learnt,) = verdicts_on(WORST, [with_losses(by_it_alone, {})])
    assert (learnt.verdict, learnt.mark) == (FAILS, "")
    (found,) = verdicts_on(WORST, [with_losses(by_it_alone, {TRANSFORMER: loss})])
    assert (found.verdict, found.mark) == (OPEN, mark)
    assert found.takes == (f"longer pretraining, or another learning rate: {TRANSFORMER}",)
    (others,) = verdicts_on(WORST, [with_losses(study(WORST, mirrored), {TRANSFORMER: loss})])
    assert (others.verdict, others.mark) == (FAILS, mark), "others refute it as well"


@pytest.mark.parametrize("claim", SCORES, ids=short)
def test_arms_that_hardly_learnt_decide_no_claim_and_a_study_may_name_its_own_line(claim):
    made = study(claim, mirrored, dear=1000.0)
    unlearnt = with_losses(made, dict.fromkeys((arm.name for arm in made.arms), 9.0))
    (found,) = verdicts_on(claim, [unlearnt])
    assert (found.verdict, "had hardly learnt: held-out loss 9.00" in found.mark) == (OPEN, True)
    (found,) = verdicts_on(claim, [replace(unlearnt, learnt_below=9.1)])
    assert (found.verdict, found.mark) == (FAILS, "")


def test_an_arm_that_beats_one_class_for_all_nowhere_is_marked():
    (found,) = verdicts_on(BEST, [with_floors(components(ONE_BEST), 0.45)])
    assert (found.verdict, found.mark) == (OPEN, "3 models had hardly learnt: not above one class for all on CoLA, RTE")


def test_one_model_twice_needs_no_learning_to_be_the_same():
    made = components(TWO_ALIKE)
    one = with_pretraining(made, lambda arm: {"cell": "one", "held_out_loss": 9.0})
    (found,) = verdicts_on(BEST, [one])
    told = f"4 models had hardly learnt: held-out loss 9.00, not below {LEARNT_BELOW}"
    assert (found.verdict, found.mark) == (FAILS, told)
    several = with_pretraining(made, lambda arm: {"cell": arm.name, "held_out_loss": 9.0})
    assert verdicts(BEST, [several]) == {OPEN}


def test_a_missing_arm_is_named_and_one_that_is_worse_refutes_without_it():
    (found,) = verdicts_on(BEST, [components({"full": 0.5, "none": 0.4})])
    assert (found.verdict, found.takes) == (UNMEASURED, ("models: PSM only, MAP only",))
    assert verdicts(BEST, [components({"full": 0.4, "none": 0.5})]) == {FAILS}


def test_a_sample_of_a_task_is_not_the_task():
    (claim,) = (claim for claim in SCORES if claim.claim == "PSM and MAP together are best on every task")
    made = study(claim, mirrored)
    sampled = replace(made, columns=tuple(replace(column, sample="half") for column in made.columns))
    assert verdicts(claim, [sampled]) == {UNMEASURED}


def test_variants_of_the_arms_are_judged_apart():
    made = components(ONE_BEST)
    both = [replace(arm, name=f"{arm.name}, both directions", paper=None) for arm in made.arms]
    found = verdicts_on(BEST, [replace(made, arms=(*made.arms, *both))])
    places = [each.place for each in found]
    assert places == ["at scale tiny", "both directions, at scale tiny"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "hold", "fall", "neither"), [(("tiny", "mini"), 8, 20, 4), (("small", "paper"), 24, 24, 0)]
)
def test_a_scale_can_decide_as_many_claims_on_scores_as_the_documentation_says(names, hold, fall, neither):
    scale, other = map(load_scale, names)
    assert (list(scale.tasks), scale.budgets.get("budget")) == (list(other.tasks), other.budgets.get("budget"))
    tasks = {column for task in scale.tasks for column in {"mnli": ("mnli_m", "mnli_mm")}.get(task, (task,))}

    def within(asked, made):
        budgets = (
            scale.budgets.get(asked, load_study(asked).budgets) if asked in ("budget", "baselines") else (0.1, 1.0)
        )
        arms = tuple(replace(arm, scores=arm.scores.filter(tasks)) for arm in made.arms if arm.budget in budgets)
        return replace(made, label=LABELS[asked], arms=arms, columns=tuple(c for c in made.columns if c.key in tasks))

    def reached(claim):
        both = study(claim, lifted(claim)), study(claim, mirrored, dear=1000.0)
        return set().union(*(verdicts(claim, [within(asked, made)]) for asked in claim.rule["asks"] for made in both))

    found = list(map(reached, SCORES))
    assert [sum(each in verdict for verdict in found) for each in (HOLDS, FAILS)] == [hold, fall]
    assert sum(not verdict & {HOLDS, FAILS} for verdict in found) == neither


@pytest.mark.parametrize("name", ["pattern", "components", "pooling", "budget", "baselines"])
def test_the_arms_of_the_packages_studies_are_those_that_the_claims_speak_of(name):
    keys = [arm.paper for arm in load_study(name).arms.values() if arm.paper]
    rules = [claim.rule for claim in SCORES if name in claim.rule["asks"]]
    assert {key for rule in rules for key in (*rule["first"], *rule["second"])} == set(keys)
    table = paper.TABLES["glue_100" if name in ("budget", "baselines") else name]
    assert sorted(keys) == sorted(table.mean.index), "every row of the paper's table once"
    assert {arm.paper for arm in papers_study(name).arms} == set(keys)
    assert all(task in paper.TASKS for claim in SCORES for task in claim.rule.get("tasks", ()))
