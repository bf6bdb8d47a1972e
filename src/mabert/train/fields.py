"""Builds dataclasses from nested plain values (YAML, command line). Names and types are checked; an error is one line
that names the field, the value and what would be right."""

import dataclasses
import difflib
import types
import typing
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Union

from mabert.data import rows
from mabert.files.reading import shown


class Checked:
    """Base of dataclasses that check their fields against the annotations, however they are made.

    Args:
        where: Name of the section, for messages.
    """

    section: ClassVar[str]

    def __init_subclass__(cls, where: str = "") -> None:
        cls.section = where

    def __post_init__(self) -> None:
        for name, hint in hints_of(type(self)).items():
            setattr(self, name, convert(hint, getattr(self, name), f"{self.section}.{name}".removeprefix(".")))


def hints_of(kind: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass with their annotations."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def build(kind: type, content: Any, where: str) -> Any:
    """Builds a dataclass from nested mappings, checking names, types and ranges.

    Args:
        kind: The dataclass.
        content: The content of the YAML file at that place.
        where: Dotted name of the place, for messages.
    """
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ValueError(f"{where} is {shown(content)}; it must be a mapping of fields")
    hints, values, prefix = hints_of(kind), {}, f"{where}." if where else ""
    for key, value in content.items():
        if key not in hints:
            sections = [(name, hint) for name, hint in hints.items() if dataclasses.is_dataclass(hint)]
            deeper = [f"{prefix}{name}.{each}" for name, hint in sections for each in hints_of(hint)]
            raise ValueError(unknown(f"{prefix}{key}", [prefix + name for name in hints], deeper))
        values[key] = convert(hints[key], value, f"{prefix}{key}")
    fields = (f for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING)
    missing = [field.name for field in fields if field.name not in values]
    if missing:
        raise ValueError(f"{where or 'the recipe'} lacks {', '.join(missing)}")
    return kind(**values)


def check(kind: type, content: Any, where: str) -> None:
    """Refuses content that does not fit the dataclass, naming the place."""
    try:
        build(kind, content, "")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def convert(hint: Any, value: Any, name: str) -> Any:
    """Converts a value to the annotated type of its field.

    Raises:
        ValueError: If it does not fit; names the field, the value and what would be right.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        value, (range,) = convert(arguments[0], value, name), hint.__metadata__
        range.check(value, name)
    elif dataclasses.is_dataclass(hint):
        value = value if isinstance(value, typing.cast(type, hint)) else build(typing.cast(type, hint), value, name)
    elif origin in (Union, types.UnionType):
        value = None if value is None else convert(next(a for a in arguments if a is not type(None)), value, name)
    elif origin is list:
        items = value if isinstance(value, list) else [value]
        value = [convert(arguments[0], item, f"{name}[{place}]") for place, item in enumerate(items)]
    elif origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{name} is {shown(value)}; it must be a mapping of fields")
    elif origin is Literal:
        if value not in arguments:
            raise ValueError(f"{name} is {shown(value)}; it must be one of {list(arguments)}")
    elif hint is not Any:
        value = convert_number(hint, value, name)
    return value


def convert_number(hint: type, value: Any, name: str) -> Any:
    """Converts a number or text to the right type: YAML reads `6e-4` as text, and `1` as an integer."""
    if hint is float and not isinstance(value, bool):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    elif isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}
    raise ValueError(f"{name} is {shown(value)}; it must be {words.get(hint, hint.__name__)}")


def unknown(key: str, known: typing.Iterable[str], deeper: typing.Iterable[str] = ()) -> str:
    """Returns the message for an unknown key.

    Args:
        key: Dotted name of the key.
        known: Valid keys at its place.
        deeper: Keys of the sections at its place; one that ends like the key is likely meant.
    """
    if ":" in key:  # YAML reads {epochs:1} as a key without a value
        return f"unknown field {key!r}; YAML wants a space after the colon: {key.replace(':', ': ')!r}"
    known, last = sorted(known), key.rpartition(".")[2]
    meant = [each for each in deeper if each.rpartition(".")[2] == last]
    names = {each.rpartition(".")[2]: each for each in known}
    near = meant or [names[each] for each in difflib.get_close_matches(last, names, n=1, cutoff=0.7)]
    return f"unknown field {key!r}; " + (f"did you mean {near[0]!r}?" if near else f"there are {known}")


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

    content = parse_yaml(rows.read_text(path), str(path))
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__}; a recipe is a mapping of fields")
    return content


def share_of(value: Any, name: str) -> float:
    """Converts `10%` or 0.1 to 0.1.

    Raises:
        ValueError: It is not above 0 % and at most 100 %.
    """
    text = str(value)
    try:
        share = float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError(f"{name} has {shown(value)}; a budget is above 0% and at most 100%, such as 10%")
    return share
