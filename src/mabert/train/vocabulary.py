"""Finds or trains the tokenizer of a run."""

import logging
from collections.abc import Iterator
from pathlib import Path

import tokenizers
from transformers import PreTrainedTokenizerFast

from mabert.baselines.family import Family
from mabert.data.corpus import Source, Sources, parse_sources
from mabert.data.tokenizer import load_tokenizer, train_wordpiece
from mabert.files.places import expanded
from mabert.files.reading import key_of
from mabert.files.writing import check_new, filling, make_once
from mabert.schema.check import check
from mabert.schema.ranges import BERT_SIZE, Vocabulary

logger = logging.getLogger(__name__)

TRAINED = "trained"

CHARACTERS = 64 << 20
"""Characters of text that a tokenizer is trained on."""

FEW_ENTRIES = 1000
"""Tokens below which a vocabulary holds little more than letters."""

FORMAT = 3
"""Raise this whenever the same sources would give another tokenizer."""


def find_tokenizer(
    family: Family, asked: str | None, sources: Sources, cache: Path, before: str | None = None, size: int | None = None
) -> tuple[PreTrainedTokenizerFast, str]:
    """Returns the requested tokenizer (folder, file or hub name), else the family's own from the hub, else a WordPiece
    of `size` tokens trained on the run's text and kept in `cache`; and a description of its origin for the record.

    `before` is the origin recorded when a resumed run began, to find the same tokenizer again. Raises FileNotFoundError
    if there is no tokenizer of the requested name, and ValueError if it cannot be used, or none can be trained on the
    text.
    """
    if asked is not None:
        return load_tokenizer(asked), asked
    if before is None or not before.startswith(TRAINED):
        try:
            return load_tokenizer(family.hub), f"hub:{family.hub}"
        except FileNotFoundError as error:
            if before is not None:
                raise
            message = "%s; training a WordPiece of %d tokens on the run's text"
            logger.warning(message, error, size or family.base_config().vocab_size)
    tokenizer = trained_tokenizer(family, sources, cache, size)
    return tokenizer, f"{TRAINED} on data.sources: WordPiece of {len(tokenizer):,}"


def trained_tokenizer(
    family: Family, sources: Sources, folder: str | Path, size: int | None = None
) -> PreTrainedTokenizerFast:
    """Trains a WordPiece of at most `size` tokens (default, those of the family's published model, which also says
    whether there are two segments), or opens one in `folder` that was trained on the same text before. Each source
    contributes the same share of `CHARACTERS`.

    Several processes may call this at once: one trains, the others wait. Errors are those of `Source.read`.
    """
    parsed, published = parse_sources(sources), family.base_config()
    size = size or published.vocab_size
    segments = (getattr(published, "type_vocab_size", None) or 0) > 1
    made_of = {
        "format": FORMAT,
        "tokenizers": tokenizers.__version__,
        "size": size,
        "segments": segments,
        "characters": CHARACTERS,
        "sources": [source.identity() for source in parsed],
    }
    key = key_of(made_of, 16)
    place = Path(folder) / f"tokenizer-wordpiece-{key}"

    def fill(writing: Path) -> None:
        logger.info("training the tokenizer %s", place)
        train_wordpiece(beginnings(parsed), size, segments).save_pretrained(writing)

    make_once(place, fill)
    return load_tokenizer(place)


def make_tokenizer(
    sources: Sources,
    output: str | Path,
    size: int = BERT_SIZE,
    *,
    cased: bool = False,
    text_column: str = "text",
    progress: bool = True,
) -> PreTrainedTokenizerFast:
    """Trains a WordPiece on one's own text and saves it in the folder `output`, for `tokenizer=` of a recipe; returns
    it.

    It has at most `size` tokens (default, BERT's), the five special ones included; a short text may give fewer. Each of
    the sources, see `mabert.data.corpus`, contributes the same share of at most `CHARACTERS`. If `cased`, capital
    letters and accents are kept. `text_column` is that of tables; `progress` shows bars.

    Raises FileNotFoundError if there is no such text, and ValueError if the size is out of range, the text holds no
    words, or the folder holds files.
    """
    check(Vocabulary, size, "size")
    output = expanded(output)
    check_new(output)
    if size < FEW_ENTRIES:
        logger.warning("a vocabulary of %d tokens holds little more than letters; 8,000 to 32,000 are usual", size)
    texts = beginnings(parse_sources(sources, text_column))
    tokenizer = train_wordpiece(texts, size, cased=cased, progress=progress)
    with filling(output) as staging:
        tokenizer.save_pretrained(staging)
    return tokenizer


def beginnings(sources: list[Source]) -> Iterator[str]:
    """Yields the first documents of each source, the last one cut, at most `CHARACTERS` in all."""
    for source in sources:
        left = CHARACTERS // len(sources)
        for document, _ in source.read():
            yield document[:left]
            left -= len(document)
            if left <= 0:
                break
