"""Learning the pieces of a unigram language model as SentencePiece does (Kudo 2018, "Subword Regularization", 3.2).

The trainer of the tokenizers library takes the words in the order of a randomised hash table, so that no two runs give
the same scores, and lets pieces reach across punctuation, which SentencePiece does not. Here words come in the order of
their code points and every sum is taken in one order.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import compress, pairwise

import numpy as np
from scipy.special import psi

WORD_START = "▁"
_LONGEST = 16
_SEEDS = 1_000_000
_ROUNDS = 2
_SHRINKAGE = 0.75
_SPARE = 1.1
_LEAST = 0.5
_DIGITS = 4
# The chance of a longer stretch could be too small for a float64.
_STRETCH = 24


def learn_pieces(words: Mapping[str, int], alphabet: Iterable[str], size: int) -> list[tuple[str, float]]:
    """Learns pieces with their scores (logarithms of their chances).

    Candidates are the substrings that occur in more than one place of the words. In turn, their chances are estimated
    by two rounds of expectation maximisation, with the digamma function for the logarithm (it favours few pieces), and
    a quarter of them is dropped: those whose loss would make the text, cut in the best way, least unlikely.

    Args:
        words: how often each word occurs; without the mark of the word's start.
        alphabet: the characters that pieces may have. No piece holds a letter and another character.
        size: pieces at most; more than the characters of the alphabet.

    Returns:
        The pieces, the mark of a word's start and every character of the alphabet that occurs among them, the best
        first. The same words give the same pieces.
    """
    counts, spread = _stretches(words, alphabet)
    pieces, weights = _candidates(counts, spread)
    scores = np.log(weights / weights.sum())
    text = _Lattice(list(counts), pieces)
    times = np.array(list(counts.values()), dtype=np.float64)
    parts: _Lattice | None = None
    while True:
        for _ in range(_ROUNDS):
            expected = text.expected(np.exp(scores), times)
            kept = (expected >= _LEAST) | _characters(pieces)
            pieces, expected = list(compress(pieces, kept)), np.maximum(expected[kept], _LEAST)
            scores = psi(expected) - psi(expected.sum())
            text.keep(kept)
            if parts is not None:
                parts.keep(kept, kept)
        if len(pieces) <= _SPARE * size:
            return _best(pieces, scores, size)
        parts = parts or _Lattice(pieces, pieces, proper=True)
        kept = _worth(text, times, parts, scores, max(int(_SPARE * size), int(_SHRINKAGE * len(pieces))))
        pieces, scores = list(compress(pieces, kept)), scores[kept]
        text.keep(kept)
        parts.keep(kept, kept)


class _Lattice:
    """All ways to cut strings into pieces, of which there are all characters.

    A string of n characters has n + 1 places; an edge leads from the place where a piece begins to the one where it
    ends. Edges are sorted by how far into its string they end.

    Args:
        strings: what is cut.
        pieces: what it is cut into.
        proper: leave out the edge that is a whole string of several characters.
    """

    def __init__(self, strings: list[str], pieces: list[str], proper: bool = False) -> None:
        lengths = np.array([len(string) for string in strings])
        self.roots = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])
        self.leaves = self.roots + lengths
        self.places = int(self.leaves[-1]) + 1
        begin, reach, piece = (np.frombuffer(edges, dtype=np.int32) for edges in _edges(strings, pieces, proper))
        end = begin + reach
        self._owner = np.repeat(np.arange(len(lengths)), lengths + 1)
        depth = end - self.roots[self._owner[end]]
        order = np.argsort(depth, kind="stable")
        self._begin, self._end, self._piece, self._depth = begin[order], end[order], piece[order], depth[order]
        self._count = len(pieces)

    def keep(self, pieces: np.ndarray, strings: np.ndarray | None = None) -> None:
        """Drops pieces, and strings where they are given; both bool, one a piece or string so far."""
        kept = pieces[self._piece]
        if strings is not None:
            kept &= strings[self._owner[self._begin]]
            self._owner = (np.cumsum(strings) - 1)[self._owner]
            self.roots, self.leaves = self.roots[strings], self.leaves[strings]
        self._begin, self._end, self._depth = self._begin[kept], self._end[kept], self._depth[kept]
        self._piece = (np.cumsum(pieces) - 1)[self._piece[kept]]
        self._count = int(pieces.sum())

    def expected(self, chances: np.ndarray, times: np.ndarray) -> np.ndarray:
        """How often each piece is expected in the strings, each of which stands there so many times."""
        forward = np.zeros(self.places)
        forward[self.roots] = 1
        chance = chances[self._piece]
        for level in self._levels():
            np.add.at(forward, self._end[level], forward[self._begin[level]] * chance[level])
        backward = np.zeros(self.places)
        backward[self.leaves] = times / forward[self.leaves]
        for level in reversed(self._levels()):
            np.add.at(backward, self._begin[level], backward[self._end[level]] * chance[level])
        flow = forward[self._begin] * chance * backward[self._end]
        return np.bincount(self._piece, flow, minlength=self._count)

    def best(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The best way to cut each string: for each piece of each way, the index of the string and of the piece."""
        best = np.full(self.places, -np.inf)
        best[self.roots] = 0
        into = np.full(self.places, -1)
        for level in self._levels():
            end, score = self._end[level], best[self._begin[level]] + scores[self._piece[level]]
            np.maximum.at(best, end, score)
            chosen = np.flatnonzero(score == best[end])
            into[end[chosen]] = chosen + level.start
        strings, pieces = [], []
        places = self.leaves
        while len(places):
            edges = into[places]
            strings.append(self._owner[places])
            pieces.append(self._piece[edges])
            places = self._begin[edges]
            places = places[into[places] >= 0]
        return np.concatenate(strings), np.concatenate(pieces)

    def _levels(self) -> list[slice]:
        bounds = np.searchsorted(self._depth, np.arange(1, self._depth[-1] + 2))
        return [slice(start, stop) for start, stop in pairwise(bounds)]


