"""The paper's numbers are those of its source, its headlines follow from them, and what is doubtful is flagged."""

import hashlib
import re
from itertools import pairwise

import pytest

from mabert_lab.report import paper
from mabert_lab.report.costs import papers_results
from mabert_lab.report.costs import ratio as ratio_of
from mabert_lab.report.costs_page import HEADLINE_LENGTH
from mabert_lab.report.paper import BY_SHARE, TABLES, TASKS
from tests.lab.report.rows import source

MMT = "MMTMMTMMTMMT"
WITHOUT_DEBERTA = ("bert", "albert", "longformer", "bigbird")
DIGEST = "47b7098aa8d1"


def printed(table):
    """Every number of a table as the source prints it, row by row."""
    means = [[f"{mean:.3f}" for mean in row] for row in table.mean.to_numpy()]
    if table.std is None:
        return [number for row in means for number in row]
    stds = [[f"{std:.3f}" for std in row] for row in table.std.to_numpy()]
    return [n for row, more in zip(means, stds, strict=True) for pair in zip(row, more, strict=True) for n in pair]


def test_no_digit_changes_from_those_that_were_compared_with_the_papers_source():
    every = "\n".join(" ".join([name, *printed(table)]) for name, table in TABLES.items())
    assert hashlib.sha256(every.encode()).hexdigest()[:12] == DIGEST


@pytest.mark.parametrize("name", TABLES)
def test_every_number_stands_in_the_papers_source(name):
    text, label = source(), TABLES[name].label
    (found,) = [each for each in re.findall(r"\\begin\{table\*\}.*?\\end\{table\*\}", text, re.S) if label in each]
    found = re.sub(r"\\textbf\{([\d.]+)\}", r"\1", found)
    numbers = re.findall(r"\d+\.\d{3}", found.partition(r"\hline")[2])
    if label == "tab:eff_memory":
        numbers = [n for place, n in enumerate(numbers) if (place % 6 == 0) == (name == "parameters")]
    assert numbers == printed(TABLES[name])


@pytest.mark.parametrize(
    ("measure", "rivals", "ratio"),
    [
        ("training", paper.BASELINES, 2.36),
        ("latency", paper.BASELINES, 2.43),
        ("training", ("bert",), 1.47),
        ("latency", ("bert",), 1.25),
        ("training", WITHOUT_DEBERTA, 1.73),
        ("latency", WITHOUT_DEBERTA, 1.55),
    ],
)
def test_headlines_follow_from_the_tables(measure, rivals, ratio):
    (tables,) = papers_results().tables.values()
    assert round(ratio_of(tables[measure], HEADLINE_LENGTH, rivals).value, 2) == ratio
    assert ratio_of(tables[measure], 256, rivals) is None


def test_scores_can_be_and_costs_grow_with_length():
    for table in TABLES.values():
        if table.std is None:
            assert tuple(table.mean.index) == tuple(paper.MODELS)
            assert (table.mean.diff(axis=1).iloc[:, 1:] > 0).all(axis=None)
        else:
            assert list(table.mean.columns) == list(TASKS)
            assert table.mean.gt(0.3).all(axis=None)
            assert table.std.lt(0.1).all(axis=None)


def test_what_is_doubtful_is_flagged_and_names_the_reason():
    flagged = {name for name, table in TABLES.items() if table.flag}
    assert flagged == {"pattern", "components", "pooling", "memory", "parameters"}
    assert "predicted from 50% ratios" in TABLES["pooling"].flag
    assert TABLES["pattern"].mean["sst2"].idxmax() == "MTTMTTMTTMTT" != MMT


def test_a_row_that_stands_twice_is_the_same_and_cls_pooling_is_map_only_in_every_cell_but_one():
    full = TABLES["glue_100"].mean.loc["mabert"]
    assert (full == TABLES["components"].mean.loc["full"]).all()
    assert (full == TABLES["pooling"].mean.loc["map"]).all()
    assert (TABLES["pattern"].mean.loc[MMT] == BY_SHARE[0.1].mean.loc["mabert"]).all()
    assert (TABLES["pooling"].mean.loc["cls"] == TABLES["components"].mean.loc["map_only"]).all()
    differs = TABLES["pooling"].std.loc["cls"] != TABLES["components"].std.loc["map_only"]
    assert list(differs[differs].index) == ["cola"]


def test_memory_is_the_weights_and_a_little_more_in_mib_only():
    memory, parameters = TABLES["memory"].mean[128], TABLES["parameters"].mean["total"]
    mib, mb = memory - 4e6 * parameters / 2**20, memory - 4 * parameters
    assert 19 < mib.min() < mib.max() < 39
    assert (mb < 0).sum() == 2


def test_averages_are_of_the_tasks_asked_for_and_rise_with_the_budget():
    assert BY_SHARE[1.0].average("mabert", ("cola", "sst2")) == pytest.approx((0.676 + 0.933) / 2)
    with pytest.raises(KeyError):
        BY_SHARE[1.0].average("mabert", ("stsb",))
    for earlier, later in pairwise(BY_SHARE.values()):
        assert all(earlier.average(model) < later.average(model) for model in paper.MODELS)
