"""Reads entities from the tags of words."""

from __future__ import annotations

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
    """Names the metrics of `mabert.data.metrics.entity_scores`: each over all entities, and per type."""
    return (*MEASURES, *(f"{measure}_{kind}" for kind in types for measure in MEASURES))
