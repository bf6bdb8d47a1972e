"""Each claim of the paper is judged by its rule: made-up results reach every verdict."""

from dataclasses import replace

import pytest

from mabert_lab.report import paper
from mabert_lab.report.claims import efficiency
from mabert_lab.report.claims.drift import drift_verdicts
from mabert_lab.report.claims.efficiency import efficiency_verdicts
from mabert_lab.report.claims.scores import CLAIMS, score_verdicts
from mabert_lab.report.claims.verdict import FAILS, HOLDS, OPEN, UNMEASURED, claims_table, judge
from mabert_lab.report.sources import find
from mabert_lab.report.study.statistics import difference
from mabert_lab.study.grid import load_study
from tests.lab.report.rows import CPU, GPU, SLOW, raw, whole
from tests.lab.report.studies import COLUMNS, like_the_paper, read, row

MMT, MAMBA, TRANSFORMER = "MMTMMTMMTMMT", "M" * 12, "T" * 12
SHARES = ("10%", "25%", "50%")
MIXED = [pattern for pattern in paper.PATTERNS.rows if len(set(pattern)) == 2]


def verdicts(studies, begin):
    return [each for each in score_verdicts(studies) if each.claim.startswith(begin)]


def patterns(heights, columns=("cola", "rte")):
    """A pattern study, each arm at one height with the same noise over seeds in all of them."""
    noise = (0.0, 0.001, -0.001, 0.002, -0.002)
    return read(
        [row(key, {column: [height + e for e in noise] for column in columns}, key) for key, height in heights.items()]
    )


@pytest.mark.parametrize(
    ("signs", "verdict"),
    [
        ([1, 1], HOLDS),
        ([1, 0], OPEN),
        ([0], OPEN),
        ([1, -1], FAILS),
        ([None, -1], FAILS),
        ([None, 1], UNMEASURED),
        ([None], UNMEASURED),
        ([], UNMEASURED),
    ],
)
def test_a_claim_needs_every_comparison_and_falls_by_one(signs, verdict):
    assert judge(signs) == judge(signs[::-1]) == verdict


def test_the_papers_own_scores_bear_out_its_claims_on_patterns_models_components_and_pooling():
    studies = [
        read(like_the_paper(paper.PATTERNS), "pattern"),
        read([each for share in paper.GLUE for each in like_the_paper(paper.GLUE[share], share)], "budget"),
        read(like_the_paper(paper.INTEGRATION, 1.0), "components"),
        read(like_the_paper(paper.POOLING, 1.0), "pooling"),
    ]
    found = {each.claim: each for each in score_verdicts(studies)}
    five_of_eight = found.pop("MaBERT is best on five of eight tasks at all steps: CoLA, MRPC, QQP, QNLI and RTE")
    alone = found.pop("Masking alone is above neither, on average")
    five_tasks = found.pop(f"On CoLA, MRPC, MNLI-m, MNLI-mm and RTE {MMT} has the highest score")
    on_every_task = [found.pop(claim) for claim in list(found) if "every task" in claim]
    most = found.pop("Transformer layers alone are below each mixed pattern on most tasks")
    on_rte = found.pop("MAP's lead over [CLS] pooling is widest on RTE")
    assert on_rte.verdict == UNMEASURED
    assert on_rte.numbers.startswith("1 above, 6 missing; ")
    assert "MAP over CLS on RTE less that on CoLA" in on_rte.numbers
    widest = found.pop("The full model's lead over [CLS] pooling, with masking and without, is widest on CoLA")
    leads = [found.pop(f"MaBERT's lead over each rival is widest on CoLA at {share} of the steps") for share in SHARES]
    persisting = [found.pop(claim) for claim in list(found) if "its gains there persist" in claim]
    assert [(each.verdict, each.numbers) for each in persisting] == [(UNMEASURED, "")] * 3
    assert {each.verdict for each in [*found.values(), alone]} == {HOLDS}
    assert len(found) == 12
    # The made-up columns are CoLA and RTE; the others are missing.
    assert {each.verdict for each in on_every_task} == {UNMEASURED}
    assert [each.place[6:] for each in on_every_task] == [
        *(f"{share} of the steps" for share in SHARES),
        *["100% of the steps"] * 3,
    ]
    assert {each.verdict for each in leads} == {UNMEASURED}
    assert (most.verdict, widest.verdict) == (UNMEASURED, UNMEASURED)
    assert "12 above, 36 missing" in most.numbers
    assert widest.numbers.startswith("2 above, 12 missing; ")
    assert "on CoLA less that on RTE" in widest.numbers
    assert (five_of_eight.verdict, five_of_eight.place) == (UNMEASURED, "tiny, 100% of the steps")
    assert "10 above, 15 missing" in five_of_eight.numbers
    assert five_tasks.verdict == UNMEASURED
    assert "14 above, 21 missing" in five_tasks.numbers


