"""A study's part shows every score, every lack of one with its reason, and the paper's beside them."""

import re
from dataclasses import replace

import pytest

from mabert.schema.check import check
from mabert_lab.report import paper, scores
from mabert_lab.report.document import FLAG, MISSING, markdown
from mabert_lab.report.found import Found
from mabert_lab.report.paper import CLAIMS, LEARNT_BELOW, UNMEASURED, papers_table
from mabert_lab.report.studies import read_study
from mabert_lab.report.verdicts import judged, verdicts_on
from mabert_lab.report.whole import report
from mabert_lab.study.grid import Study
from tests.lab.report.rows import cells
from tests.lab.report.studies import SETTINGS, column, like_the_paper, of_all_budgets, read, row, study

MMT, MAMBA = "MMTMMTMMTMMT", "M" * 12


def told(study):
    """What the report says of a study alone."""
    found = [Found((study,))]
    return report(found, judged(found)).text


def heads(frame):
    """The headings of a table as the page shows it, without those of empty columns."""
    return markdown(frame).split("\n\n")[1].splitlines()[0].strip("| ").split(" | ")


@pytest.fixture
def odd():
    """A study with every kind of lack."""
    broken = {"cell": "x", "column": "rte", "seed": 3, "reason": "RuntimeError: out\nof memory"}
    return read(
        [
            row(MMT, {"cola": [0.1, 0.2], "rte": [0.5, 0.6], "mnli_sample": [0.4]}, MMT),
            row(MAMBA, {"cola": [0.0, 0.1]}, MAMBA, failed=[broken]),
            row("T" * 12, {}, "T" * 12, pretraining={"status": "failed", "reason": "ValueError: nothing"}),
            row("TTMTTMTTMTTM", {}, "TTMTTMTTMTTM", pretraining={"status": "missing"}),
        ]
    )


def test_scores_are_mean_deviation_and_seeds_and_what_is_missing_says_why(odd):
    shown = scores.score_table(odd)
    assert cells(shown, MMT) == ["**0.150 ± 0.071 (2)**", "0.550 ± 0.071 (2)", "0.400 (1)", "0.333 (1)"]
    assert cells(shown, MAMBA)[1:] == [f"{MISSING} failed: RuntimeError", MISSING, MISSING]
    assert cells(shown, "T" * 12) == [f"{MISSING} pretraining failed"] * 3 + [MISSING]
    assert scores.failures(odd) == [
        f"{MAMBA}, 10%, RTE, seed 3: RuntimeError: out of memory",
        f"{'T' * 12}, 10%, pretraining: ValueError: nothing",
    ]
    assert any(note.startswith(FLAG) and "1 to 2 seeds" in note for note in shown.attrs["notes"])
    assert len(scores.seeds(odd)) == 7


def test_uneven_seeds_are_said_only_of_the_table_that_shows_them():
    rows = like_the_paper("pooling", 1.0, ("cola", "mnli_sample"))
    for each in rows:
        del each["scores"]["mnli_sample"]["accuracy"]["4"]

    def flags(frame):
        return [note for note in frame.attrs["notes"] if "seeds are compared" in note]

    found = read(rows, "pooling", ("cola", "mnli_sample"))
    averaged = replace(found, columns=(found.columns[0], replace(found.columns[1], paper=None)))
    assert (len(flags(scores.score_table(averaged))), flags(scores.side_by_side(averaged))) == (1, [])


def test_a_sample_never_stands_under_the_official_name(odd):
    for shown in (scores.score_table(odd), scores.difference_table(odd)):
        assert "MNLI-m, 13k-row sample (accuracy)" in shown.columns
        assert "MNLI-m (accuracy)" not in shown.columns


def test_what_no_text_is_needed_for_stands_below_the_scores():
    rows = [row(MMT, {"cola": [0.1], "rte": [0.4]}, MMT), row(MAMBA, {"cola": [0.0], "rte": [0.4]}, MAMBA)]
    content = study(rows) | {"columns": [column("cola", constant=0.0), column("rte", constant=0.5)]}
    shown = scores.score_table(read_study(content))
    assert cells(shown, "the best single class for all") == ["0.000", "0.500", "0.250"]


