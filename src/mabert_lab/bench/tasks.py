"""What the paper's efficiency tables measure, for any family of encoders: one forward, or one training step; and the
forwards of many texts. See `mabert_lab.bench.profiles` for how a model is set up."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mabert.baselines.family import Family, Shape
from mabert.baselines.load import build
from mabert.infer.info import peak_bytes
from mabert.memory import is_out_of_memory
from mabert.model import MaBertConfig
from mabert.model.attention import can_fuse
from mabert.model.prepack import PackedLinear, can_prepack, prepack
from mabert.rounds import timed
from mabert.train.objective import at_scored_positions, mean_over_scored
from mabert_lab.bench.profiles import DTYPES, Cell, configured, is_compiled, is_prepacked

EFFECTIVE_BATCH = 32
SCORED = 0.15
PAPER_DROPOUT = 0.1
MICRO_TOKENS = 1024
"""Tokens at once in a training step on a CPU; the rest of the batch is accumulated."""

FIRST = 16
"""Tokens of the first call of a model, which is not timed: kernels are compiled in it where they are not yet."""

COMPILED = ", compiled"
"""What a row's setting says of a model that went through `torch.compile`."""

PREPACKED = ", prepacked"
"""What it says of one whose weights lie as the processor's products read them."""


def compiled(model: torch.nn.Module) -> Any:
    """A model compiled for the shapes at hand; what was compiled before is forgotten, since past a limit dynamo would
    run eagerly without a word."""
    torch.compiler.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(model, dynamic=False)


def token_ids(batch: int, length: int, device: str) -> Tensor:
    """Random ids, the same each time, that every family's vocabulary has and none has as a special token."""
    return torch.randint(1000, 29000, (batch, length), generator=torch.Generator().manual_seed(0)).to(device)


def synchronise(device: str) -> None:
    """Waits until a GPU has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


class Forward:
    """One forward of an encoder at batch 1.

    Attributes:
        setting: The attention it runs with.
        batch: 1.
    """

    batch = micro_batch = 1

    def __init__(self, family: Family, cell: Cell) -> None:
        torch.manual_seed(0)
        config = configured(family, cell)
        self.device = cell.device
        model = build("encoder", config, hastened=cell.profile == "best")
        self.model: PreTrainedModel = model.to(cell.device, DTYPES[cell.dtype]).eval()
        self.hastening = ""
        if is_compiled(family, cell):
            self.hastening = COMPILED
            self.model = compiled(self.model)
        elif is_prepacked(family, cell) and can_prepack(self.model.device, self.model.dtype):
            self.hastening = PREPACKED
            self.model = prepack(self.model)
        self.setting = self._named([(1, cell.length)])
        self.ids = token_ids(1, cell.length, cell.device)
        # On a GPU kernels are compiled for long inputs apart from short ones; torch.compile does it for each length,
        # and anew for tensors made in inference mode.
        whole = cell.device == "cuda" or is_compiled(family, cell)
        first = self.ids if whole else token_ids(2, FIRST, cell.device)  # several, which every kernel serves
        with torch.inference_mode():
            self.model(input_ids=first)
        synchronise(cell.device)

    def _named(self, shapes: Iterable[tuple[int, int]]) -> str:
        """What inputs of these shapes run with, (texts, tokens of a row) each."""
        return " and ".join(dict.fromkeys(self._attention(*shape) for shape in shapes)) + self.hastening

    @torch.inference_mode()
    def _attention(self, texts: int, length: int) -> str:
        """The attention that runs for so many texts: MaBERT's own kernel may stand in for SDPA."""
        config = self.model.config
        hidden = torch.empty(1, length, config.hidden_size, dtype=self.model.dtype, device=self.model.device)
        usual = {"training": False, "output_attentions": False}
        own = isinstance(config, MaBertConfig) and can_fuse(config, hidden, texts, **usual)
        return "mabert::softmax_attention" if own else str(config._attn_implementation)

    def __call__(self) -> float:
        """Run it; return the seconds it took."""
        return timed(self._run)

    @torch.inference_mode()
    def _run(self) -> None:
        synchronise(self.device)
        self.model(input_ids=self.ids)
        synchronise(self.device)

    def rest(self) -> float:
        """Seconds that the whole takes beside the calls: none."""
        return 0.0

    def weights(self) -> int:
        """Bytes of all parameters, prepacked ones too."""
        packed = sum(module.nbytes for module in self.model.modules() if isinstance(module, PackedLinear))
        return packed + sum(parameter.nbytes for parameter in self.model.parameters())

    def peak(self) -> int:
        """Bytes that torch holds at the height of a forward, weights included."""
        if self.device == "cpu":
            return self.weights() + peak_bytes(self.model, self.ids)
        self._run()
        torch.cuda.reset_peak_memory_stats()
        self._run()
        return torch.cuda.max_memory_allocated()


