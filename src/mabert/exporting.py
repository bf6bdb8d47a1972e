"""Exports a model to ONNX, to OpenVINO or as a program of torch, for runtimes that do not know this package."""

import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from mabert.baselines.registry import family_of
from mabert.files.places import expanded
from mabert.files.writing import filling
from mabert.machine.environment import check_installed
from mabert.machine.memory import is_out_of_memory, size_of
from mabert.opening.opened import Model, open_model
from mabert.ops import use_backend

LARGEST_DIFFERENCE = 1e-4
"""Largest difference of the runtime's outputs from PyTorch's, relative to the largest, at which a graph is written."""

_FOLDED = 1 << 26
"""Largest constant, in bytes, that may be computed before the graph is written."""


@dataclasses.dataclass(frozen=True)
class Exported:
    """The result of `export`.

    Attributes:
        file: The graph.
        difference: Largest difference of an output from PyTorch's, relative to the largest output.
        runtime: Runtime that computed the outputs, with its version.
    """

    file: Path
    difference: float
    runtime: str


def export(model: Model, output: str | Path, to: str = "onnx") -> Exported:
    """Exports a model with the head it was saved with, in float32, for batches of any size and length.

    The folder has `optimum`'s layout: the graph with configuration, tokenizer, how texts were encoded in fine-tuning,
    and of sentence-transformers' files an encoder's modules or a CrossEncoder's settings. Inputs are `input_ids`,
    `attention_mask` and, if the tokenizer makes them, `token_type_ids`, all int64 (batch, sequence); outputs have
    transformers' names.

    Args:
        model: Model folder, hub name or delta; MaBERT or another encoder of `mabert.baselines`.
        output: Folder to write.
        to: One of `FORMS`: `onnx`, `openvino`, or `torch` for a program that `torch.export.load` opens.

    Raises:
        ValueError: If `to` is unknown, a package is missing, the weights are quantized, the model cannot be captured,
            the runtime's outputs differ from PyTorch's, or the folder holds other files.
    """
    if to not in FORMS:
        raise ValueError(f"to is {to!r}; a model can be exported to {' or '.join(FORMS)}")
    runtime = FORMS[to]
    check_installed(*runtime.PACKAGES)
    output, opened = expanded(output), open_model(model)
    if output.is_dir() and any(output.iterdir()) and not (output / runtime.FILE).is_file():
        raise ValueError(f"{output} holds other files; give a folder that is new, or one of an earlier export")
    opened.refuse_quantized()
    loaded, tokenizer = opened.model().float(), opened.tokenizer
    loaded.set_attn_implementation("sdpa")  # exporters know torch's attention, not ours
    plain = Plain(loaded, typed="token_type_ids" in tokenizer.model_input_names)
    _ = opened.encoding, opened.sentences  # damaged ones are refused before the work
    with filling(output, size_of(loaded)) as staging:
        runtime.write(plain, staging / runtime.FILE)
        running = runtime(staging / runtime.FILE)
        difference = float(np.max([*_differences(plain, running)]))  # NaN if one is
        if not difference <= LARGEST_DIFFERENCE:
            raise ValueError(f"{running.title} gives outputs {difference:.1e} from PyTorch's; nothing is written")
        vars(loaded.config).pop("auto_map", None)  # no class opens a graph, so none should be asked to
        PreTrainedConfig.save_pretrained(loaded.config, staging)
        opened.save_beside(staging, modules=opened.use == "encoder")  # which read the graph's hidden states
    return Exported(output / runtime.FILE, difference, running.title)


class Plain(nn.Module):
    """A model that takes ids, a mask and, if it is `typed`, types alone, and returns tensors by name."""

    def __init__(self, model: Any, typed: bool) -> None:
        super().__init__()
        self.model, self.typed = model.eval().requires_grad_(False), typed
        self.longest = family_of(model.config).longest(model.config)

    def sample(self, rows: int = 2, time: int = 8, seed: int = 0) -> dict[str, Tensor]:
        """Makes random ids and types; the second row is padded on the right, each further one on the left."""
        draw = torch.Generator().manual_seed(seed)
        ids = torch.randint(self.model.config.vocab_size, (rows, time), generator=draw)
        mask = torch.ones_like(ids)
        mask[1:, time - time // 3 :] = 0
        mask[2:] = mask[2:].flip(1)
        if not self.typed:
            return {"input_ids": ids, "attention_mask": mask}
        types = torch.randint(getattr(self.model.config, "type_vocab_size", None) or 1, ids.shape, generator=draw)
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}

    def axes(self) -> Any:
        """Returns the axes of the inputs whose sizes a graph leaves open."""
        open_axes = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("sequence", min=2, max=self.longest)}
        return dict.fromkeys(self.sample(), open_axes)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Returns the model's outputs."""
        types = {"token_type_ids": token_type_ids} if self.typed else {}
        return dict(self.model(input_ids=input_ids, attention_mask=attention_mask, **types))


def onnx_program(plain: Plain) -> Any:
    """Captures the graph with torch's exporter; folds constants and gives each loop copies of its constants.

    OpenVINO does not read loops whose body refers to values outside.
    """
    from onnxscript import optimizer

    inputs = plain.sample()
    sides: Any = {"input_names": list(inputs), "output_names": list(plain(**inputs)), "dynamic_shapes": plain.axes()}
    with _capturing(plain):
        program = torch.onnx.export(plain, kwargs=inputs, dynamo=True, verbose=False, **sides)
    assert program is not None
    optimizer.fold_constants(program.model, input_size_limit=_FOLDED, output_size_limit=_FOLDED)
    for node in program.model.graph:
        if node.op_type == "Scan":
            _hold_constants(node.attributes["body"].value, str(node.name))
    optimizer.remove_unused_nodes(program.model)
    return program


