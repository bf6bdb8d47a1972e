from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.data.unigram import _candidates, _Lattice, _stretches, _worth, learn_pieces

STRINGS = st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=5)
WORDS = st.dictionaries(st.text("abcé,.1", min_size=1, max_size=12), st.integers(1, 9), min_size=1, max_size=25)


def ways(string: str, pieces: list[str], proper: bool = False) -> list[list[str]]:
    """All ways to cut a string, by brute force."""
    found = []
    for cuts in itertools.product([False, True], repeat=len(string) - 1):
        borders = [0, *(index + 1 for index, cut in enumerate(cuts) if cut), len(string)]
        way = [string[start:stop] for start, stop in itertools.pairwise(borders)]
        if all(piece in pieces for piece in way) and not (proper and len(way) == 1 and len(string) > 1):
            found.append(way)
    return found


def some_pieces(strings: list[str], seed: int) -> tuple[list[str], np.ndarray]:
    """All characters and half of the longer substrings of some strings, with chances."""
    rng = random.Random(seed)
    parts = {string[i:j] for string in strings for i in range(len(string)) for j in range(i + 1, len(string) + 1)}
    pieces = sorted(part for part in parts if len(part) == 1 or rng.random() < 0.5)
    chances = np.array([rng.uniform(0.05, 1) for _ in pieces])
    return pieces, chances / chances.sum()


@settings(deadline=None, max_examples=60)
@given(strings=STRINGS, seed=st.integers(0, 10**6))
def test_expected_pieces_are_those_of_all_ways_to_cut(strings, seed):
    pieces, chances = some_pieces(strings, seed)
    chance = dict(zip(pieces, chances, strict=True))
    times = np.arange(1.0, len(strings) + 1)
    wanted: Counter[str] = Counter()
    for string, count in zip(strings, times, strict=True):
        found = [(way, math.prod(chance[piece] for piece in way)) for way in ways(string, pieces)]
        total = sum(weight for _, weight in found)
        for way, weight in found:
            for piece in way:
                wanted[piece] += count * weight / total
    expected = _Lattice(strings, pieces).expected(chances, times)
    np.testing.assert_allclose(expected, [wanted[piece] for piece in pieces], rtol=1e-9)


@settings(deadline=None, max_examples=60)
@given(strings=STRINGS, seed=st.integers(0, 10**6), proper=st.booleans())
def test_the_best_way_to_cut(strings, seed, proper):
    pieces, chances = some_pieces(strings, seed)
    scores = np.log(chances)
    owners, used = _Lattice(strings, pieces, proper=proper).best(scores)
    for index, string in enumerate(strings):
        possible = [sum(scores[pieces.index(piece)] for piece in way) for way in ways(string, pieces, proper)]
        way = used[owners == index][::-1]
        assert "".join(pieces[piece] for piece in way) == string
        assert scores[way].sum() == pytest.approx(max(possible))


@settings(deadline=None, max_examples=60)
@given(strings=STRINGS, seed=st.integers(0, 10**6))
def test_a_lattice_that_lost_pieces_is_one_built_without_them(strings, seed):
    pieces, chances = some_pieces(strings, seed)
    rng = random.Random(seed)
    kept = np.array([len(piece) == 1 or rng.random() < 0.6 for piece in pieces])
    left = np.array([rng.random() < 0.6 for _ in strings])
    left[rng.randrange(len(left))] = True
    shrunk = _Lattice(strings, pieces)
    shrunk.keep(kept, left)
    rest = [string for string, here in zip(strings, left, strict=True) if here]
    built = _Lattice(rest, [piece for piece, here in zip(pieces, kept, strict=True) if here])
    times, chances = np.ones(len(rest)), chances[kept]
    np.testing.assert_allclose(shrunk.expected(chances, times), built.expected(chances, times), rtol=1e-12)
    for one, other in zip(shrunk.best(np.log(chances)), built.best(np.log(chances)), strict=True):
        np.testing.assert_allclose(one, other)


