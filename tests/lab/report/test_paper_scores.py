"""The paper's scores: what its tables say of each other, and where they disagree with what is said of them."""

from itertools import pairwise

import pytest

from mabert_lab.report import paper

MMT = "MMTMMTMMTMMT"
ALL = [paper.PATTERNS, *paper.GLUE.values(), paper.INTEGRATION, paper.POOLING]


def differing(first, second):
    """Columns and parts of two rows that are not equal."""
    return {
        (column, part)
        for column in paper.TASKS
        for part in ("mean", "std")
        if getattr(first[column], part) != getattr(second[column], part)
    }


def best(table, column):
    return max(table.rows, key=lambda row: table.rows[row][column].mean)


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.label)
def test_every_row_has_every_task_and_scores_that_can_be(table):
    for row in table.rows.values():
        assert tuple(row) == tuple(paper.TASKS)
        assert all(0.3 < score.mean < 1 and 0 < score.std < 0.1 for score in row.values())


def test_rows_are_the_papers():
    assert [len(table.rows) for table in ALL] == [8, 6, 6, 6, 6, 4, 4]
    assert all(set(pattern) <= set("MT") and len(pattern) == 12 for pattern in paper.PATTERNS.rows)
    assert all(tuple(table.rows) == tuple(paper.NAMES) for table in paper.GLUE.values())
    assert tuple(paper.INTEGRATION.rows) == tuple(paper.INTEGRATIONS)
    assert tuple(paper.POOLING.rows) == tuple(paper.POOLINGS)


def test_the_default_is_the_same_row_wherever_it_stands():
    assert paper.PATTERNS.rows[MMT] == paper.GLUE[0.1].rows["mabert"]
    assert paper.INTEGRATION.rows["full"] == paper.POOLING.rows["map"] == paper.GLUE[1.0].rows["mabert"]


def test_cls_pooling_equals_map_only_in_every_cell_but_one():
    assert differing(paper.POOLING.rows["cls"], paper.INTEGRATION.rows["map_only"]) == {("cola", "std")}


def test_cls_pooling_with_masking_stands_twice_with_different_means():
    twice = differing(paper.POOLING.rows["cls"], paper.INTEGRATION.rows["psm_only"])
    assert {(task, "mean") for task in paper.TASKS} <= twice


def test_what_is_doubtful_is_flagged_and_names_the_reason():
    flagged = {table.label for table in ALL if table.flagged}
    assert flagged == {"tab:pattern_glue", "tab:ablation_integration", "tab:pooling_pred_100pct"}
    assert "predicted from 50% ratios" in paper.POOLING.provenance
    assert "MAP only" in paper.POOLING.provenance
    assert "tab:pooling_pred_100pct" in paper.INTEGRATION.provenance


def test_the_pattern_tables_bold_sst2_is_not_its_highest():
    assert best(paper.PATTERNS, "sst2") == "MTTMTTMTTMTT"
    assert [task for task in paper.TASKS if best(paper.PATTERNS, task) != MMT] == ["sst2", "qnli"]
    assert "MTTMTTMTTMTT" in paper.PATTERNS.provenance


def test_the_abstract_says_five_of_eight():
    assert sum(best(paper.GLUE[1.0], task) == "mabert" for task in paper.TASKS) == 5


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_mabert_is_best_on_every_task_below_the_full_budget(share):
    assert all(best(paper.GLUE[share], task) == "mabert" for task in paper.TASKS)


def test_averages_order_the_rows_as_the_text_says():
    patterns = {row: paper.average(paper.PATTERNS, row) for row in paper.PATTERNS.rows}
    single = {row: patterns.pop(row) for row in ("M" * 12, "T" * 12)}
    assert max(patterns, key=patterns.get) == MMT
    assert max(single.values()) < min(patterns.values())
    assert single["M" * 12] < single["T" * 12]
    for earlier, later in pairwise(paper.GLUE.values()):
        assert all(paper.average(earlier, model) < paper.average(later, model) for model in paper.NAMES)


def test_an_average_is_of_the_tasks_asked_for():
    assert paper.average(paper.GLUE[1.0], "mabert", ("cola", "sst2")) == pytest.approx((0.676 + 0.933) / 2)
    with pytest.raises(KeyError):
        paper.average(paper.GLUE[1.0], "mabert", ("stsb",))
