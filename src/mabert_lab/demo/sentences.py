"""A classification task made from any English text: real or scrambled sentences."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator

from mabert.data.tasks import Rows, rows_of, table_task
from mabert_lab.english import is_prose, split_sentences

SHORTEST, LONGEST = 6, 40
WORD_ORDER = table_task("word-order", ("scrambled", "real"))
# Words whose place is fixed by grammar: swapping one with another kind of word spoils the sentence.
FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a an the this that these those its their his her our your my each every any some no of to in on at by for
        from with without into onto over under between through during before after about against as than and or but nor
        if because while although when where which who whose whether is are was were be been being has have had do does
        did can could will would shall should may might must not it they he she we you i there such only also very""",
    )
)
_SENTENCE = re.compile(r"[A-Z][A-Za-z]*(?:[,;:]? [A-Za-z]+(?:['-][A-Za-z]+)*)+[.!?]")
_WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*")
_WORDS_A_SWAP = 16


def sentences(documents: Iterable[str]) -> Iterator[str]:
    """Yields sentences suitable for the task: 6 to 40 words of plain prose, without repeats.

    Args:
        documents: paragraphs separated by line feeds.

    Yields:
        Sentences of letters, commas, semicolons and colons that begin with a capital and end with a full stop, a
        question or an exclamation mark, and that `corrupt_word_order` can spoil; in the order of the documents.
    """
    seen: set[str] = set()
    for document in documents:
        for paragraph in document.split("\n"):
            for sentence in split_sentences(paragraph.strip()):
                if sentence in seen or not _SENTENCE.fullmatch(sentence) or not is_prose(sentence):
                    continue
                words = list(_WORD.finditer(sentence))
                if SHORTEST <= len(words) <= LONGEST and all(_movable(sentence, words)):
                    seen.add(sentence)
                    yield sentence


def corrupt_word_order(sentence: str, rng: random.Random) -> str:
    """Swaps words so that the sentence is no longer well-formed.

    Each swap exchanges a function word (article, preposition, auxiliary, ...) with a word of another kind. There is one
    swap, and one more for every sixteen words. The capitalised first word, words before punctuation, and punctuation
    stay in place, so only the order of the other words gives the sentence away.

    Args:
        sentence: one sentence, such as `sentences` yields.
        rng: chooses the words; the same state gives the same result.

    Raises:
        ValueError: the words that may move are all function words, or none is.
    """
    parts = list(_WORD.finditer(sentence))
    words = [part.group() for part in parts]
    function, content = _movable(sentence, parts)
    if not function or not content:
        raise ValueError(f"cannot scramble {sentence!r}: it needs function words and others beyond its first and last")
    swaps = min(1 + len(words) // _WORDS_A_SWAP, len(function), len(content))
    for left, right in zip(rng.sample(function, swaps), rng.sample(content, swaps), strict=True):
        words[left], words[right] = words[right], words[left]
    pieces, end = [], 0
    for part, word in zip(parts, words, strict=True):
        pieces += [sentence[end : part.start()], word]
        end = part.end()
    return "".join([*pieces, sentence[end:]])


def word_order_examples(real: Iterable[str], seed: int = 0, limit: int | None = None) -> Rows:
    """Makes examples of `WORD_ORDER`: a random half of the sentences is scrambled; none appears in both forms.

    Args:
        real: sentences, such as `sentences` yields.
        seed: seed of choice, order and scrambling.
        limit: maximum number of sentences.

    Returns:
        `text_a`, `label` and `index`, with balanced classes (up to one example if the number is odd).

    Raises:
        ValueError: there are fewer than two sentences.
    """
    rng = random.Random(seed)
    chosen = list(real)
    rng.shuffle(chosen)
    chosen = chosen[:limit]
    if len(chosen) < 2:
        raise ValueError(f"{len(chosen)} sentences are too few for two classes")
    labels = [place % 2 for place in range(len(chosen))]
    texts = [text if label else corrupt_word_order(text, rng) for text, label in zip(chosen, labels, strict=True)]
    return rows_of({"text_a": texts, "label": labels, "index": list(range(len(chosen)))})


def _movable(sentence: str, words: list[re.Match[str]]) -> tuple[list[int], list[int]]:
    """Returns the indices of movable function words and other words: neither the first nor before punctuation."""
    function: list[int] = []
    content: list[int] = []
    for place, word in enumerate(words[1:], 1):
        if sentence[word.end() : word.end() + 1] == " ":
            (function if word.group().lower() in FUNCTION_WORDS else content).append(place)
    return function, content