def test_without_any_study_every_claim_is_named_once_and_not_measured():
    found = score_verdicts([])
    assert {each.verdict for each in found} == {UNMEASURED}
    assert len({each.claim for each in found}) == len(found) == 21


BELOW = dict.fromkeys(paper.PATTERNS.rows, 0.5)


@pytest.mark.parametrize(
    ("heights", "best", "single", "worst"),
    [
        ({**BELOW, MMT: 0.7, TRANSFORMER: 0.4, MAMBA: 0.3}, HOLDS, HOLDS, HOLDS),
        ({**BELOW, MMT: 0.5, TRANSFORMER: 0.4, MAMBA: 0.4}, FAILS, HOLDS, FAILS),
        ({**BELOW, MMT: 0.4, TRANSFORMER: 0.6, MAMBA: 0.7}, FAILS, FAILS, FAILS),
        ({MMT: 0.7, TRANSFORMER: 0.4}, UNMEASURED, UNMEASURED, UNMEASURED),
        ({MMT: 0.4, TRANSFORMER: 0.7}, FAILS, FAILS, UNMEASURED),
    ],
)
def test_patterns(heights, best, single, worst):
    found = [each.verdict for each in score_verdicts([patterns(heights)])[:3]]
    assert found == [best, single, worst]


def test_one_of_many_comparisons_must_say_more_against_a_claim_than_chance_would():
    clear, unclear = (0.0, 0.001, -0.001, 0.002, -0.002), (0.06, 0.01, 0.05, 0.01, 0.04)
    base = {key: [(0.5 if key == MMT else 0.4) + e for e in clear] for key in paper.PATTERNS.rows}
    rival = "TTMTTMTTMTTM"
    gaps = difference(dict(enumerate(unclear)), dict.fromkeys(range(5), 0.0))
    assert 0.05 / 7 < gaps.chance < 0.05
    assert gaps.sign() == 1
    for noise, verdict in ((unclear, OPEN), ([0.05 + each for each in unclear], FAILS)):
        heights = {**base, rival: [score + more for score, more in zip(base[MMT], noise, strict=True)]}
        (found,) = verdicts([read([row(key, {"cola": each}, key) for key, each in heights.items()])], MMT)
        assert found.verdict == verdict, found


def test_the_numbers_behind_a_verdict_name_the_weakest_comparison_and_the_tasks():
    (found,) = verdicts([patterns({**BELOW, MMT: 0.6, "TTMTTMTTMTTM": 0.58})], "MMT")
    assert found.numbers == (
        "7 above; least +0.020 [+0.020, +0.020] (5): MMTMMTMMTMMT over TTMTTMTTMTTM; over CoLA, RTE"
    )
    assert found.place == "tiny, 10% of the steps"
    assert found.in_paper.startswith("least +0.01")
    assert found.in_paper.endswith(": MMTMMTMMTMMT over MTMTMTMTMTMT (flagged)")


def test_few_seeds_decide_nothing_and_that_is_said():
    rows = [row(key, {"cola": [0.7 if key == MMT else 0.5] * 4}, key) for key in paper.PATTERNS.rows]
    (found,) = verdicts([read(rows)], "MMT")
    assert found.verdict == OPEN
    assert found.numbers.endswith("fewer than 5 pairs")


def test_the_paper_is_averaged_over_the_tasks_measured_here():
    (on_cola,) = verdicts([patterns({**BELOW, MMT: 0.6}, ("cola",))], "MMT")
    (on_rte,) = verdicts([patterns({**BELOW, MMT: 0.6}, ("rte",))], "MMT")
    assert on_cola.in_paper.startswith("least +0.001: MMTMMTMMTMMT over MTMTMTMTMTMT")
    assert on_rte.in_paper.startswith("least +0.007: MMTMMTMMTMMT over TMMTMMTMMTMM")


