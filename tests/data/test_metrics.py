import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.data.glue import TASKS
from mabert.data.metrics import compute
from mabert.data.tasks import table_task

CLASSES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40).map(np.array)


@settings(max_examples=25)
@given(pairs=CLASSES)
def test_binary_metrics_are_their_definitions(pairs):
    predictions, labels = pairs.T
    tp, tn = int((predictions & labels).sum()), int(((1 - predictions) & (1 - labels)).sum())
    fp, fn = int((predictions & (1 - labels)).sum()), int(((1 - predictions) & labels).sum())
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    expected = {
        "matthews_correlation": (tp * tn - fp * fn) / math.sqrt(product) if product else 0.0,
        "accuracy": (tp + tn) / len(labels),
        "f1": 2 * tp / (2 * tp + fp + fn) if tp else 0.0,
    }
    expected["f1_macro"] = (expected["f1"] + (2 * tn / (2 * tn + fp + fn) if tn else 0.0)) / 2
    task = table_task("t", ["a", "b"])
    if fp + fn + tp == 0 or fp + fn + tn == 0:  # a class that is nowhere has no F1
        del expected["f1_macro"]
    measured = compute(task, predictions, labels)
    assert {name: measured[name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize("task", TASKS)
def test_perfect_predictions_score_one(task):
    labels = np.array([0, 1, 1, 0])
    scores = compute(TASKS[task], labels, labels)
    assert scores == pytest.approx(dict.fromkeys(TASKS[task].metrics, 1.0))
    assert TASKS[task].main_metric in scores


def test_the_metrics_are_the_papers():
    main = {name: task.main_metric for name, task in TASKS.items()}
    accuracy = dict.fromkeys(["sst2", "mnli", "qnli", "rte"], "accuracy")
    assert main == {"cola": "matthews_correlation", "mrpc": "f1", "qqp": "f1", "stsb": "correlation"} | accuracy
    assert TASKS["mrpc"].metrics == TASKS["qqp"].metrics == ("f1", "accuracy")


def test_correlations():
    scores = compute(TASKS["stsb"], np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 2.0, 4.0, 3.0]))
    assert scores == pytest.approx({"pearson": 0.8, "spearman": 0.8, "correlation": 0.8})
    constant, moving = np.full(4, 2.5), np.array([1.0, 2.0, 4.0, 3.0])
    for task in (TASKS["stsb"], table_task("t", [])):
        assert compute(task, constant, moving) == {"pearson": 0.0, "spearman": 0.0, "correlation": 0.0}
        assert set(compute(task, moving, constant).values()) == {None}


def test_the_positive_class_is_that_of_f1():
    assert {name: task.positive for name, task in TASKS.items() if task.positive is not None} == {
        "mrpc": "equivalent",
        "qqp": "duplicate",
    }
    assert table_task("t", ["a", "b", "c"]).positive is None
    assert table_task("t", []).positive is None


@pytest.mark.parametrize(
    ("predictions", "labels", "message"),
    [
        (np.zeros(3), np.zeros(2), r"cola: predictions of shape \(3,\) for labels of shape \(2,\)"),
        (np.zeros(0), np.zeros(0), "cola: no examples to measure"),
        (np.array([0, np.nan]), np.zeros(2), "cola: 1 predictions are not finite"),
        (np.zeros(2), np.array([np.inf, np.nan]), "cola: 2 labels are not finite"),
    ],
)
def test_bad_predictions_are_named(predictions, labels, message):
    with pytest.raises(ValueError, match=message):
        compute(TASKS["cola"], predictions, labels)


ROWS = st.lists(st.tuples(*[st.booleans()] * 6), min_size=1, max_size=12).map(lambda rows: np.array(rows))


@given(rows=ROWS)
def test_scores_of_several_labels_are_their_definitions(rows):
    said, true = rows[:, :3], rows[:, 3:].astype(float)
    scores = compute(table_task("t", ["a", "b", "c"], several=True), said, true)
    right, wrong = (said & (true == 1)).sum(0), (said != (true == 1)).sum(0)
    each = np.divide(2 * right, 2 * right + wrong, out=np.zeros(3), where=right > 0)
    together = 2 * right.sum() / (2 * right.sum() + wrong.sum()) if right.any() else 0.0
    whole = (said == (true == 1)).all(1).mean()
    assert scores == pytest.approx({"f1_micro": together, "f1_macro": each.mean(), "accuracy": whole})
