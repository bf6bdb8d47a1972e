"""The speed of a pretraining: tokens a second, and their share of what a GPU can do."""

import pytest

from mabert_lab.study.cells import Cell
from mabert_lab.study.results import PEAKS, speed_of

MODEL = {"vocab_size": 100, "hidden_size": 8}


def result(seconds, device):
    return {"outcome": {"tokens": 6000}, "seconds": seconds, "environment": {"device": device}}


@pytest.mark.parametrize(("more", "table"), [({}, 800), ({"embedding_size": 2}, 200), ({"embedding_size": None}, 800)])
def test_the_share_counts_six_operations_a_token_and_parameter_outside_the_table(more, table):
    cell = Cell({"kind": "pretraining", "recipe": {"model": MODEL | more}}, {}, "a", parameters=5800)
    found = speed_of(cell, result(3.0, "NVIDIA H200"))
    assert found["tokens_per_second"] == 2000
    assert found["share_of_peak"] == pytest.approx(2000 * 6 * (5800 - table) / PEAKS["H200"])


def test_a_device_of_unknown_peak_has_no_share_and_a_run_without_time_no_speed():
    cell = Cell({"kind": "pretraining", "recipe": {"model": MODEL}}, {}, "a", parameters=5800)
    assert speed_of(cell, result(3.0, "cpu")) == {"tokens_per_second": 2000, "share_of_peak": None}
    assert speed_of(cell, result(0.0, "NVIDIA H100 80GB HBM3")) == {"tokens_per_second": None, "share_of_peak": None}