def test_the_best_of_each_budget_is_bold_and_alone_none_is():
    heights = {("a", 0.1): 0.3, ("b", 0.1): 0.2, ("a", 1.0): 0.4, ("b", 1.0): 0.5}
    rows = [row(arm, {"cola": [height]}, None, budget) for (arm, budget), height in heights.items()]
    shown = scores.score_table(read(rows, "budget"))
    bold = [each[:2] for each in shown.itertuples(index=False, name=None) if each[2].startswith("**")]
    assert bold == [("a", "10%"), ("b", "100%")]
    assert "**" not in scores.score_table(read(rows[:1])).to_csv()


def test_averages_beside_the_papers_are_over_the_same_tasks_with_ranks():
    shown = scores.side_by_side(read(like_the_paper("pooling", 1.0), "pooling"))
    theirs = (0.676 + 0.654) / 2
    assert cells(shown, "MAP") == [f"{theirs:.3f} ± 0.002 (5)", "1", f"{theirs:.3f}", "1"]
    assert cells(shown, "CLS")[1:] == ["4", f"{(0.661 + 0.597) / 2:.3f}", "4"]
    assert any(paper.TABLES["pooling"].flag in note for note in shown.attrs["notes"])
    alone = scores.side_by_side(read([row("a", {"cola": [0.1]})]))
    assert heads(alone) == ["model", "here"], "where the paper has none"
    assert cells(alone, "a")[0] == "0.100 (1)"


def test_a_table_of_one_row_has_no_rank():
    (only,) = [each for each in like_the_paper("pooling", 1.0) if each["arm"] == "map"]
    unmeasured = [row(key, {}, key, 1.0) for key in ("attn", "cls")]
    for rows in ([only], [only, *unmeasured]):
        assert heads(scores.side_by_side(read(rows, "pooling"))) == ["model", "here", "in the paper"]


def test_differences_are_from_the_reference_of_the_same_budget_and_variant():
    def both(name, forward, backward):
        yield row(name, {"cola": [forward] * 5}, name, 1.0)
        yield row(f"{name}, both directions", {"cola": [backward] * 5}, None, 1.0)

    shown = scores.difference_table(read([*both("full", 0.5, 0.9), *both("none", 0.4, 0.2)], "components"))
    assert cells(shown, "None")[0] == "**-0.100 [-0.100, -0.100] (5)**"
    assert cells(shown, "none, both directions")[0] == "**-0.700 [-0.700, -0.700] (5)**"
    assert cells(shown, "full, both directions")[0] == "**+0.400 [+0.400, +0.400] (5)**", "less the plain reference"
    assert len(shown) == 3


def test_a_difference_is_bold_where_the_test_tells_it_and_says_over_how_many_tasks():
    rows = [row(MMT, {"cola": [0.5] * 5, "rte": [0.5] * 5}, MMT), row(MAMBA, {"cola": [0.4] * 5}, MAMBA)]
    assert cells(scores.difference_table(read(rows)), MAMBA)[-1].endswith("(5) of 1 tasks**")
    rows[1]["scores"]["rte"] = {"accuracy": {str(s): each for s, each in enumerate((0.4, 0.6, 0.5, 0.5, 0.5))}}
    bold = [cell.startswith("**") for cell in cells(scores.difference_table(read(rows)), MAMBA)]
    assert bold == [True, False, False, True]


def test_a_metric_beside_the_columns_own_has_a_table_of_its_own():
    first, second = row(MMT, {"cola": [0.5] * 5}, MMT), row(MAMBA, {"cola": [0.4] * 5}, MAMBA)
    assert not scores.further_table(read([first, second]))
    first["scores"]["cola"]["accuracy"] = {"0": 0.7, "1": 0.8}
    (shown,) = scores.further_table(read([first, second]))
    assert list(shown.columns[1:]) == ["CoLA (accuracy)"]
    assert (cells(shown, MMT), cells(shown, MAMBA)) == (["0.750 ± 0.071 (2)"], [MISSING])


