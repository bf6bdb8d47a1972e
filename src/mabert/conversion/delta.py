"""A conversion saved as its Mamba cores alone, without the teacher's weights, and its reassembly with them."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mabert.conversion.teacher import USES, check_copy, load_teacher, open_teacher, student_of, weights_hash
from mabert.data.tokenizer import load_tokenizer
from mabert.files.places import CONFIG, DELTA, default_cache
from mabert.files.reading import parse_json, sha256, to_json
from mabert.files.writing import make_once
from mabert.model import MaBertPreTrainedModel
from mabert.model.mamba import Recurrence
from mabert.opening.opened import open_model
from mabert.opening.uses import Use

ABOUT = "mabert"
"""The entry of the file's metadata that holds, as JSON, the cores' teacher and its use."""

CORE = ".mixer."
"""The part of a weight's name that marks it as not the teacher's."""


CHOSEN = (
    "layer_pattern",
    "max_position_embeddings",
    "ssm_direction",
    "ssm_expand",
    "ssm_state_size",
    "ssm_conv_kernel",
    "ssm_dt_rank",
    "ssm_conv_mode",
    "pooling",
    "normalize",
)
"""Fields of a student's configuration that a conversion chooses; the others follow from the teacher."""


def save_delta(student: Any, use: Use, teacher: str, weights: str, folder: Path) -> None:
    """Writes a student's cores and its configuration into a folder; its other weights are all its teacher's.

    `teacher` is where others find that: a hub name, a package or a folder. `weights` is its hash, see `weights_hash`.
    """
    student.config.architectures = [type(student).__name__]  # as `save_pretrained` of a whole model has it
    student.config.save_pretrained(folder)
    cores = {name: rounded(name, weight) for name, weight in student.state_dict().items() if CORE in name}
    about = {"teacher": teacher, "weights": weights, "use": use}
    # One entry only: safetensors writes several in any order, and equal cores should make equal files.
    save_file(cores, folder / DELTA, {ABOUT: to_json(about)})


def rounded(name: str, weight: torch.Tensor) -> torch.Tensor:
    """Returns a weight in bf16, or in float32 if it is one of the recurrence's, which need it."""
    wide = name.rpartition(".")[2] in Recurrence.FLOAT32
    return weight.detach().cpu().to(torch.float32 if wide else torch.bfloat16).contiguous()


def whole(path: Any) -> Any:
    """Returns the folder to read weights from: that of the whole model if `path` holds a delta, which the first call
    makes in the cache, else `path`. Errors are those of `read_delta` and `rebuild`."""
    if not isinstance(path, str | Path) or not (Path(path) / DELTA).is_file():
        return path
    file = Path(path) / DELTA
    place = default_cache() / "whole" / f"{sha256(file)[:16]}-{sha256(Path(path) / CONFIG)[:8]}"

    def fill(folder: Path) -> None:
        rebuild(path, *read_delta(file)).save_pretrained(folder)
        load_tokenizer(str(path)).save_pretrained(folder)

    make_once(place, fill)
    return place


MaBertPreTrainedModel.whole = staticmethod(whole)


def read_delta(file: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Returns what a delta says about its teacher, and its cores; ValueError if the file is damaged, or does not name
    its teacher and use."""
    try:
        with safe_open(file, framework="pt") as opened:
            said = (opened.metadata() or {}).get(ABOUT, "{}")
            cores = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged or cut short ({error}); copy the folder again") from error
    about = parse_json(said, str(file))
    if not isinstance(about, dict):
        raise ValueError(f"{file} describes itself as {said[:40]!r}; it must be a mapping of names to values")
    if missing := [name for name in ("teacher", "weights", "use") if not isinstance(about.get(name), str)]:
        raise ValueError(f"{file} does not say its {', '.join(missing)}: it is no delta of `mabert convert`")
    if about["use"] not in USES:
        raise ValueError(f"{file} is for {about['use']!r}; it must be one of {', '.join(USES)}")
    return about, cores


def rebuild(path: str | Path, about: dict[str, str], cores: dict[str, torch.Tensor]) -> Any:
    """Makes the student from its teacher and cores. Raises FileNotFoundError if the teacher cannot be found, and
    ValueError if the cores learnt from another teacher's weights, or do not fit the configuration."""
    use: Any = about["use"]
    try:
        teacher = load_teacher(open_teacher(about["teacher"]))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{path} is a delta, which needs its teacher {about['teacher']} under that name: {error}"
        ) from error
    known = weights_hash(check_copy(teacher, use))
    if known != about["weights"]:
        raise ValueError(
            f"{path} was made of {about['teacher']} with weights {about['weights'][:16]}; the weights there are "
            f"{known[:16]}, another model's"
        )
    config = open_model(path).config
    student = student_of(teacher, use, **{name: getattr(config, name) for name in CHOSEN})
    wanted = {name: tuple(weight.shape) for name, weight in student.state_dict().items() if CORE in name}
    there = {name: tuple(weight.shape) for name, weight in cores.items()}
    if odd := sorted(name for name in wanted | there if wanted.get(name) != there.get(name)):
        raise ValueError(
            f"{Path(path) / DELTA} does not fit its configuration: {odd[0]} is {there.get(odd[0], 'missing')} in it "
            f"and {wanted.get(odd[0], 'missing')} by the configuration"
        )
    student.load_state_dict({name: weight.float() for name, weight in cores.items()}, strict=False)
    return student