@settings(deadline=None, max_examples=60)
@given(words=WORDS)
def test_candidates_occur_in_more_than_one_place_and_go_on_differently(words):
    counts, spread = _stretches(words, "abcé,.1")
    pieces, weights = _candidates(counts, spread)
    followers: dict[str, Counter[str]] = {}
    for string, times in spread.items():
        for start, stop in itertools.combinations(range(len(string) + 1), 2):
            after = string[stop] if stop < len(string) else "end"
            followers.setdefault(string[start:stop], Counter())[after] += times
    longer = {
        part: sum(after.values()) * len(part)
        for part, after in followers.items()
        if 1 < len(part) <= 16 and sum(after.values()) > 1 and (len(after) > 1 or "end" in after)
    }
    characters = Counter(character for string in counts.elements() for character in string)
    assert dict(zip(pieces, weights, strict=True)) == longer | characters


def test_words_end_at_borders_and_unknown_characters():
    counts, spread = _stretches({"don't": 3, "(don,1.5x€yz": 2, "e\u0301té": 1}, "dontxyz',.15(e\u0301té")
    assert counts == {
        "▁don": 3,
        "'": 3,
        "t": 3,
        "▁(": 2,
        "don": 2,
        ",1.5": 2,
        "x": 2,
        "yz": 2,
        "▁e\u0301té": 1,
    }
    assert set(spread.values()) == {1}
    assert _stretches({"a.": 5, "a,": 2}, "a.,")[1] == {"▁a": 2, ".": 1, ",": 1}
    assert list(_stretches({"b": 1, "a": 1}, "ba")[0]) == ["▁a", "▁b"]


def test_long_words_are_cut():
    counts, _ = _stretches({"a" * 100: 2}, "a")
    assert "".join(counts.elements()).count("a") == 200
    assert max(map(len, counts)) == 24
    rare = {chr(0x4E00 + index) * 90: 1 for index in range(60)} | {"a" * 90: 10**9}
    pieces = learn_pieces(rare, [word[0] for word in rare], 100)
    assert all(math.isfinite(score) for _, score in pieces)


def test_pieces_without_which_most_is_lost_are_kept():
    pieces = ["a", "b", "ab", "aba", "ba"]
    strings, times = ["ab", "aba", "b"], np.array([50.0, 2.0, 3.0])
    scores = np.log([0.2, 0.2, 0.4, 0.15, 0.05])
    text, parts = _Lattice(strings, pieces), _Lattice(pieces, pieces, proper=True)
    assert _worth(text, times, parts, scores, 3).tolist() == [True, True, True, False, False]
    # "ba" is in no best way, and goes although there would be room.
    assert _worth(text, times, parts, scores, 5).tolist() == [True, True, True, True, False]


@settings(deadline=None, max_examples=60)
@given(strings=STRINGS, seed=st.integers(0, 10**6), share=st.floats(0, 1))
def test_the_worth_of_a_piece_is_the_likelihood_that_is_lost_without_it(strings, seed, share):
    pieces, chances = some_pieces(strings, seed)
    scores, times = np.log(chances), np.arange(1.0, len(strings) + 1)
    text, parts = _Lattice(strings, pieces), _Lattice(pieces, pieces, proper=True)
    owners, used = text.best(scores)
    uses = Counter({pieces[piece]: 0.0 for piece in range(len(pieces))})
    for owner, piece in zip(owners, used, strict=True):
        uses[pieces[piece]] += times[owner]
    score = dict(zip(pieces, scores, strict=True))
    total = sum(uses.values())
    losses = {}
    for piece in pieces:
        others = max(ways(piece, pieces, proper=True), key=lambda way: sum(score[other] for other in way))
        after = total + uses[piece] * (len(others) - 1)
        if len(piece) > 1 and uses[piece]:
            instead = sum(math.log((uses[other] + uses[piece]) / after) for other in others)
            losses[piece] = uses[piece] * (math.log(uses[piece] / total) - instead)
    characters = [piece for piece in pieces if len(piece) == 1]
    room = round(share * len(losses))
    kept = _worth(text, times, parts, scores, len(characters) + room)
    chosen = {piece for piece, here in zip(pieces, kept, strict=True) if here} - set(characters)
    assert kept.sum() == len(characters) + room
    assert chosen <= losses.keys()
    dropped = [losses[piece] for piece in losses.keys() - chosen]
    assert not chosen or not dropped or min(losses[piece] for piece in chosen) >= max(dropped) - 1e-9