def test_a_claim_at_one_budget_is_judged_there_alone():
    rows = [each for share in (0.1, 1.0) for each in like_the_paper(paper.GLUE[share], share)]
    (found,) = verdicts([read(rows, "budget")], "MaBERT is best on five")
    assert found.place == "tiny, 100% of the steps"


def test_each_scale_and_each_budget_is_judged():
    rows = [each for share in (0.1, 1.0) for each in like_the_paper(paper.GLUE[share], share)]
    found = verdicts([read(rows, "baselines"), read(rows, "budget", scale="mini")], "MaBERT has the highest average")
    assert [each.place for each in found] == [
        f"Study of {study}, {budget} of the steps"
        for study in ("baselines, tiny", "budget, mini")
        for budget in ("10%", "100%")
    ]
    for each, share in zip(found, ("10%", "100%"), strict=False):
        assert each.claim.startswith(f"MaBERT has the highest average at {share} of the steps")


@pytest.mark.parametrize(("later", "verdict"), [(0.6, HOLDS), (0.5, FAILS), (0.4, FAILS)])
def test_growth_over_budgets(later, verdict):
    rows = [
        row("MaBERT", {"cola": [height] * 5}, "mabert", budget)
        for budget, height in ((0.1, 0.3), (0.25, 0.4), (0.5, 0.5), (1, later))
    ]
    (found,) = verdicts([read(rows[::-1], "budget")], "MaBERT's average rises")
    assert found.verdict == verdict


@pytest.mark.parametrize(("later", "verdict"), [(0.6, UNMEASURED), (0.2, FAILS)])
def test_growth_between_neighbouring_budgets_of_the_paper_says_nothing_of_those_left_out(later, verdict):
    heights = ((0.1, 0.3), (0.25, later), (1, 0.7))
    rows = [row("MaBERT", {"cola": [height] * 5}, "mabert", budget) for budget, height in heights]
    (found,) = verdicts([read(rows, "budget")], "MaBERT's average rises")
    assert found.verdict == verdict
    assert "2 missing" in found.numbers


@pytest.mark.parametrize(("later", "verdict"), [(0.6, UNMEASURED), (0.2, FAILS)])
def test_a_fall_between_two_budgets_refutes_growth_and_a_rise_between_them_is_shown(later, verdict):
    rows = [row("MaBERT", {"cola": [height] * 5}, "mabert", budget) for budget, height in ((0.25, 0.3), (1, later))]
    (found,) = verdicts([read(rows, "budget")], "MaBERT's average rises")
    assert found.verdict == verdict
    assert f"least {later - 0.3:+.3f}" in found.numbers
    assert "100% over 25%" in found.numbers
    assert "3 missing" in found.numbers


def test_a_file_of_ones_own_is_judged_by_the_papers_table_that_it_names():
    rows = like_the_paper(paper.PATTERNS)
    (of_own,) = verdicts([read(rows, "kinds-59db", label="tab:pattern_glue")], f"{MMT} has the highest")
    (packaged,) = verdicts([read(rows)], f"{MMT} has the highest")
    assert (of_own.verdict, of_own.numbers, of_own.in_paper) == (packaged.verdict, packaged.numbers, packaged.in_paper)
    (unnamed,) = verdicts([read(rows, "kinds-59db", label=None)], f"{MMT} has the highest")
    assert unnamed.verdict == UNMEASURED


def test_where_several_studies_ask_the_same_each_verdict_names_its_study():
    rows = like_the_paper(paper.PATTERNS)
    both = [read(rows), read(rows, "kinds-59db", label="tab:pattern_glue", title="Kinds")]
    places = [each.place for each in verdicts(both, f"{MMT} has the highest")]
    assert places == ["Study of pattern, tiny, 10% of the steps", "Kinds, tiny, 10% of the steps"]


@pytest.mark.parametrize(("seeds", "verdict"), [(5, FAILS), (4, OPEN)])
def test_arms_that_are_equal_in_every_pair_are_told_as_such_and_of_five_pairs_none_is_above(seeds, verdict):
    scores = {"full": 0.5, "psm_only": 0.4, "map_only": 0.5, "none": 0.4}
    rows = [
        row(key, {"cola": [height + seed / 100 for seed in range(seeds)]}, key, 1.0) for key, height in scores.items()
    ]
    (found,) = verdicts([read(rows, "components")], "Masking and MAP together are above")
    assert found.verdict == verdict
    assert "1 equal in every pair" in found.numbers


