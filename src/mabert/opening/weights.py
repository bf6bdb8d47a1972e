"""Reads a model's weights, and reports anything wrong with them in one clear line."""

import warnings
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from mabert.files.places import ADAPTER, ADAPTER_WEIGHTS, CONFIG, DELTA, Place, head_of
from mabert.files.reading import read_json
from mabert.machine.memory import check_fits, parameters_of
from mabert.opening.uses import LOADING, saved_class

logger = logging.get_logger(__name__)

Pretrained = TypeVar("Pretrained", bound=PreTrainedModel)

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
EXPORTS = ("model.onnx", "openvino_model.xml")
"""Graphs that `mabert export` writes."""


def load_model(
    kind: type[Pretrained],
    place: Place,
    config: PreTrainedConfig,
    *,
    dtype: torch.dtype | None = None,
    drawn: tuple[str, ...] = (),
) -> Pretrained:
    """Loads a model in evaluation mode. Every weight must be in the checkpoint; a warning names those that the encoder
    has no place for. An adapter of PEFT beside the weights is merged into them.

    Args:
        kind: The class.
        place: The model's folder.
        config: The model's configuration, which may differ from the folder's.
        dtype: Dtype of the weights; default, as saved.
        drawn: Prefixes of weight names that may be missing from the checkpoint and are then initialized at random.

    Raises:
        FileNotFoundError: If there are no weights, or none of an adapter.
        ValueError: If the weights are damaged, incomplete or of another configuration, or an adapter does not fit.
    """
    if not (place.path / ADAPTER).is_file():
        return load_checked(kind, place, config, dtype, drawn)
    saved = saved_class(config)
    joined = with_adapter(load_checked(saved, place, config, dtype, drawn), place.path)
    return joined if kind is saved else load_checked(kind, place, config, dtype, drawn, joined.state_dict())


def load_checked(
    kind: type[Pretrained],
    place: Place,
    config: PreTrainedConfig,
    dtype: torch.dtype | None,
    drawn: tuple[str, ...],
    weights: dict[str, Tensor] | None = None,
) -> Pretrained:
    """Does what `load_model` does without an adapter, from the folder or from weights of the same model."""
    path = place.path
    index = path / WEIGHTS[1]
    shards = [str(name) for name in read_json(index).get("weight_map", {}).values()] if index.is_file() else []
    if odd := next((name for name in shards if not name.endswith(".safetensors")), None):
        raise ValueError(f"{index} names {odd}; weights are read from .safetensors alone, since a pickle may run code")
    with LOADING:
        check_fits(f"the model that {path} describes", parameters_of(kind, config), (dtype or torch.bfloat16).itemsize)
    try:
        model, about = read_weights(kind, path, config, dtype, weights)
    except SafetensorError as error:
        raise ValueError(
            f"the weights in {weights_file(path)} are damaged or cut short ({error}); copy the folder again"
        ) from error
    except OSError as error:
        if any((path / name).exists() for name in (*WEIGHTS, DELTA)):
            raise
        exported = next((f"; {name} is an export, for a runtime" for name in EXPORTS if (path / name).exists()), "")
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
    kind: type[Pretrained],
    path: Path,
    config: PreTrainedConfig,
    dtype: torch.dtype | None,
    weights: dict[str, Tensor] | None = None,
) -> tuple[Pretrained, dict[str, Any]]:
    """Reads a model, or takes the weights given, without printing anything, one at a time in this process.

    Returns the model and transformers' report on its weights. Raises ValueError if the package that quantized the
    weights is not installed, or quantized weights lack what the class needs.
    """
    with LOADING:
        verbosity = logging.get_verbosity()
        logging.set_verbosity(logging.ERROR)
        try:
            return kind.from_pretrained(
                path if weights is None else None,
                config=config,
                state_dict=weights,
                adapter_kwargs={"subfolder": "none"},  # with an adapter, transformers would not report on the weights
                dtype=dtype or "auto",
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        except ImportError as error:
            raise ValueError(f"the weights in {path} need a package that is not installed here: {error}") from error
        except RuntimeError as error:
            if getattr(config, "quantization_config", None) is None:
                raise
            raise ValueError(f"the quantized weights in {path} lack what {kind.__name__} needs") from error
        finally:
            logging.set_verbosity(verbosity)


def with_adapter(model: Pretrained, path: Path) -> Pretrained:
    """Returns a model with an adapter of PEFT merged into its weights.

    Raises FileNotFoundError if the adapter has no weights, and ValueError if PEFT is not installed, or the adapter is
    damaged or of another model.
    """
    if find_spec("peft") is None:
        raise ValueError(f"{path} holds an adapter ({ADAPTER}), which needs PEFT: pip install peft")
    from peft import PeftConfig, PeftModel  # only adapters need it

    if not (path / ADAPTER_WEIGHTS).is_file():
        raise FileNotFoundError(f"{path} holds {ADAPTER} without its weights ({ADAPTER_WEIGHTS})")
    if "peft_type" not in read_json(path / ADAPTER):
        raise ValueError(f"{path / ADAPTER} has no peft_type, by which PEFT tells kinds of adapters apart")
    with LOADING, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT asks for an attribute of transformers by its old name
        try:
            adapted = PeftModel(model, PeftConfig.from_pretrained(str(path)))
            found = adapted.load_adapter(str(path), "default")
        except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as error:
            raise ValueError(f"the adapter in {path} cannot be read, or is of another model: {error}") from error
    if odd := [*found.missing_keys, *found.unexpected_keys]:
        raise ValueError(f"the adapter in {path} is not of {type(model).__name__}: they differ in {odd[0]}")
    merged = adapted.merge_and_unload()
    check_finite(merged, path)
    return merged.eval()


def encoder_weights(model: PreTrainedModel, names: Iterable[str]) -> list[str]:
    """Returns the names that belong to parts of the encoder, such as a further layer; heads and poolers do not."""
    parts = {name for name, _ in model.base_model.named_children()}
    prefix = f"{model.base_model_prefix}."
    return sorted(name for name in names if name.removeprefix(prefix).partition(".")[0] in parts)


def check_finite(model: PreTrainedModel, path: str | Path) -> None:
    """Refuses weights that hold NaN or infinity, which would make every output useless, by a ValueError that names file
    and weight.

    A sum takes one pass and no extra memory. Only if it is not finite are the weights themselves checked, since the sum
    of large finite weights may overflow.
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


def may_be_read_as(kind: type[PreTrainedModel], saved: Sequence[str]) -> bool:
    """Returns whether a checkpoint can be read as a class: the class it was saved as, its encoder, or one whose head it
    has.

    Names of weights cannot tell: a token classifier may have the same ones as a text classifier.
    """
    own = head_of(kind.__name__)
    heads = {head_of(name) for name in saved}
    return not own or not heads or bool(heads & {own, "", "PreTraining"})
