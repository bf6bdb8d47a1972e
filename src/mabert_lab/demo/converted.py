"""The tour's first half: an encoder that people use becomes a MaBERT, answers questions and reads a long text."""

import sysconfig
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mabert.bounds import TO_LEARN
from mabert.conversion.run import convert
from mabert.data.tokenizer import load_tokenizer
from mabert.files.places import place_of
from mabert.files.writing import write_text
from mabert.infer.model import TextModel
from mabert.machine.rounds import interleave
from mabert_lab.demo.documentation import installed_documentation
from mabert_lab.demo.sentences import sentences
from mabert_lab.report.conversion import render

TEACHER = "sentence-transformers/all-MiniLM-L6-v2"
TOKENS = 400_000
SHARE = 0.88
"""Of a short text's tokens that a conversion is asked to learn from; it holds a tenth out."""

CHUNK = 256
"""Tokens at which sentence-transformers cuts a text for this teacher."""

LEAST_WORDS = 12
"""Of a passage of Python's help: shorter ones answer nothing."""

MOST_PASSAGES = 1000
BUDGET = 6.0
"""Seconds for reading the long text again and again, but for the fewest rounds."""

QUESTIONS = (
    "When is an object deleted from memory?",
    "Why are default values shared between calls?",
    "What is the difference between a list and a tuple?",
    "How does Python find a module that I import?",
    "What happens when an exception is not caught?",
)
"""Asked of Python's own help; `benchmarks/LOG.md` tells how they were chosen."""


class NoConversionError(Exception):
    """The tour cannot convert here; says why in one line."""


def teacher_here(name: str, texts: Iterable[str], wanted: int) -> tuple[str | Path, int]:
    """The teacher's folder, and how many tokens it can be converted from.

    Args:
        name: Of the teacher.
        texts: To learn from.
        wanted: Tokens, where there are as many.

    Raises:
        NoConversionError: If the teacher is not to be had, or there is next to no text.
    """
    try:
        place = place_of(name)
    except FileNotFoundError as error:
        raise NoConversionError(str(error)) from error
    tokenizer, there = load_tokenizer(str(place)), 0
    for text in texts:
        there += len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        if SHARE * there >= wanted:
            return place, wanted
    if int(SHARE * there) not in TO_LEARN:
        raise NoConversionError(f"the text has {there:,} tokens, too few for a conversion")
    return place, int(SHARE * there)


def run_conversion(name: str, file: Path, folder: Path, tokens: int) -> dict[str, Any]:
    """Converts, writes the conversion's own page beside the model, and returns what the tour shows of it.

    Args:
        name: Of the teacher.
        file: Text to learn from.
        folder: For the student.
        tokens: To learn from.
    """
    result = convert(name, [file], folder, tokens=tokens)
    write_text(folder / "conversion.html", render(result))
    outcome = result["outcome"]
    told = {key: outcome[key] for key in ("pattern", "importance", "agreement", "speed")}
    learnt = sum(stage["tokens"] for stage in outcome["stages"].values())
    return {"teacher": name, "tokens": learnt, "seconds": result["seconds"], **told}


def help_topics() -> list[str]:
    """Python's own help, a topic a text; none where the installation lacks it."""
    place = Path(sysconfig.get_path("stdlib")) / "pydoc_data"
    return installed_documentation([place], progress=False) if (place / "topics.py").is_file() else []


def without(documents: Iterable[str], topics: Iterable[str]) -> list[str]:
    """Those documents that share no paragraph with the topics."""
    known = {paragraph for topic in topics for paragraph in topic.splitlines()}
    return [document for document in documents if known.isdisjoint(document.splitlines())]


def asked(topics: Sequence[str], held_out: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    """Questions, and the passages that may answer them: of Python's help where there is some, else a person's own
    sentences, five of which ask what the others say."""
    if topics:
        passages = [paragraph for topic in topics for paragraph in topic.splitlines()]
        return QUESTIONS, [passage for passage in passages if len(passage.split()) >= LEAST_WORDS]
    passages = list(sentences(held_out))[:MOST_PASSAGES]
    questions = passages[:: len(passages) // len(QUESTIONS)][: len(QUESTIONS)]
    return questions, [passage for passage in passages if passage not in questions]


def search(student: TextModel, teacher: TextModel, questions: Sequence[str], passages: Sequence[str]) -> dict[str, Any]:
    """What student and teacher find first for each question.

    Returns:
        `passages`, how many there are; `alike`, the mean cosine between the two models' vectors of a passage; and
        `answers`, for each question both models' best passage and its cosine, and at which place the student has the
        teacher's.
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
    """Reads a text that is longer than `CHUNK` tokens: the teacher what it commonly reads and all it can, the student
    all it can.

    Returns:
        For each of the three `model`, `tokens`, `ms` (the median of several times), and the `cosine` of its vector to
        that of the teacher for all it can; nothing where the text is shorter.
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