def with_floors(study, **floors):
    """The same study, what one answer for all scores known of some tasks."""
    columns = tuple(replace(column, constant=floors.get(column.key)) for column in study.columns)
    return replace(study, columns=columns)


NOISE = (0.0, 0.01, -0.01, 0.02, -0.02)


def on_two_tasks(on_cola, on_rte):
    heights = {"full": 0.1, "psm_only": 0.0, "map_only": 0.0, "none": 0.0}
    tasks = {"cola": on_cola, "rte": on_rte}
    rows = [
        row(key, {task: [base + height + e for e in NOISE] for task, base in tasks.items()}, key, 1.0)
        for key, height in heights.items()
    ]
    return read(rows, "components")


def test_a_task_on_which_no_arm_is_above_one_answer_for_all_is_left_out_of_the_average():
    begin, study = "Masking and MAP together are above", on_two_tasks(0.5, 0.3)
    both, one = with_floors(study, cola=0.5, rte=0.3), with_floors(study, cola=0.5, rte=0.5)
    assert [each.numbers.split("; ")[-1] for each in verdicts([both, one], begin)] == ["over CoLA, RTE", "over CoLA"]
    (neither,) = verdicts([with_floors(study, cola=0.7, rte=0.5)], begin)
    assert neither.verdict == OPEN
    assert neither.numbers.startswith("3 no better than one answer for all; ")


def test_what_is_no_better_than_one_answer_for_all_decides_nothing_on_a_task():
    begin = "Masking and MAP together are best on every"
    (told,) = verdicts([with_floors(on_two_tasks(0.5, 0.3), cola=0.5, rte=0.3)], begin)
    (flat,) = verdicts([with_floors(on_two_tasks(0.5, 0.3), cola=0.5, rte=0.5)], begin)
    assert told.numbers.startswith("6 above, 18 missing; ")
    assert flat.numbers.startswith("3 above, 3 no better than one answer for all, 18 missing; ")


def test_a_mean_above_one_answer_for_all_must_be_told_from_it_where_there_are_seeds_enough():
    floor = 0.5
    close = [floor + e for e in (0.1, -0.09, 0.1, -0.09, 0.0)]
    for seeds, told in ((5, "no better than one answer for all"), (4, "equal in every pair")):
        rows = [row(key, {"cola": close[:seeds]}, key, 1.0) for key in paper.INTEGRATION.rows]
        (found,) = verdicts([with_floors(read(rows, "components"), cola=floor)], "Masking alone is above neither, on")
        assert found.numbers.startswith(f"1 {told}; ")


def test_budgets_that_a_claim_speaks_of_are_named_where_they_were_not_measured():
    found = verdicts([read(like_the_paper(paper.GLUE[0.25], 0.25), "budget")], "MaBERT's lead over each rival")
    assert [each.place for each in found] == [f"tiny, {share} of the steps" for share in ("10%", "50%", "25%")]
    assert [each.claim.partition(" at ")[2] for each in found] == [
        f"{share} of the steps" for share in ("10%", "50%", "25%")
    ]
    assert [bool(each.numbers) for each in found] == [False, False, True]


def test_a_missing_arm_has_its_models_name():
    rows = [each for each in like_the_paper(paper.GLUE[1.0], 1.0) if each["arm"] in ("mabert", "bert")]
    (found,) = verdicts([read(rows, "baselines")], "MaBERT has the highest average")
    assert found.in_paper.endswith(": MaBERT over DeBERTa")


def test_all_arms_of_a_claim_are_averaged_over_the_same_tasks():
    both, alone = {"cola": [0.5] * 5, "rte": [0.5] * 5}, {"cola": [0.1] * 5}
    first = {name: [score + 0.2 for score in scores] for name, scores in both.items()}
    scores = dict.fromkeys(paper.PATTERNS.rows, both) | {MMT: first, TRANSFORMER: alone}
    (found,) = verdicts([read([row(key, each, key) for key, each in scores.items()])], "MMT")
    assert found.verdict == UNMEASURED
    assert found.numbers.startswith("6 above, 1 missing; ")
    assert found.numbers.endswith("; over CoLA, RTE")


