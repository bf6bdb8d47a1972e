"""What the paper's efficiency tables measure, for any family of encoders: one forward, or one training step.

Sizes are those of the published base models, or of a recipe's model, with random weights; nothing is padded. Three
profiles:

- ``paper``: as Table A2 has it, "math/mem-efficient": attention by SDPA without its flash kernels. A CPU has no
  memory-efficient kernel, so every model with SDPA keeps a matrix of scores there, in float32, as the paper's MaBERT
  did by its memory and the paper's BERT did not. Logits at every position, dropout 0.1 everywhere (Table A1), nothing
  packed or compiled.
- ``stock``: what a person gets who takes the rivals from transformers: SDPA with any kernel where a family has it, its
  own attention elsewhere, `torch.compile` where that helps, nothing of this package's; MaBERT as in ``best``.
- ``best``: each model as fast as it gives exact results here. For full attention the kernel of this package where it
  beats SDPA, in every model that has any but DeBERTa's, which no such kernel computes; for Longformer and ModernBERT's
  local layers attention that leaves out the scores outside the window, for BigBird's sparse ones one that keeps no
  weights; GELU's tanh form in one kernel where a model has that form. In forwards on a CPU weights prepacked, or of one
  text `torch.compile` for ModernBERT in bf16 below 1,024 tokens and for DeBERTa from there on, who gain more by that.
  Logits at scored positions only, no dropout. Many texts are compiled for only where all are of one length: else each
  shape of a batch would be anew. What serves a rival best was measured on a CPU; on a GPU it has the same settings,
  uncompiled.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mabert.baselines.family import Family, Shape
from mabert.baselines.load import build, class_for
from mabert.bench.rounds import timed
from mabert.infer.info import peak_bytes
from mabert.memory import is_want_of_memory
from mabert.model import MaBertConfig
from mabert.model.attention import can_fuse
from mabert.model.prepack import PackedLinear, can_prepack, prepack
from mabert.train.objective import at_scored_positions, mean_over_scored

Profile = Literal["paper", "stock", "best"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
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

SMALL = {"hidden_size": 64, "layer_pattern": "MMT", "num_attention_heads": 2, "intermediate_size": 96}
"""Sizes that show in seconds whether everything runs."""

WITHOUT_FLASH = "sdpa_plain"
"""Name of SDPA without its flash kernels among transformers' attention implementations, which take any with "flash" in
it for a kernel to fetch."""


def without_flash(module: torch.nn.Module, *tensors: Tensor, **options: Any) -> tuple[Tensor, None]:
    """SDPA as the paper's measurements had it: plain, or memory-efficient where the device offers that."""
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return sdpa_attention_forward(module, *tensors, **options)


AttentionInterface.register(WITHOUT_FLASH, without_flash)
AttentionMaskInterface.register(WITHOUT_FLASH, sdpa_mask)


def configured(family: Family, cell: "Cell", **changes: Any) -> PreTrainedConfig:
    """The configuration of the published base model, or of a recipe's sizes, for inputs of a cell's length, in its
    profile.

    The attention that it will run with stands in ``_attn_implementation``; families without SDPA have their own.
    """
    length, profile = cell.length, cell.profile
    if cell.small:
        config = family.config_of({**SMALL, **changes}, vocab_size=30_000, **family.special_ids(0, 1, 2))
    elif cell.recipe:
        config = family.config_of({**sizes_of(cell.recipe, family), **changes})
    else:
        config = family.base_config(**changes)
    limit = family.longest(config) or config.max_position_embeddings
    if length > limit:
        for name, value in family.longer(config, length).items():
            setattr(config, name, value)
    fast = class_for("encoder", config)._supports_sdpa
    with_sdpa = {"paper": WITHOUT_FLASH, "stock": "sdpa", "best": family.fast_attention}
    config._attn_implementation = with_sdpa[profile] if fast else "eager"
    if profile == "best" and getattr(config, "hidden_act", None) == "gelu_new":
        config.hidden_act = (
            "gelu_pytorch_tanh"  # the same function; transformers computes the other name in eight steps
        )
    if hasattr(config, "unpad"):
        config.unpad = "never" if profile == "paper" else "auto"
    return config


