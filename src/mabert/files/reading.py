"""Reads JSON with one clear line for any error and writes it, shortens values for messages, hashes files and lists
folders."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Container
from pathlib import Path
from reprlib import Repr
from typing import Any

_STRING_OR_CONSTANT = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN')
_HALF = re.compile(r"[\ud800-\udfff]")


def to_json(
    value: Any,
    *,
    indent: int | None = None,
    sort_keys: bool = False,
    ascii_only: bool = True,
    default: Callable[[Any], Any] | None = None,
) -> str:
    """Returns a value as JSON. All that the package writes as JSON goes through this function.

    A number that is not finite becomes null. With `ascii_only`, other characters are escaped; otherwise half of a
    surrogate pair becomes U+FFFD, because UTF-8 has no bytes for it. `default` makes what JSON does not have, such as a
    date, into what it has; without it, such a value is a TypeError.
    """
    how: dict[str, Any] = {"indent": indent, "sort_keys": sort_keys, "ensure_ascii": ascii_only, "default": default}
    try:
        text = json.dumps(value, allow_nan=False, **how)
    except ValueError:
        text = json.dumps(finite(value), allow_nan=False, **how)
    return text if ascii_only else whole_characters(text)


def key_of(value: Any, digits: int = 64, default: Callable[[Any], Any] | None = None) -> str:
    """Returns the first hexadecimal digits of the SHA-256 of a value as JSON with sorted keys; see `to_json`."""
    return hashlib.sha256(to_json(value, sort_keys=True, default=default).encode()).hexdigest()[:digits]


def finite(value: Any) -> Any:
    """Returns a copy of nested mappings, lists and tuples with None in place of numbers that are not finite."""
    if isinstance(value, dict):
        return {finite(name): finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def whole_characters(value: Any) -> Any:
    """Returns nested mappings, lists and text with U+FFFD in place of each half of a surrogate pair.

    JSON and Python's text can hold a half, but UTF-8 and tokenizers cannot. U+FFFD is one character too, so that places
    in a text stay right.
    """
    if isinstance(value, str):
        try:
            value.encode()  # faster than a search
        except UnicodeEncodeError:
            return _HALF.sub("\ufffd", value)
        return value
    if isinstance(value, dict):
        return {whole_characters(name): whole_characters(each) for name, each in value.items()}
    return [whole_characters(each) for each in value] if isinstance(value, list) else value


_BLOCK = 1 << 20
_WHOLE_DIGEST_LIMIT = 64 * _BLOCK

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist = 3, 4, 6


def shown(value: Any) -> str:
    """Formats a value for a message as Python would, in at most 120 characters however large or nested it is."""
    text = _SHORT.repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file's content.

    Beyond 64 MiB it reads only 64 evenly spaced blocks of 1 MiB, first and last included, so that checking the cache of
    a large corpus takes a moment, not minutes.
    """
    size = path.stat().st_size
    sha = hashlib.sha256()
    whole = size <= _WHOLE_DIGEST_LIMIT
    starts = range(0, size, _BLOCK) if whole else [(size - _BLOCK) * block // 63 for block in range(64)]
    with path.open("rb") as file:
        for start in starts:
            file.seek(start)
            sha.update(file.read(_BLOCK))
    return sha.hexdigest()


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a whole file, however large."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(file: Path) -> dict[str, Any]:
    """Reads the object in a JSON file; raises a ValueError that names file and line if it is not UTF-8, JSON or an
    object."""
    value = read_json_value(file)
    if not isinstance(value, dict):
        raise ValueError(f"{file}: holds {type(value).__name__}, where an object is needed")
    return value


def read_json_value(file: Path, nan: bool = False) -> Any:
    """Reads any value in a JSON file; raises as `read_json` does. For `nan` see `parse_json`."""
    content = file.read_bytes()
    if not content.strip():
        raise ValueError(f"{file}: empty ({len(content)} bytes)")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise ValueError(f"{file}: not UTF-8: {byte}") from error
    return parse_json(text, str(file), nan)


def read_json_if_there(file: Path) -> dict[str, Any] | None:
    """Reads the object in a JSON file; None if there is no file."""
    try:
        return read_json(file)
    except FileNotFoundError:
        return None


def files_below(folder: Path, left_out: Container[str] = ()) -> list[Path]:
    """Returns the files below a folder, sorted by path, without hidden ones, macOS's additions to archives, and folders
    of the names in `left_out`.

    It follows links to folders; a folder that is reached twice, even by a loop of links, is read once. Broken links are
    included, so that reading them raises an error.
    """
    found, seen, waiting = [], set(), [folder]
    while waiting:
        # Folders come before links to them, so that a file below both gets its own path.
        waiting.sort(key=lambda path: (path.is_symlink(), path))
        here = waiting.pop(0)
        if (real := here.resolve()) in seen:
            continue
        seen.add(real)
        entries = [each for each in here.iterdir() if not each.name.startswith(".") and each.name != "__MACOSX"]
        waiting += [each for each in entries if each.is_dir() and each.name not in left_out]
        found += [each for each in entries if each.is_file() or (each.is_symlink() and not each.exists())]
    return sorted(found)


def parse_json(text: str, where: str, nan: bool = False, line: bool = True) -> Any:
    """Parses JSON from `where`. Half of a surrogate pair, which JSON can spell, becomes U+FFFD. NaN and infinities are
    accepted with `nan`, for callers that check them with a better message. Messages add the line, unless `where` names
    it.

    Raises ValueError if it is not JSON, or holds more digits or levels than Python reads.
    """

    def refuse(word: str) -> Any:
        place = next(found.start() for found in _STRING_OR_CONSTANT.finditer(text) if found[0] == word)
        raise json.JSONDecodeError(f"{word} is not a number; null stands for none", text, place)

    try:
        value = json.loads(text, parse_constant=float if nan else refuse)
        return whole_characters(value) if "\\ud" in text.lower() else value
    except json.JSONDecodeError as error:
        at = f" in line {error.lineno}" if line else ""
        raise ValueError(f"{where}: not JSON: {error.msg.removesuffix(' at')} at column {error.colno}{at}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not readable JSON: {error}") from error