def test_pretraining_is_in_millions_and_minutes_and_vocabularies_are_told_apart(odd):
    shown = scores.pretraining_table(odd)
    assert cells(shown, MMT) == ["done", "100", "0.4", "5.100", "0.100", "4.1", "1.5", "vocab.txt"]
    assert cells(shown, "T" * 12) == ["failed", *[MISSING] * 7]
    other = row(MAMBA, {}, MAMBA)
    other["pretraining"]["tokenizer"] = "other.txt"
    notes = scores.pretraining_table(read([row(MMT, {}, MMT), other])).attrs["notes"]
    assert any(note.startswith(FLAG) and "cannot be compared" in note for note in notes)


def test_the_papers_table_is_whole_with_its_flag_and_its_best_in_bold():
    shown = papers_table(paper.TABLES["pattern"])
    assert shown.shape == (8, 10)
    assert cells(shown, MAMBA)[0] == "0.401 ± 0.014"
    assert cells(shown, "MTTMTTMTTMTT")[1] == "**0.913 ± 0.008**", "the paper sets another in bold"
    assert shown.attrs["notes"] == [f"{FLAG}{paper.TABLES['pattern'].flag}."]
    assert cells(papers_table(paper.TABLES["latency"]), "MaBERT")[-1] == "**34.703**"


@pytest.mark.parametrize(("label", "beside"), [("tab:pattern_glue", [True, True, False]), ("tab:none", [False] * 3)])
def test_an_arm_that_the_paper_does_not_have_stands_alone(label, beside):
    rows = [row(name, {"cola": [0.1, 0.2]}, key) for name, key in (("a", MMT), ("b", MMT), ("c", "MXM"))]
    own = read(rows, label=label, reference="a")
    assert cells(scores.score_table(own), "c")
    assert list(scores.arm_averages(own)["paper"].notna()) == beside


def test_what_was_run_and_chosen_is_said(odd):
    assert "2 of 4 models are pretrained: 10% of 1,000 steps of 32 windows of 128 and then 512 tokens" in told(odd)
    grid = {"learning_rates": [1e-5, 2e-5], "select": "best"}
    chosen = told(read([], settings={**SETTINGS, "tasks": {"cola": grid}}))
    assert (
        "learning rate 1e-05 or 2e-05; the learning rate or best epoch is chosen on the data it is scored on" in chosen
    )


def test_the_line_below_which_a_model_has_learnt_is_the_studys_own_or_the_reports():
    asked = {"title": "A", "arms": {"one": {}}, "reference": "one"}
    for given, line in ((6, 6.0), (None, LEARNT_BELOW)):
        made = check(Study, {**asked, "learnt_below": given})
        assert read([], learnt_below=made.learnt_below).learnt_below == line
    assert read([]).learnt_below == LEARNT_BELOW, "files from before name none"
    with pytest.raises(ValueError, match="learnt_below is 0; it must be above 0 and at most 100"):
        check(Study, {**asked, "learnt_below": 0})


@pytest.mark.slow
def test_charts_name_every_arm():
    patterns, budgets = read(like_the_paper("pattern")), read(of_all_budgets(shares=(0.1, 1.0)), "budget")
    for name in paper.TABLES["pattern"].mean.index:
        assert name in scores.arm_chart(patterns)
        assert name in scores.pretraining_chart(patterns)
    assert all(f"{name}, 100%" in scores.arm_chart(budgets) for name in paper.MODELS.values())


def test_each_of_eight_curves_has_a_look_of_its_own():
    drawn = scores.pretraining_chart(read(like_the_paper("pattern")))
    strokes = re.findall(r'style="(fill: none;[^"]*stroke-width: 1\.6[^"]*)"', drawn)
    assert {strokes.count(each) for each in strokes} == {2}, "a curve and its line in the legend"
    assert len(set(strokes)) == 8


