"""What is timed: forward passes or a training step. See `mabert_lab.bench.profiles` for the setup of a model."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mabert.data.collate import places_of
from mabert.infer.info import peak_bytes
from mabert.machine.memory import is_out_of_memory
from mabert.machine.rounds import timed
from mabert.model import MaBertConfig
from mabert.model.attention import can_fuse
from mabert.model.prepack import PackedLinear
from mabert.opening.uses import build, compile_layers
from mabert.schema import IGNORED
from mabert.train.objective import at_places, mean_over_scored
from mabert_lab.bench.engines import ENGINES, RUNTIMES, Contender, contender
from mabert_lab.bench.operators import synchronise
from mabert_lab.bench.profiles import DTYPES, Cell, configured, engine_of

EFFECTIVE_BATCH = 32
SCORED_SHARE = 0.15
PAPER_DROPOUT = 0.1
MICRO_TOKENS = 1024  # tokens per micro-batch of a training step on a CPU; gradients accumulate over the batch
FIRST = 16  # tokens of a model's first, untimed call, in which kernels may be compiled


class Sample(NamedTuple):
    """One call, in seconds."""

    spent: float
    whole: float  # of all that the call stands for


def even(lengths: Sequence[int]) -> int:
    """Returns the mean length, for as many rows with about as many tokens as the texts."""
    return round(sum(lengths) / len(lengths))


def token_ids(batch: int, length: int, device: str) -> Tensor:
    """Returns random ids, always the same ones, that are ordinary tokens of every family's vocabulary."""
    return torch.randint(1000, 29000, (batch, length), generator=torch.Generator().manual_seed(0)).to(device)


class Forward:
    """An encoder's forward passes over a cell's texts, in order: one by one, or in one batch padded on the right."""

    def __init__(self, contender: Contender, cell: Cell) -> None:
        torch.manual_seed(0)
        family, engine, config = contender
        self.device, self.texts = cell.device, cell.texts or (cell.length,)
        if cell.layout == "even":
            self.texts = (even(self.texts),) * len(self.texts)
        with torch.device(cell.device):  # random weights take seconds on a CPU
            model = build("encoder", configured(family, cell, config), fast=cell.profile == "best")
        self.model: PreTrainedModel = model.to(cell.device, DTYPES[cell.dtype]).eval()
        self.engine = engine or engine_of(family, cell)
        self.encode = ENGINES[self.engine](self.model)
        # On a GPU, and with torch.compile, kernels are compiled per length.
        self.each_shape = cell.device == "cuda" or self.engine == "compiled"
        if not self.each_shape:
            self._first(token_ids(2, FIRST, cell.device))  # two rows, which every kernel supports
        self.batch = self.micro_batch = 1 if cell.layout == "alone" else len(self.texts)
        self._divide()

    @torch.inference_mode()
    def _first(self, ids: Tensor) -> None:
        self.encode(input_ids=ids)
        synchronise(self.device)

    def _divide(self) -> None:
        """Makes the model's inputs, without a mask where nothing is padded, and names attention and engine in use."""
        self.batches: list[dict[str, Tensor]] = []
        for first in range(0, len(self.texts), self.batch):
            lengths = torch.tensor(self.texts[first : first + self.batch])
            mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
            ids = token_ids(len(mask), mask.shape[1], "cpu").masked_fill(~mask, self.model.config.pad_token_id)
            inputs = {"input_ids": ids.to(self.device)}
            self.batches.append(inputs if mask.all() else {**inputs, "attention_mask": mask.long().to(self.device)})
        shapes = {inputs["input_ids"].shape: inputs["input_ids"] for inputs in self.batches}
        if self.each_shape:
            for ids in shapes.values():
                self._first(ids)
        attention = " and ".join(dict.fromkeys(self._attention(*shape) for shape in shapes))
        if self.engine in RUNTIMES:
            self.setting = self.engine
        else:
            self.setting = attention if self.engine == "eager" else f"{attention}, {self.engine}"

    @torch.inference_mode()
    def _attention(self, texts: int, length: int) -> str:
        """Returns the attention in use for a batch: MaBERT's own kernel may replace SDPA."""
        config = self.model.config
        hidden = torch.empty(1, length, config.hidden_size, dtype=self.model.dtype, device=self.model.device)
        usual = {"training": False, "output_attentions": False}
        own = isinstance(config, MaBertConfig) and can_fuse(config, hidden, texts, **usual)
        return "mabert::softmax_attention" if own else str(config._attn_implementation)

    @torch.inference_mode()
    def run(self) -> None:
        """Runs all batches and waits for them."""
        synchronise(self.device)
        for inputs in self.batches:
            self.encode(**inputs)
        synchronise(self.device)

    def sample(self) -> Sample:
        seconds = timed(self.run)
        return Sample(seconds, seconds)

    def weights(self) -> int:
        """Returns the bytes of all parameters, including prepacked ones."""
        packed = sum(module.nbytes for module in self.model.modules() if isinstance(module, PackedLinear))
        return packed + sum(parameter.nbytes for parameter in self.model.parameters())

    def peak(self) -> int:
        """Returns torch's peak bytes in a forward pass of the first batch, weights included."""
        if self.device == "cpu":
            return self.weights() + peak_bytes(self.encode, self.batches[0]["input_ids"])
        self.run()
        torch.cuda.reset_peak_memory_stats()
        self.run()
        return torch.cuda.max_memory_allocated()


