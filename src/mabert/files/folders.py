"""Model folders read without loading a model: their `config.json`."""

import re
from pathlib import Path
from typing import Any

from mabert.files.offline import without_waiting
from mabert.files.reading import read_json

CONFIG = "config.json"
ADAPTER = "adapter_config.json"
"""Configuration of PEFT."""

WITHOUT_OWNER = ("albert-", "bert-", "distilbert-", "distilroberta-", "roberta-", "xlm-")
"""Prefixes of names on the hub that have no owner, such as bert-base-uncased."""


def config_fields(path: str | Path) -> dict[str, Any]:
    """Reads the `config.json` of a model folder or of a model on the hub.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is no JSON object.
    """
    folder = Path(path)
    if not folder.exists() and is_hub_name(str(path)):
        return fields_from_hub(str(path))
    if not folder.is_dir():
        raise FileNotFoundError(f"no model folder {folder} (a model of the hub is written owner/name)")
    file = folder / CONFIG
    if not file.is_file() and (folder / ADAPTER).is_file():
        raise FileNotFoundError(
            f"{folder} holds an adapter ({ADAPTER}) and no model; join both by PEFT's merge_and_unload() and save that"
        )
    if not file.is_file():
        inside = model_inside(folder)
        hint = f"; did you mean {inside}?" if inside else ""
        raise FileNotFoundError(f"{folder} holds no model (no {CONFIG}){hint}")
    return read_json(file)


def model_inside(folder: Path) -> Path | None:
    """Returns the model most likely meant in a folder of runs: a finished one, else the newest checkpoint.

    Models that are still being written have hidden names.
    """
    places = (f"*/{CONFIG}", f"unfinished/*/*/{CONFIG}")
    found = [file.parent for place in places for file in sorted(folder.glob(place))]
    shown = [each for each in found if not any(part.startswith(".") for part in each.relative_to(folder).parts)]
    finished = [each for each in shown if not each.name.startswith("checkpoint-")]
    step = {each: int("0" + re.sub(r"\D", "", each.name)) for each in shown}
    return finished[0] if finished else max(shown, key=step.__getitem__, default=None)


def is_hub_name(name: str) -> bool:
    """Returns whether a name is one on the hub: owner/name, or an old one without an owner."""
    owned = name.count("/") == 1 and not name.startswith((".", "/"))
    return owned or ("/" not in name and name.startswith(WITHOUT_OWNER))


def fields_from_hub(name: str) -> dict[str, Any]:
    """Reads the `config.json` of a model on the hub, or in the hub's cache here."""
    from transformers import PreTrainedConfig  # imports torch, which takes seconds

    try:
        with without_waiting(name):
            return PreTrainedConfig.get_config_dict(name)[0]
    except OSError as error:
        raise FileNotFoundError(f"no model {name!r}: neither a folder here nor to be had from the hub") from error