def _edges(strings: list[str], pieces: list[str], proper: bool) -> tuple[array, array, array]:
    """Place where an edge begins, characters it spans, and its piece."""
    number = {piece: index for index, piece in enumerate(pieces)}
    begin, reach, piece = array("i"), array("i"), array("i")
    place = 0
    for string in strings:
        length = len(string)
        whole = length if proper and length > 1 else length + 1
        for start in range(length):
            for stop in range(start + 1, min(start + _LONGEST, length) + 1):
                found = number.get(string[start:stop])
                if found is not None and stop - start < whole:
                    begin.append(place + start)
                    reach.append(stop - start)
                    piece.append(found)
        place += length + 1
    return begin, reach, piece


def _stretches(words: Mapping[str, int], alphabet: Iterable[str]) -> tuple[Counter[str], Counter[str]]:
    """The parts of words that are cut into pieces each by itself, by occurrences in the text and by words they are in.

    A word ends where a character outside the alphabet stands and where letters meet other characters (SentencePiece:
    other scripts; digits, punctuation and symbols are of one script).
    """
    letters = others = ""
    for letter in alphabet:
        if unicodedata.category(letter)[0] in "LM":
            letters += re.escape(letter)
        else:
            others += re.escape(letter)
    kinds = "|".join(f"{WORD_START}?[{kind}]{{1,{_STRETCH - 1}}}" for kind in (letters, others) if kind)
    stretch = re.compile(f"{kinds}|{WORD_START}")
    counts: Counter[str] = Counter()
    spread: Counter[str] = Counter()
    for word in sorted(words):
        for found in stretch.findall(WORD_START + word):
            counts[found] += words[word]
            spread[found] += 1
    return counts, spread


def _candidates(counts: Mapping[str, int], spread: Mapping[str, int]) -> tuple[list[str], np.ndarray]:
    """Pieces to begin with, and their weights: all characters by occurrences, substrings by the characters they cover.

    Of the substrings those count that occur more than once, in words of which each counts once, and are not always
    followed by the same character.
    """
    characters: Counter[str] = Counter()
    for string, times in counts.items():
        for character in string:
            characters[character] += times
    found: dict[str, int] = {}
    shorter: dict[str, int] = {}
    for length in range(2, _LONGEST + 1):
        parts: Counter[str] = Counter()
        for string, times in spread.items():
            for start in range(len(string) - length + 1):
                part = string[start : start + length]
                if length == 2 or part[:-1] in shorter:
                    parts[part] += times
        shorter, before = {part: times for part, times in parts.items() if times > 1}, shorter
        for part, times in shorter.items():
            if before.get(part[:-1]) == times:
                del found[part[:-1]]
        found |= shorter
    ranked = sorted(found, key=lambda part: (-found[part] * len(part), part))[: _SEEDS - len(characters)]
    pieces = [*sorted(characters), *ranked]
    weights = [*(characters[piece] for piece in sorted(characters)), *(found[part] * len(part) for part in ranked)]
    return pieces, np.array(weights, dtype=np.float64)


def _characters(pieces: Iterable[str]) -> np.ndarray:
    return np.array([len(piece) == 1 for piece in pieces])


def _worth(text: _Lattice, times: np.ndarray, parts: _Lattice, scores: np.ndarray, size: int) -> np.ndarray:
    """Which pieces to keep, bool: as many as `size`, those without which most likelihood would be lost.

    A piece that is missing is replaced by the best other way to cut it.
    """
    strings, pieces = text.best(scores)
    uses = np.bincount(pieces, times[strings], minlength=len(scores))
    owners, replacing = parts.best(scores)
    total = uses.sum()
    added = np.bincount(owners, minlength=len(scores)) - 1
    gained = np.bincount(owners, np.log(np.maximum(uses[replacing] + uses[owners], 1)), minlength=len(scores))
    gained -= (added + 1) * np.log(total + uses * added)
    loss = uses * (np.log(np.maximum(uses, 1)) - np.log(total) - gained)
    loss[uses == 0] = -np.inf
    loss[parts.leaves - parts.roots == 1] = np.inf
    kept = np.zeros(len(scores), dtype=bool)
    kept[np.argsort(-loss, kind="stable")[:size]] = True
    return kept & (loss > -np.inf)


def _best(pieces: list[str], scores: np.ndarray, size: int) -> list[tuple[str, float]]:
    """All characters, and of the longer pieces the best for which there is room; rounded, best first."""
    # Rounded, for the last digits are those of a processor's exponential function.
    rounded = np.round(scores, _DIGITS)
    order = np.lexsort((np.arange(len(pieces)), -rounded, ~_characters(pieces)))[:size]
    return sorted(((pieces[index], float(rounded[index])) for index in order), key=lambda item: (-item[1], item[0]))