def _hold_constants(body: Any, prefix: str) -> None:
    """Gives a loop's body its own copies of the constants around it."""
    import onnx_ir

    nodes = list(body)
    inside = {*body.inputs, *(value for node in nodes for value in node.outputs)}
    held: dict[Any, Any] = {}
    for node in nodes:
        for place, value in enumerate(node.inputs):
            if value is None or value in inside:
                continue
            if value not in held:
                own = onnx_ir.Value(name=f"{prefix}.{value.name}", shape=value.shape, type=value.type)
                tensor = onnx_ir.AttrTensor("value", value.const_value)
                body.insert_before(nodes[0], onnx_ir.Node("", "Constant", [], [tensor], outputs=[own]))
                held[value] = own
            node.replace_input_with(place, held[value])


@contextlib.contextmanager
def _capturing(plain: Plain) -> Iterator[None]:
    """Silences the exporter's remarks on missing packages and its own deprecations; turns its failure, which has many
    classes, into a ValueError."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    with warnings.catch_warnings(), torch.no_grad(), use_backend("portable"):
        warnings.simplefilter("ignore")
        log.setLevel(logging.ERROR)
        try:
            yield
        except RuntimeError as error:
            cause = error.__cause__ or error
            if is_out_of_memory(cause):
                raise
            why, model = str(cause).partition("\n")[0], type(plain.model).__name__
            raise ValueError(f"torch cannot capture {model}: {why}; another of {', '.join(FORMS)} may do") from error
        finally:
            log.setLevel(before)


class OnnxRuntime:
    """ONNX Runtime on a CPU."""

    FILE = "model.onnx"
    PACKAGES = ("onnx", "onnxscript", "onnxruntime")
    DTYPES = (torch.float32,)

    def __init__(self, file: Path, dtype: torch.dtype = torch.float32) -> None:
        import onnxruntime

        assert dtype in self.DTYPES
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.title = f"ONNX Runtime {onnxruntime.__version__}"
        self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    @staticmethod
    def write(plain: Plain, file: Path) -> None:
        """Writes the graph, with the weights in a separate file if they do not fit into one."""
        onnx_program(plain).save(file)

    def __call__(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Returns the outputs in order."""
        return self._session.run(None, inputs)


class OpenVino:
    """OpenVINO on a CPU."""

    FILE = "openvino_model.xml"
    PACKAGES = ("onnx", "onnxscript", "openvino")
    DTYPES = (torch.float32, torch.bfloat16)

    def __init__(self, file: Path, dtype: torch.dtype = torch.float32) -> None:
        import openvino

        self.title = f"OpenVINO {openvino.__version__.partition('-')[0]}"
        precision = {torch.float32: "f32", torch.bfloat16: "bf16"}[dtype]
        how = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
        self._compiled = openvino.compile_model(file, "CPU", how)

    @staticmethod
    def write(plain: Plain, file: Path) -> None:
        """Writes the graph and its weights beside it."""
        import openvino

        onnx = file.with_suffix(".onnx")
        onnx_program(plain).save(onnx)
        openvino.save_model(openvino.convert_model(onnx), file, compress_to_fp16=False)
        for written in (onnx, onnx.with_name(f"{onnx.name}.data")):
            written.unlink(missing_ok=True)

    def __call__(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Returns the outputs in order."""
        return list(self._compiled(inputs).to_tuple())


class TorchProgram:
    """A program of `torch.export` in torch's own operations; torch alone opens it."""

    FILE = "model.pt2"
    PACKAGES: tuple[str, ...] = ()

    def __init__(self, file: Path) -> None:
        self.title = f"torch {torch.__version__.partition('+')[0]}"
        self._module = torch.export.load(file).module()

    @staticmethod
    def write(plain: Plain, file: Path) -> None:
        """Writes the program with its weights."""
        with _capturing(plain):
            program = torch.export.export(plain, (), plain.sample(), dynamic_shapes=plain.axes())
        torch.export.save(program, file)

    def __call__(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Returns the outputs in order."""
        with torch.no_grad():
            given = self._module(**{name: torch.from_numpy(array) for name, array in inputs.items()})
        return [output.numpy() for output in given.values()]


FORMS: dict[str, type[OnnxRuntime | OpenVino | TorchProgram]] = {
    "onnx": OnnxRuntime,
    "openvino": OpenVino,
    "torch": TorchProgram,
}
"""What writes and runs each format."""


def _differences(plain: Plain, running: Any) -> Iterator[float]:
    """Yields differences of a runtime's outputs from PyTorch's on short and long texts, relative to the largest."""
    for rows, time in ((1, 2), (3, 9), (4, 24), (1, 512)):
        inputs = plain.sample(rows, min(time, plain.longest or time), seed=rows)
        with torch.no_grad():
            wanted = plain(**inputs)
        given = running({name: tensor.numpy() for name, tensor in inputs.items()})
        for one, other in zip(wanted.values(), given, strict=True):
            yield _difference(one.numpy(), other)


def _difference(wanted: np.ndarray, given: np.ndarray) -> float:
    """Returns the largest difference, relative to the largest value.

    Scores of answers at padding are the dtype's lowest number. They are left out; if the two sides have them at
    different places, the difference is infinite.
    """
    lowest = wanted < -1e30
    if wanted.shape != given.shape or (lowest != (given < -1e30)).any():
        return float("inf")
    return float(np.abs(wanted - given)[~lowest].max() / np.abs(wanted)[~lowest].max())
