"""A tokenizer trained on a corpus, kept so that the next run on the same text finds it."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import tokenizers
from transformers import PreTrainedTokenizerFast

from mabert.data.corpus import Source, Sources, parse_sources
from mabert.data.tokenizer import load_tokenizer
from mabert.data.train_tokenizer import CHARACTERS, train_tokenizer
from mabert.writing import locked, whole_folder

logger = logging.getLogger(__name__)

# Raise this whenever the same sources would give another tokenizer.
FORMAT = 2


def trained_tokenizer(
    family: str, sources: Sources, folder: str | Path, *, characters: int = CHARACTERS
) -> PreTrainedTokenizerFast:
    """Trains a tokenizer as a family's own was trained, or opens the one that the same text gave before.

    Several processes may call this at once: one trains, the others wait.

    Args:
        family: see `train_tokenizer`.
        sources: see `mabert.data.corpus`; each gives the same share of the text that is read.
        folder: where tokenizers are kept.
        characters: how much is read.

    Raises:
        FileNotFoundError: a source does not exist.
        ValueError: a source cannot be read, or holds no words.
    """
    parsed = parse_sources(sources)
    known_by = {
        "format": FORMAT,
        "tokenizers": tokenizers.__version__,
        "family": family,
        "characters": characters,
        "sources": [source.identity() for source in parsed],
    }
    key = hashlib.sha256(json.dumps(known_by, sort_keys=True).encode()).hexdigest()[:16]
    place = Path(folder).expanduser() / f"tokenizer-{family}-{key}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with locked(place.with_name(f".{place.name}.lock")):
        if not place.exists():
            logger.info("training the tokenizer %s", place)
            tokenizer = train_tokenizer(family, beginnings(parsed, characters), characters=characters)
            with whole_folder(place) as writing:
                tokenizer.save_pretrained(writing)
    return load_tokenizer(place)


def beginnings(sources: list[Source], characters: int) -> Iterator[str]:
    """Documents from the beginning of each source, the last of each cut, `characters` in all at most."""
    for source in sources:
        left = characters // len(sources)
        for document, _ in source.read():
            yield document[:left]
            left -= len(document)
            if left <= 0:
                break
