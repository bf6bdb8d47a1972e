"""A study's tables show every score, every lack of one with its reason, and the paper's beside them."""

import pytest

from mabert_lab.report import paper
from mabert_lab.report.claims.scores import score_verdicts
from mabert_lab.report.document import Text
from mabert_lab.report.grid import FLAG, MISSING, to_csv
from mabert_lab.report.study.figures import arm_chart, budget_chart, loss_chart
from mabert_lab.report.study.results import read_study
from mabert_lab.report.study.section import flat, section, summary
from mabert_lab.report.study.tables import (
    difference_table,
    failures,
    further_table,
    paper_table,
    paper_tables,
    pretraining_table,
    score_table,
    seed_rows,
    side_by_side,
    tables_not_run,
)
from tests.lab.report.studies import SETTINGS, column, like_the_paper, read, row, study

MMT, MAMBA = "MMTMMTMMTMMT", "M" * 12


def texts(grid, first):
    """The row of a table that begins with a name, as text."""
    (cells,) = [cells for cells in grid.rows if cells[0].text == first]
    return [cell.plain for cell in cells]


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


def test_scores_are_mean_deviation_and_seeds(odd):
    assert texts(score_table(odd), MMT) == [
        MMT,
        "0.150 ± 0.071 (2)",
        "0.550 ± 0.071 (2)",
        "0.400 (1)",
        "0.333 (1)",
    ]


def test_what_no_text_is_needed_for_stands_below_the_scores():
    columns = [{**column("cola"), "constant": 0.0}, {**column("rte"), "constant": 0.5}]
    content = study([row(MMT, {"cola": [0.1], "rte": [0.4]}, MMT), row(MAMBA, {"cola": [0.0], "rte": [0.4]}, MAMBA)])
    table = score_table(read_study({**content, "columns": columns}, "pattern.json"))
    assert [cell.plain for cell in table.rows[-1]] == ["the best single class for all", "0.000", "0.500", "0.250"]
    bold = {(cells[0].text, number) for cells in table.rows for number, cell in enumerate(cells) if cell.bold}
    assert bold == {(MMT, 1), (MMT, 3)}, "not what all have, nor what is no model's"
    assert "single class" not in str(score_table(read_study(content, "pattern.json")))


def test_a_note_is_shown_with_the_study():
    content = study([row(MMT, {"cola": [0.1]}, MMT)], note="What a reader must know.")
    assert Text("What a reader must know.") in list(section(read_study(content, "pattern.json")))


def test_the_papers_tables_that_nothing_is_set_beside_are_shown():
    names = [grid.name for grid in tables_not_run([])]
    assert len(names) == len(set(names)) == 3 + len(paper.GLUE)
    own = read(like_the_paper(paper.PATTERNS), "kinds", label="tab:pattern_glue")
    left = [grid.name for grid in tables_not_run([own])]
    assert set(names) - set(left) == {"not-run-paper-pattern-glue"}


def test_a_doubtful_table_is_flagged_wherever_its_numbers_stand():
    rows = like_the_paper(paper.POOLING, 1.0)
    (note,) = [note for note in side_by_side(read(rows, "pooling")).notes if note.startswith(FLAG)]
    assert paper.POOLING.provenance in note
    assert "flagged" in arm_chart(read(rows, "pooling"))
    assert paper.GLUE[1.0].flagged or "flagged" not in arm_chart(
        read(like_the_paper(paper.GLUE[1.0], 1.0), "baselines")
    )


def test_what_is_missing_is_shown_with_its_reason(odd):
    table = score_table(odd)
    assert texts(table, MAMBA)[2:] == [f"{MISSING} failed: RuntimeError", MISSING, MISSING]
    assert texts(table, "T" * 12)[1:] == [f"{MISSING} pretraining failed"] * 3 + [MISSING]
    assert texts(table, "TTMTTMTTMTTM")[1:] == [MISSING] * 4
    assert failures(odd) == [
        f"{MAMBA}, 10%, RTE, seed 3: RuntimeError: out of memory",
        f"{'T' * 12}, 10%, pretraining: ValueError: nothing",
    ]


def test_a_failure_without_a_seed_is_told():
    found = read([row(MMT, {}, failed=[{"column": "cola", "seed": None, "reason": None}])])
    assert failures(found) == [f"{MMT}, 10%, CoLA: no reason told"]