EIGHT = tuple(paper.TASKS)
UNTOLD = (0.1, -0.1, 0.1, -0.1, 0.0)


@pytest.mark.parametrize(
    ("above", "below", "missing", "verdict"),
    [(5, 3, 0, HOLDS), (5, 0, 3, HOLDS), (4, 4, 0, FAILS), (0, 4, 4, FAILS), (4, 3, 1, UNMEASURED), (4, 3, 0, OPEN)],
)
def test_most_tasks_are_more_than_half_whatever_the_rest_says(monkeypatch, above, below, missing, verdict):
    for task in EIGHT:
        monkeypatch.setitem(COLUMNS, task, (paper.TASKS[task].title, "accuracy", task, None))
    gaps = [0.1] * above + [-0.1] * below + [None] * missing
    gaps += [UNTOLD] * (8 - len(gaps))
    scores = {
        key: {
            task: [0.5 + more * (key in MIXED) for more in (gap if gap is UNTOLD else [gap] * 5)]
            for task, gap in zip(EIGHT, gaps, strict=True)
            if gap is not None
        }
        for key in paper.PATTERNS.rows
    }
    study = read([row(key, each, key) for key, each in scores.items()], columns=EIGHT)
    (found,) = verdicts([study], "Transformer layers alone")
    assert found.verdict == verdict, found


def test_most_of_some_must_be_clearer_than_one_alone(monkeypatch):
    for task in EIGHT:
        monkeypatch.setitem(COLUMNS, task, (paper.TASKS[task].title, "accuracy", task, None))
    unclear = (0.06, 0.01, 0.05, 0.01, 0.04)
    gaps = difference(dict(enumerate(unclear)), dict.fromkeys(range(5), 0.0))
    assert 0.05 / 4 < gaps.chance < 0.05
    for noise, verdict in ((unclear, OPEN), ([0.05 + each for each in unclear], HOLDS)):
        rows = [
            row(key, {task: [0.5 + (each if key in MIXED else 0.0) for each in noise] for task in EIGHT}, key)
            for key in paper.PATTERNS.rows
        ]
        (found,) = verdicts([read(rows, columns=EIGHT)], "Transformer layers alone")
        assert found.verdict == verdict, found


def test_the_papers_eight_columns_bear_out_what_is_said_of_most_tasks_and_of_the_widest_lead(monkeypatch):
    for task in EIGHT:
        monkeypatch.setitem(COLUMNS, task, (paper.TASKS[task].title, "accuracy", task, None))
    patterns = read(like_the_paper(paper.PATTERNS, columns=EIGHT), columns=EIGHT)
    components = read(like_the_paper(paper.INTEGRATION, 1.0, columns=EIGHT), "components", columns=EIGHT)
    budgets = [each for share in paper.GLUE for each in like_the_paper(paper.GLUE[share], share, columns=EIGHT)]
    pooling = read(like_the_paper(paper.POOLING, 1.0, columns=EIGHT), "pooling", columns=EIGHT)
    study = read(budgets, "budget", columns=EIGHT)
    leads, persisting = (
        verdicts([study], claim) for claim in ("MaBERT's lead over each rival", "MaBERT is above each")
    )
    assert [each.verdict for each in (*leads, *persisting)] == [HOLDS] * 6
    assert [each.in_paper.split(": ")[0] for each in persisting] == ["least +0.005", "least +0.005", "least +0.008"]
    (everywhere,) = verdicts([pooling], "MAP is the best pooling on every task")
    (on_rte,) = verdicts([pooling], "MAP's lead over [CLS] pooling")
    assert (everywhere.verdict, on_rte.verdict) == (HOLDS, HOLDS)
    assert on_rte.in_paper == "least +0.029: MAP over CLS on RTE less that on MRPC (flagged)"
    (most,) = verdicts([patterns], "Transformer layers alone")
    (widest,) = verdicts([components], "The full model's lead")
    assert (most.verdict, widest.verdict) == (HOLDS, HOLDS)
    assert most.in_paper == "above on 6 to 8 of 8 tasks (flagged)"
    assert widest.in_paper == "least +0.015: Full over PSM only on CoLA less that on MRPC (flagged)"
    assert "; least +0.015 [" in widest.numbers