def model_of(recipe: str) -> dict[str, Any]:
    """A recipe's model section.

    Raises:
        FileNotFoundError: There is no such recipe.
        ValueError: It is none, or has no model of its own.
    """
    from mabert.train.recipe import load_recipe  # asks for packages that read text, which measuring does without

    read = load_recipe(recipe)
    if read.start_from is not None:
        raise ValueError(f"recipe is {recipe!r}, whose sizes are those of its start_from; name one with a model")
    return read.model


def sizes_of(recipe: str, family: Family) -> dict[str, Any]:
    """The fields of a recipe's model that a family understands; the vocabulary is that of its published model."""
    known = family.known_fields()
    return {name: value for name, value in model_of(recipe).items() if name in known}


def hastened(family: Family, config: PreTrainedConfig, cell: "Cell") -> str | None:
    """Name of the attention that a family has of ours in place of its configured one, if any: only at its best."""
    return family.hastened_attention(config, cell.length) if cell.profile == "best" else None


def is_compiled(family: Family, cell: "Cell") -> bool:
    """Whether a model goes through `torch.compile`: a forward, but in the paper's settings, of inputs of one length,
    where that was measured to help and can be had."""
    gains = cell.length in family.compiles.get(cell.dtype, ())
    wanted = gains and cell.profile != "paper" and cell.device == "cpu" and not cell.small
    alike = cell.measure != "training" and len(set(cell.texts)) <= 1
    return wanted and alike and shutil.which("g++") is not None


def is_prepacked(family: Family, cell: "Cell") -> bool:
    """Whether a model's weights are prepacked where that can be: of what comes from transformers, at its best alone."""
    return cell.profile == "best" or (cell.profile == "stock" and family.model_type == MaBertConfig.model_type)


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

    def __init__(self, family: Family, cell: "Cell") -> None:
        torch.manual_seed(0)
        config = configured(family, cell)
        self.device = cell.device
        model = build("encoder", config, hastened=cell.profile == "best")
        self.model: PreTrainedModel = model.to(cell.device, DTYPES[cell.dtype]).eval()
        self.hastened, self.hastening = hastened(family, config, cell), ""
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
        names = [self.hastened] if self.hastened else [self._attention(*shape) for shape in shapes]
        return " and ".join(dict.fromkeys(names)) + self.hastening

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

    def __init__(self, family: Family, cell: "Cell") -> None:
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
            ids = token_ids(*mask.shape, "cpu").masked_fill(~mask, self.model.config.pad_token_id)
            self._batches.append((ids.to(self.device), None if mask.all() else mask.long().to(self.device)))
        if self.hastening == COMPILED:
            self.model = compiled(self._uncompiled)
            shapes = {ids.shape: ids for ids, _ in self._batches}
            with torch.inference_mode():
                for ids in shapes.values():
                    self.model(input_ids=ids, attention_mask=None)  # called otherwise, it would be compiled again
        self.setting = self._named(ids.shape for ids, _ in self._batches)
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

    def __init__(self, family: Family, cell: "Cell") -> None:
        torch.manual_seed(0)
        rate = PAPER_DROPOUT if cell.profile == "paper" else 0.0
        config = configured(family, cell, **family.dropout(Shape(hidden_dropout=rate, attention_dropout=rate)))
        self.device, self.sparse = cell.device, cell.profile != "paper"
        self.setting = hastened(family, config, cell) or config._attn_implementation
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
                if rows == 1 or not is_want_of_memory(error):
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


@dataclass(frozen=True)
class Cell:
    """What is asked of a model.

    Attributes:
        measure: ``latency`` and ``memory`` of a forward, ``training`` of a step, ``throughput`` of many texts.
        profile: See above.
        dtype: Of the weights in a forward; of autocast in a training step.
        length: Tokens of a row, of the longest text.
        device: ``cpu`` or ``cuda``.
        small: Whether the model is of `SMALL` sizes instead of base size.
        texts: Tokens of each text, for ``throughput``.
        recipe: The recipe whose model's sizes are taken; none for base size.
    """

    measure: Literal["latency", "memory", "training", "throughput"]
    profile: Profile
    dtype: str
    length: int
    device: str = "cpu"
    small: bool = False
    texts: tuple[int, ...] = ()
    recipe: str = ""

    def make(self, family: Family) -> Forward | TrainingStep:
        """The model, ready to run."""
        if self.measure == "training":
            return TrainingStep(family, self)
        return Throughput(family, self) if self.measure == "throughput" else Forward(family, self)
