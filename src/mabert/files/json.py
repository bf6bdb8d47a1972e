"""Writes JSON, which has no NaN, no infinities and no half of a surrogate pair."""

import json
import math
import re
from collections.abc import Callable
from typing import Any

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

    Args:
        value: Mappings, lists, tuples, text, numbers, booleans and None, nested to any depth. A number that is not
            finite becomes null.
        indent: Spaces of each level; default, everything is in one line.
        sort_keys: Whether to sort the keys of mappings.
        ascii_only: Whether to escape other characters than those of ASCII. Otherwise half of a surrogate pair becomes
            U+FFFD, because UTF-8 has no bytes for it.
        default: Makes what JSON does not have, such as a date, into what it has; default, such a value is an error.

    Raises:
        TypeError: If JSON does not have such a value, and `default` is not given.
    """
    how: dict[str, Any] = {"indent": indent, "sort_keys": sort_keys, "ensure_ascii": ascii_only, "default": default}
    try:
        text = json.dumps(value, allow_nan=False, **how)
    except ValueError:
        text = json.dumps(finite(value), allow_nan=False, **how)
    return text if ascii_only else whole_characters(text)


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
