"""Engines: ways to run a model's forward passes.

An engine is a function that takes a model and returns a callable to use in its place, with ``input_ids`` and, for
padded batches, ``attention_mask``. A new engine needs such a function and a line in `ENGINES`. Then ``bert:NAME`` means
BERT with that engine wherever models are named; model folders work the same way.
"""

import contextlib
import io
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from mabert.baselines.family import Family
from mabert.baselines.registry import FAMILIES, family_of
from mabert.exporting import OnnxRuntime, OpenVino, Plain
from mabert.files.places import find
from mabert.machine.environment import check_installed
from mabert.model.config import MaBertConfig
from mabert.model.graphs import Captured
from mabert.model.prepack import prepack
from mabert.opening.opened import open_model
from mabert_lab.bench.tables import split, titled

Engine = Callable[[PreTrainedModel], Callable[..., Any]]


def compiled(model: PreTrainedModel) -> Callable[..., Any]:
    """Compiles a model for each batch shape; clears what was compiled before."""
    torch.compiler.reset()
    # Otherwise dynamo silently runs eagerly after a number of recompilations.
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    torch._dynamo.config.recompile_limit = 32
    return torch.compile(model, dynamic=False)


class ByGraph:
    """Runs a model's forward by a CUDA graph, captured for the shape of its input; ValueError if it is on no GPU."""

    def __init__(self, model: PreTrainedModel) -> None:
        if model.device.type != "cuda":
            raise ValueError(f"the engine 'graphs' needs a GPU (--device cuda), and the model is on {model.device}")
        self.model, self.shape = model, torch.Size()

    def __call__(self, **inputs: Tensor) -> Any:
        if inputs.keys() != {"input_ids"}:
            raise ValueError(f"the engine 'graphs' takes rows of one length; this batch has {', '.join(inputs)}")
        ids = inputs["input_ids"]
        if self.shape != ids.shape:
            self.shape, self.ids = ids.shape, ids.clone()
            self.graph = Captured(self._run)
        self.ids.copy_(ids)
        self.graph.replay()
        return self.outputs

    def _run(self) -> None:
        self.outputs = self.model(input_ids=self.ids)


def quantize_dynamically(plain: Plain, file: Path) -> None:
    """Quantizes a graph's products in place, for 8-bit weights and activations with one scale per activation tensor."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    short = file.with_stem("short")
    quantize_dynamic(file, short, weight_type=QuantType.QInt8, per_channel=True)
    short.replace(file)


def calibrate(plain: Plain, file: Path) -> None:
    """Quantizes a graph's products in place, with activation ranges calibrated on batches of random ids."""
    import nncf
    import openvino

    batches = [plain.sample(rows=4, time=min(128, plain.longest or 128), seed=seed) for seed in range(8)]
    named = [{name: x.numpy() for name, x in inputs.items()} for inputs in batches]
    read = openvino.Core().read_model(file)
    with contextlib.redirect_stdout(io.StringIO()):
        short = nncf.quantize(read, nncf.Dataset(named), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(named))
    openvino.save_model(short, file.with_stem("short"), compress_to_fp16=False)
    for suffix in (".xml", ".bin"):
        file.with_stem("short").with_suffix(suffix).replace(file.with_suffix(suffix))


def running(
    runtime: type[OnnxRuntime | OpenVino],
    model: PreTrainedModel,
    *,
    change: Callable[[Plain, Path], None] = lambda plain, file: None,
) -> Callable[..., Any]:
    """Exports a model, changes its graph, and opens it in a runtime; ValueError if that lacks the model's dtype."""
    dtype = model.dtype
    if dtype not in runtime.DTYPES:
        raise ValueError(f"{runtime.__name__} computes in {', '.join(map(str, runtime.DTYPES))}, the model in {dtype}")
    model.set_attn_implementation("sdpa")
    plain = Plain(model.float(), typed=False)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / runtime.FILE
        runtime.write(plain, file)
        change(plain, file)
        opened = runtime(file, dtype)

    def run(input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return opened({"input_ids": input_ids.numpy(), "attention_mask": mask.numpy()})

    return run


RUNTIMES: dict[str, Engine] = {
    "onnxruntime": partial(running, OnnxRuntime),
    "onnxruntime-int8": partial(running, OnnxRuntime, change=quantize_dynamically),
    "openvino": partial(running, OpenVino),
    "openvino-int8": partial(running, OpenVino, change=calibrate),
}
"""Engines that do not run torch's operations and have their own attention: ONNX Runtime computes in float32, OpenVINO
in the model's dtype; ``int8`` names those whose products are in 8 bits."""

ENGINES: dict[str, Engine] = {
    "eager": lambda model: model,
    "compiled": compiled,
    "graphs": ByGraph,
    "prepacked": prepack,
    "int8": lambda model: prepack(model, "int8"),
    **RUNTIMES,
}

PRESETS: dict[str, tuple[str, Callable[[], PreTrainedConfig]]] = {"mabert-fast": ("MaBERT, fast", MaBertConfig.fast)}
"""Additional models by name: title in tables, and configuration."""


class Contender(NamedTuple):
    """A measured model."""

    family: Family
    engine: str  # empty for the profile's
    config: PreTrainedConfig | None  # if it is not the family's


def contender(name: str) -> Contender:
    """Resolves ``NAME`` or ``NAME:ENGINE``, of a family, preset, folder or hub model; ValueError if there is none."""
    model, engine = split(name)
    if engine not in ("", *ENGINES):
        raise ValueError(f"there is no engine {engine!r} for {name!r}; there are {', '.join(ENGINES)}")
    if engine in RUNTIMES:
        check_installed("onnx", "onnxscript", engine.removesuffix("-int8"))
        if engine == "openvino-int8":
            check_installed("nncf")
    if model in FAMILIES:
        return Contender(FAMILIES[model], engine, None)
    try:
        config = PRESETS[model][1]() if model in PRESETS else open_model(find(model)).config
    except OSError:
        known = ", ".join((*FAMILIES, *PRESETS))
        message = f"there is no model {model!r}; there are {known}, minilm, model folders and names of the hub"
        raise ValueError(message) from None
    return Contender(family_of(config), engine, config)


def title_of(name: str) -> str:
    """Returns a contender's title in tables."""
    presets = {preset: title for preset, (title, _) in PRESETS.items()}
    return titled(name, presets | {family: each.title for family, each in FAMILIES.items()})
