"""Finds labels that a reader takes for the same one, though they are different text."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable


def appearance(text: str) -> str:
    """Returns what texts have in common that look alike: of one appearance are texts that differ by white space around
    them, kind or number of spaces, letter case, invisible characters, or code points for the same characters (composed
    or not, full-width)."""
    seen = "".join(letter for letter in text if not _is_invisible(letter))
    folded = unicodedata.normalize("NFKC", seen).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def _is_invisible(letter: str) -> bool:
    selects = "\ufe00" <= letter <= "\ufe0f"  # variation selectors, as behind an emoji
    return selects or unicodedata.category(letter) == "Cf"


def alike(names: Iterable[str]) -> list[list[str]]:
    """Returns the groups of two and more different texts that look alike, in the order of the first of each."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(appearance(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]
