"""Entities: reads them from the tags of words and scores predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"
"""The tag of a word that is no part of an entity."""

MEASURES = ("precision", "recall", "f1")


class Entity(NamedTuple):
    """An entity's type, its first word, and one past its last word."""

    type: str
    begin: int
    end: int


def is_tag(tag: str) -> bool:
    """Tells whether a tag is `O`, `B-TYPE` or `I-TYPE`."""
    return tag == OUTSIDE or (tag[:2] in ("B-", "I-") and len(tag) > 2)


def types_of(tags: Iterable[str]) -> list[str]:
    """Lists the entity types in tags, in alphabetical order."""
    return sorted({tag[2:] for tag in tags if tag != OUTSIDE})


def entities_of(tags: Sequence[str]) -> list[Entity]:
    """Returns the entities in the tags of a sentence, as seqeval does by default.

    `B-` begins an entity. `I-` continues one of the same type, or begins one if there is none.
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
    """Names the metrics of `entity_scores`: each over all entities, and per type."""
    return (*MEASURES, *(f"{measure}_{kind}" for kind in types for measure in MEASURES))


def entity_scores(
    predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str]], types: Sequence[str]
) -> dict[str, float]:
    """Computes precision, recall and F1 of entities; one counts as found if its span and type are right.

    Args:
        predicted: the tags of each sentence.
        true: the true tags of each sentence.
        types: entity types that also get scores of their own.

    Returns:
        Scores by the names of `metric_names`; 0 where a score would divide by zero.

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
