"""Batch samplers: by similar length, to keep padding low, by number of examples, and by number of tokens."""

import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler
from transformers.trainer_pt_utils import LengthGroupedSampler

from mabert.data import TOKENS_A_BATCH

_WINDOW = 50
"""How many batches' worth of examples are sorted together."""


def batches_by_length(lengths: Sequence[int], tokens: int = TOKENS_A_BATCH) -> list[list[int]]:
    """Groups texts of similar length into batches of at most so many padded tokens; a longer text is alone in one.

    Returns one list of indices per batch, longest texts first, so that memory use peaks at the start.
    """
    lengths = _whole(lengths)
    order = sorted(range(len(lengths)), key=lambda text: -lengths[text])
    return _cut(order, lengths, tokens, padded=True)


def _whole(lengths: Iterable[int]) -> list[int]:
    """Returns lengths as Python's whole numbers, from any sequence, array, tensor or column: NumPy's narrow integers
    would wrap around in a sum, and a pandas column counts by its own index."""
    return [int(length) for length in lengths]


def _cut(order: Sequence[int], lengths: Sequence[int], tokens: int, padded: bool) -> list[list[int]]:
    """Cuts ordered indices into batches of at most `tokens` tokens, counted with or without padding."""
    batches: list[list[int]] = []
    total = longest = 0
    for index in order:
        length = lengths[index]
        longest, total = max(longest, length), total + length
        cost = longest * (len(batches[-1]) + 1) if batches and padded else total
        if not batches or cost > tokens:
            batches.append([])
            longest = total = length
        batches[-1].append(index)
    return batches


class SplitBatches(Sampler[list[int]]):
    """Splits each global batch into one part per process. accelerate hands the parts out in turn, so all processes
    together see the same batches as a single process would, whatever their sizes.

    A process that gets no example of a batch runs the batch's first one, with weight zero (see `batch_share`).
    """

    def __init__(self, batches: Sampler[list[int]], processes: int) -> None:
        self.batches, self.processes = batches, processes

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches:
            for rank in range(self.processes):
                yield batch[rank :: self.processes] or batch[:1]

    def __len__(self) -> int:
        return self.processes * len(self.batches)  # type: ignore[arg-type]


def batch_share(scored: Sequence[int], rank: int, processes: int, rows: slice = slice(None)) -> float:
    """Returns the weight of some of a process's examples in a batch's loss: their share of the batch's loss terms,
    times the number of processes. `rows` selects the examples (default, all); `scored` holds the number of loss terms
    of each."""
    return sum(scored[rank::processes][rows]) * processes / sum(scored)