def test_the_best_of_each_budget_is_bold_and_alone_none_is():
    heights = {("a", 0.1): 0.3, ("b", 0.1): 0.2, ("a", 1.0): 0.4, ("b", 1.0): 0.5}
    rows = [row(arm, {"cola": [height]}, None, budget) for (arm, budget), height in heights.items()]
    table = score_table(read(rows, "budget"))
    bold = [(cells[0].text, cells[1].text) for cells in table.rows if cells[2].bold]
    assert bold == [("a", "10%"), ("b", "100%")]
    assert not any(cell.bold for cells in score_table(read(rows[:1])).rows for cell in cells)


def test_a_sample_never_stands_under_the_official_name(odd):
    for table in (score_table(odd), difference_table(odd)):
        assert "MNLI-m, 13k-row sample (accuracy)" in table.head
        assert "MNLI-m (accuracy)" not in table.head
    assert "MNLI-m, 13k-row sample, with 12,988 training rows" in score_table(odd).notes[-1]
    named = {**column("mnli_sample"), "title": "MNLI-m, a tenth", "sample": "a tenth"}
    (kept,) = read_study({**study([]), "columns": [named]}, "file").columns
    assert kept.name == "MNLI-m, a tenth"


def test_metrics_stand_with_the_tasks(odd):
    assert score_table(odd).head[:3] == ("pattern", "CoLA (MCC)", "RTE (accuracy)")


def test_the_papers_table_is_whole_with_its_flag(odd):
    ((budget, table),) = paper_tables(odd)
    assert (budget, table) == (None, paper.PATTERNS)
    grid = paper_table(odd, table)
    assert texts(grid, MAMBA)[1] == "0.401 ± 0.014"
    assert len(grid.rows) == 8
    assert len(grid.head) == 10
    assert grid.notes[-1] == f"{FLAG}{paper.PATTERNS.provenance}."
    # Its bold is computed: the paper sets another SST-2 score in bold.
    assert [cells[0].text for cells in grid.rows if cells[2].bold] == ["MTTMTTMTTMTT"]


def test_each_budget_has_its_own_table_and_an_unknown_one_none():
    rows = [row("mabert", {}, "mabert", share) for share in (1.0, 0.33, 0.1)]
    assert [share for share, _ in paper_tables(read(rows, "budget"))] == [0.1, 1.0]
    assert paper_tables(read(rows, "own study")) == []
    assert not any(note.startswith(FLAG) for note in paper_table(read(rows, "budget"), paper.GLUE[1.0]).notes)


def test_averages_beside_the_papers_are_over_the_same_tasks_with_ranks():
    table = side_by_side(read(like_the_paper(paper.POOLING, 1.0), "pooling"))
    theirs = (0.676 + 0.654) / 2
    assert texts(table, "MAP") == ["MAP", f"{theirs:.3f} ± 0.000 (5)", "1", f"{theirs:.3f}", "1"]
    assert texts(table, "CLS")[2:] == ["4", f"{(0.661 + 0.597) / 2:.3f}", "4"]
    assert "Over CoLA, RTE." in table.notes[0]
    assert side_by_side(read([row("a", {"cola": [0.1]})])) is None


def test_ranks_are_among_the_rows_that_both_sides_have():
    rows = [each for each in like_the_paper(paper.POOLING, 1.0) if each["arm"] in ("cls", "map")]
    for each in rows:
        assert each["paper"] == each["arm"]
    unmeasured = [row(key, {}, key, 1.0) for key in paper.POOLINGS if key not in ("cls", "map")]
    table = side_by_side(read([*rows, *unmeasured], "pooling"))
    assert [texts(table, "CLS")[place] for place in (2, 4)] == ["2", "2"]
    assert {texts(table, label)[4] for label in ("ATTN", "MaskedMean")} == {MISSING}


def test_uneven_numbers_of_seeds_are_said():
    rows = [row(MMT, {"cola": [0.5] * 5}, MMT), row(MAMBA, {"cola": [0.4] * 3}, MAMBA)]
    for table in (score_table(read(rows)), side_by_side(read(rows))):
        assert any(note.startswith(FLAG) and "3 to 5 seeds" in note for note in table.notes)
    assert not any("to 5 seeds" in note for note in score_table(read(rows[:1])).notes)
    settings = {**SETTINGS, "seeds": [0]}
    assert "Fine-tuned under 5 seeds" in summary(read_study(study(rows, settings=settings), "x.json"))


