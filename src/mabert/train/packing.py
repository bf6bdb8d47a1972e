"""Packed training with transformers' own Trainer."""

import copy
import math
from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import nn
from torch.utils.data import DataLoader
from transformers import TrainingArguments
from transformers.trainer_utils import has_length

from mabert.data import TOKENS_A_BATCH
from mabert.data.batches import TokenBudgetSampler
from mabert.data.collate import FlatteningCollator
from mabert.train.trainer import RecordingTrainer, orderly


class PackingTrainer(RecordingTrainer):
    """transformers' Trainer for MaBERT's models on rows of many packed texts, without padding.

    A batch holds as many examples as fit a token budget; each process has batches of its own. So epochs differ in their
    number of batches, and Trainer assumes that they do not. Trainer therefore sees one long epoch: `num_train_epochs`,
    or as many as `max_steps` needs. No example is dropped, resuming finds the right batch, and logged epochs are
    fractions of that pass. An epoch that is not whole, such as the last of 1.5, takes that share of its steps, rounded
    up.

    Weight decay has the same exemptions as `mabert pretrain`, see `mabert.train.objective`.

    Args:
        model: A MaBERT model; for language modelling, best with `sparse_prediction`.
        args: transformers' `TrainingArguments`; kept as they are. Training batches are counted in tokens, so
            `per_device_train_batch_size` has no effect; evaluation packs `per_device_eval_batch_size` texts per row.
        batch_tokens: Maximum tokens per batch; a longer example gets a batch of its own.
        data_collator: Default, `FlatteningCollator()`, for examples with labels.
        lengths: Tokens of each example of the training set, as a list, an array, a tensor or a column; default, those
            of their `input_ids`.
        arguments: Other arguments of Trainer.

    Raises:
        ValueError: An action is set for every epoch, of which Trainer sees only one. When training begins: the number
            of examples is not known, or not that of `lengths`, or `num_train_epochs` is not above 0.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        *,
        batch_tokens: int = TOKENS_A_BATCH,
        data_collator: Any = None,
        lengths: Iterable[int] | None = None,
        **arguments: Any,
    ) -> None:
        args = orderly(copy.copy(args))
        self.epochs = 1 if args.max_steps > 0 else args.num_train_epochs
        for name in ("eval_strategy", "save_strategy", "logging_strategy"):
            if (args.max_steps > 0 or self.epochs > 1) and getattr(args, name) == "epoch":
                raise ValueError(f"{name} is 'epoch', and all epochs are one pass here: give it 'steps'")
        args.num_train_epochs = 1
        self.batch_tokens, self.lengths = batch_tokens, None if lengths is None else list(lengths)
        super().__init__(model, args, FlatteningCollator() if data_collator is None else data_collator, **arguments)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Returns a loader of this process's share of the run's batches."""
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=self.batches(),
            collate_fn=self._get_collator_with_removed_columns(self.data_collator, description="training"),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)

    def batches(self) -> TokenBudgetSampler:
        """Returns the run's batches over all processes."""
        if not has_length(self.train_dataset):
            raise ValueError("train_dataset has no length; packing chooses among all examples, give it a list of them")
        if self.epochs <= 0:
            raise ValueError(f"num_train_epochs is {self.epochs:g}; it must be above 0, or max_steps at least 1")
        lengths = self.lengths
        if lengths is None:
            lengths = [len(example["input_ids"]) for example in self.train_dataset]
        if len(lengths) != len(self.train_dataset):
            raise ValueError(
                f"lengths has {len(lengths)} numbers, and train_dataset {len(self.train_dataset)} examples"
            )
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        a_step = self.args.gradient_accumulation_steps * self.args.world_size
        epochs, wanted = math.ceil(self.epochs), self.args.max_steps * a_step
        make = partial(TokenBudgetSampler, lengths, self.batch_tokens, seed=seed, processes=self.args.world_size)
        sampler = make(epochs=epochs)
        while len(sampler) < wanted:
            epochs = max(epochs + 1, epochs * wanted // len(sampler))
            sampler = make(epochs=epochs)
        if self.epochs == epochs or wanted > 0:
            return sampler
        begin, end = (-(-batches // a_step) for batches in [0, *sampler.epoch_ends()][-2:])
        return make(epochs=epochs, most=a_step * math.ceil(begin + (end - begin) * (self.epochs - (epochs - 1))))
