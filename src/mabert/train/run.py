"""One folder a run: what was asked, what came out, and nothing of another run."""

import contextlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml

REQUEST = "request.yaml"
RESULT = "result.json"


def environment() -> dict[str, Any]:
    """Machine, versions and commit, as every result records them."""
    packages = ("mabert", "torch", "transformers", "tokenizers", "datasets", "accelerate", "numba", "numpy")
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "packages": {name: version(name) for name in packages},
        "commit": commit(),
    }


def processor() -> str:
    """The processor's name, where the system tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit() -> str | None:
    """The commit of the checkout this package runs from, `+` behind it where files differ; None outside a checkout."""
    here = Path(__file__).parent
    try:
        name = git(here, "rev-parse", "--short", "HEAD")
        return name + ("+" if git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def git(folder: Path, *arguments: str) -> str:
    """What a git command prints."""
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class RunFolder:
    """The output folder of a run.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.started = time.time()

    def check(self, request: dict[str, Any], resume: bool) -> None:
        """Whether a run may use the folder; changes nothing.

        Args:
            request: Everything that determines the run, as plain values.
            resume: Whether to go on with the run that is there.

        Raises:
            ValueError: If the folder holds something and the run is new, or holds another run than the one to resume.
        """
        path = self.path / REQUEST
        if not resume:
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                raise ValueError(
                    f"{self.path} already holds files; name another folder, or go on with that run by --resume"
                )
            return
        if not path.is_file():
            raise ValueError(f"{self.path} holds no run to resume (no {REQUEST})")
        there = yaml.safe_load(path.read_text(encoding="utf-8"))
        changed = list(differences(there, request))
        if changed:
            raise ValueError(f"{self.path} holds another run; it differs in " + "; ".join(changed[:5]))

    def claim(self, request: dict[str, Any], resume: bool) -> None:
        """Takes the folder for a run, or takes it up again; raises as `check` does."""
        self.check(request, resume)
        if not resume:
            self.path.mkdir(parents=True, exist_ok=True)
            write_text(self.path / REQUEST, yaml.safe_dump(request, sort_keys=False, allow_unicode=True))

    def write_result(self, outcome: dict[str, Any], **about: Any) -> dict[str, Any]:
        """Writes `result.json`: the request, the outcome, seed, environment, duration. Returns what it wrote."""
        request = yaml.safe_load((self.path / REQUEST).read_text(encoding="utf-8"))
        result = {
            "request": request,
            "outcome": outcome,
            **about,
            "environment": environment(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
            "seconds": round(time.time() - self.started, 1),
        }
        write_text(self.path / RESULT, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
        return result


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Names the places where two nested values differ, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(key), new.get(key), f"{where}.{key}" if where else str(key))
    elif old != new:
        yield f"{where}: {old!r} there, {new!r} here"


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all: a full disk or a kill leaves the old one."""
    beside = path.with_name(f".{path.name}.writing")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
