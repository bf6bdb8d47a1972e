"""What is run: forwards of texts, or one training step. See `mabert_lab.bench.profiles` for how a model is set up."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mabert.baselines.family import Shape
from mabert.baselines.load import build
from mabert.infer.info import peak_bytes
from mabert.machine.memory import is_out_of_memory
from mabert.machine.rounds import timed
from mabert.model import MaBertConfig
from mabert.model.attention import can_fuse
from mabert.model.prepack import PackedLinear
from mabert.train.objective import at_scored_positions, mean_over_scored
from mabert_lab.bench.engines import ENGINES, OUTSIDE, Contender, contender, engine_of
from mabert_lab.bench.profiles import DTYPES, Cell, configured

EFFECTIVE_BATCH = 32
SCORED = 0.15
PAPER_DROPOUT = 0.1
MICRO_TOKENS = 1024
"""Tokens at once in a training step on a CPU; the rest of the batch is accumulated."""

FIRST = 16
"""Tokens of the first call of a model, which is not timed: kernels are compiled in it where they are not yet."""

LAYOUTS = ("alone", "together", "masked", "even")
"""How a forward runs several texts: one by one; in one batch; in one batch that MaBERT does not unpad; or as many
tokens in rows of equal length."""


class Sample(NamedTuple):
    """One call: the seconds that it took, and those of the whole that it stands for."""

    spent: float
    whole: float


def even(lengths: Sequence[int]) -> int:
    """The length of rows that are as many and in all as long as the texts, up to rounding."""
    return round(sum(lengths) / len(lengths))


def token_ids(batch: int, length: int, device: str) -> Tensor:
    """Random ids, the same each time, that every family's vocabulary has and none has as a special token."""
    return torch.randint(1000, 29000, (batch, length), generator=torch.Generator().manual_seed(0)).to(device)


def synchronise(device: str) -> None:
    """Waits until a GPU has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


class Forward:
    """Forwards of an encoder over a cell's texts, in their order, in batches padded on the right.

    Attributes:
        setting: The attention it runs with, and the engine.
        batch: Texts of a batch.
        batches: What the model is called with, a batch each; without a mask where nothing is padded.
    """

    def __init__(self, contender: Contender, cell: Cell) -> None:
        torch.manual_seed(0)
        family, engine, config = contender
        self.device, self.texts = cell.device, cell.texts or (cell.length,)
        if cell.layout == "even":
            self.texts = (even(self.texts),) * len(self.texts)
        model = build("encoder", configured(family, cell, config), hastened=cell.profile == "best")
        self.model: PreTrainedModel = model.to(cell.device, DTYPES[cell.dtype]).eval()
        self.engine = engine or engine_of(family, cell)
        self.encode = ENGINES[self.engine](self.model)
        # On a GPU, and by torch.compile, kernels are compiled for each length.
        self.each_shape = cell.device == "cuda" or self.engine == "compiled"
        if not self.each_shape:
            self._first(token_ids(2, FIRST, cell.device))  # several, which every kernel serves
        self.cut(1 if cell.layout == "alone" else len(self.texts))

    @torch.inference_mode()
    def _first(self, ids: Tensor) -> None:
        self.encode(input_ids=ids)
        synchronise(self.device)

    def cut(self, batch: int) -> str:
        """Lay the texts out in batches of so many; return the setting."""
        self.batch = self.micro_batch = batch
        self.batches: list[dict[str, Tensor]] = []
        for first in range(0, len(self.texts), batch):
            lengths = torch.tensor(self.texts[first : first + batch])
            mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
            ids = token_ids(len(mask), mask.shape[1], "cpu").masked_fill(~mask, self.model.config.pad_token_id)
            inputs = {"input_ids": ids.to(self.device)}
            self.batches.append(inputs if mask.all() else {**inputs, "attention_mask": mask.long().to(self.device)})
        shapes = {inputs["input_ids"].shape: inputs["input_ids"] for inputs in self.batches}
        if self.each_shape:
            for ids in shapes.values():
                self._first(ids)
        self.setting = " and ".join(dict.fromkeys(self._attention(*shape) for shape in shapes))
        self.setting += "" if self.engine == "eager" else f", {self.engine}"
        self.setting = self.engine if self.engine in OUTSIDE else self.setting
        return self.setting

    @torch.inference_mode()
    def _attention(self, texts: int, length: int) -> str:
        """The attention that runs for so many texts: MaBERT's own kernel may stand in for SDPA."""
        config = self.model.config
        hidden = torch.empty(1, length, config.hidden_size, dtype=self.model.dtype, device=self.model.device)
        usual = {"training": False, "output_attentions": False}
        own = isinstance(config, MaBertConfig) and can_fuse(config, hidden, texts, **usual)
        return "mabert::softmax_attention" if own else str(config._attn_implementation)

    @torch.inference_mode()
    def run(self) -> None:
        """Run all batches, and wait for them."""
        synchronise(self.device)
        for inputs in self.batches:
            self.encode(**inputs)
        synchronise(self.device)

    def sample(self) -> Sample:
        """Time all batches once."""
        seconds = timed(self.run)
        return Sample(seconds, seconds)

    def weights(self) -> int:
        """Bytes of all parameters, prepacked ones too."""
        packed = sum(module.nbytes for module in self.model.modules() if isinstance(module, PackedLinear))
        return packed + sum(parameter.nbytes for parameter in self.model.parameters())

    def peak(self) -> int:
        """Bytes that torch holds at the height of a forward of the first batch, weights included."""
        if self.device == "cpu":
            return self.weights() + peak_bytes(self.encode, self.batches[0]["input_ids"])
        self.run()
        torch.cuda.reset_peak_memory_stats()
        self.run()
        return torch.cuda.max_memory_allocated()


