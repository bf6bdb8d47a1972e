"""The paper's numbers: its headlines follow from its tables, and nothing changes them."""

import hashlib

import pytest

from mabert_lab.report import paper

TABLES = (paper.MEMORY, paper.TRAINING, paper.LATENCY)
WITHOUT_DEBERTA = ("bert", "albert", "longformer", "bigbird")


@pytest.mark.parametrize(
    ("table", "rivals", "ratio"),
    [
        (paper.TRAINING, paper.BASELINES, 2.36),
        (paper.LATENCY, paper.BASELINES, 2.43),
        (paper.TRAINING, ("bert",), 1.47),
        (paper.LATENCY, ("bert",), 1.25),
        (paper.TRAINING, WITHOUT_DEBERTA, 1.73),
        (paper.LATENCY, WITHOUT_DEBERTA, 1.55),
    ],
)
def test_headlines_follow_from_the_tables(table, rivals, ratio):
    assert round(paper.headline(table, rivals=rivals), 2) == ratio


def test_a_headline_is_of_the_length_asked_for():
    assert paper.headline(paper.LATENCY, 128, ("albert",)) == pytest.approx(6.140 / 9.160)
    with pytest.raises(KeyError):
        paper.headline(paper.LATENCY, 256)


@pytest.mark.parametrize(
    ("table", "digest"),
    [
        (paper.PATTERNS, "58798d94bedf"),
        (paper.GLUE[0.1], "b4cdd9ca886b"),
        (paper.GLUE[0.25], "7b7b50fe307a"),
        (paper.GLUE[0.5], "75a94aed2ae8"),
        (paper.GLUE[1.0], "7f072c4f9d87"),
        (paper.INTEGRATION, "e959950d1cbb"),
        (paper.POOLING, "09d36b4358af"),
        (paper.MEMORY, "e6dc7ec52281"),
        (paper.TRAINING, "23b0192d37ac"),
        (paper.LATENCY, "f4944c4e8757"),
        (paper.PARAMETERS, "7ba489d4d5cd"),
    ],
    ids=lambda value: getattr(value, "title", ""),
)
def test_no_digit_changes_from_those_that_were_compared_with_the_papers_source(table, digest):
    cells = [cell for row in table.rows.values() for cell in row.values()]
    printed = " ".join(f"{number:.3f}" for cell in cells for number in (cell if isinstance(cell, tuple) else (cell,)))
    assert hashlib.sha256(printed.encode()).hexdigest()[:12] == digest


@pytest.mark.parametrize("table", [*TABLES, paper.PARAMETERS], ids=lambda table: table.title)
def test_every_table_has_every_model_in_order_and_a_label(table):
    assert tuple(table.rows) == tuple(paper.NAMES)
    assert table.label.startswith("tab:")
    assert all(tuple(row) == table.columns for row in table.rows.values())


def test_numbers_grow_with_length():
    for table in TABLES:
        for row in table.rows.values():
            assert list(row.values()) == sorted(row.values())


def test_memory_is_the_weights_and_a_little_more_in_mib_only():
    parameters = {model: row["total"] for model, row in paper.PARAMETERS.rows.items()}
    mib = [paper.MEMORY.rows[model][128] - 4e6 * count / 2**20 for model, count in parameters.items()]
    mb = [paper.MEMORY.rows[model][128] - 4 * count for model, count in parameters.items()]
    assert 19 < min(mib) < max(mib) < 39
    assert sum(above < 0 for above in mb) == 2


def test_a_record_cannot_be_changed():
    with pytest.raises(AttributeError):
        paper.MEMORY.unit = "GB"
    with pytest.raises(TypeError):
        paper.MEMORY.rows["bert"] = {}
    with pytest.raises(TypeError):
        paper.MEMORY.rows["bert"][128] = 1.0


def test_doubtful_numbers_are_flagged():
    assert paper.PARAMETERS.flagged
    assert paper.MEMORY.flagged
    assert not paper.TRAINING.flagged
    assert not paper.LATENCY.flagged
