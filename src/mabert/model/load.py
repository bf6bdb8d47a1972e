"""Opens a model folder, and reports anything wrong with it in one clear line."""

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from mabert.bounds import check_fields
from mabert.files.folders import CONFIG, config_fields
from mabert.machine.memory import check_fits
from mabert.model.config import MaBertConfig, make_config
from mabert.model.delta import is_delta

logger = logging.get_logger(__name__)

Model = TypeVar("Model", bound=PreTrainedModel)

LOADING = threading.RLock()
"""Held while a model is made, because transformers then changes state of the whole process: its verbosity, the default
dtype, and whether weights are initialized and tied."""

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
EXPORTS = ("model.onnx", "openvino_model.xml")
"""Graphs that `mabert export` writes."""


def load_config(path: str | Path) -> MaBertConfig:
    """Reads the configuration of a MaBERT's folder (or hub name).

    Raises:
        FileNotFoundError: If the folder, or its `config.json`, is not there.
        ValueError: If it is another kind of model, or a field has a wrong value.
    """
    fields = config_fields(path)
    kind = fields.pop("model_type", None)
    if kind != MaBertConfig.model_type:
        raise ValueError(f"{path} holds a model of type {kind!r}; a 'mabert' one is needed")
    return config_of_fields(path, fields)


def config_of_fields(path: str | Path, fields: dict[str, Any]) -> MaBertConfig:
    """Makes a configuration of the fields read from a folder.

    Raises:
        ValueError: If a field has a wrong value; names the file.
    """
    try:
        check_fields(fields)
        return make_config(**fields)
    except ValueError as error:
        raise ValueError(f"{Path(path) / CONFIG}: {error}") from error


def load_model(
    kind: type[Model],
    path: str | Path,
    *,
    config: PreTrainedConfig | None = None,
    dtype: torch.dtype | None = None,
    drawn: tuple[str, ...] = (),
) -> Model:
    """Loads a model in evaluation mode, all weights from the checkpoint; warns of those that the encoder leaves out.

    Args:
        kind: The class.
        path: Model folder or hub name.
        config: Configuration to use instead of the folder's, which otherwise must be a MaBERT's.
        dtype: Dtype of the weights; default, as saved.
        drawn: Prefixes of weight names that may be missing from the checkpoint and are then initialized at random.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: If it is another kind of model, its weights are damaged, incomplete or of another configuration.
    """
    config = config or load_config(path)
    with LOADING:
        check_fits(f"the model that {path} describes", parameters_of(kind, config), (dtype or torch.bfloat16).itemsize)
    try:
        model, about = read_weights(kind, path, config, dtype)
    except SafetensorError as error:
        raise ValueError(
            f"the weights in {weights_file(path)} are damaged or cut short ({error}); copy the folder again"
        ) from error
    except OSError as error:
        if is_delta(path) or any((Path(path) / name).exists() for name in WEIGHTS):
            raise
        exported = next(
            (f"; {name} is an export, for a runtime" for name in EXPORTS if (Path(path) / name).exists()), ""
        )
        raise FileNotFoundError(f"{path} holds no weights ({' or '.join(WEIGHTS)}){exported}") from error
    if about["mismatched_keys"]:
        name, there, wanted = sorted(about["mismatched_keys"])[0]
        raise ValueError(
            f"the weights in {path} do not fit its configuration: {name} is {tuple(there)}, not {tuple(wanted)}"
        )
    missing = sorted(name for name in about["missing_keys"] if not name.startswith(drawn))
    trained = ", ".join(config.architectures or ["unknown"])
    if missing:
        raise ValueError(f"{path} was saved as {trained}; for {kind.__name__} it lacks {', '.join(missing[:3])}")
    if not may_be_read_as(kind, config.architectures or ()):
        raise ValueError(f"{path} was saved as {trained}, which has another head than {kind.__name__}")
    surplus = encoder_weights(model, about["unexpected_keys"])
    if surplus:
        logger.warning(
            f"{path} holds weights that the encoder of {CONFIG} has no place for; they are left out "
            f"({len(surplus)}, such as {surplus[0]})"
        )
    check_finite(model, path)
    return model.eval()


def read_weights(
    kind: type[Model], path: str | Path, config: PreTrainedConfig, dtype: torch.dtype | None
) -> tuple[Model, dict[str, Any]]:
    """Reads a model without printing anything, one at a time in this process.

    Returns the model and transformers' report on its weights.

    Raises:
        ValueError: If the package that quantized the weights is not installed.
    """
    with LOADING:
        verbosity = logging.get_verbosity()
        logging.set_verbosity(logging.ERROR)
        try:
            return kind.from_pretrained(
                path,
                config=config,
                dtype=dtype or "auto",
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        except ImportError as error:
            raise ValueError(f"the weights in {path} need a package that is not installed here: {error}") from error
        finally:
            logging.set_verbosity(verbosity)


def encoder_weights(model: PreTrainedModel, names: Iterable[str]) -> list[str]:
    """Returns the names that belong to parts of the encoder, such as a further layer; heads and poolers do not."""
    parts = {name for name, _ in model.base_model.named_children()}
    prefix = f"{model.base_model_prefix}."
    return sorted(name for name in names if name.removeprefix(prefix).partition(".")[0] in parts)


def check_finite(model: PreTrainedModel, path: str | Path) -> None:
    """Refuses weights that hold NaN or infinity, which would make every output useless.

    A sum takes one pass and no extra memory. Only if it is not finite are the weights themselves checked, since the sum
    of large finite weights may overflow.

    Raises:
        ValueError: Naming the file and the weight.
    """
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        for held in parts_of(weight):
            if held.is_floating_point() and not held.sum().isfinite() and not held.isfinite().all():
                raise ValueError(
                    f"{weights_file(path)}: the weight {name} holds NaN or infinity; the training that wrote it "
                    "diverged, or the file is damaged"
                )


def parts_of(weight: Tensor) -> list[Tensor]:
    """Returns a tensor itself, or the parts of a wrapper class: a quantized weight's numbers and scales."""
    if not is_traceable_wrapper_subclass(weight):
        return [weight]
    return [part for name in weight.__tensor_flatten__()[0] for part in parts_of(getattr(weight, name))]


def weights_file(path: str | Path) -> Path:
    """Returns a folder's file of weights or index of several; the folder itself if it has none, as on the hub."""
    return next((Path(path) / name for name in WEIGHTS if (Path(path) / name).is_file()), Path(path))


def parameters_of(kind: type[PreTrainedModel], config: PreTrainedConfig) -> int:
    """Counts a model's weights without allocating them."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in kind(config).parameters())


def may_be_read_as(kind: type[PreTrainedModel], saved: Sequence[str]) -> bool:
    """Returns whether a class is the checkpoint's own or its encoder, or has a head that the checkpoint's includes.

    Names of weights cannot tell: a token classifier may have the same ones as a text classifier.
    """
    own = head_of(kind.__name__)
    heads = {head_of(name) for name in saved}
    return not own or not heads or bool(heads & {own, "", "PreTraining"})


def head_of(name: str) -> str:
    """Returns the head in the name of a transformers class, such as `MaskedLM`; empty for an encoder."""
    return name.partition("For")[2]