class TrainingStep:
    """One optimizer step of masked language modelling over the cell's texts, 32 if it names none: all micro-batches,
    forward and backward, and AdamW once. Micro-batches are alike, so one is timed and multiplied by their number; if
    there are several, it is one that adds to existing gradients."""

    def __init__(self, contender: Contender, cell: Cell) -> None:
        family, engine, own = contender
        if engine not in ("", "compiled"):
            raise ValueError(f"the engine {engine!r} runs forwards alone, no training step")
        torch.manual_seed(0)
        rate = PAPER_DROPOUT if cell.profile == "paper" else 0.0
        config = configured(family, cell, own, **family.dropout(rate, rate))
        self.device, self.sparse, self.batch = cell.device, cell.profile != "paper", len(cell.texts) or EFFECTIVE_BATCH
        self.setting = ", ".join(filter(None, (config._attn_implementation, engine)))
        with torch.device(cell.device):
            model = build("masked_lm", config, fast=cell.profile == "best")
        self.model: PreTrainedModel = model.to(cell.device).train()
        if engine:
            compile_layers(self.model)
        self.head = getattr(self.model, family.head)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.autocast = cell.dtype == "bfloat16"
        if self.device == "cuda":
            self.lay_out(self.largest(cell.length), cell.length)
            return
        self.lay_out(max(1, min(self.batch, MICRO_TOKENS // cell.length)), FIRST)
        self.run()
        self.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.lay_out(self.micro_batch, cell.length)

    def lay_out(self, rows: int, length: int) -> None:
        self.micro_batch = rows
        self.ids = token_ids(rows, length, self.device)
        scored = torch.rand(self.ids.shape, generator=torch.Generator().manual_seed(1)) < SCORED_SHARE
        labels = self.ids.masked_fill(~scored.to(self.device), IGNORED)
        self.places = places_of(labels)
        self.labels = labels.flatten()[self.places] if self.sparse else labels

    def largest(self, length: int) -> int:
        """Halves the micro-batch until two of them fit into memory with an optimizer step in between."""
        rows = self.batch
        while True:
            self.lay_out(rows, length)
            try:
                self.run()
                self.update()
                self.run()
                fits = True
            except RuntimeError as error:  # drivers and kernels have errors of their own for lack of memory
                if rows == 1 or not is_out_of_memory(error):
                    raise
                fits = False
            self.optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            if fits:
                return rows
            rows //= 2

    def loss(self) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            if not self.sparse:
                return self.model(input_ids=self.ids, labels=self.labels).loss
            with at_places(self.head, self.places):
                outputs = self.model(input_ids=self.ids)
            return mean_over_scored(outputs, self.labels)

    def run(self) -> None:
        """Runs a micro-batch, forward and backward, and waits for it."""
        synchronise(self.device)
        self.loss().backward()
        synchronise(self.device)

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.micro_batch == self.batch)
        synchronise(self.device)

    def sample(self) -> Sample:
        """Times a micro-batch and the optimizer step once."""
        call, rest = timed(self.run), timed(self.update)
        return Sample(call + rest, call * self.batch / self.micro_batch + rest)


def make(name: str, cell: Cell) -> Forward | TrainingStep:
    """Builds the task of a contender in a cell, see `mabert_lab.bench.engines.contender`."""
    return (TrainingStep if cell.measure == "training" else Forward)(contender(name), cell)
