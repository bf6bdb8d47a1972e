"""How contenders and numbers are written."""

import math
from collections.abc import Mapping
from pathlib import Path


def split(name: str) -> tuple[str, str]:
    """Splits a contender's name into model and engine; a path may contain a colon too."""
    model, colon, engine = name.rpartition(":")
    return (model, engine) if colon and "/" not in engine else (name, "")


def titled(name: str, titles: Mapping[str, str]) -> str:
    """Returns a contender's title in tables, by those of models: ``bert:openvino`` is BERT, openvino."""
    model, engine = split(name)
    return titles.get(model, Path(model).name) + (f", {engine}" if engine else "")


def digits(number: float, least: int = 3) -> str:
    """Formats a positive number with so many significant digits, and all that stand before the point."""
    return f"{number:,.{max(0, least - 1 - math.floor(math.log10(number)))}f}"
