"""Tokenizers: loaded, checked, fingerprinted, and trained."""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AlbertTokenizer, AutoTokenizer, BertTokenizer, BigBirdTokenizer, PreTrainedTokenizerFast

from mabert.data.corpus import Source, Sources, parse_sources, pieces_of
from mabert.files import tables
from mabert.files.places import expanded, folder_of
from mabert.files.reading import key_of, read_json
from mabert.files.writing import check_new, filling, make_once
from mabert.schema.check import check
from mabert.schema.ranges import BERT_SIZE, Vocabulary

logger = logging.getLogger(__name__)

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CHARACTERS = 64 << 20
"""Characters of text that a tokenizer is trained on."""

FEW_ENTRIES = 1000
"""Tokens below which a vocabulary holds little more than letters."""

# Raise this whenever the same sources would give another tokenizer.
_FORMAT = 3
_ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerFast:
    """Loads a fast tokenizer that has padding, unknown, classification, separator and mask tokens, from a folder
    written by `save_pretrained` (or one with a `vocab.txt`), a `vocab.txt` of BERT's WordPiece, a `tokenizer.json`,
    `minilm`, or the name of a model on the hub. With a `vocab.txt`, text is lower-cased unless some token has capital
    letters.

    Raises FileNotFoundError if there is no such file, folder or model, and ValueError if the file is empty, damaged or
    not UTF-8, or the tokenizer lacks a special token.
    """
    path = folder_of(source, weights=False)
    if path.is_dir() and not any((path / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        if not (path / "vocab.txt").exists():
            raise FileNotFoundError(f"{path}: no tokenizer.json, tokenizer_config.json or vocab.txt in this folder")
        path /= "vocab.txt"
    made_from = _from_folder if path.is_dir() else {".txt": _from_vocabulary, ".json": _from_json}.get(path.suffix)
    if made_from is None:
        wanted = "name a vocab.txt, a tokenizer.json, a folder or a model of the hub (owner/name)"
        if path.exists():
            raise ValueError(f"{path}: not a tokenizer; {wanted}")
        raise FileNotFoundError(f"{path}: no such file or folder; {wanted}")
    return checked(made_from(path), source)


def fingerprint(tokenizer: PreTrainedTokenizerFast) -> str:
    """Returns the SHA-256 of all settings that decide a text's ids, without padding and truncation, which calls set."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["padding"] = state["truncation"] = None
    state["special_ids"] = special_ids(tokenizer)
    return key_of(state)


def special_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """Returns the ids of the five special tokens by role: `pad`, `unk`, `cls`, `sep`, `mask`."""
    return {role.removesuffix("_token"): getattr(tokenizer, f"{role}_id") for role in _ROLES}


def checked(tokenizer: Any, source: str | Path) -> PreTrainedTokenizerFast:
    """Returns the tokenizer after checking that it is a fast one with the five special tokens.

    Also closes two gaps of transformers 5. ALBERT's and BigBird's tokenizers return `token_type_ids` again, as their
    models expect. BigBird's reads line ends and tabs as spaces instead of unknown characters; its class leaves out the
    published character map.

    Raises a ValueError that names the source if it is not a fast tokenizer, lacks a special token, or has no words.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"{source}: {type(tokenizer).__name__} is not a fast tokenizer (a tokenizer.json makes one)")
    missing = [role for role in _ROLES if getattr(tokenizer, role) is None]
    if missing:
        raise ValueError(f"{source}: this tokenizer has no {', '.join(missing)}; all of {', '.join(_ROLES)} are needed")
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):  # made by transformers for no vocabulary
        raise ValueError(f"{source}: this tokenizer has no words: its tokenizer.json or vocabulary is missing")
    if isinstance(tokenizer, (AlbertTokenizer, BigBirdTokenizer)):
        tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    backend = tokenizer.backend_tokenizer
    if tokenizer.unk_token_id in backend.encode("\n", add_special_tokens=False).ids:
        spaces = normalizers.Replace(Regex(r"\s"), " ")
        old = backend.normalizer
        backend.normalizer = spaces if old is None else normalizers.Sequence([spaces, old])
    return tokenizer


