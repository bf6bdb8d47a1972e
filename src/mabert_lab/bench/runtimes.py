"""Engines outside of torch: a model exported to ONNX Runtime or OpenVINO and fed from torch's tensors."""

import contextlib
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mabert.exporting import OnnxRuntime, OpenVino, Plain, onnx_program

CALIBRATING = 8
"""Batches by which activations get their range."""


def onnxruntime(model: PreTrainedModel) -> Callable[..., Any]:
    """ONNX Runtime on a CPU, in float32."""
    return running(model, OnnxRuntime)


def onnxruntime_int8(model: PreTrainedModel) -> Callable[..., Any]:
    """ONNX Runtime on a CPU, products by its dynamic quantization: weights and activations in 8 bits, the latter with
    one scale a tensor."""
    return running(model, OnnxRuntime, quantize_dynamically)


def openvino(model: PreTrainedModel) -> Callable[..., Any]:
    """OpenVINO on a CPU, in the model's dtype."""
    return running(model, OpenVino)


def openvino_int8(model: PreTrainedModel) -> Callable[..., Any]:
    """OpenVINO on a CPU, products in 8 bits by NNCF's calibration on a few batches, the rest in the model's dtype."""
    return running(model, OpenVino, calibrate)


def quantize_dynamically(plain: Plain, file: Path) -> None:
    """Quantize a graph's products in place."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    short = file.with_stem("short")
    quantize_dynamic(file, short, weight_type=QuantType.QInt8, per_channel=True)
    short.replace(file)


def calibrate(plain: Plain, file: Path) -> None:
    """Quantize a graph's products in place, activations to the range that they have in some batches of random ids."""
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
    model: PreTrainedModel,
    runtime: type[OnnxRuntime | OpenVino],
    after: Callable[[Plain, Path], None] = lambda plain, file: None,
) -> Callable[..., Any]:
    """Export a model and open it, with as many threads as torch has.

    Args:
        model: The model.
        runtime: What runs it.
        after: What is done to the graph's file before.

    Raises:
        ValueError: The runtime does not compute in the model's dtype.
    """
    dtype = model.dtype
    if dtype not in runtime.DTYPES:
        raise ValueError(f"{runtime.__name__} computes in {', '.join(map(str, runtime.DTYPES))}, the model in {dtype}")
    model.set_attn_implementation("sdpa")
    plain = Plain(model.float(), ["input_ids", "attention_mask"])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / runtime.FILE
        runtime.write(onnx_program(plain), file)
        after(plain, file)
        opened = runtime(file, dtype)

    def run(input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return opened({"input_ids": input_ids.numpy(), "attention_mask": mask.numpy()})

    return run
