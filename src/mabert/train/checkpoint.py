"""Checkpoints without pickles: a manifest proves that one is whole, and optimizer and random generators have plain
files."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from mabert.files.reading import read_json, read_json_if_there, sha256, to_json
from mabert.files.writing import write_json

MANIFEST = "manifest.json"
"""Lists the files of a checkpoint with their sizes and digests; written last."""

OPTIMIZER = "optimizer.safetensors"
SCHEDULER = "scheduler.json"
GENERATORS = "generators-{}.json"
"""State of one process's random generators."""

_PICKLES = (".bin", ".pkl", ".pt", ".pth")


class DamagedCheckpointError(ValueError):
    """A checkpoint lacks a file, or one has changed since it was written."""


def seal(folder: Path) -> None:
    """Writes the manifest of a complete checkpoint."""
    files = {
        str(file.relative_to(folder)): {"size": file.stat().st_size, "sha256": sha256(file)}
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    write_json(folder / MANIFEST, {"version": 1, "files": files}, indent=1)


def fault(folder: Path) -> str | None:
    """Says which file of a checkpoint is missing or is not what its manifest lists; None if the checkpoint is whole.
    Checkpoints of earlier versions have no manifest, and hold pickles."""
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return f"{manifest} is missing"
    try:
        files = read_json(manifest)["files"]
        expected = [(folder / name, about["size"], about["sha256"]) for name, about in files.items()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{manifest} is damaged"
    for file, size, _ in expected:
        if not file.is_file():
            return f"{file} is missing"
        if file.stat().st_size != size:
            return f"{file} is damaged: it has {file.stat().st_size:,} bytes of {size:,}"
    for file in folder.iterdir():
        if file.suffix in _PICKLES and file.name not in files:
            return f"{file} is not of this checkpoint, in which nothing is a pickle"
    damaged = next((file for file, _, wanted in expected if sha256(file) != wanted), None)
    return None if damaged is None else f"{damaged} is damaged: its content is not what was saved"


def checkpoint_to_resume(run: Path, asked: str | None = None) -> Path | None:
    """Returns the checkpoint in a folder to resume from, the newest or the one of this name; None if there is none.

    Raises:
        DamagedCheckpointError: If it is not whole; the message names the file, and the newest whole checkpoint.
        ValueError: If there is no checkpoint of that name.
    """
    there = checkpoints(run)
    if asked is None and not there:
        return None
    chosen = there[-1] if asked is None else run / Path(asked).name
    if chosen not in there:
        names = ", ".join(each.name for each in there) or "none"
        raise ValueError(f"{run} holds no checkpoint {asked!r}; there are: {names}")
    found = fault(chosen)
    if found is None:
        return chosen
    whole = next((each for each in reversed(there) if each != chosen and fault(each) is None), None)
    helps = "no other checkpoint is whole: remove that checkpoint, and --resume begins anew"
    if whole is not None:
        helps = f"the newest whole checkpoint is {whole}: --resume-from {whole.name} goes on from there"
    raise DamagedCheckpointError(f"{found}; {helps}")


def drop_damaged(run: Path, chosen: Path) -> None:
    """Removes damaged checkpoints that are newer than the one to resume from."""
    there = checkpoints(run)
    for later in there[there.index(chosen) + 1 :]:
        if fault(later) is not None:
            shutil.rmtree(later)


def checkpoints(run: Path) -> list[Path]:
    """Lists the checkpoints in a folder, oldest first."""
    found = (folder for folder in run.glob("checkpoint-*") if folder.is_dir() and folder.name[11:].isdigit())
    return sorted(found, key=lambda folder: int(folder.name[11:]))


def save_optimizer(optimizer: torch.optim.Optimizer, file: Path) -> None:
    """Writes an optimizer's state: tensors by parameter and name, everything else as JSON in the header."""
    state = optimizer.state_dict()
    named = {f"{index}.{name}": value for index, of in state["state"].items() for name, value in of.items()}
    tensors = {name: value.contiguous() for name, value in named.items() if isinstance(value, torch.Tensor)}
    numbers = {name: value for name, value in named.items() if name not in tensors}
    save_file(tensors, file, {"groups": to_json(state["param_groups"]), "numbers": to_json(numbers)})


def load_optimizer(optimizer: Any, file: Path) -> None:
    """Loads the state that `save_optimizer` wrote, bit by bit."""
    with safe_open(file, framework="pt") as opened:
        about = opened.metadata()
        named = json.loads(about["numbers"]) | {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    state: dict[int, dict[str, Any]] = {}
    for key, value in named.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    groups = [
        {name: tuple(value) if name == "betas" else value for name, value in group.items()}
        for group in json.loads(about["groups"])
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def save_generators(folder: Path, process: int) -> None:
    """Writes the state of a process's random generators: Python, NumPy, torch, and its GPU."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    assert isinstance(keys, np.ndarray)
    states = {"python": random.getstate(), "numpy": [kind, keys.tolist(), *rest]}
    states["torch"] = torch.get_rng_state().numpy().tobytes().hex()
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state().numpy().tobytes().hex()
    write_json(folder / GENERATORS.format(process), states)


def load_generators(folder: Path, process: int) -> None:
    """Restores the state that `save_generators` wrote; there is none of a process if fewer of them saved it."""
    states = read_json_if_there(folder / GENERATORS.format(process))
    if states is None:
        return
    version, keys, gauss = states["python"]
    random.setstate((version, tuple(keys), gauss))
    np.random.set_state(states["numpy"])
    torch.set_rng_state(torch.frombuffer(bytearray.fromhex(states["torch"]), dtype=torch.uint8))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.frombuffer(bytearray.fromhex(states["cuda"]), dtype=torch.uint8))
