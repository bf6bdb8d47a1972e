"""Finds or trains the tokenizer of a run."""

import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import tokenizers
from transformers import PreTrainedTokenizerFast

from mabert.baselines.family import Family
from mabert.data.corpus import Source, Sources, parse_sources
from mabert.data.tokenizer import load_tokenizer
from mabert.data.train_tokenizer import RECIPES, train_tokenizer
from mabert.files.writing import locked, whole_folder

logger = logging.getLogger(__name__)

TRAINED = "trained"

CHARACTERS = 64 << 20
"""Characters of text that a tokenizer is trained on."""

FORMAT = 2
"""Raise this whenever the same sources would give another tokenizer."""


def find_tokenizer(
    family: Family, asked: str | None, sources: Sources, cache: Path, before: str | None = None
) -> tuple[PreTrainedTokenizerFast, str]:
    """Returns the requested tokenizer, else the family's own from the hub, else one trained in the same way.

    Args:
        family: The model's family.
        asked: Folder, file or hub name, or None.
        sources: The run's text, to train on.
        cache: Where trained tokenizers are kept.
        before: Origin recorded when a resumed run began, to find the same tokenizer again.

    Returns:
        The tokenizer, and a description of its origin for the record.

    Raises:
        FileNotFoundError: There is no tokenizer of the requested name.
        ValueError: The tokenizer cannot be used, or none can be trained on the text.
    """
    if asked is not None:
        return load_tokenizer(asked), asked
    if before is None or not before.startswith(TRAINED):
        try:
            return load_tokenizer(family.hub), f"hub:{family.hub}"
        except FileNotFoundError as error:
            if before is not None:
                raise
            logger.warning("%s; training one of its kind on the run's text", error)
    tokenizer = trained_tokenizer(family.tokenizer, sources, cache)
    algorithm = RECIPES[family.tokenizer].algorithm
    return tokenizer, f"{TRAINED} on data.sources: {algorithm} of {len(tokenizer):,}, as {family.hub}"


def trained_tokenizer(
    family: str, sources: Sources, folder: str | Path, *, characters: int = CHARACTERS
) -> PreTrainedTokenizerFast:
    """Trains a tokenizer as a family's own was trained, or opens one trained on the same text before.

    Several processes may call this at once: one trains, the others wait. Errors are those of `Source.read`.

    Args:
        family: See `train_tokenizer`.
        sources: See `mabert.data.corpus`; each contributes the same share of the text.
        folder: Where tokenizers are kept.
        characters: Characters to read.
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
            tokenizer = train_tokenizer(family, beginnings(parsed, characters))
            with whole_folder(place) as writing:
                tokenizer.save_pretrained(writing)
    return load_tokenizer(place)


def beginnings(sources: list[Source], characters: int) -> Iterator[str]:
    """Yields the first documents of each source, the last one cut, at most `characters` in all."""
    for source in sources:
        left = characters // len(sources)
        for document, _ in source.read():
            yield document[:left]
            left -= len(document)
            if left <= 0:
                break
