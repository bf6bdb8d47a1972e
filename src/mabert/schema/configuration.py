"""Checks the configuration of a model of any family: types as its class declares them, numbers within their ranges."""

import functools
import typing
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from mabert.schema.check import check, mapping_of
from mabert.schema.ranges import RANGES, AnyNumber, Range, Rate, alternatives, range_of


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
