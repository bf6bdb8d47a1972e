"""Opening a model folder, with one clear line for everything that can be wrong with it."""

import json
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel
from transformers.utils import logging

from mabert.model.config import MaBertConfig

Model = TypeVar("Model", bound=PreTrainedModel)

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def load_config(path: str | Path) -> MaBertConfig:
    """The configuration of a model folder (or hub name).

    Raises:
        FileNotFoundError: If the folder, or its `config.json`, is not there.
        ValueError: If it is another kind of model.
    """
    folder = Path(path)
    if folder.exists() or str(path).count("/") != 1 or str(path).startswith((".", "/")):
        if not folder.is_dir():
            raise FileNotFoundError(f"no model folder {folder} (a model of the hub is written owner/name)")
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(f"{folder} holds no model (no config.json)")
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
        if kind != MaBertConfig.model_type:
            raise ValueError(f"{folder} holds a model of type {kind!r}; a 'mabert' one is needed")
    try:
        return MaBertConfig.from_pretrained(path)
    except OSError as error:
        raise FileNotFoundError(f"no model {str(path)!r}: neither a folder here nor to be had from the hub") from error


def load_model(
    kind: type[Model],
    path: str | Path,
    *,
    head: bool = True,
    config: MaBertConfig | None = None,
    dtype: torch.dtype | None = None,
) -> Model:
    """A model in evaluation mode, every weight of it from the checkpoint.

    Args:
        kind: The class.
        path: Model folder or hub name.
        head: Whether the head's weights must be there, too; without, missing ones are drawn at random.
        config: In place of the folder's own.
        dtype: Of the weights; default, as saved.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: If it is another kind of model, its file of weights is damaged, or the head is missing.
    """
    config = config or load_config(path)
    quiet, level = logging.get_verbosity(), logging.ERROR
    logging.set_verbosity(level)
    try:
        model, about = kind.from_pretrained(path, config=config, dtype=dtype or "auto", output_loading_info=True)
    except SafetensorError as error:
        raise ValueError(f"the weights in {path} are damaged or cut short ({error}); copy the folder again") from error
    except OSError as error:
        if any((Path(path) / name).exists() for name in WEIGHTS):
            raise
        raise FileNotFoundError(f"{path} holds no weights ({' or '.join(WEIGHTS)})") from error
    finally:
        logging.set_verbosity(quiet)
    missing = sorted(name for name in about["missing_keys"] if head or name.startswith("mabert."))
    if missing:
        trained = ", ".join(config.architectures or ["unknown"])
        raise ValueError(f"{path} was saved as {trained}; for {kind.__name__} it lacks {', '.join(missing[:3])}")
    return model.eval()