def test_a_task_that_started_from_another_is_marked_in_every_table():
    rows = [
        row(MMT, {"cola": [0.5] * 5, "rte": [0.6] * 5}, MMT),
        row(MAMBA, {"cola": [0.4] * 5, "rte": [0.5] * 5}, MAMBA),
    ]
    rows[0]["scores"]["rte"]["f1"] = {"0": 0.5}
    content = study(rows)
    plain = read_study(content, "x.json")
    for each in content["columns"]:
        each["start"] = "mnli" if each["key"] == "rte" else None
    marked = read_study(content, "x.json")
    for table in (score_table, difference_table):
        assert not any("\N{DAGGER}" in head for head in table(plain).head)
        assert [head for head in table(marked).head if "\N{DAGGER}" in head] == ["RTE\N{DAGGER} (accuracy)"]
        assert "RTE\N{DAGGER}" in to_csv(table(marked))
    for table in (score_table, difference_table, side_by_side, further_table):
        noted = [
            any("started from the model that was fine-tuned on MNLI" in note for note in table(each).notes)
            for each in (plain, marked)
        ]
        assert noted == [False, True]


def test_a_metric_beside_the_columns_own_has_a_table_of_its_own():
    first, second = row(MMT, {"cola": [0.5] * 5}, MMT), row(MAMBA, {"cola": [0.4] * 5}, MAMBA)
    assert further_table(read([first, second])) is None
    first["scores"]["cola"]["accuracy"] = {"0": 0.7, "1": 0.8}
    table = further_table(read([first, second]))
    assert table.head[1:] == ("CoLA (accuracy)",)
    assert texts(table, MMT)[1] == "0.750 ± 0.071 (2)"
    assert texts(table, MAMBA)[1] == MISSING
    assert further_table(read([first, second])) in list(section(read([first, second])))


def test_losses_of_different_vocabularies_are_not_ranked():
    first, second = row(MMT, {}, MMT), row(MAMBA, {}, MAMBA)
    second["pretraining"]["held_out_loss"] = 6.0
    for vocabulary, bold in (("vocab.txt", True), ("other.txt", False)):
        second["pretraining"]["tokenizer"] = vocabulary
        table = pretraining_table(read([first, second]))
        (cells,) = [cells for cells in table.rows if cells[0].text == MAMBA]
        assert cells[4].bold is bold
        assert any("cannot be compared" in note for note in table.notes) is not bold


def test_differences_are_from_the_reference_of_the_same_budget_and_variant():
    def both(name, forward, backward):
        yield row(name, {"cola": [forward] * 5}, name, 1.0)
        yield row(f"{name}, both directions", {"cola": [backward] * 5}, None, 1.0)

    table = difference_table(read([*both("full", 0.5, 0.9), *both("none", 0.4, 0.2)], "components"))
    assert texts(table, "None")[1] == "-0.100 [-0.100, -0.100] (5)"
    assert texts(table, "none, both directions")[1] == "-0.700 [-0.700, -0.700] (5)"
    assert texts(table, "full, both directions")[1] == "+0.400 [+0.400, +0.400] (5)", "less the plain reference"
    assert len(table.rows) == 3
    told = "The arm less Full (arms with both directions less full, both directions, that one less Full); in brackets"
    assert table.notes[0].startswith(told)


def test_an_arm_whose_variant_the_reference_has_not_is_compared_with_the_plain_reference():
    scores = {"MaBERT": 0.5, "BERT": 0.3, "MaBERT, rotary": 0.6, "BERT, wide": 0.4}
    rows = [
        row(arm, {"cola": [height] * 5}, {"MaBERT": "mabert", "BERT": "bert"}.get(arm), 1.0)
        for arm, height in scores.items()
    ]
    study = read(rows, "baselines", reference="MaBERT")
    table = difference_table(study)
    found = {cells[0].text: cells[1].text for cells in table.rows}
    assert found == {"BERT": "-0.200", "MaBERT, rotary": "+0.100", "BERT, wide": "-0.100"}
    assert table.notes[0].startswith("The arm less MaBERT; in brackets")
    places = [each.place for each in score_verdicts([study]) if each.claim.startswith("MaBERT has the highest")]
    assert places == ["tiny, 100% of the steps"], "no verdict on what is no variant of the table"


def test_budgets_that_differ_by_less_than_a_hundredth_are_told_apart():
    rows = [row("mabert", {"cola": [0.5]}, "mabert", budget) for budget in (0.12, 0.125, 1.0)]
    study = read(rows, "budget")
    assert [cells[1].text for cells in score_table(study).rows] == ["12%", "12.5%", "100%"]
    assert "12%, 12.5%, 100% of 1,000 steps" in summary(study)
    assert "12.5%" in budget_chart(study)
    claims = {each.claim for each in score_verdicts([study]) if each.claim.startswith("MaBERT has the highest")}
    assert sum("at 12.5% of" in claim for claim in claims) == sum("at 12% of" in claim for claim in claims) == 1