@pytest.mark.parametrize(("on_cola", "on_rte", "verdict"), [(0.2, 0.1, UNMEASURED), (0.1, 0.2, FAILS)])
def test_the_widest_gap_is_wider_than_each_other(on_cola, on_rte, verdict):
    gaps = {"cola": on_cola, "rte": on_rte}
    rows = [
        row(key, {task: [0.5 + gap * (key == "full")] * 5 for task, gap in gaps.items()}, key, 1.0)
        for key in ("full", "psm_only", "map_only", "none")
    ]
    (found,) = verdicts([read(rows, "components")], "The full model's lead")
    assert found.verdict == verdict
    assert f"{on_cola - on_rte:+.3f}" in found.numbers
    assert found.in_paper.startswith("least ")


def test_one_budget_shows_no_growth():
    (found,) = verdicts([read([row("MaBERT", {"cola": [0.1] * 5}, "mabert", 1.0)], "budget")], "MaBERT's average rises")
    assert found.verdict == UNMEASURED


def test_a_task_is_compared_by_its_own_column_and_never_by_a_sample():
    def models(column):
        return [row(key, {column: [0.5 if key == "mabert" else 0.6] * 5}, key, 1.0) for key in paper.GLUE[1.0].rows]

    begin = "MaBERT is best on five"
    (own,) = verdicts([read(models("rte"), "baselines")], begin)
    assert own.verdict == FAILS
    sampled = read(models("rte"), "baselines")
    column = next(each for each in sampled.columns if each.key == "rte")
    object.__setattr__(column, "sample", "half")
    (sample,) = verdicts([sampled], begin)
    assert sample.verdict == UNMEASURED


@pytest.mark.parametrize("name", ["pattern", "components", "pooling", "budget", "baselines"])
def test_the_arms_of_the_packages_studies_are_those_that_the_claims_speak_of(name):
    packaged = load_study(name)
    rows = [
        row(arm, {"cola": [0.5] * 5}, each.paper, budget)
        for budget in packaged.budgets
        for arm, each in packaged.arms.items()
    ]
    found = score_verdicts([read(rows, name, reference=packaged.reference)])
    about = [claim for claim in CLAIMS if name in claim.studies and not claim.tasks]
    assert about
    for claim in about:
        begin = claim.text.partition("{")[0]
        judged = [each for each in found if each.claim.startswith(begin)]
        variants = {each.place.partition("steps, ")[2] for each in judged}
        assert variants == ({"", "both directions"} if name == "components" else {""})
        assert {each.verdict for each in judged} == {FAILS}, "all arms have the same scores"
        assert len(judged) == len(packaged.budgets) * len(variants)


def test_variants_of_the_arms_are_judged_apart():
    heights = {"full": 0.5, "psm_only": 0.5, "map_only": 0.5, "none": 0.5}
    rows = [row(arm, {"cola": [height] * 5}, arm, 1.0) for arm, height in heights.items()]
    variant = {**heights, "full": 0.9}
    rows += [row(f"{arm}, both directions", {"cola": [height] * 5}, None, 1.0) for arm, height in variant.items()]
    own, both = verdicts([read(rows, "components")], "Masking and MAP together are above")
    assert (own.verdict, own.place) == (FAILS, "tiny, 100% of the steps")
    assert (both.verdict, both.place) == (HOLDS, "tiny, 100% of the steps, both directions")


def of(results, begin):
    return [each for each in efficiency_verdicts(results) if each.claim.startswith(begin)]


TRAINING = "At 4,096 tokens the training step of the five"
LOWEST = "MaBERT has the lowest latency at 4,096"


def test_the_paper_measured_again_without_spread_has_its_factors(load):
    rows = [
        {
            **each,
            **({} if each["measure"] == "memory" else dict.fromkeys(("fastest_ms", "slowest_ms"), each["median_ms"])),
        }
        for each in whole()
    ]
    found = efficiency_verdicts(load(rows))
    factors = [each for each in found if "at least" in each.claim]
    assert [each.claim.split("least ")[1][:4] for each in factors] == ["2.36", "1.47", "2.43", "1.25"]
    # At the very factor the ratio is neither above nor below it.
    assert {each.verdict for each in factors} == {OPEN}
    assert {each.verdict for each in found if each not in factors} == {HOLDS}
    assert {each.place for each in found} == {"fp32, cpu"}


