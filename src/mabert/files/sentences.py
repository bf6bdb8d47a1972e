"""Folders of sentence-transformers: how they make text vectors, and which files a student's folder gets."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mabert.files.places import Place
from mabert.files.reading import read_json, read_json_if_there, read_json_value
from mabert.files.writing import write_json

MODULES = "modules.json"
LENGTH = "sentence_bert_config.json"
"""Settings with the length at which texts are cut."""

SETTINGS = (LENGTH, "config_sentence_transformers.json")
POOL = "1_Pooling"
MAP, MAP_TYPE = "1_MapPooling", "mabert.model.map_pooling.MapPooling"
"""Folder and class of the module that pools as a classifier has learned to (`map`)."""

POOLINGS = ("mean", "cls", "map")
"""Ways in which token vectors become one."""

MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
"""Settings of sentence-transformers, and the poolings they switch on; newer versions name the pooling itself."""


@dataclass(frozen=True)
class SentenceFolder:
    """Settings of a folder of sentence-transformers."""

    path: Path
    pooling: str  # `mean`, `cls`, or `map`, see `mabert.model.map_pooling`
    normalize: bool  # whether vectors are scaled to length one
    longest: int | None = None  # tokens at which texts are cut; None if the settings do not say
    prompt: str = ""  # text in front of every text
    named: tuple[str, ...] = ()  # texts that a user may choose to put in front of a text instead
    lower: bool = False  # whether texts are put in lower case

    @classmethod
    def at(cls, path: str | Path) -> "SentenceFolder | None":
        """Reads a folder; returns None if it is not an encoder's from sentence-transformers.

        Raises:
            ValueError: If its vectors are made in another way, or by further layers.
        """
        folder = Path(path)
        if not (folder / MODULES).is_file() or is_cross_encoder(folder):
            return None
        modules = modules_in(folder)
        kinds = {each["type"].rpartition(".")[2]: each for each in modules}
        about = text_settings(folder)
        if set(kinds) - {"Normalize"} == {"Transformer", "MapPooling"}:
            return cls(folder, "map", "Normalize" in kinds, **about)
        further = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
        if further or "Pooling" not in kinds:
            there = ", ".join(further) or "no Pooling"
            raise ValueError(f"{folder / MODULES} has {there}; only Pooling and Normalize are supported")
        file = folder / kinds["Pooling"]["path"] / "config.json"
        said = read_json(file)
        modes = [pooling for name, pooling in MODES.items() if said.get(name)]
        if "pooling_mode" in said:
            modes.append(said["pooling_mode"])
        others = [name for name, value in said.items() if name.startswith("pooling_mode_") and value is True]
        if len(modes) != 1 or modes[0] not in MODES.values() or any(name not in MODES for name in others):
            raise ValueError(f"{file} pools by {', '.join(others) or said.get('pooling_mode')}; mean or cls is needed")
        if about["prompt"] and said.get("include_prompt") is False:
            raise ValueError(f"{file} leaves the prompt {about['prompt']!r} out of the mean; that is not supported")
        return cls(folder, modes[0], "Normalize" in kinds, **about)

    @property
    def prompts(self) -> tuple[str, ...]:
        """What may stand in front of a text: the folder's one prompt, or nothing and each that a user may choose."""
        return (self.prompt,) if self.prompt else ("", *self.named)

    def prepared(self, text: str) -> str:
        """Returns a text as sentence-transformers gives it to the tokenizer."""
        whole = f"{self.prompt}{text}"
        return whole.lower() if self.lower else whole

    def copy_to(self, place: Path, longest: int | None = None) -> None:
        """Copies the folder's modules and settings into another model's folder, which cuts texts at `longest` tokens,
        else where this one does."""
        copy_settings(self.path, place)
        if longest is not None:
            file = place / LENGTH
            said = read_json_if_there(file) or {}
            write_json(file, {**said, "max_seq_length": longest}, indent=2)
        for each in modules_in(self.path):
            for file in (self.path / each["path"]).glob("*") if each["path"] else ():
                if file.suffix in (".json", ".safetensors"):
                    (place / each["path"]).mkdir(exist_ok=True)
                    shutil.copyfile(file, place / each["path"] / file.name)