class TrainingStep:
    """One optimizer step of masked language modelling at an effective batch of 32.

    The whole step is as many micro-batches as the batch needs, forward and backward, and AdamW once. Micro-batches are
    alike, so one is timed and counted as often as it comes: where there are several, one that adds to gradients that
    are there already.

    Attributes:
        setting: The attention it runs with.
        batch: 32.
        micro_batch: Rows at once.
    """

    batch = EFFECTIVE_BATCH

    def __init__(self, contender: Contender, cell: Cell) -> None:
        family, engine, own = contender
        if engine:
            raise ValueError(f"the engine {engine!r} runs forwards alone, no training step")
        torch.manual_seed(0)
        rate = PAPER_DROPOUT if cell.profile == "paper" else 0.0
        config = configured(family, cell, own, **family.dropout(Shape(hidden_dropout=rate, attention_dropout=rate)))
        self.device, self.sparse = cell.device, cell.profile != "paper"
        self.setting = config._attn_implementation
        model = build("masked_lm", config, hastened=cell.profile == "best")
        self.model: PreTrainedModel = model.to(cell.device).train()
        self.head = getattr(self.model, family.head)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.autocast = cell.dtype == "bfloat16"
        self.lay_out(max(1, min(self.batch, MICRO_TOKENS // cell.length)), FIRST)
        self.run()
        self.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.device == "cuda":
            self.lay_out(self.largest(cell.length), cell.length)
        else:
            self.lay_out(self.micro_batch, cell.length)

    def lay_out(self, rows: int, length: int) -> None:
        """Make a micro-batch."""
        self.micro_batch = rows
        self.ids = token_ids(rows, length, self.device)
        scored = torch.rand(self.ids.shape, generator=torch.Generator().manual_seed(1)) < SCORED
        self.labels = self.ids.masked_fill(~scored.to(self.device), -100)

    def largest(self, length: int) -> int:
        """Halve the micro-batch until two of them fit with the optimizer's step between."""
        rows = self.batch
        while True:
            self.lay_out(rows, length)
            try:
                self.run()
                self.update()
                self.run()
                fits = True
            except RuntimeError as error:  # of drivers and kernels too, which have errors of their own for it
                if rows == 1 or not is_out_of_memory(error):
                    raise
                fits = False
            self.optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            if fits:
                return rows
            rows //= 2

    def loss(self) -> Tensor:
        """The loss of the micro-batch, a scalar."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            if not self.sparse:
                return self.model(input_ids=self.ids, labels=self.labels).loss
            with at_scored_positions(self.head, self.labels):
                outputs = self.model(input_ids=self.ids)
            return mean_over_scored(outputs, self.labels)

    def run(self) -> None:
        """Run a micro-batch, forward and backward, and wait for it."""
        synchronise(self.device)
        self.loss().backward()
        synchronise(self.device)

    def update(self) -> None:
        """Take the optimizer's step."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.micro_batch == self.batch)
        synchronise(self.device)

    def sample(self) -> Sample:
        """Time a micro-batch and the optimizer's step once."""
        call, rest = timed(self.run), timed(self.update)
        return Sample(call + rest, call * self.batch / self.micro_batch + rest)


Task = Forward | TrainingStep
"""A model that is ready to run."""


def make(name: str, cell: Cell) -> Task:
    """Build what a cell asks of a contender, see `mabert_lab.bench.engines.contender`."""
    return (TrainingStep if cell.measure == "training" else Forward)(contender(name), cell)
