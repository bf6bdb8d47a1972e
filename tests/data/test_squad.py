"""Questions from files of SQuAD's form, and how answers are scored."""

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mabert.data.own import load_own
from mabert.data.squad import answer_scores

CONTEXT = "Anna lives in Paris. Boris lives in Rome."
PARIS = {"id": "1", "question": "Where does Anna live?", "answers": [{"text": "Paris", "answer_start": 14}]}
NOBODY = {"id": "2", "question": "Where does Clara live?", "is_impossible": True, "answers": []}


def file_of(folder, *questions, context=CONTEXT, name="t.json"):
    whole = {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}]}
    (folder / name).write_text(json.dumps(whole))
    return folder / name


def test_questions_are_read_with_their_contexts_and_answers(tmp_path):
    path = file_of(tmp_path, PARIS, NOBODY)
    task, loaded = load_own({"train": path, "validation": path, "test": path}, kind="answers", name="where")
    columns = {"text_a": [PARIS["question"], NOBODY["question"]], "text_b": [CONTEXT] * 2, "index": ["1", "2"]}
    assert loaded["test"][:] == columns
    assert loaded["train"][:] == loaded["validation"][:] == columns | {"answers": [["Paris"], []], "starts": [[14], []]}
    assert (task.name, task.kind, task.main_metric, task.positive) == ("where", "answers", "f1", None)


HERE = r"t\.json: data\[0\]\.paragraphs\[0\]\.qas\[0\]"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"id": None}, HERE + ": 'id' is None, not text"),
        ({"id": " "}, HERE + ": 'id' is empty"),
        ({"question": 3}, HERE + ": 'question' is 3, not text"),
        ({"answers": []}, HERE + ": no answer; say 'is_impossible': true if the context has none"),
        ({"answers": "Paris"}, HERE + ": 'answers' is 'Paris', not a list"),
        ({"answers": [{"text": "Paris"}]}, HERE + r"\.answers\[0\]: no 'answer_start'"),
        (
            {"answers": [{"text": "Paris", "answer_start": 13}]},
            HERE + r"\.answers\[0\]: 'Paris' is not at its answer_start, 13; there is ' Pari'",
        ),
        ({"answers": [{"text": "Paris", "answer_start": -6}]}, "not at its answer_start, -6; there is ''"),
        ({"answers": [{"text": "", "answer_start": 0}]}, "'' is not at its answer_start"),
        ({"is_impossible": True}, r"t\.json: no question has an answer; there is nothing to learn from"),
        ([{"question": "Who?"}], HERE + ": no 'id', which the form of SQuAD has there"),
        ([PARIS, PARIS], r"qas\[1\]: another question has the id '1'"),
        ([], r"t\.json: no questions"),
    ],
)
def test_bad_questions_are_refused_in_one_line(tmp_path, given, message):
    questions = given if isinstance(given, list) else [PARIS | given]
    with pytest.raises(ValueError, match=message):
        load_own({"train": file_of(tmp_path, *questions)}, kind="answers")


def test_bad_files_are_refused_in_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"paragraphs\[0\]: 'context' is None, not text"):
        load_own({"train": file_of(tmp_path, PARIS, context=None)}, kind="answers")
    (tmp_path / "t.conll").write_text("Anna O")
    with pytest.raises(ValueError, match=r"t\.conll: not JSON: .*; questions and answers are read from a JSON file"):
        load_own({"train": tmp_path / "t.conll"}, kind="answers")
    (tmp_path / "t.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"t\.json: no 'data'"):
        load_own({"train": tmp_path / "t.json"}, kind="answers")


@pytest.mark.parametrize(
    ("said", "right", "f1", "exact"),
    [
        ("The Cat!", ["cat"], 1, 1),
        ("black cat", ["cat", "a dog"], 2 / 3, 0),
        ("old black cat", ["black cat sat"], 2 / 3, 0),
        ("cat cat", ["cat"], 2 / 3, 0),
        ("", [], 1, 1),
        ("cat", [], 0, 0),
        ("", ["cat"], 0, 0),
        ("the", ["a"], 1, 1),
        ("black cat", np.array(["cat", "a dog"]), 2 / 3, 0),
        ("", np.array([]), 1, 1),
    ],
)
def test_scores_are_those_worked_out_by_hand(said, right, f1, exact):
    assert answer_scores([said], [right]) == pytest.approx({"f1": f1, "exact_match": exact})


WORDS = st.lists(st.sampled_from(["the", "cat", "dog", "sat", "Rome,"]), max_size=4).map(" ".join)


@given(pairs=st.lists(st.tuples(WORDS, st.lists(WORDS, max_size=3)), min_size=1, max_size=5))
def test_scores_are_means_of_the_best_whatever_the_order(pairs):
    said, right = map(list, zip(*pairs, strict=True))
    scores = answer_scores(said, right)
    assert 0 <= scores["exact_match"] <= scores["f1"] <= 1
    each = [answer_scores([one], [texts])["f1"] for one, texts in pairs]
    assert scores["f1"] == pytest.approx(sum(each) / len(each))
    more = answer_scores(said, [[*(texts or [""]), "dog"] for texts in right])
    assert more["f1"] >= scores["f1"]
    order = random.Random(1).sample(pairs, len(pairs))
    assert answer_scores(*map(list, zip(*order, strict=True))) == pytest.approx(scores)
    assert answer_scores([texts[0] if texts else "" for texts in right], right) == {"f1": 1, "exact_match": 1}


@pytest.fixture(scope="module")
def squad():
    return pytest.importorskip("torchmetrics.functional.text").squad


@pytest.mark.slow
@given(pairs=st.lists(st.tuples(WORDS, st.lists(WORDS, max_size=3)), min_size=1, max_size=5))
def test_scores_are_those_of_torchmetrics(squad, pairs):
    said = [{"id": str(place), "prediction_text": text} for place, (text, _) in enumerate(pairs)]
    right = [{"id": str(place), "answers": {"text": texts or [""]}} for place, (_, texts) in enumerate(pairs)]
    scores = {name: float(value) / 100 for name, value in squad(said, right).items()}
    assert answer_scores(*map(list, zip(*pairs, strict=True))) == pytest.approx(scores, abs=1e-6)
