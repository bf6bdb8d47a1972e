"""Entities: spans of words that their tags name, and how many of them are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"
"""The tag of a word that is no part of an entity."""

MEASURES = ("precision", "recall", "f1")


class Entity(NamedTuple):
    """Words that name one thing: its type, the first word, and the word behind the last one."""

    type: str
    begin: int
    end: int


def is_tag(tag: str) -> bool:
    """Tells whether a tag is `O`, `B-TYPE` or `I-TYPE`."""
    return tag == OUTSIDE or (tag[:2] in ("B-", "I-") and len(tag) > 2)


def types_of(tags: Iterable[str]) -> list[str]:
    """Lists the types of entities that tags name, in alphabetical order."""
    return sorted({tag[2:] for tag in tags if tag != OUTSIDE})


def entities_of(tags: Sequence[str]) -> list[Entity]:
    """Reads the entities off the tags of a sentence, as seqeval does by default.

    `B-` begins an entity, and `I-` goes on with one of the same type; where there is none, it begins one.
    """
    found: list[Entity] = []
    inside = None
    for place, tag in enumerate(tags):
        kind = None if tag == OUTSIDE else tag[2:]
        if kind is not None and kind == inside and tag.startswith("I-"):
            found[-1] = found[-1]._replace(end=place + 1)
        elif kind is not None:
            found.append(Entity(kind, place, place + 1))
        inside = kind
    return found


def metric_names(types: Sequence[str]) -> tuple[str, ...]:
    """Names what `entity_scores` measures: each measure over all entities, and over those of each type."""
    return (*MEASURES, *(f"{measure}_{kind}" for kind in types for measure in MEASURES))


def entity_scores(
    predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str]], types: Sequence[str]
) -> dict[str, float]:
    """Measures how many entities are found whole, with their type.

    Args:
        predicted: the tags of each sentence.
        true: the tags that they should be.
        types: of the entities that are measured apart as well.

    Returns:
        By the names of `metric_names`: the share of the predicted entities that are true, the share of the true ones
        that are predicted, and the harmonic mean of both; 0 where there are none to have a share of.

    Raises:
        ValueError: there are no sentences.
    """
    if not len(true):
        raise ValueError("no sentences to measure")
    said, there, right = Counter[str](), Counter[str](), Counter[str]()
    for tags, wanted in zip(predicted, true, strict=True):
        found, known = set(entities_of(tags)), set(entities_of(wanted))
        for counts, spans in ((said, found), (there, known), (right, found & known)):
            counts.update(span.type for span in spans)
    scores = _shares(right.total(), said.total(), there.total())
    for kind in types:
        scores += _shares(right[kind], said[kind], there[kind])
    return dict(zip(metric_names(types), scores, strict=True))


def _shares(right: int, said: int, there: int) -> list[float]:
    return [right / (said or 1), right / (there or 1), 2 * right / ((said + there) or 1)]
