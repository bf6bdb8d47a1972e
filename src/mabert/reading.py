"""JSON files that must hold an object, with one clear line for everything that can be wrong with them; and what any
file's content is known by."""

import hashlib
import json
from collections.abc import Container
from pathlib import Path
from typing import Any

_BLOCK = 1 << 20
_WHOLE_DIGEST_LIMIT = 64 * _BLOCK


def digest(path: Path) -> str:
    """SHA-256 of a file's content.

    Up to 64 MiB the whole content is read; beyond that 64 evenly spaced blocks of 1 MiB, first and last included, so
    that asking whether a cache of a large corpus is still good takes a moment, not minutes.
    """
    size = path.stat().st_size
    sha = hashlib.sha256()
    with path.open("rb") as file:
        for start in (
            range(0, size, _BLOCK)
            if size <= _WHOLE_DIGEST_LIMIT
            else [(size - _BLOCK) * block // 63 for block in range(64)]
        ):
            file.seek(start)
            sha.update(file.read(_BLOCK))
    return sha.hexdigest()


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        FileNotFoundError: If it is not there.
        ValueError: If it is not UTF-8, not JSON, or no object.
    """
    try:
        content = json.loads(file.read_bytes())
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise ValueError(f"{file}: not UTF-8: {byte}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: holds {type(content).__name__}, where an object is needed")
    return content


def read_json_if_there(file: Path) -> dict[str, Any] | None:
    """The same; None where there is no file."""
    try:
        return read_json(file)
    except FileNotFoundError:
        return None


def files_below(folder: Path, left_out: Container[str] = ()) -> list[Path]:
    """The files in a folder and the folders in it, without hidden ones and what macOS adds to archives.

    Links to folders are followed; a folder that is reached twice, by a loop of links too, is read once. A link to
    nothing is among the files, for reading it to complain of.

    Args:
        folder: Where to look.
        left_out: Names of further folders to leave out.

    Returns:
        Sorted by path.
    """
    found, seen, waiting = [], set(), [folder]
    while waiting:
        # Folders before links to them, so that a file has its own name where it lies below.
        waiting.sort(key=lambda path: (path.is_symlink(), path))
        here = waiting.pop(0)
        if (real := here.resolve()) in seen:
            continue
        seen.add(real)
        entries = [each for each in here.iterdir() if not each.name.startswith(".") and each.name != "__MACOSX"]
        waiting += [each for each in entries if each.is_dir() and each.name not in left_out]
        found += [each for each in entries if each.is_file() or (each.is_symlink() and not each.exists())]
    return sorted(found)