@pytest.mark.parametrize(("factor", "verdict"), [(9.0, HOLDS), (2.36, OPEN), (0.5, FAILS)])
def test_a_factor_is_judged_within_the_spread(load, factor, verdict):
    rows = [raw("training", model, 4096, factor) for model in paper.BASELINES] + [raw("training", "mabert", 4096, 1.0)]
    (found,) = of(load(rows), TRAINING)
    assert found.verdict == verdict
    ends = f"{factor * 0.9 / 1.5:.2f} to {factor * 1.5 / 0.9:.2f}"
    assert found.numbers == f"{factor:.2f} times, within {ends}, 15 calls or more"


@pytest.mark.parametrize(("rival", "verdict"), [(9.0, HOLDS), (1.2, OPEN), (0.2, FAILS)])
def test_the_lowest_is_below_every_rival(load, rival, verdict):
    rows = [raw("latency", model, 4096, 9.0) for model in paper.BASELINES[1:]]
    rows += [raw("latency", "bert", 4096, rival), raw("latency", "mabert", 4096, 1.0)]
    (found,) = of(load(rows), LOWEST)
    assert found.verdict == verdict


def test_a_missing_rival_is_named_and_one_too_slow_bounds_the_ratio(load):
    rows = [raw("training", model, 4096, 9000.0) for model in paper.BASELINES if model != "deberta"]
    rows.append(raw("training", "mabert", 4096, 1000.0))
    (lacking,) = of(load(rows), TRAINING)
    assert (lacking.verdict, lacking.numbers) == (UNMEASURED, "no number of DeBERTa")
    (bounded,) = of(load([*rows, raw("training", "deberta", 4096, **SLOW)]), TRAINING)
    assert bounded.verdict == HOLDS
    assert bounded.numbers == f"within {(4 * 8.1 + 120) / 5 / 1.5:.2f} to no bound, 15 calls or more"


@pytest.mark.parametrize(
    ("rival", "calls", "verdict"), [(9.0, 4, HOLDS), (9.0, 3, OPEN), (0.2, 4, OPEN), (0.2, 5, FAILS)]
)
def test_few_calls_decide_little_and_less_where_one_of_many_is_looked_for(load, rival, calls, verdict):
    models = {**dict.fromkeys(paper.BASELINES[1:], 9.0), "bert": rival, "mabert": 1.0}
    rows = [raw("latency", model, 4096, value, samples=calls) for model, value in models.items()]
    (found,) = of(load(rows), LOWEST)
    assert found.verdict == verdict


def test_the_papers_settings_are_judged_where_they_were_measured(load):
    assert {each.place for each in efficiency_verdicts(load(whole(CPU) + whole(GPU)))} == {"fp32, cpu"}
    assert {each.place for each in efficiency_verdicts(load(whole(GPU)))} == {"best settings, bf16, cuda"}


def test_a_measure_that_was_only_taken_under_other_settings_is_judged_there(load):
    rows = [raw("latency", "mabert", 4096, 1.0, CPU), raw("training", "mabert", 4096, 1.0, GPU)]
    (training,), (lowest,) = of(load(rows), TRAINING), of(load(rows), LOWEST)
    assert (training.place, lowest.place) == ("best settings, bf16, cuda", "fp32, cpu")
    memory = of(load(rows), "MaBERT needs less memory")
    assert [(each.verdict, each.place) for each in memory] == [(UNMEASURED, "-")] * 2


def test_a_length_that_was_only_reached_under_other_settings_is_judged_there(load):
    rows = [raw("latency", "mabert", length, 1.0, where) for where, length in ((CPU, 2048), (GPU, 2048), (GPU, 4096))]
    places = {each.claim: each.place for each in efficiency_verdicts(load(rows)) if each.claim.startswith(LOWEST[:23])}
    assert places == {
        "MaBERT has the lowest latency at 2,048 tokens": "fp32, cpu",
        "MaBERT has the lowest latency at 4,096 tokens": "best settings, bf16, cuda",
    }


def test_without_measurements_every_efficiency_claim_stands_once_with_the_papers_factor():
    found = efficiency_verdicts(None)
    assert len(found) == len(efficiency.CLAIMS)
    assert {each.verdict for each in found} == {UNMEASURED}
    assert found[0].in_paper == "2.36 times"


