"""The paper's numbers: its headlines follow from its tables, and nothing changes them."""

import pytest

from mabert.report import paper

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
