"""Training tokenizers: each family's own algorithm, normalisation, special tokens, template and size."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AlbertTokenizer,
    BertTokenizer,
    BigBirdTokenizer,
    DebertaV2Tokenizer,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
)

from mabert.data.tokenizer import SPECIAL_TOKENS, checked

_MINIMUM_FREQUENCY = 2
_ALPHABET = 1000
_NEVER = -1000.0
_WORD_START = "▁"


@dataclass(frozen=True)
class Recipe:
    """How the tokenizer of a model family is made.

    Attributes:
        algorithm: `WordPiece`, `Unigram` (as in SentencePiece) or `BPE` (over bytes, as in GPT-2).
        size: tokens of the published tokenizer, special ones included.
        first: special tokens that have the first ids, in this order.
        build: makes the tokenizer from `vocab`: ids by token (with `merges` for `BPE`), or for `Unigram` pieces with
            their scores, in the order of their ids.
        last: special tokens that have the last ids, in this order.
        symbols: ordinary tokens after `first` that are part of no other token (`Unigram`).
    """

    algorithm: str
    size: int
    first: tuple[str, ...]
    build: Callable[..., PreTrainedTokenizerFast]
    last: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()

    @property
    def least(self) -> int:
        """The smallest size with room for an alphabet."""
        own = len(self.first) + len(self.symbols) + len(self.last)
        return own + {"WordPiece": 2, "Unigram": 4, "BPE": 256}[self.algorithm]


def train_tokenizer(family: str, texts: Iterable[str], vocab_size: int | None = None) -> PreTrainedTokenizerFast:
    """Trains a stand-in for a family's published tokenizer, by the same algorithm on other text.

    Args:
        family: a key of `RECIPES`.
        texts: documents; all are held in memory while training.
        vocab_size: maximum number of tokens, special ones included; default, that of the published tokenizer. Small
            texts may yield fewer.

    Returns:
        A tokenizer of the family's transformers class, ready for `save_pretrained`. The same texts give the same
        tokenizer.

    Raises:
        ValueError: there is no such family, `vocab_size` leaves no room for an alphabet, or the texts hold no words.
    """
    if family not in RECIPES:
        raise ValueError(f"no tokenizer is known for the family {family!r}; known are {', '.join(RECIPES)}")
    recipe = RECIPES[family]
    size = recipe.size if vocab_size is None else vocab_size
    if size < recipe.least:
        raise ValueError(f"vocab_size is {size}; special tokens and an alphabet of {family} need {recipe.least}")
    read = list(texts)
    if not any(text and not text.isspace() for text in read):
        raise ValueError(f"cannot train a tokenizer for {family}: the texts hold no words")
    if recipe.algorithm == "WordPiece":
        return train_wordpiece(read, size)
    return checked((_train_bpe if recipe.algorithm == "BPE" else _train_unigram)(recipe, read, size), family)


def train_wordpiece(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Trains a WordPiece tokenizer that cleans, lower-cases and splits text as BERT's does.

    Args:
        texts: documents; all are held in memory while training.
        vocab_size: maximum number of tokens, the five special ones included ([PAD] is 0).

    Returns:
        A tokenizer ready for `save_pretrained`. The same texts give the same tokenizer.

    Raises:
        ValueError: `vocab_size` leaves no room beside the special tokens, or the texts hold no words.
    """
    room = vocab_size - len(SPECIAL_TOKENS)
    if room < 2:
        raise ValueError(f"vocab_size is {vocab_size}; it must exceed the {len(SPECIAL_TOKENS)} special tokens by 2")
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    texts = list(texts)
    normalised = ((tokenizer.normalizer.normalize_str(text), 1) for text in texts)
    alphabet = _alphabet(normalised, max(1, min(_ALPHABET, vocab_size // 4, room // 2)))
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=_MINIMUM_FREQUENCY,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        # The trainer numbers continuation letters in the order of a randomised hash table and breaks ties by number, so
        # no two runs would agree. Tokens listed here are numbered first, in this order.
        special_tokens=[*SPECIAL_TOKENS, *alphabet, *(f"##{letter}" for letter in alphabet)],
        continuing_subword_prefix="##",
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return BertTokenizer(vocab=tokenizer.get_vocab())


def _train_bpe(recipe: Recipe, texts: list[str], size: int) -> PreTrainedTokenizerFast:
    special = [*recipe.first, *recipe.last]
    untrained = recipe.build(vocab={token: index for index, token in enumerate(special)}, merges=[])
    backend = untrained.backend_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=_MINIMUM_FREQUENCY,
        special_tokens=special,
        # All bytes. The trainer numbers them in order and breaks ties by number, so runs agree.
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    model = json.loads(backend.to_str())["model"]
    learnt = sorted(set(model["vocab"]) - set(special), key=model["vocab"].__getitem__)
    vocabulary = {token: index for index, token in enumerate([*recipe.first, *learnt, *recipe.last])}
    return recipe.build(vocab=vocabulary, merges=[tuple(merge) for merge in model["merges"]])


def _train_unigram(recipe: Recipe, texts: list[str], size: int) -> PreTrainedTokenizerFast:
    # Special tokens are inserted by id, so their score is too low for text of known characters to be split into them.
    # The unknown token's score is 0, by which transformers finds it.
    first = [(token, 0.0 if token.lower() in ("<unk>", "[unk]") else _NEVER) for token in recipe.first]
    first += [(symbol, 0.0) for symbol in recipe.symbols]
    last = [(token, _NEVER) for token in recipe.last]
    room = size - len(first) - len(last)
    normalizer = recipe.build(vocab=first + last).backend_tokenizer.normalizer
    words: Counter[str] = Counter()
    for text in texts:
        words.update(normalizer.normalize_str(text).replace(_WORD_START, " ").split())
    letters = _alphabet(words.items(), min(_ALPHABET, room // 4), recipe.symbols)
    parts: Counter[str] = Counter()
    others = re.compile(f"[^{re.escape(''.join([*letters, *recipe.symbols]))}]+")
    for word in sorted(words):
        for part in filter(None, others.split(word)):
            parts[part] += words[word]
    return recipe.build(vocab=first + _learn_pieces(parts, recipe.symbols, room) + last)


def _learn_pieces(counts: Mapping[str, int], symbols: tuple[str, ...], size: int) -> list[tuple[str, float]]:
    """Learns at most `size` pieces of a unigram model with their scores from word counts.

    Uses SentencePiece (Kudo 2018), which is deterministic with one thread. The symbols are part of no piece.
    """
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(f"{word}\t{count}" for word, count in counts.items()),
        input_format="tsv",
        model_writer=model,
        model_type="unigram",
        vocab_size=size + len(symbols) + 1,
        hard_vocab_limit=False,
        character_coverage=1.0,
        normalization_rule_name="identity",
        user_defined_symbols=list(symbols),
        max_sentence_length=1 << 30,
        num_threads=1,
        unk_id=0,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        minloglevel=2,
    )
    learnt = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    # Rounded because the tokenizers library does not read back every digit of a score that it writes.
    pieces = [(learnt.id_to_piece(index), round(learnt.get_score(index), 5)) for index in range(1, len(learnt))]
    return [piece for piece in pieces if piece[0] not in symbols]


def _alphabet(texts: Iterable[tuple[str, int]], size: int, without: Iterable[str] = ()) -> list[str]:
    """Finds the at most `size` commonest characters of normalised texts, in the order of code points.

    Each text comes with its count. White space and the characters of `without` do not count. Raises ValueError if
    nothing is left.
    """
    counts: Counter[str] = Counter()
    for text, times in texts:
        for letter, count in Counter(text).items():
            counts[letter] += count * times
    left = [letter for letter in counts if not letter.isspace() and letter not in without]
    if not left:
        raise ValueError("cannot train a tokenizer: the texts hold no words")
    return sorted(sorted(left, key=lambda letter: (-counts[letter], letter))[:size])


def _longformer(vocab: dict[str, int], merges: list[tuple[str, str]]) -> PreTrainedTokenizerFast:
    return RobertaTokenizer(vocab=vocab, merges=merges, mask_token=AddedToken("<mask>", lstrip=True, special=True))


def _modernbert(vocab: dict[str, int], merges: list[tuple[str, str]]) -> PreTrainedTokenizerFast:
    """Makes ModernBERT's tokenizer, for which transformers has no class."""
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, vocab[token]) for token in ("[CLS]", "[SEP]")],
    )
    roles: dict[str, Any] = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad")}
    roles["mask_token"] = AddedToken("[MASK]", lstrip=True, special=True)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles)


_SYMBOLS = ("(", ")", '"', "-", ".", "\N{EN DASH}", "£", "€")  # user-defined in ALBERT's call of spm_train
_BIGBIRD = ("<pad>", "</s>", "<s>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
_MODERNBERT = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")

RECIPES = {
    "wordpiece": Recipe("WordPiece", 30_522, SPECIAL_TOKENS, BertTokenizer),
    "albert": Recipe(
        "Unigram", 30_000, ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"), AlbertTokenizer, symbols=_SYMBOLS
    ),
    "longformer": Recipe("BPE", 50_265, ("<s>", "<pad>", "</s>", "<unk>"), _longformer, ("<mask>",)),
    "bigbird": Recipe("Unigram", 50_358, _BIGBIRD, BigBirdTokenizer),
    "deberta": Recipe("Unigram", 128_001, ("[PAD]", "[CLS]", "[SEP]", "[UNK]"), DebertaV2Tokenizer, ("[MASK]",)),
    "modernbert": Recipe("BPE", 50_285, (), _modernbert, _MODERNBERT),
}
"""Recipes by name: BERT's (and MaBERT's) WordPiece, and the tokenizers of the encoders that MaBERT is compared with."""
