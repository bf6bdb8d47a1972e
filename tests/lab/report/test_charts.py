"""Charts of runs and measurements show every number they were given."""

import pytest

from mabert_lab.report.figures import on_paper
from mabert_lab.report.training import loss_chart, stage_ends


def test_stages_end_where_their_shares_do():
    assert stage_ends(3600, [{"share": 0.9}, {"share": 0.1}]) == [pytest.approx(3240)]
    assert stage_ends(100, [{"share": 1.0}]) == []


def test_a_loss_chart_has_both_curves_once():
    history = [{"loss": 5.0, "step": 1}, {"eval_loss": 6.0, "step": 2}, {"eval_loss": 4.0, "step": 3}]
    again = [*history, {"eval_loss": 4.0, "step": 3}]
    assert loss_chart(again) == loss_chart(history), "a resumed run may have measured a step twice"
    assert loss_chart(again).count("held out") == loss_chart(again).count("training") == 1
    assert loss_chart([*history, {"eval_loss": 5.0, "step": 4}]) != loss_chart(history)
    assert loss_chart([*history, {"loss": 4.0, "step": 4}]) != loss_chart(history)


def test_a_figure_of_its_own_is_on_white():
    assert on_paper('<svg width="1"></svg>') == '<svg style="background: #fff" width="1"></svg>'
