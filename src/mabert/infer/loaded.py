"""A model ready for use: on its device, with its tokenizer, which is checked to fit, and its length limit."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from tokenizers import Encoding
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mabert.baselines.family import Family
from mabert.baselines.registry import family_of
from mabert.data.encode import encodings
from mabert.machine.environment import PRECISIONS, fast_dtype, resolve_precision, warn_of_emulation
from mabert.machine.memory import naming_memory
from mabert.model import MaBertModel
from mabert.model.prepack import can_prepack, is_plain, prepack
from mabert.opening.opened import Opened
from mabert.opening.uses import Use
from mabert.ops import int8

Pretrained = TypeVar("Pretrained", bound=PreTrainedModel)

_ALONE = threading.Lock()
"""Held by a thread while no other thread may run its model."""


@dataclass(frozen=True)
class Loaded(Generic[Pretrained]):
    """A model and what it needs."""

    model: Pretrained  # in evaluation mode, on its device
    tokenizer: PreTrainedTokenizerFast
    bf16: bool = False  # whether to compute in bf16 by autocast
    int8: bool = False  # whether large linear layers multiply 8-bit integers once the model is prepacked

    @property
    def family(self) -> Family:
        """The model's family."""
        return family_of(self.model.config)

    @property
    def longest(self) -> int | None:
        """Tokens that the model has positions for; None if unlimited."""
        return self.family.longest(self.model.config)

    def limit(self, max_length: int | None, finite: bool) -> int | None:
        """Returns what `Family.limit` says of this model; where a finite limit is needed, `Family.finite_limit`."""
        if finite:
            return self.family.finite_limit(self.model.config, max_length)
        return self.family.limit(self.model.config, max_length)

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Opens the context in which the model's forwards run.

        bf16 is autocast's, as in fine-tuning's evaluation; the caller's autocast is ignored. Weights cast to bf16 would
        be half as large, but would also round activations between layers (`benchmarks/LOG.md` says by how much). In
        another precision than it was evaluated in, a classifier's scores differ by rounding.
        """
        alone = _ALONE if self.family.keeps_state else contextlib.nullcontext()
        with alone, torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.bf16):
            yield

    def for_inference(self, graphs: bool = True) -> "Loaded[Pretrained]":
        """Makes the model ready for inference alone: it must not be used elsewhere any more. Returns self.

        On a CPU it is prepacked if possible (`mabert.prepack`). On a GPU, in bf16, each product's weights are cast once
        in place of at each forward, and if `graphs` is on, an encoder's layers run by CUDA graphs
        (`mabert.model.graphs`).
        """
        device, dtype = self.model.device, torch.bfloat16 if self.bf16 else self.model.dtype
        if self.int8:
            prepack(self.model, "int8")
        elif device.type == "cuda":
            if self.bf16:
                cast_products(self.model)
            if graphs and isinstance(self.model.base_model, MaBertModel):
                self.model.base_model.use_graphs()
        elif can_prepack(device, dtype):
            prepack(self.model, dtype if self.bf16 else None)
        return self

    def encodings(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        truncate: bool = False,
        name: str = "the input",
        before: int = 0,
    ) -> Iterator[tuple[dict[str, list[int]], Encoding]]:
        """Encodes texts as in fine-tuning; arguments, results and errors are those of `mabert.data.encode.encodings`.

        Without `max_length` a text has at most as many tokens as the model has positions for; without learned positions
        there is no limit, and `truncate` cuts at `max_position_embeddings`. More tokens than positions are refused.
        """
        limit = self.limit(max_length, finite=truncate)
        return encodings(self.tokenizer, texts, pairs, max_length=limit, truncate=truncate, name=name, before=before)


def cast_products(model: nn.Module) -> None:
    """Casts the weights of linear layers to bf16, as autocast would at each forward. A table of embeddings that is one
    of them too stays as it is: autocast does not cast it where it is looked up."""
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    for part in model.modules():
        if is_plain(part) and id(part.weight) not in tables:
            part.to(torch.bfloat16)


def load_for_use(
    opened: Opened, use: Use, *, precision: str | None = None, device: str | torch.device | None = None
) -> Loaded[Any]:
    """Loads a model of any family and its tokenizer; `precision` and `device` are those of `mabert.load`.

    Raises:
        FileNotFoundError: If there are no weights.
        MemoryError: If the weights do not fit the device.
        ValueError: If the weights are damaged or lack what the use needs, the tokenizer has ids that the
            model lacks, or precision or device is unknown.
    """
    place = device_named(device)
    check_precision(precision, place)
    in_int8 = precision == "int8"
    bf16 = precision is not None and not in_int8 and resolve_precision(precision, place.type) == "bf16"
    if bf16:
        warn_of_emulation("bf16", place.type)
    dtype = getattr(torch, fast_dtype("cpu")) if in_int8 else torch.float32
    tokenizer, model = opened.tokenizer, opened.model(use, None if precision is None else dtype)
    with naming_memory(lambda: f"on {place}: the weights in {opened.place} do not fit; see --device"):
        return Loaded(model.to(place), tokenizer, bf16, in_int8)


def check_precision(precision: str | None, device: torch.device) -> None:
    """Raises ValueError for a precision that does not exist, or not on that device."""
    if precision == "int8":
        int8.check(device.type)
    elif precision is not None and precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}; it must be one of {[*PRECISIONS, 'int8']}")


def device_named(name: str | torch.device | None) -> torch.device:
    """Returns the device of that name; default, the GPU if there is one. Raises ValueError if it is not here."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {str(name)!r}; it must be cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device is {str(name)!r}; GPUs that torch can use here: {torch.cuda.device_count()}")
    return device
