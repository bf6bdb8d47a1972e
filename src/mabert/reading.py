"""JSON files that must hold an object, with one clear line for everything that can be wrong with them."""

import json
from pathlib import Path
from typing import Any


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
