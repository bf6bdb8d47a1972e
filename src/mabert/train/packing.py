"""Packed training under transformers' own Trainer."""

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
    """transformers' Trainer over rows of many texts, one behind the other, without padding: for MaBERT's models.

    A batch holds as many examples as fit a number of tokens; each process has batches of its own. Epochs differ in
    their number of batches, where Trainer takes all to be as long as the first: so all of `num_train_epochs`, or as
    many as `max_steps` asks for, are one pass to it, in which no example is dropped and which resumes at the right
    batch. What it logs as epochs are shares of that pass.

    Weight decay spares what `mabert pretrain` spares, see `mabert.train.optim`.

    Args:
        model: One of MaBERT's, for language modelling best with `sparse_prediction`.
        args: transformers' `TrainingArguments`; kept as they are. Texts of a batch are counted in tokens, so
            `per_device_train_batch_size` has no meaning; evaluation packs `per_device_eval_batch_size` texts a row.
        batch_tokens: Tokens of a batch at most; a longer example gets a batch of its own.
        data_collator: Default, `FlatteningCollator()`, for examples that bring their labels.
        lengths: Tokens of each example of the training set; default, those of their `input_ids`.
        arguments: What else Trainer takes.

    Raises:
        ValueError: Something is to be done every epoch, which Trainer sees one of, or the number of examples is not
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
        """The whole run's batches, of which each process gets its share."""
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=self.batches(),
            collate_fn=self._get_collator_with_removed_columns(self.data_collator, description="training"),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)

    def batches(self) -> TokenBudgetSampler:
        """The run's batches, those of all processes together."""
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
