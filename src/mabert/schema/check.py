"""Checks values by pydantic; an error is one line that names the field, the value and what would be right.

Numbers in a configuration of any family have ranges, beside the types that its class declares.
"""

import dataclasses
import difflib
import functools
import typing
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from mabert.files.reading import shown
from mabert.schema.ranges import RANGES, AnyNumber, Range, Rate, alternatives, range_of

if typing.TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

STRICT: Any = {"strict": True, "arbitrary_types_allowed": True}

TYPES_IN_WORDS = {"bool": "true or false", "string": "text", "dict": "a mapping of fields", "list": "a list"}
"""What would be right, by the first word of pydantic's type of error."""


class Checked:
    """Base of dataclasses that check their fields against the annotations, however they are made.

    Args:
        where: Name of the section, for messages.
    """

    section: ClassVar[str]

    def __init_subclass__(cls, where: str = "") -> None:
        cls.section = where

    def __post_init__(self) -> None:
        defaults = {field.name: field.default for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        # Defaults stay as they are written, an int where a float is meant: runs and cells are identified by them.
        fields = {name: value for name in defaults if (value := getattr(self, name)) is not defaults[name]}
        kind: Any = type(self)
        for name, value in check(typed(kind), fields, self.section).items():
            object.__setattr__(self, name, value)  # of a frozen dataclass too

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(cls.of_content)

    @classmethod
    def of_content(cls, content: Any) -> Any:
        """Makes an instance of a mapping of fields; raises pydantic's error if it is none of this class."""
        from pydantic_core import PydanticCustomError

        if isinstance(content, cls):
            return content
        content, hints = {} if content is None else content, hints_of(cls)
        if not isinstance(content, dict):
            raise PydanticCustomError("dict_type", "it must be a mapping of fields")
        for key in content:
            if key not in hints:
                sections = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
                deeper = [f"{name}.{each}" for name, hint in sections.items() for each in hints_of(hint)]
                raise PydanticCustomError("unknown", "it is unknown", {"key": key, "known": [*hints], "deeper": deeper})
        required = (f for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING)  # type: ignore[arg-type]
        if missing := [field.name for field in required if field.name not in content]:
            raise PydanticCustomError("lacks", "it lacks fields", {"missing": ", ".join(missing)})
        kind: Any = cls
        return cls(**adapter(typed(kind)).validate_python(content))


def hints_of(kind: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass with their annotations."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@functools.cache
def typed(kind: Any) -> Any:
    """Returns a mapping type with the fields of a dataclass, all optional."""
    return mapping_of(kind.__name__, hints_of(kind))


def mapping_of(name: str, hints: Mapping[str, Any]) -> Any:
    """Returns a mapping type with these optional fields, checked without conversion."""
    from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

    make: Any = TypedDict
    made = make(name, dict(hints), total=False)
    made.__pydantic_config__ = STRICT
    return made


@functools.cache
def adapter(hint: Any) -> "TypeAdapter[Any]":
    """Returns pydantic's checker of a type."""
    from pydantic import TypeAdapter

    alone = dataclasses.is_dataclass(hint) or hasattr(hint, "__pydantic_config__")
    return TypeAdapter(hint, config=None if alone else STRICT)


def check(hint: Any, value: Any, where: str = "") -> Any:
    """Converts a value to a type.

    Args:
        hint: A type such as those of `mabert.schema.ranges`, or a subclass of `Checked`.
        value: Plain values, as YAML, JSON or Python have them.
        where: Dotted name of the place, for messages.

    Raises:
        ValueError: In one line, if it does not fit; names the field, the value and what would be right.
    """
    from pydantic import ValidationError

    try:
        return adapter(hint).validate_python(value)
    except ValidationError as error:
        raise ValueError(message_of(error, where)) from error


def check_part(kind: type, content: Any, where: str) -> None:
    """Refuses content that does not fit the dataclass, naming the place."""
    try:
        check(kind, content)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def message_of(error: "ValidationError", where: str) -> str:
    """Tells the first of pydantic's errors in one line; `where` is the dotted name of what was checked."""
    first = error.errors(include_url=False)[0]
    kind, value, about, place = first["type"], first["input"], first.get("ctx", {}), first["loc"]
    is_key = place[-1:] == ("[key]",)
    name = where
    for key in place[:-2] if is_key else place:
        name += f"[{key}]" if isinstance(key, int) else f".{key}"
    name = name.removeprefix(".") or "the recipe"
    if kind == "value_error":
        return str(about["error"])
    if kind == "unknown":
        prefix = f"{name}." if where or place else ""
        known, deeper = ([prefix + each for each in about[which]] for which in ("known", "deeper"))
        return unknown(f"{prefix}{about['key']}", known, deeper)
    if kind == "lacks":
        return f"{name} lacks {about['missing']}"
    if kind == "literal_error":
        right = f"one of {about['expected'].replace(' or ', ', ')}"
    else:
        right = about.get("what") or TYPES_IN_WORDS.get(kind.partition("_")[0]) or first["msg"]
    if is_key:
        more = "" if isinstance(value, str) else f": write {str(value)!r} in quotes"
        return f"{name} names {shown(value)}; it must be {right}{more}"
    return f"{name} is {shown(value)}; it must be {right}"


def unknown(key: str, known: Iterable[str], deeper: Iterable[str] = ()) -> str:
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
    return f"unknown field {key!r}; " + (f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}")


def check_configuration(
    fields: Mapping[str, Any], declared: Mapping[str, Any], where: str = "", written: bool = False
) -> dict[str, Any]:
    """Returns fields of a configuration, checked; refuses what transformers or torch would refuse later.

    Args:
        fields: The fields that are set.
        declared: Types of the fields by name; numbers of other names are checked as well.
        where: Dotted name of the place, for messages.
        written: Whether the fields come from YAML. Then text such as `1e-6` is read as a number, and an integer may
            stand where a float is declared. Integers stay integers in fields that take both, because runs and cells are
            identified by these values.

    Raises:
        ValueError: Naming the field, the value and what would be right.
    """
    own = {name: value for name, value in fields.items() if name in declared}
    checked = {**fields, **check(_typed(tuple(declared.items()), written), own, where)}
    others = {name: value for name, value in fields.items() if name not in declared}
    numbers = [name for name, value in others.items() if name in RANGES or is_number(value)]
    check(_typed(tuple((name, int | float | None) for name in numbers), written), others, where)
    vocabulary, padding = checked.get("vocab_size"), checked.get("pad_token_id")
    if vocabulary is not None and padding is not None:
        check(Annotated[int, Range(0, vocabulary - 1)], padding, f"{where}.pad_token_id".removeprefix("."))
    return checked


def is_number(value: Any) -> bool:
    """Whether a value is a number, and not true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool)


@functools.cache
def _typed(declared: tuple[tuple[str, Any], ...], written: bool) -> Any:
    return mapping_of("Configuration", {name: _hint(name, kind, written) for name, kind in declared})


def _hint(name: str, kind: Any, written: bool) -> Any:
    members = {each for each in alternatives(kind) if each is not type(None)}
    lists = {each for each in members if typing.get_origin(each) is list}
    leaves = members - lists | {leaf for each in lists for leaf in alternatives(typing.get_args(each)[0])}
    if leaves <= {int, float, type(None)}:
        dropout = "dropout" in name and name.endswith(("dropout", "prob"))
        own = range_of(Rate) if dropout else RANGES.get(name, range_of(AnyNumber))
        return Annotated[kind, replace(own, written=written)]
    plain = len(members) == 1 and (leaves <= {str, bool} or typing.get_origin(*members) is Literal)
    return kind if plain else Any  # the rest is left to transformers
