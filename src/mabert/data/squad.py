"""Extractive question answering from files in SQuAD's format (Rajpurkar et al. 2016, 2018)."""

import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mabert.data.tasks import Task
from mabert.files import tables
from mabert.files.reading import parse_json

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def read_squad(files: Mapping[str, Path], name: str) -> tuple[Task, dict[str, dict[str, list[Any]]]]:
    """Reads questions with their contexts and answers from the file of each split, as in `load_own`: JSON in the format
    of SQuAD 1.1 or 2.0. A question with `is_impossible` has no answer; `test` needs no answers.

    Returns the task, and by split `text_a` (the question), `text_b` (its context), `index` (the question's id) and,
    except in `test`, `answers` (texts, any of which is right; none if the context has no answer) and `starts` (the
    first character of each).

    Raises FileNotFoundError if a file is missing, and ValueError if one is empty, damaged or in another format, a
    question has no id, a repeated id, or no answer without being `is_impossible`, an answer is not at its
    `answer_start`, or no training question has an answer.
    """
    loaded = {split: _columns(path, split != "test") for split, path in files.items()}
    if not any(loaded["train"]["answers"]):
        raise ValueError(f"{files['train']}: no question has an answer; there is nothing to learn from")
    return Task(name, (), ("f1", "exact_match"), "f1", "answers"), loaded


def answer_scores(answers: Sequence[str], right: Sequence[Sequence[str]]) -> dict[str, float]:
    """Scores one answer per question, empty for none, as SQuAD does: ignoring case, punctuation, articles and white
    space. Of the right texts of a question the best match counts; there are none if there is no answer.

    Returns means over the questions, between 0 and 1: `f1` over words, and `exact_match`. Raises ValueError if there
    are no questions.
    """
    if not len(answers):
        raise ValueError("no questions to measure")
    pairs = [
        (_words(said), [_words(text) for text in (texts if len(texts) else ("",))])
        for said, texts in zip(answers, right, strict=True)
    ]
    return {
        "f1": sum(max(_f1(said, true) for true in texts) for said, texts in pairs) / len(pairs),
        "exact_match": sum(said in texts for said, texts in pairs) / len(pairs),
    }


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def _f1(said: Sequence[str], true: Sequence[str]) -> float:
    if not said or not true:
        return float(said == true)
    return 2 * (Counter(said) & Counter(true)).total() / (len(said) + len(true))


def _columns(path: Path, answered: bool) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in ("text_a", "text_b", "index")}
    columns |= {"answers": [], "starts": []} if answered else {}
    seen: set[str] = set()
    for context, question, where in questions_of(path):
        if question["id"] in seen:
            raise ValueError(f"{where}: another question has the id {question['id']!r}")
        seen.add(question["id"])
        found = [question["question"], context, question["id"]]
        found += _answers(context, question, where) if answered else ()
        for values, value in zip(columns.values(), found, strict=True):
            values.append(value)
    return columns


def questions_of(path: Path) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yields each question's context, the question with all its fields, and its place in the file; errors are those of
    `read_squad`."""
    empty = True
    try:
        whole = parse_json(tables.read_text(path), str(path))
    except ValueError as error:
        raise ValueError(f"{error}; questions and answers are read from a JSON file in the form of SQuAD") from error
    for text, of_text in _parts(whole, "data", str(path), ": "):
        for paragraph, of_paragraph in _parts(text, "paragraphs", of_text):
            context = _field(paragraph, "context", str, of_paragraph)
            for question, where in _parts(paragraph, "qas", of_paragraph):
                for name in ("id", "question"):
                    if not _field(question, name, str, where).strip():
                        raise ValueError(f"{where}: {name!r} is empty")
                empty = False
                yield context, question, where
    if empty:
        raise ValueError(f"{path}: no questions")


def _parts(content: Any, name: str, where: str, between: str = ".") -> list[tuple[Any, str]]:
    """Returns the items of a list in a mapping, each with its place, such as `FILE: data[0].paragraphs[2]`."""
    items = _field(content, name, list, where)
    return [(item, f"{where}{between}{name}[{place}]") for place, item in enumerate(items)]


def _field(content: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(content, dict) or name not in content:
        raise ValueError(f"{where}: no {name!r}, which the form of SQuAD has there")
    if not isinstance(content[name], kind) or isinstance(content[name], bool):
        words = {str: "text", list: "a list", int: "a whole number"}
        raise ValueError(f"{where}: {name!r} is {content[name]!r:.60}, not {words[kind]}")
    return content[name]


def _answers(context: str, question: dict[str, Any], where: str) -> tuple[list[str], list[int]]:
    if question.get("is_impossible"):
        return [], []
    found = [
        (_field(answer, "text", str, place), _field(answer, "answer_start", int, place), place)
        for answer, place in _parts(question, "answers", where)
    ]
    if not found:
        raise ValueError(f"{where}: no answer; say 'is_impossible': true if the context has none")
    for text, start, place in found:
        there = context[start : start + len(text)] if start >= 0 else ""
        if not text.strip() or there != text:
            raise ValueError(f"{place}: {text[:40]!r} is not at its answer_start, {start}; there is {there[:40]!r}")
    return [text for text, _, _ in found], [start for _, start, _ in found]