def test_without_held_out_loss_that_of_training_is_drawn_and_arms_of_one_pretraining_share_a_curve():
    rows = like_the_paper("pooling", 1.0)
    for each in rows:
        each["pretraining"]["cell"] = "one"
    assert "MAP and 3 more" in scores.pretraining_chart(read(rows, "pooling"))
    first = row(MMT, {})
    first["pretraining"]["history"] = [{"step": 10, "loss": 9.1}]
    assert "training loss" in scores.pretraining_chart(read([first]))
    first["pretraining"]["history"] = []
    assert scores.pretraining_chart(read([first])) is None


def by_conversion():
    """A study whose arms are conversions, one of which is still to be made."""

    def made(*conversions):
        about = {"status": "done", "parameters": 2_000_000, "reason": None}
        return {**about, "conversions": [dict(each) for each in conversions]}

    one = {"pattern": "MMT", "cosine": 0.9, "floor": 0.8, "seconds": 60.0}
    rows = [
        row("T", {"cola": [0.3, 0.31]}, budget=1.0, pretraining=made({"pattern": "TTT", "seconds": 1.0})),
        row("MMT", {"cola": [0.2, 0.22]}, budget=1.0, pretraining=made(one, {**one, "cosine": 0.8})),
        row("M", {}, budget=1.0, pretraining={**made({"status": "missing"}), "status": "missing"}),
    ]
    conversion = {"teacher": "an-encoder", "texts": ["a.txt"], "seeds": [0, 1], "recipe": {"tokens": 1000}}
    settings = {"conversion": conversion, "finetuning": {}, "seeds": [0, 1, 2]}
    return read(rows, "convert-pattern", ("cola",), reference="MMT", settings=settings, note="Another question.")


def test_an_experiment_by_conversion_tells_of_conversions_and_judges_no_claim():
    found = by_conversion()
    shown = scores.conversion_table(found)
    assert cells(shown, "MMT") == ["done", "2 of 2", "MMT", "0.850 ± 0.071 (2)", "0.800 ± 0.000 (2)", "2.0", "1.0"]
    assert cells(shown, "T")[:5] == ["done", "1 of 1", "TTT", MISSING, MISSING]
    assert cells(shown, "M")[:3] == ["missing", "0 of 1", MISSING]
    assert "over conversions" in scores.score_table(found).attrs["notes"][0]
    assert "paired conversions" in scores.difference_table(found).attrs["notes"][0]
    whole = told(found)
    assert "converted: each arm under 2 seeds from `an-encoder`, tokens 1000, on `a.txt`. Each conversion is" in whole
    assert "Another question." in whole
    assert cells(scores.side_by_side(found), "MMT")[0] == "0.210 ± 0.014 (2)"
    (sections,) = re.findall(r"^## By conversion.*?(?=^## )", whole, re.M | re.S)
    assert sections.count("\n### Study of convert-pattern (") == 1
    assert "## By conversion" not in told(read([]))
    assert "Too few seeds" not in whole
    assert "Average score of each model: Study" in whole
    assert {each.verdict for claim in CLAIMS for each in verdicts_on(claim, (found,), None, ())} == {UNMEASURED}
    assert not re.search("^## What (is decided|cannot be told)", whole, re.M)


def test_a_task_that_the_paper_lacks_counts_where_nothing_of_the_paper_stands_beside_it():
    rows = [
        row("map", {"cola": [0.2, 0.4], "rte": [0.6, 0.8]}, "map"),
        row("cls", {"cola": [0.1], "rte": [0.5]}, "cls"),
    ]
    asked = read(rows, "pooling", ("cola", "rte"))
    own = replace(asked, columns=(asked.columns[0], replace(asked.columns[1], paper=None)))
    assert cells(scores.side_by_side(own), "MAP")[0] == "0.300 ± 0.141 (2)"
    assert cells(scores.side_by_side(replace(own, label=None)), "MAP")[0] == "0.500 ± 0.141 (2)"
