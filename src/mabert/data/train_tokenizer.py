"""Training a WordPiece tokenizer, BERT's kind, on text of one's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertTokenizer, PreTrainedTokenizerFast

from mabert.data.corpus import pieces_of
from mabert.data.tokenizer import SPECIAL_TOKENS

_MINIMUM_FREQUENCY = 2
_ALPHABET = 1000


def train_wordpiece(texts: Iterable[str], vocab_size: int, segments: bool = True) -> PreTrainedTokenizerFast:
    """Trains a WordPiece tokenizer that cleans, lower-cases and splits text as BERT's does.

    Args:
        texts: documents; all are held in memory while training.
        vocab_size: maximum number of tokens, the five special ones included ([PAD] is 0); small texts may yield fewer.
        segments: whether the model tells the texts of a pair apart, by `token_type_ids`.

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
    texts = [piece for text in texts for piece in pieces_of(text)]
    normalised = (tokenizer.normalizer.normalize_str(text) for text in texts)
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
    told = ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]
    return BertTokenizer(vocab=tokenizer.get_vocab(), model_input_names=told)


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