def reference(words: dict[str, int], size: int) -> dict[str, float]:
    """What `learn_pieces` should learn, by brute force."""
    counts, spread = _stretches(words, "abcd")
    pieces, weights = _candidates(counts, spread)
    scores = {piece: math.log(weight / weights.sum()) for piece, weight in zip(pieces, weights, strict=True)}

    def best(string: str, proper: bool) -> list[str]:
        return max(ways(string, list(scores), proper), key=lambda way: sum(scores[piece] for piece in way))

    while True:
        for _ in range(2):
            expected: Counter[str] = Counter()
            for string, times in counts.items():
                found = [(way, math.exp(sum(scores[piece] for piece in way))) for way in ways(string, list(scores))]
                total = sum(chance for _, chance in found)
                for way, chance in found:
                    expected.update({piece: way.count(piece) * times * chance / total for piece in set(way)})
            left = {piece: max(expected[piece], 0.5) for piece in scores if expected[piece] >= 0.5 or len(piece) == 1}
            scores = {piece: digamma(count) - digamma(sum(left.values())) for piece, count in left.items()}
        if len(scores) <= 1.1 * size:
            ranked = sorted(scores, key=lambda piece: (len(piece) > 1, -scores[piece]))
            return {piece: scores[piece] for piece in ranked[:size]}
        uses = Counter(dict.fromkeys(scores, 0))
        for string, times in counts.items():
            for piece in best(string, proper=False):
                uses[piece] += times
        loss = {}
        for piece in scores:
            others = best(piece, proper=True)
            if len(piece) > 1 and uses[piece]:
                after = uses.total() + uses[piece] * (len(others) - 1)
                instead = sum(math.log((uses[other] + uses[piece]) / after) for other in others)
                loss[piece] = uses[piece] * (math.log(uses[piece] / uses.total()) - instead)
        characters = [piece for piece in scores if len(piece) == 1]
        room = max(int(1.1 * size), int(0.75 * len(scores))) - len(characters)
        chosen = {*characters, *sorted(loss, key=lambda piece: -loss[piece])[:room]}
        scores = {piece: score for piece, score in scores.items() if piece in chosen}


def digamma(x: float) -> float:
    """By the recurrence and the asymptotic series."""
    below = 0.0
    while x < 10:
        below -= 1 / x
        x += 1
    return below + math.log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4) - 1 / (252 * x**6)


@pytest.mark.parametrize("seed", range(2, 8))
def test_it_learns_what_brute_force_learns(seed):
    rng = random.Random(seed)
    words = {"".join(rng.choices("abcd", [5, 3, 2, 1], k=rng.randint(1, 7))): rng.randint(1, 40) for _ in range(60)}
    for size in (12, 25, 60):
        wanted = reference(words, size)
        assert 5 < len(wanted) <= size
        assert dict(learn_pieces(words, "abcd", size)) == pytest.approx(wanted, abs=6e-5)


@settings(deadline=None, max_examples=40)
@given(words=WORDS, size=st.integers(10, 40), seed=st.integers(0, 10**6))
def test_pieces_depend_on_the_words_only_and_keep_to_the_size(words, size, seed):
    pieces = learn_pieces(words, "abcé,.1", size)
    shuffled = random.Random(seed).sample(sorted(words.items()), len(words))
    assert learn_pieces(dict(shuffled), "1.,écba", size) == pieces
    assert len(pieces) <= size
    assert len(dict(pieces)) == len(pieces)
    assert {"▁", *"".join(words)} <= dict(pieces).keys()
    assert [score for _, score in pieces] == sorted((score for _, score in pieces), reverse=True)


def test_frequent_words_become_pieces():
    rng = random.Random(0)
    stems = ["river", "castle", "garden"]
    words = Counter(rng.choice(stems) + rng.choice(["", "s", "ed", "ing"]) for _ in range(500))
    words.update("".join(rng.choices("abcdefgilnrstv", k=6)) for _ in range(100))
    pieces = dict(learn_pieces(words, "abcdefgilnrstv", 40))
    assert {"▁river", "▁castle", "▁garden", "ing"} <= pieces.keys()
    assert len(pieces) == 40