def _from_vocabulary(path: Path) -> PreTrainedTokenizerFast:
    vocabulary: dict[str, int] = {}
    for line, token in enumerate(re.split(r"\r?\n", tables.read_text(path).rstrip("\r\n"))):
        if vocabulary.setdefault(token, line) != line:
            raise ValueError(f"{path}, line {line + 1}: token {token!r} is already on line {vocabulary[token] + 1}")
    missing = [token for token in SPECIAL_TOKENS if token not in vocabulary]
    if missing:
        raise ValueError(f"{path}: not a BERT vocabulary: it has no {', '.join(missing)}")
    cased = any(token != token.lower() for token in vocabulary if not token.startswith("["))
    return BertTokenizer(vocab=vocabulary, do_lower_case=not cased)


def _from_json(path: Path) -> PreTrainedTokenizerFast:
    text = tables.read_text(path)
    try:
        backend = Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{path}: not a tokenizer.json: {' '.join(str(error).split())}") from error
    roles = {}
    for role, token in zip(_ROLES, SPECIAL_TOKENS, strict=True):
        angled = {"cls_token": "<s>", "sep_token": "</s>"}.get(role, f"<{role.removesuffix('_token')}>")
        roles[role] = next((known for known in (token, angled) if backend.token_to_id(known) is not None), None)
    segments = ["token_type_ids"] if 1 in backend.encode("a", "b").type_ids else []
    inputs = ["input_ids", *segments, "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=inputs, **roles)


def _from_folder(folder: Path) -> Any:
    try:
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # a damaged file makes the library raise anything
        message = _damage_in(folder) or (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{folder}: not a readable tokenizer: {message}") from error


def _damage_in(folder: Path) -> str | None:
    """Describes the first file in a tokenizer's folder that is not a JSON object; None if all are."""
    for file in sorted(folder.glob("*token*.json")):
        try:
            read_json(file)
        except ValueError as error:
            return str(error)
    return None


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


def trained_tokenizer(sources: Sources, folder: str | Path, size: int, segments: bool) -> PreTrainedTokenizerFast:
    """Trains a WordPiece of at most `size` tokens, or opens one in `folder` that was trained on the same text before;
    `segments` is that of `train_wordpiece`. Each source contributes the same share of `CHARACTERS`.

    Several processes may call this at once: one trains, the others wait. Errors are those of `Source.read`.
    """
    parsed = parse_sources(sources)
    made_of = {
        "format": _FORMAT,
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


def beginnings(sources: list[Source]) -> Iterator[str]:
    """Yields the first documents of each source, the last one cut, at most `CHARACTERS` in all."""
    for source in sources:
        left = CHARACTERS // len(sources)
        for document, _ in source.read():
            yield document[:left]
            left -= len(document)
            if left <= 0:
                break


def train_wordpiece(
    texts: Iterable[str], vocab_size: int, segments: bool = True, *, cased: bool = False, progress: bool = False
) -> PreTrainedTokenizerFast:
    """Trains a WordPiece tokenizer that cleans, lower-cases (unless `cased`) and splits text as BERT's does. The same
    texts, which are all held in memory, give the same tokenizer.

    It has at most `vocab_size` tokens, the five special ones included ([PAD] is 0); small texts may yield fewer. With
    `segments`, it tells the texts of a pair apart by `token_type_ids`. Raises ValueError if there is no room beside the
    special tokens, or the texts hold no words.
    """
    room = vocab_size - len(SPECIAL_TOKENS)
    if room < 2:
        raise ValueError(f"vocab_size is {vocab_size}; it must exceed the {len(SPECIAL_TOKENS)} special tokens by 2")
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    texts = [piece for text in texts for piece in pieces_of(text)]
    normalised = (tokenizer.normalizer.normalize_str(text) for text in texts)
    alphabet = _alphabet(normalised, max(1, min(1000, vocab_size // 4, room // 2)))
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        # The trainer numbers continuation letters in the order of a randomised hash table and breaks ties by number, so
        # no two runs would agree. Tokens listed here are numbered first, in this order.
        special_tokens=[*SPECIAL_TOKENS, *alphabet, *(f"##{letter}" for letter in alphabet)],
        continuing_subword_prefix="##",
        show_progress=progress,
    )
    tokenizer.train_from_iterator(texts, trainer)
    inputs = ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]
    return BertTokenizer(vocab=tokenizer.get_vocab(), do_lower_case=not cased, model_input_names=inputs)


def _alphabet(texts: Iterable[str], size: int) -> list[str]:
    """Finds the at most `size` commonest characters of normalised texts, in the order of code points; white space does
    not count. Raises ValueError if nothing is left."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    left = [letter for letter in counts if not letter.isspace()]
    if not left:
        raise ValueError("cannot train a tokenizer: the texts hold no words")
    return sorted(sorted(left, key=lambda letter: (-counts[letter], letter))[:size])