class Throughput(Forward):
    """Forwards of texts of given lengths, in their order, in batches padded on the right.

    Attributes:
        batch: Texts of a batch.
    """

    def __init__(self, family: Family, cell: Cell) -> None:
        super().__init__(family, cell)
        self.texts = cell.texts
        self.batch = self.micro_batch = 1
        self._batches: list[tuple[Tensor, Tensor | None]] = []
        self._uncompiled = getattr(self.model, "_orig_mod", self.model)
        self.cut(1)

    def cut(self, batch: int) -> str:
        """Lay the texts out in batches of so many, without a mask where nothing is padded; a compiled model is compiled
        for their shapes here. Returns the setting."""
        self.batch = self.micro_batch = batch
        self._batches = []
        for first in range(0, len(self.texts), batch):
            lengths = torch.tensor(self.texts[first : first + batch])
            mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
            ids = token_ids(len(mask), mask.shape[1], "cpu").masked_fill(~mask, self.model.config.pad_token_id)
            self._batches.append((ids.to(self.device), None if mask.all() else mask.long().to(self.device)))
        if self.hastening == COMPILED:
            self.model = compiled(self._uncompiled)
            shapes = {ids.shape: ids for ids, _ in self._batches}
            with torch.inference_mode():
                for ids in shapes.values():
                    self.model(input_ids=ids, attention_mask=None)  # called otherwise, it would be compiled again
        self.setting = self._named((len(ids), ids.shape[1]) for ids, _ in self._batches)
        return self.setting

    @torch.inference_mode()
    def _run(self) -> None:
        synchronise(self.device)
        for ids, mask in self._batches:
            self.model(input_ids=ids, attention_mask=mask)
        synchronise(self.device)


class TrainingStep:
    """One optimizer step of masked language modelling at an effective batch of 32.

    A call is one micro-batch, forward and backward; the whole step is as many of those as the batch needs and
    AdamW once. Micro-batches are alike, so one is timed and counted as often as it comes: where there are several, one
    that adds to gradients that are there already.

    Attributes:
        setting: The attention it runs with.
        batch: 32.
        micro_batch: Rows of a call.
    """

    batch = EFFECTIVE_BATCH

    def __init__(self, family: Family, cell: Cell) -> None:
        torch.manual_seed(0)
        rate = PAPER_DROPOUT if cell.profile == "paper" else 0.0
        config = configured(family, cell, **family.dropout(Shape(hidden_dropout=rate, attention_dropout=rate)))
        self.device, self.sparse = cell.device, cell.profile != "paper"
        self.setting = config._attn_implementation
        model = build("masked_lm", config, hastened=cell.profile == "best")
        self.model: PreTrainedModel = model.to(cell.device).train()
        self.head = getattr(self.model, family.head)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.autocast = cell.dtype == "bfloat16"
        self.micro_batch = max(1, min(self.batch, MICRO_TOKENS // cell.length))
        self._lay_out(FIRST)
        self._run()
        self.rest()
        self.optimizer.zero_grad(set_to_none=True)
        if self.device == "cuda":
            self.micro_batch = self._largest(cell.length)
        self._lay_out(cell.length)

    def _lay_out(self, length: int) -> None:
        self.ids = token_ids(self.micro_batch, length, self.device)
        scored = torch.rand(self.ids.shape, generator=torch.Generator().manual_seed(1)) < SCORED
        self.labels = self.ids.masked_fill(~scored.to(self.device), -100)

    def _largest(self, length: int) -> int:
        rows = self.batch
        while True:
            self.micro_batch = rows
            self._lay_out(length)
            try:
                self()
                self.rest()
                self()
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

    def __call__(self) -> float:
        """Run a micro-batch; return the seconds it took."""
        return timed(self._run)

    def loss(self) -> Tensor:
        """The loss of the micro-batch, a scalar."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            if not self.sparse:
                return self.model(input_ids=self.ids, labels=self.labels).loss
            with at_scored_positions(self.head, self.labels):
                outputs = self.model(input_ids=self.ids)
            return mean_over_scored(outputs, self.labels)

    def _run(self) -> None:
        synchronise(self.device)
        self.loss().backward()
        synchronise(self.device)

    def rest(self) -> float:
        """Take the optimizer's step; return its seconds."""

        def step() -> None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=self.micro_batch == self.batch)
            synchronise(self.device)

        return timed(step)


Task = Forward | TrainingStep
"""A model that is ready to run."""


def make(family: Family, cell: Cell) -> Task:
    """What a cell asks of a family."""
    kinds: dict[str, type[Task]] = {"training": TrainingStep, "throughput": Throughput}
    return kinds.get(cell.measure, Forward)(family, cell)
