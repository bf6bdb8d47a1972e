"""The tour's first half: converts a popular encoder to a MaBERT, which then answers questions and reads a long text."""

import sysconfig
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mabert.conversion.run import convert
from mabert.data.tokenizer import load_tokenizer
from mabert.files.places import find
from mabert.files.writing import write_text
from mabert.infer.model import TextModel
from mabert.machine.rounds import interleave
from mabert.schema.ranges import ToLearn, range_of
from mabert_lab.demo.documentation import installed_documentation
from mabert_lab.demo.sentences import sentences
from mabert_lab.report.conversion import render

TEACHER = "sentence-transformers/all-MiniLM-L6-v2"
TOKENS = 400_000
SHARE = 0.88
"""Share of a short text's tokens to convert from, since a conversion holds out a tenth."""

CHUNK = 256
"""Tokens at which sentence-transformers truncates a text for this teacher."""

LEAST_WORDS = 12
"""Minimum words of a passage of Python's help; shorter ones answer nothing."""

MOST_PASSAGES = 1000
BUDGET = 6.0
"""Seconds for timing the long text, beyond the minimum number of rounds."""

QUESTIONS = (
    "When is an object deleted from memory?",
    "Why are default values shared between calls?",
    "What is the difference between a list and a tuple?",
    "How does Python find a module that I import?",
    "What happens when an exception is not caught?",
)
"""Questions to Python's own help; `benchmarks/LOG.md` says how they were chosen."""


class NoConversionError(Exception):
    """The tour cannot convert here; the message says why in one line."""


def teacher_here(name: str, texts: Iterable[str], wanted: int) -> tuple[str | Path, int]:
    """Returns the teacher's folder, and the number of tokens to convert it from: those wanted, or what the texts have.

    Raises:
        NoConversionError: If the teacher is not available, or there is hardly any text.
    """
    try:
        place = find(name).path
    except FileNotFoundError as error:
        raise NoConversionError(str(error)) from error
    tokenizer, there = load_tokenizer(str(place)), 0
    for text in texts:
        there += len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        if SHARE * there >= wanted:
            return place, wanted
    if int(SHARE * there) not in range_of(ToLearn):
        raise NoConversionError(f"the text has {there:,} tokens, too few for a conversion")
    return place, int(SHARE * there)


def run_conversion(name: str, file: Path, folder: Path, tokens: int) -> dict[str, Any]:
    """Converts a teacher, writes the page of that beside the student, and returns what the tour shows of it."""
    result = convert(name, [file], folder, tokens=tokens)
    write_text(folder / "conversion.html", render(result))
    outcome = result["outcome"]
    told = {key: outcome[key] for key in ("pattern", "importance", "agreement", "speed")}
    learnt = sum(stage["tokens"] for stage in outcome["stages"].values())
    return {"teacher": name, "tokens": learnt, "seconds": result["seconds"], **told}


def help_topics() -> list[str]:
    """Returns Python's own help, one text per topic; empty if the installation lacks it."""
    place = Path(sysconfig.get_path("stdlib")) / "pydoc_data"
    return installed_documentation([place], progress=False) if (place / "topics.py").is_file() else []


def without(documents: Iterable[str], topics: Iterable[str]) -> list[str]:
    """Returns the documents that share no paragraph with the topics."""
    known = {paragraph for topic in topics for paragraph in topic.splitlines()}
    return [document for document in documents if known.isdisjoint(document.splitlines())]


def asked(topics: Sequence[str], held_out: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    """Returns questions and passages that may answer them: from Python's help if there is any, else from the user's
    sentences, some of which serve as queries for the others."""
    if topics:
        passages = [paragraph for topic in topics for paragraph in topic.splitlines()]
        return QUESTIONS, [passage for passage in passages if len(passage.split()) >= LEAST_WORDS]
    passages = list(sentences(held_out))[:MOST_PASSAGES]
    questions = passages[:: len(passages) // len(QUESTIONS)][: len(QUESTIONS)]
    return questions, [passage for passage in passages if passage not in questions]


def search(student: TextModel, teacher: TextModel, questions: Sequence[str], passages: Sequence[str]) -> dict[str, Any]:
    """Returns the first passage that student and teacher find for each question.

    Returns:
        `passages`, their number; `alike`, the mean cosine between the two models' vectors of a passage; and `answers`,
        for each question both models' best passage and its cosine, and the rank of the teacher's passage for the
        student.
    """
    found = []
    for model in (student, teacher):
        texts = model.embed(passages, truncate=True, normalize=True, progress=False)
        found.append((texts, model.embed(questions, truncate=True, normalize=True, progress=False) @ texts.T))
    (ours, scores), (theirs, wanted) = found
    answers = []
    for question, mine, right in zip(questions, scores, wanted, strict=True):
        best, first = int(mine.argmax()), int(right.argmax())
        answers.append(
            {
                "question": question,
                "answer": passages[best],
                "cosine": float(mine[best]),
                "teacher": passages[first],
                "teacher_cosine": float(right[first]),
                "place": 1 + int((mine > mine[first]).sum()),
            }
        )
    return {"passages": len(passages), "alike": float((ours * theirs).sum(1).mean()), "answers": answers}


def read_long(student: TextModel, teacher: TextModel, text: str) -> list[dict[str, Any]]:
    """Embeds a text longer than `CHUNK` tokens: the teacher up to its usual limit and up to its maximum, the student up
    to its maximum.

    Returns:
        For each of the three `model`, `tokens`, `ms` (the median of several times), and the `cosine` of its vector to
        the teacher's at its maximum; empty if the text is shorter.
    """
    words = load_tokenizer(str(student.path))(text, verbose=False)["input_ids"]
    ours, theirs = (min(len(words), model.config.max_position_embeddings) for model in (student, teacher))
    if theirs <= CHUNK:
        return []
    reads = [("teacher", teacher, CHUNK), ("teacher", teacher, theirs), ("student", student, ours)]
    sides = {
        f"{name} {tokens}": partial(
            model.embed, [text], max_length=tokens, truncate=True, normalize=True, progress=False
        )
        for name, model, tokens in reads
    }
    vectors = {side: read()[0] for side, read in sides.items()}
    spreads = interleave(sides, least=3, most=15, budget=BUDGET)
    whole = vectors[f"teacher {theirs}"]
    return [
        {
            "model": name,
            "tokens": tokens,
            "ms": spreads[side].median_ms,
            "cosine": float(np.dot(vectors[side], whole)),
        }
        for side, (name, _, tokens) in zip(sides, reads, strict=True)
    ]
