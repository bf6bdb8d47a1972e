"""Recipes as people write them: YAML files, and fields on the command line."""

from pathlib import Path
from typing import Any

from mabert.files import tables
from mabert.files.reading import shown


def with_overrides(content: dict[str, Any], overrides: list[str] | None) -> dict[str, Any]:
    """Sets `section.field=value` for each override, in place."""
    from mabert.files.yaml import parse_yaml

    for override in overrides or []:
        key, equals, value = override.partition("=")
        if not equals or not key:
            raise ValueError(f"{shown(override)} is not of the form name=value, such as training.steps=100")
        set_field(content, key.split("."), parse_yaml(value, f"the value in {f'{key[:80]}={value[:40]}'!r}"))
    return content


def set_field(content: dict[str, Any], keys: list[str], value: Any) -> None:
    """Sets a nested field, creating missing sections."""
    for key in keys[:-1]:
        if content.get(key) is None:
            content[key] = {}
        content = content[key]
        if not isinstance(content, dict):
            raise ValueError(f"{'.'.join(keys)} cannot be set: {key} is not a section")
    content[keys[-1]] = value


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads the mapping in a YAML file with the safe loader."""
    from mabert.files.yaml import parse_yaml  # imported here to keep `--help` fast

    content = parse_yaml(tables.read_text(path), str(path))
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__}; a recipe is a mapping of fields")
    return content
