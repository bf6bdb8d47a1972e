"""Charts of runs and measurements show every number they were given."""

import pytest

from mabert.report.figures import on_paper
from mabert.report.speed import speed_chart
from mabert.report.training import loss_chart, stage_ends


def test_stages_end_where_their_shares_do():
    assert stage_ends(3600, [{"share": 0.9}, {"share": 0.1}]) == [pytest.approx(3240)]
    assert stage_ends(100, [{"share": 1.0}]) == []


def test_a_loss_chart_has_both_curves_once():
    history = [{"loss": 5.0, "step": 1}, {"eval_loss": 6.0, "step": 2}, {"eval_loss": 6.0, "step": 2}]
    chart = loss_chart(history)
    assert "training" in chart
    assert "held out" in chart


def test_a_speed_chart_has_a_panel_for_each_dtype():
    times = {"median_ms": 10.0, "fastest_ms": 8.0, "slowest_ms": 20.0}
    rows = [
        {
            "task": "forward",
            "side": side,
            "dtype": dtype,
            "length": length,
            "tokens_per_second": 100.0 * length,
            **times,
        }
        for side in ("mabert", "bert")
        for dtype in ("float32", "bfloat16")
        for length in (128, 4096)
    ]
    chart = speed_chart({"rows": rows})
    for text in ("MaBERT-base", "BERT-base, SDPA", "fp32, batch 1", "bf16, batch 1", "4,096"):
        assert text in chart


def test_a_figure_of_its_own_is_on_white():
    assert on_paper('<svg width="1"></svg>') == '<svg style="background: #fff" width="1"></svg>'
