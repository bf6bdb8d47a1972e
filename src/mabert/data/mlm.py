"""Masked language modelling: windows of a token cache, their masks, and the examples of a whole run in order.

A window is `[CLS] piece [SEP]`, and every token of the documents is in exactly one.

- `packed`: the documents are joined by [SEP] into one stream, which is cut into pieces of `length - 2` tokens; only the
  last is shorter.
- `document`: each document is cut into such pieces by itself; its last piece is shorter, and the collator pads it.

Nothing here keeps a random state. A mask depends only on (seed, epoch, example), and the example at a position of the
run only on (seed, position), so batches, workers, processes and restarts cannot change them.
"""

import bisect
import itertools
from collections.abc import Sequence

import numpy as np
import torch
from tokenizers.models import WordPiece
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from mabert.data import WindowKind
from mabert.data.cache import Documents
from mabert.schema import IGNORED


class Windows:
    """A sequence of windows of documents; `windows[i]` is int64 `(at most length,)` and always the same. `length`
    counts [CLS] and the final [SEP] and is at least 4.

    Raises ValueError if there are no documents.
    """

    def __init__(self, documents: Documents, length: int, mode: WindowKind = "packed") -> None:
        if not len(documents):
            raise ValueError("there are no documents to cut into windows")
        self.documents, self.length, self._packed = documents, length, mode == "packed"
        body = length - 2
        # Where each document begins in the joined stream (packed), or the index of its first window (document).
        steps = documents.lengths + 1 if self._packed else -(-documents.lengths // body)
        self._begins = np.concatenate([[0], np.cumsum(steps)])
        self._size = -(-(int(self._begins[-1]) - 1) // body) if self._packed else int(self._begins[-1])

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> np.ndarray:
        """Returns one window."""
        if not 0 <= index < self._size:
            raise IndexError(f"window {index} of {self._size}")
        body = self.length - 2
        if self._packed:
            piece = self._of_stream(index * body, min((index + 1) * body, int(self._begins[-1]) - 1))
        else:
            document = int(np.searchsorted(self._begins, index, side="right")) - 1
            begin = (index - int(self._begins[document])) * body
            piece = self.documents[document][begin : begin + body]
        special = self.documents.cache.special_ids
        return np.concatenate([[special["cls"]], piece, [special["sep"]]], dtype=np.int64)

    def _of_stream(self, begin: int, end: int) -> np.ndarray:
        """Returns tokens `begin` to `end` of the stream, with a separator between documents."""
        piece = np.full(end - begin, self.documents.cache.special_ids["sep"], dtype=np.int64)
        document = int(np.searchsorted(self._begins, begin, side="right")) - 1
        while document < len(self.documents) and self._begins[document] < end:
            first = int(self._begins[document])
            ids = self.documents[document][max(0, begin - first) : end - first]
            at = max(begin, first) - begin
            piece[at : at + len(ids)] = ids
            document += 1
        return piece


_WORD = (1 << 64) - 1


class MlmMasking:
    """Chooses and hides tokens as BERT does (Devlin et al. 2019, section 3.1).

    Of the n ordinary tokens of a window, `max(1, round(probability * n))` are chosen. Each chosen token becomes [MASK]
    with probability `mask_share`, a random ordinary token with probability `random_share`, and stays as it is
    otherwise. Special tokens, [UNK] included, are neither chosen nor drawn.

    Args:
        tokenizer: source of the special tokens, the vocabulary size and, for whole words, the continuation pieces.
        probability: share of the ordinary tokens that are chosen.
        mask_share: share of the chosen ones that become [MASK].
        random_share: share of the chosen ones that become a random token.
        whole_word: choose all pieces of a word or none; WordPiece marks continuation pieces with `##`. Words are drawn
            in random order while they fit the number of tokens to choose; at least one is drawn. Other vocabularies do
            not show which piece begins a word after punctuation.

    Raises:
        ValueError: a probability is out of range, or `whole_word` is set and the vocabulary has no `##` pieces.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        probability: float = 0.15,
        mask_share: float = 0.8,
        random_share: float = 0.1,
        whole_word: bool = False,
    ) -> None:
        if not 0 < probability <= 1:
            raise ValueError(f"the masking probability is {probability}; it must lie above 0 and at most at 1")
        if min(mask_share, random_share) < 0 or mask_share + random_share > 1:
            raise ValueError(f"mask_share {mask_share} and random_share {random_share} must lie between 0 and 1 in all")
        self.probability, self.mask_share, self.random_share = probability, mask_share, random_share
        self.whole_word = whole_word
        self.mask_id = tokenizer.mask_token_id
        vocabulary, special = tokenizer.get_vocab(), set(tokenizer.all_special_ids)
        self._special = np.zeros(max(vocabulary.values()) + 1, dtype=bool)
        self._special[list(special)] = True
        self._ordinary = np.array(sorted(set(vocabulary.values()) - special))
        self._continues = np.zeros_like(self._special)
        if isinstance(tokenizer.backend_tokenizer.model, WordPiece):
            self._continues[[index for token, index in vocabulary.items() if token.startswith("##")]] = True
        if whole_word and not self._continues.any():
            raise ValueError(
                "whole_word masking needs a WordPiece vocabulary with pieces that start with ##; "
                f"{type(tokenizer).__name__} has none"
            )

    def __call__(self, ids: np.ndarray, seed: int, epoch: int, example: int) -> tuple[np.ndarray, np.ndarray]:
        """Masks one window, int64 `(time,)`; seed, epoch and example decide the mask.

        Returns:
            Input ids and labels, int64 `(time,)` each; labels are the original id where a token was chosen and -100
            elsewhere.
        """
        # A generator (Philox4x64; Salmon et al. 2011) that is keyed on these is made faster than by a `SeedSequence`.
        key = (seed & _WORD) | (epoch & _WORD) << 64
        draws = np.random.Generator(np.random.Philox(key=key, counter=(example & _WORD) << 192))
        free = np.flatnonzero(~self._special[ids])
        labels = np.full(len(ids), IGNORED, dtype=np.int64)
        inputs = ids.copy()
        if not len(free):
            return inputs, labels
        count = max(1, round(self.probability * len(free)))
        chosen = self._words(ids, free, count, draws) if self.whole_word else free[_order(draws, len(free))[:count]]
        labels[chosen] = ids[chosen]
        fate = draws.random(len(chosen))
        substitutes = self._ordinary[(draws.random(len(chosen)) * len(self._ordinary)).astype(np.int64)]
        inputs[chosen] = np.where(
            fate < self.mask_share,
            self.mask_id,
            np.where(fate < self.mask_share + self.random_share, substitutes, ids[chosen]),
        )
        return inputs, labels

    def item(self, ids: np.ndarray, seed: int, epoch: int, example: int) -> dict[str, torch.Tensor]:
        """Masks one window as an example for a collator: `input_ids` and `labels`."""
        inputs, labels = self(ids, seed, epoch, example)
        return {"input_ids": torch.from_numpy(inputs), "labels": torch.from_numpy(labels)}

    def _words(self, ids: np.ndarray, free: np.ndarray, count: int, draws: np.random.Generator) -> np.ndarray:
        """Chooses positions of whole words, `count` at most unless the first word alone is longer."""
        follows = self._continues[ids[free]] & (np.diff(free, prepend=-2) == 1)
        words = np.split(free, np.flatnonzero(~follows)[1:])
        order = _order(draws, len(words))
        chosen, room = [words[order[0]]], count - len(words[order[0]])
        for index in order[1:]:
            if room <= 0:
                break
            if len(words[index]) <= room:
                chosen.append(words[index])
                room -= len(words[index])
        return np.concatenate(chosen)


def _order(draws: np.random.Generator, count: int) -> np.ndarray:
    return draws.random(count).argsort(kind="stable")


class PretrainingStream(Dataset):
    """All examples of a pretraining run as a map-style data set, to be read in order.

    Each stage, a pair of windows and a number of samples, draws these from its windows, with a new random order in
    every epoch. Item i depends on the arguments and i alone, so a run resumed at sample i continues exactly. There is
    at least one stage, and the seed is not negative.
    """

    def __init__(self, stages: Sequence[tuple[Windows, int]], masking: MlmMasking, seed: int = 0) -> None:
        self.stages, self.masking, self.seed = list(stages), masking, seed
        self._ends = list(itertools.accumulate(samples for _, samples in stages))
        self._order: tuple[tuple[int, int], np.ndarray] | None = None

    def __len__(self) -> int:
        return self._ends[-1]

    def place(self, index: int) -> tuple[int, int, int]:
        """Returns the stage of item `index`, and the epoch and window within that stage."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        stage = bisect.bisect_right(self._ends, index)
        windows, samples = self.stages[stage]
        epoch, position = divmod(index - (self._ends[stage] - samples), len(windows))
        if self._order is None or self._order[0] != (stage, epoch):
            order = np.random.default_rng([self.seed, stage, epoch]).permutation(len(windows))
            self._order = ((stage, epoch), order)
        return stage, epoch, int(self._order[1][position])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Returns input ids and labels of one sample, int64 `(time,)` each."""
        stage, epoch, example = self.place(index)
        return self.masking.item(self.stages[stage][0][example], self.seed, epoch, example)


class ValidationSet(Dataset):
    """Held-out windows with fixed masks, to measure MLM loss and accuracy: all in order, or `limit` of them (at
    least 1), which the seed chooses."""

    def __init__(self, windows: Windows, masking: MlmMasking, seed: int = 0, limit: int | None = None) -> None:
        self.windows, self.masking, self.seed = windows, masking, seed
        self._examples: Sequence[int] = range(len(windows))
        if limit is not None and limit < len(windows):
            self._examples = sorted(np.random.default_rng(seed).permutation(len(windows))[:limit].tolist())

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Returns input ids and labels of one window, int64 `(time,)` each."""
        example = self._examples[index]
        return self.masking.item(self.windows[example], self.seed, 0, example)
