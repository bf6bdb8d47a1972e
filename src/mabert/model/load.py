"""Opening a model folder, with one clear line for everything that can be wrong with it."""

import threading
from collections.abc import Sequence
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

Model = TypeVar("Model", bound=PreTrainedModel)

LOADING = threading.RLock()
"""Held while a model is made. transformers then changes what belongs to the whole process: its verbosity, the default
dtype, and whether weights are drawn and tied."""

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def load_config(path: str | Path) -> MaBertConfig:
    """The configuration of a MaBERT's folder (or hub name).

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
    """The configuration that fields from a folder make.

    Raises:
        ValueError: If one has a wrong value; names the file.
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
    """A model in evaluation mode, every weight of it from the checkpoint.

    Args:
        kind: The class.
        path: Model folder or hub name.
        config: In place of the folder's own, which otherwise must be a MaBERT's.
        dtype: Of the weights; default, as saved.
        drawn: How the names of weights begin that may be missing and are then drawn at random.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: If it is another kind of model, its file of weights is damaged or fits another configuration, or
            weights of the class are missing.
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
        raise FileNotFoundError(f"{path} holds no weights ({' or '.join(WEIGHTS)})") from error
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
    check_finite(model, path)
    return model.eval()


def read_weights(
    kind: type[Model], path: str | Path, config: PreTrainedConfig, dtype: torch.dtype | None
) -> tuple[Model, dict[str, Any]]:
    """Reads a model without a word on the terminal, one at a time in this process; returns it and what transformers
    says of its weights.

    Raises:
        ValueError: If a package that quantized them is not installed.
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


def check_finite(model: PreTrainedModel, path: str | Path) -> None:
    """Refuses weights that are no numbers, of which no answer could be one.

    A sum is one pass over memory and takes no more of it; where that is not finite, the weights themselves are asked,
    since a sum of large ones may overflow.

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
    """A tensor itself, or what one of a class of its own is made of: a quantized weight's numbers and scales."""
    if not is_traceable_wrapper_subclass(weight):
        return [weight]
    return [part for name in weight.__tensor_flatten__()[0] for part in parts_of(getattr(weight, name))]


def weights_file(path: str | Path) -> Path:
    """The file of weights in a folder, or what lists several; the folder itself where there is none, as on the hub."""
    return next((Path(path) / name for name in WEIGHTS if (Path(path) / name).is_file()), Path(path))


def parameters_of(kind: type[PreTrainedModel], config: PreTrainedConfig) -> int:
    """Weights that a model has, none of which is allocated."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in kind(config).parameters())


def may_be_read_as(kind: type[PreTrainedModel], saved: Sequence[str]) -> bool:
    """Whether a class is one that a checkpoint was saved as, or its encoder, or has a head that the other includes.

    Names of weights do not tell: a classifier of tokens may have the very names of one of texts.
    """
    own = head_of(kind.__name__)
    heads = {head_of(name) for name in saved}
    return not own or not heads or bool(heads & {own, "", "PreTraining"})


def head_of(name: str) -> str:
    """The head in the name of a transformers class, such as `MaskedLM`; empty for an encoder."""
    return name.partition("For")[2]
