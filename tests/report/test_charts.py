"""Charts of runs and measurements show every number they were given."""

import pytest

from mabert.report.figures import on_paper
from mabert.report.training import loss_chart, stage_ends


def test_stages_end_where_their_shares_do():
    assert stage_ends(3600, [{"share": 0.9}, {"share": 0.1}]) == [pytest.approx(3240)]
    assert stage_ends(100, [{"share": 1.0}]) == []


def test_a_loss_chart_has_both_curves_once():
    history = [{"loss": 5.0, "step": 1}, {"eval_loss": 6.0, "step": 2}, {"eval_loss": 6.0, "step": 2}]
    chart = loss_chart(history)
    assert "training" in chart
    assert "held out" in chart


def test_a_figure_of_its_own_is_on_white():
    assert on_paper('<svg width="1"></svg>') == '<svg style="background: #fff" width="1"></svg>'
