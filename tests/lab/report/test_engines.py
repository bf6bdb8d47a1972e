"""Contenders in engines of their own have a table and a figure, beside those of the paper's families."""

import pytest

from mabert.baselines.registry import FAMILIES
from mabert_lab.bench.engines import PRESETS, title_of
from mabert_lab.report.costs_page import latencies, latency_table, speed_over_length
from mabert_lab.report.document import markdown
from mabert_lab.report.whole import engines_page
from tests.lab.report.rows import efficiency, raw

TIMES = {
    "mabert": {128: 40.0, 512: 100.0},
    "mabert-fast:int8": {128: 20.0, 512: 50.0},
    "minilm": {128: 15.0, 512: 60.0},
    "bert:openvino": {128: 30.0, 512: 120.0},
    "bert": {128: 36.0, 512: None},
    "bert:int8": {128: 10.0, 512: 80.0},
}


def content():
    rows = [
        raw("latency", model, length, time, dtype="bfloat16", samples=time, reason=None if time else "out of memory")
        for model, times in TIMES.items()
        for length, time in times.items()
    ]
    return {**efficiency([*rows, raw("memory", "mabert", 128)]), "kind": "engines"}


def test_ours_are_set_beside_the_fastest_of_the_others_at_each_length():
    found = latency_table("a.json", latencies(content())).set_index("")
    assert found.loc["MaBERT"].tolist() == ["40", "100"]
    assert found.loc["BERT"].tolist() == ["36", "\N{EN DASH}"]
    assert found.loc["**MaBERT: its speed, in the fastest rival's**"].tolist() == ["**0.75**", "**1.20**"]
    assert found.loc["**MaBERT, fast, int8: its speed, in the fastest rival's**"].tolist() == ["**0.50**", "**1.60**"]
    assert found.loc["**minilm: its speed, in the fastest rival's**"].tolist() == ["**2.00**", "**2.00**"]


def test_what_was_not_measured_is_told_with_its_reason():
    assert "BERT at 512 tokens: out of memory." in markdown(latency_table("a.json", latencies(content())))


@pytest.mark.parametrize("name", [*FAMILIES, *PRESETS, "bert-base-uncased", "a:b/mabert-old", "bert:openvino"])
def test_the_page_and_the_console_name_contenders_alike(name):
    assert latencies(efficiency([raw("latency", name, 128, 10.0)]))["title"].item() == title_of(name)


def test_each_file_has_a_figure_and_a_table():
    page = engines_page([("a.json", content()), ("b.json", content())])
    assert set(page.figures) == {"a", "b"}
    assert page.text.count("Latency of a forward, ms") == 2
    assert "MaBERT, fast, int8" in page.figures["a"]
    assert "BERT, openvino" not in page.figures["a"]


def test_no_chart_of_speeds_is_drawn_without_a_rival():
    rows = latencies(content())
    ours = rows["model"].str.startswith(("mabert", "minilm"))
    assert speed_over_length(rows[ours]) is None
    assert speed_over_length(rows[~ours]) is None
    assert speed_over_length(rows.assign(model="runs/mabert-old")) is None, "no folder is ours by its name"
