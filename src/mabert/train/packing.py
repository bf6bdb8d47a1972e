"""Packed training with transformers' own Trainer."""

import copy
import math
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import has_length

from mabert.data import TOKENS_A_BATCH
from mabert.data.batches import TokenBudgetSampler
from mabert.data.collate import FlatteningCollator
from mabert.train.optim import decay_parameter_names
from mabert.train.trainer import orderly

STRATEGIES = ("eval_strategy", "save_strategy", "logging_strategy")


class PackingTrainer(Trainer):
    """transformers' Trainer for MaBERT's models on rows of many packed texts, without padding.

    A batch holds as many examples as fit a token budget; each process has batches of its own. Epochs differ in their
    number of batches, but Trainer assumes that they do not. So all `num_train_epochs`, or as many as `max_steps` needs,
    are one epoch for Trainer: no example is dropped, and resuming finds the right batch. The epochs it logs are
    fractions of that pass.

    Weight decay has the same exemptions as `mabert pretrain`, see `mabert.train.optim`.

    Args:
        model: A MaBERT model; for language modelling, best with `sparse_prediction`.
        args: transformers' `TrainingArguments`; kept as they are. Training batches are counted in tokens, so
            `per_device_train_batch_size` has no effect; evaluation packs `per_device_eval_batch_size` texts per row.
        batch_tokens: Maximum tokens per batch; a longer example gets a batch of its own.
        data_collator: Default, `FlatteningCollator()`, for examples with labels.
        lengths: Tokens of each example of the training set; default, those of their `input_ids`.
        arguments: Other arguments of Trainer.

    Raises:
        ValueError: An action is set for every epoch, of which Trainer sees only one, or the number of examples is not
            known.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        *,
        batch_tokens: int = TOKENS_A_BATCH,
        data_collator: Any = None,
        lengths: Sequence[int] | None = None,
        **arguments: Any,
    ) -> None:
        args = orderly(copy.copy(args))
        self.epochs = 1 if args.max_steps > 0 else max(1, math.ceil(args.num_train_epochs))
        for name in STRATEGIES:
            if (args.max_steps > 0 or self.epochs > 1) and getattr(args, name) == "epoch":
                raise ValueError(f"{name} is 'epoch', and all epochs are one pass here: give it 'steps'")
        args.num_train_epochs = 1
        self.batch_tokens, self.lengths = batch_tokens, lengths
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
        lengths = self.lengths or [len(example["input_ids"]) for example in self.train_dataset]
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        how = {"seed": seed, "processes": self.args.world_size}
        sampler = TokenBudgetSampler(lengths, self.batch_tokens, epochs=self.epochs, **how)
        wanted = self.args.max_steps * self.args.gradient_accumulation_steps * self.args.world_size
        while len(sampler) < wanted:
            epochs = max(sampler.epochs + 1, sampler.epochs * wanted // len(sampler))
            sampler = TokenBudgetSampler(lengths, self.batch_tokens, epochs=epochs, **how)
        return sampler

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return decay_parameter_names(model)
