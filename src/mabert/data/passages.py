"""Questions with their contexts: encoded whole if they fit the model, else in overlapping windows."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from mabert.data.encode import encodings, windows
from mabert.data.words import Span

LONGEST_ANSWER = 64
"""Maximum length of an answer in tokens."""


@dataclass(frozen=True)
class Passage:
    """A question with the part of its context that the model reads in one window."""

    row: int  # index of the question in the input
    item: dict[str, Any]  # `input_ids`, and `token_type_ids` if the tokenizer makes them
    first: int  # position of the context's first token
    pieces: list[Span]  # character span in the context of each of its tokens

    def place_of(self, begin: int, end: int) -> tuple[int, int] | None:
        """Finds the first and last token of a character span; None if the passage does not hold all of it."""
        first = bisect_right([piece[1] for piece in self.pieces], begin)
        last = bisect_left([piece[0] for piece in self.pieces], end) - 1
        if first > last or self.pieces[0][0] > begin or self.pieces[-1][1] < end:
            return None
        return self.first + first, self.first + last


class Answer(NamedTuple):
    """A model's answer: its text in the context (empty if no answer is likeliest), its first character, one past its
    last character, and its probability among all spans and the empty answer."""

    answer: str
    start: int
    end: int
    probability: float


def refuse_truncation(truncate: bool | None) -> None:
    """Raises ValueError if contexts are to be truncated."""
    if truncate:
        raise ValueError("truncate is on; contexts that are too long are read in windows, so leave it out")


def passages_of(
    tokenizer: PreTrainedTokenizerFast,
    questions: Sequence[str],
    contexts: Sequence[str],
    *,
    max_length: int | None,
    name: str = "the input",
    before: int = 0,
) -> list[Passage]:
    """Encodes questions with one context each; returns the passages of all, in order, at least one per question.

    A passage has at most `max_length` tokens, and its neighbours share a quarter of that at least; None is no limit.
    Other arguments and errors are those of `encodings`; a question that leaves too little room is a ValueError too.
    """
    passages = []
    encoded = encodings(tokenizer, questions, contexts, max_length=None, name=name, before=before)
    for row, (item, encoding) in enumerate(encoded):
        places = [place for place, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
        first = places[0] if places else len(encoding.ids)
        room, overlap = len(places), 0
        if max_length is not None and len(encoding.ids) > max_length:
            room, overlap = max_length - len(encoding.ids) + len(places), max_length // 4
            if room <= overlap:
                raise ValueError(
                    f"{name}: question {before + row + 1} leaves room for {max(room, 0)} tokens of its context in "
                    f"{max_length}; {overlap + 1} are needed, so shorten it: {questions[row][:40]!r}"
                )
        for part, begin, end in windows(item, first, len(places), room, overlap):
            passages.append(Passage(row, part, first, encoding.offsets[begin:end]))
    return passages


def best_answers(contexts: Sequence[str], passages: Iterable[Passage], logits: Iterable[np.ndarray]) -> list[Answer]:
    """Returns the likeliest answer to each question, see `best_answer`; `passages` and `logits` are those of all."""
    found = []
    for row, group in groupby(zip(passages, logits, strict=True), key=lambda pair: pair[0].row):
        own, scores = zip(*group, strict=True)
        found.append(best_answer(contexts[row], own, scores))
    return found


def best_answer(context: str, passages: Sequence[Passage], logits: Sequence[np.ndarray]) -> Answer:
    """Chooses the likeliest answer to one question.

    An answer's score is the start logit of its first token plus the end logit of its last. For no answer it is that sum
    at [CLS], the lowest over the passages. Probabilities are the softmax over all scores. `logits` holds the start and
    end logits of each passage, (tokens, 2).
    """
    best, answer, totals = -np.inf, (0, 0), []
    for passage, scores in zip(passages, logits, strict=True):
        if not passage.pieces:
            continue
        start, end = np.split(scores[passage.first :][: len(passage.pieces)].astype(np.float64), 2, axis=1)
        ends = np.concatenate([end[:, 0], np.full(LONGEST_ANSWER - 1, -np.inf)])
        spans = start + np.lib.stride_tricks.sliding_window_view(ends, LONGEST_ANSWER)  # (first token, further tokens)
        totals.append(np.logaddexp.reduce(spans, axis=None))
        first, more = divmod(int(spans.argmax()), LONGEST_ANSWER)
        if spans[first, more] > best:
            best, answer = spans[first, more], (passage.pieces[first][0], passage.pieces[first + more][1])
    none = min(float(scores[0].astype(np.float64).sum()) for scores in logits)
    total = np.logaddexp.reduce([none, *totals])
    if none >= best:
        return Answer("", 0, 0, float(np.exp(none - total)))
    text = context[slice(*answer)]
    begin = answer[1] - len(text.lstrip())
    return Answer(text.strip(), begin, begin + len(text.strip()), float(np.exp(best - total)))