def test_a_difference_is_bold_where_the_test_tells_it():
    rows = [row(MMT, {"cola": [0.5] * 5, "rte": [0.5] * 5}, MMT)]
    rows.append(row(MAMBA, {"cola": [0.4] * 5, "rte": [0.4, 0.6, 0.5, 0.5, 0.5]}, MAMBA))
    (cells,) = difference_table(read(rows)).rows
    assert [cell.bold for cell in cells] == [False, True, False, False, True]
    assert cells[3].plain == MISSING


def test_an_average_over_fewer_tasks_says_so():
    rows = [row(MMT, {"cola": [0.5] * 5, "rte": [0.5] * 5}, MMT), row(MAMBA, {"cola": [0.4] * 5}, MAMBA)]
    assert texts(difference_table(read(rows)), MAMBA)[-1].endswith("(5) of 1 task")


def test_pretraining_is_in_millions_and_minutes(odd):
    table = pretraining_table(odd)
    assert texts(table, MMT)[1:] == ["done", "100", "0.4", "7.100", "0.100", "4.1", "1.5", "vocab.txt", "abc"]
    assert texts(table, "T" * 12)[1:] == ["failed", *[MISSING] * 8]
    assert not any("vocabularies" in note for note in table.notes)
    own = row(MMT, {}, MMT)
    own["pretraining"]["tokenizer_trained"] = True
    assert any(note.startswith(FLAG) and "vocabularies" in note for note in pretraining_table(read([own])).notes)


def test_every_score_goes_to_the_file_of_seeds(odd):
    rows = seed_rows(odd)
    assert (MMT, "0.1", "MNLI-m, 13k-row sample", "accuracy", "0", "0.4") in rows
    assert len(rows) == 7


def test_the_summary_says_what_was_run(odd):
    told = summary(odd)
    for text in ("4 rows, of which 2 are pretrained", "10% of 1,000 steps", "32 windows of 128 and then 512 tokens"):
        assert text in told
    assert "5 seeds, learning rate 0.0002, 5 epochs, scored after the last epoch." in told
    best = read([], settings={**SETTINGS, "finetuning": {"select": "best"}, "from_mnli": True})
    assert "the best epoch on the data it is scored on; small tasks start from the model tuned on MNLI" in summary(best)


def test_a_choice_on_the_scored_data_is_said_with_its_tasks():
    grid = {"learning_rates": [1e-5, 2e-5]}
    tasks = {"cola": grid, "rte": {**grid, "select": "best"}}
    told = summary(read([], settings={**SETTINGS, "tasks": tasks, "from_mnli": True}))
    assert "the learning rate chosen from 1e-05, 2e-05 under seed 0 on the data it is scored on" in told
    assert "scored after the last epoch (cola) and the best epoch on the data it is scored on (rte)" in told
    assert "tuned on MNLI under seed 0" in told


def test_nested_settings_become_dotted_names():
    assert list(flat({"a": {"b": [1, 2]}, "c": [{"d": 3}], "e": None})) == [
        ("a.b", "1, 2"),
        ("c.0.d", "3"),
        ("e", "None"),
    ]


def test_a_study_without_any_result_still_has_its_section():
    names = [type(part).__name__ for part in section(read([row(MMT, {}, MMT, pretraining={})]))]
    assert "Drawing" not in names
    assert names.count("Grid") >= 4


@pytest.mark.slow
def test_charts_name_every_arm():
    patterns = read(like_the_paper(paper.PATTERNS, noise=0.01))
    budgets = read([each for share in paper.GLUE for each in like_the_paper(paper.GLUE[share], share)], "budget")
    for name in paper.PATTERNS.rows:
        assert name in arm_chart(patterns)
        assert name in loss_chart(patterns)
    for name in paper.NAMES.values():
        assert name in budget_chart(budgets)


def test_without_held_out_loss_that_of_training_is_drawn():
    rows = [row(MMT, {})]
    assert "held-out loss" in loss_chart(read(rows))
    rows[0]["pretraining"]["history"] = [{"step": 10, "loss": 9.1}]
    assert "training loss" in loss_chart(read(rows))
    rows[0]["pretraining"]["history"] = []
    assert loss_chart(read(rows)) is None


def test_arms_of_one_pretraining_share_a_curve():
    rows = like_the_paper(paper.POOLING, 1.0)
    for each in rows:
        each["pretraining"]["cell"] = "one"
    chart = loss_chart(read(rows, "pooling"))
    assert "MAP and 3 more" in chart
    assert "MaskedMean" not in chart