def text_settings(folder: Path) -> dict[str, Any]:
    """Returns what a folder's settings do to a text: fields of `SentenceFolder`."""
    length, more = (read_json_if_there(folder / name) or {} for name in SETTINGS)
    longest, said = length.get("max_seq_length"), more.get("prompts")
    prompts = {name: text for name, text in said.items() if isinstance(text, str)} if isinstance(said, dict) else {}
    return {
        "longest": longest if isinstance(longest, int) and longest > 0 else None,
        "prompt": prompts.get(more.get("default_prompt_name"), ""),
        "named": tuple(sorted(set(prompts.values()) - {""})),
        "lower": length.get("do_lower_case") is True,
    }


def is_cross_encoder(path: str | Path) -> bool:
    """Returns whether a folder is that of a sentence-transformers' CrossEncoder, which scores pairs of texts."""
    settings = read_json_if_there(Path(path) / SETTINGS[1]) or {}
    config = read_json_if_there(Path(path) / "config.json") or {}
    own = config.get("sentence_transformers")  # versions 4 and 5, and then before 4
    return (
        settings.get("model_type") == "CrossEncoder"
        or (isinstance(own, dict) and "activation_fn" in own)
        or "sbert_ce_default_activation_function" in config
    )


def copy_settings(folder: str | Path, place: Path) -> None:
    """Copies the list of modules and the settings of a folder of sentence-transformers, as far as it has them."""
    for name in (MODULES, *SETTINGS):
        if (Path(folder) / name).is_file():
            shutil.copyfile(Path(folder) / name, place / name)


def modules_in(folder: Path) -> list[dict[str, str]]:
    """Returns the modules that a folder lists, each with its `type` and the `path` of its settings within the folder;
    raises ValueError if the list is malformed, or a path leads out of the folder."""
    file = folder / MODULES
    modules = read_json_value(file)
    for each in modules if isinstance(modules, list) else [None]:
        if not isinstance(each, dict) or not all(isinstance(each.get(name), str) for name in ("type", "path")):
            raise ValueError(f"{file} must be a list of modules, each with a type and a path")
        if Path(each["path"]).is_absolute() or ".." in Path(each["path"]).parts:
            raise ValueError(f"{file}: the path {each['path']!r} leads out of the folder")
    return modules


def is_for_similarity(place: Place) -> bool:
    """Returns whether a model's vectors were trained to be compared.

    They were if its folder lists modules of sentence-transformers. A model fine-tuned for something else lists them
    too, so that both libraries give the same vectors, but lacks that library's own settings.
    """
    if not (place.path / MODULES).is_file() or is_cross_encoder(place.path):
        return False
    return (place.path / SETTINGS[1]).is_file() or not any(place.heads)


def write_modules(folder: Path, pooling: str, normalize: bool, width: int) -> None:
    """Lists the modules with which sentence-transformers makes the vectors of `mabert.load`, of `width` numbers, by one
    of `POOLINGS`, scaled to length one or not; keeps an existing list."""
    if (folder / MODULES).exists():
        return
    types = {name: f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Normalize")}
    pools = (MAP, MAP_TYPE) if pooling == "map" else (POOL, types["Pooling"])
    chosen = [("", types["Transformer"]), pools, ("2_Normalize", types["Normalize"])][: 2 + normalize]
    modules = [{"idx": at, "name": str(at), "path": path, "type": kind} for at, (path, kind) in enumerate(chosen)]
    write_json(folder / MODULES, modules, indent=2)
    if pooling != "map":
        modes = {name: mode == pooling for name, mode in MODES.items()}
        (folder / POOL).mkdir(exist_ok=True)
        write_json(folder / POOL / "config.json", {"word_embedding_dimension": width, **modes})
