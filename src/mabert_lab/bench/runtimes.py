"""Engines outside torch: a model exported to ONNX Runtime or OpenVINO and called with torch tensors."""

import contextlib
import io
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mabert.exporting import OnnxRuntime, OpenVino, Plain

Change = Callable[[Plain, Path], None]
"""Changes an exported graph's file in place."""

CALIBRATING = 8
"""Number of batches that calibrate the range of activations."""


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

    batches = [plain.sample(rows=4, time=min(128, plain.longest or 128), seed=seed) for seed in range(CALIBRATING)]
    named = [{name: x.numpy() for name, x in zip(plain.names, inputs, strict=True)} for inputs in batches]
    read = openvino.Core().read_model(file)
    with contextlib.redirect_stdout(io.StringIO()):
        short = nncf.quantize(read, nncf.Dataset(named), model_type=nncf.ModelType.TRANSFORMER, subset_size=CALIBRATING)
    openvino.save_model(short, file.with_stem("short"), compress_to_fp16=False)
    for suffix in (".xml", ".bin"):
        file.with_stem("short").with_suffix(suffix).replace(file.with_suffix(suffix))


def running(
    runtime: type[OnnxRuntime | OpenVino], model: PreTrainedModel, *, change: Change = lambda plain, file: None
) -> Callable[..., Any]:
    """Exports a model, changes its graph, and opens it in a runtime, with as many threads as torch has.

    Raises:
        ValueError: The runtime does not support the model's dtype.
    """
    dtype = model.dtype
    if dtype not in runtime.DTYPES:
        raise ValueError(f"{runtime.__name__} computes in {', '.join(map(str, runtime.DTYPES))}, the model in {dtype}")
    model.set_attn_implementation("sdpa")
    plain = Plain(model.float(), ["input_ids", "attention_mask"])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / runtime.FILE
        runtime.write(plain, file)
        change(plain, file)
        opened = runtime(file, dtype)

    def run(input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return opened({"input_ids": input_ids.numpy(), "attention_mask": mask.numpy()})

    return run


RUNTIMES: dict[str, Callable[[PreTrainedModel], Callable[..., Any]]] = {
    "onnxruntime": partial(running, OnnxRuntime),
    "onnxruntime-int8": partial(running, OnnxRuntime, change=quantize_dynamically),
    "openvino": partial(running, OpenVino),
    "openvino-int8": partial(running, OpenVino, change=calibrate),
}
"""Engines that do not run torch's operations and have their own attention: ONNX Runtime computes in float32, OpenVINO
in the model's dtype; ``int8`` names those whose products are in 8 bits."""