def curves(**by_masking):
    """Trained weights in one situation; by masking, distances of the [CLS] vector, from no padding on."""
    rows = [
        {
            "weights": "trained",
            "side": "right",
            "attention": "masked",
            "masking": masking,
            "cls": distances,
            "mean": [distance / 2 for distance in distances],
        }
        for masking, distances in by_masking.items()
    ]
    return {"rows": rows}


def drifts(result):
    """Of each claim, in the situation of `curves`."""
    return drift_verdicts([("drift.json", result)])[::4]


@pytest.mark.parametrize(
    ("farthest", "expected"),
    [
        ({"none": 0.3, "pre": 0.2, "post": 0.1, "pre+post": 1e-15}, [HOLDS, HOLDS, HOLDS, HOLDS]),
        ({"none": 1e-15, "pre": 1e-15, "post": 1e-15, "pre+post": 1e-15}, [FAILS, OPEN, HOLDS, OPEN]),
        ({"none": 0.3, "pre": 0.1, "post": 0.2, "pre+post": 0.1}, [HOLDS, OPEN, FAILS, FAILS]),
        ({"none": 0.3, "pre": 0.2, "post": 0.1, "pre+post": 0.4}, [HOLDS, FAILS, FAILS, FAILS]),
        ({"exact": 0.0}, [UNMEASURED] * 4),
    ],
)
def test_drift(farthest, expected):
    moves, _, *others = drifts(curves(**{masking: [0.0, far] for masking, far in farthest.items()}))
    assert [each.verdict for each in (moves, *others)] == expected


@pytest.mark.parametrize(
    ("distances", "expected"),
    [
        ([0.0, 0.1, 0.2, 0.3], HOLDS),
        ([0.9, 0.1, 0.2, 0.3], HOLDS),
        ([0.0, 0.1, 0.05, 0.3], OPEN),
        ([0.0, 0.3, 0.5, 0.2], FAILS),
        ([0.0, 0.3, 0.3], FAILS),
        ([0.0, 1e-15, 2e-15], FAILS),
        ([0.0, 0.3], OPEN),
        (None, UNMEASURED),
    ],
)
def test_drift_grows_where_every_longer_padding_moves_every_vector_further(distances, expected):
    result = curves(none=distances) if distances else curves(exact=[0.0, 0.0])
    found = drifts(result)[1]
    assert found.verdict == expected
    if expected == HOLDS:
        assert (
            found.numbers
            == "from the shortest padding to the longest: [CLS] 1.0e-01 to 3.0e-01, mean of tokens 5.0e-02 to 1.5e-01"
        )
        result["rows"][0]["mean"] = [0.0, 0.2, 0.3, 0.1]
        assert drifts(result)[1].verdict == FAILS


@pytest.mark.parametrize("vector", ["cls", "mean"])
def test_either_kind_of_vector_that_drifts_counts(vector):
    result = curves(**{"pre+post": [0.0, 0.0]})
    result["rows"][0][vector] = [0.0, 0.1]
    (stays,) = [each for each in drifts(result) if each.claim.endswith("leaves the vector where it is")]
    assert stays.verdict == FAILS


def test_drift_is_judged_in_every_situation_and_not_measured_without_results():
    assert len(drift_verdicts([])) == 5
    assert {each.verdict for each in drift_verdicts([])} == {UNMEASURED}
    one = ("a.json", {"rows": []})
    assert len(drift_verdicts([one])) == 20
    assert {each.place[-6:] for each in drift_verdicts([one, ("b.json", {"rows": []})])} == {"a.json", "b.json"}


def test_the_committed_drift_results_are_judged(request):
    folder = request.config.rootpath / "benchmarks/results"
    files = sorted(folder.glob("*-drift.json"))
    if not files:
        pytest.skip("no drift results are there")
    assert {HOLDS, FAILS} <= {each.verdict for each in drift_verdicts(find(files).drifts)}


def test_the_table_of_claims_shows_all_of_a_verdict():
    verdict = score_verdicts([])[0]
    (cells,) = claims_table([verdict]).rows
    assert [cell.text for cell in cells] == [
        verdict.claim,
        UNMEASURED,
        verdict.place,
        verdict.numbers,
        verdict.in_paper,
        verdict.source,
    ]