class ExampleSampler(Sampler[list[int]]):
    """Batches of `size` examples: a `batch_sampler` for a DataLoader.

    One pass over the sampler is the whole run: all epochs, each in its own order. Every pass is the same, so a run
    resumes exactly by skipping the batches that are done. Give Trainer one epoch. If `grouped`, examples of similar
    length are batched by transformers' `LengthGroupedSampler`, the longest of an epoch first; else they are drawn at
    random.
    """

    def __init__(self, lengths: Sequence[int], size: int, *, epochs: int, seed: int, grouped: bool) -> None:
        self.lengths, self.size, self.epochs, self.seed, self.grouped = _whole(lengths), size, epochs, seed, grouped

    def __iter__(self) -> Iterator[list[int]]:
        draws = torch.Generator().manual_seed(self.seed)
        order: Sampler[int] = RandomSampler(self.lengths, generator=draws)
        if self.grouped:
            order = LengthGroupedSampler(self.size, lengths=self.lengths, generator=draws)
        for _ in range(self.epochs):
            yield from BatchSampler(order, self.size, drop_last=False)

    def __len__(self) -> int:
        return self.epochs * -(-len(self.lengths) // self.size)

    def epoch_ends(self) -> list[int]:
        """Counts batches from the start of the run to the end of each epoch."""
        return [len(self) // self.epochs * done for done in range(1, self.epochs + 1)]


class TokenBudgetSampler(Sampler[list[int]]):
    """Batches of as many examples as fit a token budget: a `batch_sampler` for a DataLoader.

    One pass over the sampler is the whole run: all epochs, each in an order that depends on (seed, epoch) alone. So a
    run resumes exactly by skipping the batches that are done. Epochs differ in their number of batches, but Trainer
    assumes that they do not: give it `num_train_epochs=1`, and `even_batches=False` where several processes share the
    batches. `mabert.train.packing.PackingTrainer` does both.

    Args:
        lengths: tokens of each example.
        tokens: maximum tokens per batch; a longer example gets a batch of its own.
        epochs: passes over the examples.
        seed: seed of the shuffling.
        grouped: batch examples of similar length, for padded batches: fifty batches' worth of examples are sorted by
            length and cut into batches, and then all batches are shuffled.
        padded: count the tokens of a batch with padding (longest length times examples) instead of summing the lengths.
        processes: number of processes that share the batches; the run's last few are dropped so that all get equally
            many.
        most: batches after which the run ends, over all processes; default, all of them.

    Raises:
        ValueError: a number is below 1, or there are no examples, or fewer batches than processes.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        tokens: int = TOKENS_A_BATCH,
        *,
        epochs: int = 1,
        seed: int = 0,
        grouped: bool = False,
        padded: bool = False,
        processes: int = 1,
        most: int | None = None,
    ) -> None:
        for name, value in {"tokens": tokens, "epochs": epochs, "processes": processes, "most": most}.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        self.lengths = _whole(lengths)
        if not self.lengths:
            raise ValueError("there are no examples to sample")
        self.tokens, self.epochs, self.seed = tokens, epochs, seed
        self.grouped, self.padded, self.processes, self.most = grouped, padded, processes, most
        self.first = 0
        self._ends: list[int] | None = None
        if not len(self):
            raise ValueError(
                f"{len(self.lengths)} examples make fewer batches of {tokens} tokens than {processes} processes"
            )

    def set_epoch(self, epoch: int) -> None:
        """Continues after `epoch` passes over the sampler; warns if there was one."""
        if epoch > 0:
            warnings.warn(
                "TokenBudgetSampler begins a second epoch. Under Trainer, which counts all as long as the first, "
                "batches are dropped and resuming finds others: give it num_train_epochs=1, and the sampler epochs=N",
                stacklevel=2,
            )
        if self.first != epoch * self.epochs:
            self.first, self._ends = epoch * self.epochs, None

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.islice(itertools.chain.from_iterable(self._epochs()), len(self))

    def __len__(self) -> int:
        return self.epoch_ends()[-1]

    def epoch_ends(self) -> list[int]:
        """Counts the batches of all processes from the start of the run to the end of each epoch. The last count leaves
        out the batches that the run drops."""
        if self._ends is None:
            ends = list(itertools.accumulate(map(len, self._epochs())))
            last = (ends[-1] if self.most is None else min(self.most, ends[-1])) // self.processes * self.processes
            self._ends = [*(min(end, last) for end in ends[:-1]), last]
        return list(self._ends)

    def _epochs(self) -> Iterator[list[list[int]]]:
        return map(self._epoch, range(self.first, self.first + self.epochs))

    def _epoch(self, epoch: int) -> list[list[int]]:
        order = self._shuffled(len(self.lengths), epoch)
        at_once = len(order)
        if self.grouped:
            at_once = max(1, int(_WINDOW * self.tokens / max(1.0, sum(self.lengths) / len(order))))
        batches: list[list[int]] = []
        for first in range(0, len(order), at_once):
            some = order[first : first + at_once]
            if self.grouped:
                some.sort(key=lambda index: -self.lengths[index])
            batches += _cut(some, self.lengths, self.tokens, self.padded)
        return [batches[place] for place in self._shuffled(len(batches), epoch, 1)] if self.grouped else batches

    def _shuffled(self, count: int, *keys: int) -> list[int]:
        return np.random.default_rng([self.seed, *keys]).permutation(count).tolist()
