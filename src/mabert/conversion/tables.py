"""Pairs of texts from the columns of tables, to learn from as they are."""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerFast

from mabert.conversion.inputs import Frame
from mabert.conversion.pieces import Pieces, check_tokens, shortened, sizes
from mabert.data import rows
from mabert.data.build import plain_encoder

AT_ONCE = 1000
"""Rows tokenised in one call."""


def read_pairs(
    texts: Sequence[str | Path],
    tokenizer: PreTrainedTokenizerFast,
    columns: tuple[str, str],
    *,
    frame: Frame,
    length: int,
    tokens: int,
    held_out: int,
    seed: int,
) -> tuple[Pieces, Pieces, str]:
    """Reads pairs; returns those to learn from, those held out, and a hash of all.

    Args:
        texts: Tables; all contribute equally many tokens.
        tokenizer: The teacher's tokenizer.
        columns: Columns of the first text and of the second one.
        frame: What stands around pairs.
        length: Most tokens of a pair, those of its frame included; of longer ones the end of the longer text is cut.
        tokens: Total tokens to learn from.
        held_out: Tokens to hold out, at most a tenth.
        seed: Seed of the order.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a file is no table with both columns, or there are too few tokens.
    """
    share = -(-(tokens + held_out) // len(texts))
    encoded = [_encoded(Path(text), tokenizer, columns, share) for text in texts]
    ids = [own for own, _ in encoded]
    places = np.concatenate(
        [
            np.column_stack((np.full(len(borders), source), np.zeros(len(borders), int), borders))
            for source, (_, borders) in enumerate(encoded)
        ]
    )
    places = shortened(places, length - frame.size)
    places = places[np.random.default_rng(seed).permutation(len(places))]
    reached = (sizes(places) + frame.size).cumsum()
    held = int(np.searchsorted(reached, min(held_out, reached[-1] // 10))) + 1
    check_tokens(int(reached[-1] - reached[held - 1]), tokens, len(texts))
    enough = int(np.searchsorted(reached, reached[held - 1] + tokens)) + 1
    corpus = hashlib.sha256(b"".join(own.tobytes() for own in (*ids, places))).hexdigest()[:16]
    return Pieces(ids, places[held:enough], (frame,)), Pieces(ids, places[:held], (frame,)), corpus


def _encoded(
    table: Path, tokenizer: PreTrainedTokenizerFast, columns: tuple[str, str], enough: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of a table's texts, and the borders of each pair's texts in them, int64 (pairs, 4)."""
    encoder, texts = plain_encoder(tokenizer), _texts(table, columns)
    ids = array("I")
    borders: list[tuple[int, ...]] = []
    while len(ids) < enough and (some := list(islice(texts, AT_ONCE))):
        firsts, seconds = (
            encoder.encode_batch_fast(list(each), add_special_tokens=False) for each in zip(*some, strict=True)
        )
        for first, second in zip(firsts, seconds, strict=True):
            if first.ids and second.ids:
                middle = len(ids) + len(first.ids)
                borders.append((len(ids), middle, middle, middle + len(second.ids)))
                ids.extend(first.ids + second.ids)
    if not borders:
        raise ValueError(f"{table}: no row has text in both {columns[0]!r} and {columns[1]!r}")
    return np.frombuffer(ids, np.uint32), np.array(borders)


def _texts(table: Path, columns: tuple[str, str]) -> Iterator[tuple[str, str]]:
    for number, row in rows.read_rows(table, columns):
        first, second = (rows.text_in(row, column, f"{table}, line {number}") for column in columns)
        yield first, second
