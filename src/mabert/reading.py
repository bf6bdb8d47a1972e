"""JSON and YAML, with one clear line for everything that can be wrong with them; and what any file's content is known
by."""

import hashlib
import json
import re
from collections.abc import Container
from pathlib import Path
from reprlib import Repr
from typing import Any

import yaml

_BLOCK = 1 << 20
_WHOLE_DIGEST_LIMIT = 64 * _BLOCK

DEEPEST = 64
"""Levels of nesting; no file that a person means has as many, and walking more would end in a RecursionError."""

MOST = 100_000
"""Values that a YAML file has at most when its aliases are written out."""

_DIGITS = 4_000
"""Digits of a whole number, below Python's own limit."""

_TOO_DEEP = f"nested more than {DEEPEST} levels deep"

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist = 3, 4, 6


def shown(value: Any) -> str:
    """A value for a message: as Python writes it, at most a line long however large or nested it is."""
    text = _SHORT.repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


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
        ValueError: If it is not UTF-8, not JSON, or no object; names file and line.
    """
    value = read_json_value(file)
    if not isinstance(value, dict):
        raise ValueError(f"{file}: holds {type(value).__name__}, where an object is needed")
    return value


def read_json_value(file: Path, nan: bool = False) -> Any:
    """Whatever a JSON file holds; raises as `read_json` does. For `nan` see `parse_json`."""
    content = file.read_bytes()
    if not content.strip():
        raise ValueError(f"{file}: not JSON: empty ({len(content)} bytes)")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise ValueError(f"{file}: not UTF-8: {byte}") from error
    return parse_json(text, str(file), nan)


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


def parse_json(text: str, where: str, nan: bool = False, line: bool = True) -> Any:
    """The value that JSON text holds.

    Args:
        text: The text.
        where: It stands, for messages.
        nan: Whether NaN and infinities may stand in it, for whoever checks them with more to say.
        line: Whether messages name the line; not where `where` does.

    Raises:
        ValueError: If it is not JSON, or holds a number that cannot be or more levels than a person can mean.
    """
    try:
        value = json.loads(text, parse_constant=float if nan else _no_number, parse_int=_whole)
        if not _is_deep(value):
            return value
        place, told = _deep_place(text), _TOO_DEEP
    except json.JSONDecodeError as error:
        place, told = error.pos, f"not JSON: {error.msg} at column {error.colno}"
    except RecursionError:
        place, told = _deep_place(text), _TOO_DEEP
    except _NumberError as error:
        place, told = text.find(error.written), str(error)
    raise ValueError(f"{where}: {told}" + (f" in line {text.count(chr(10), 0, place) + 1}" if line else ""))


class _NumberError(ValueError):
    def __init__(self, told: str, written: str) -> None:
        super().__init__(told)
        self.written = written


def _no_number(word: str) -> Any:
    raise _NumberError(f"not JSON: {word} is no number; null stands for none", word)


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise _NumberError(_too_long(digits), digits)
    return int(digits)


def _too_long(digits: str) -> str:
    return f"a whole number has {len(digits):,} digits, {digits[:10]}..."


def _is_deep(value: Any) -> bool:
    """Whether a value has more levels than it may."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
        if not level:
            return False
    return True


def _deep_place(text: str) -> int:
    """Where brackets stand deeper than they may."""
    depth = 0
    for bracket in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(bracket[0], 0)
        if depth > DEEPEST:
            return bracket.start()
    return 0


def parse_yaml(text: str, where: str) -> Any:
    """The value that YAML text holds, by a safe loader.

    Args:
        text: The text.
        where: It stands, for messages.

    Raises:
        ValueError: If it is not YAML, has a key twice, or holds itself or more than a person can mean; names the line.
    """
    loader = None
    try:
        loader = _Loader(text)  # which may refuse characters
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"{where} is not YAML: {_shortened(error.problem or error.context)}{line}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{where} is not YAML: {_shortened(error)}") from error
    finally:
        if loader is not None:
            loader.dispose()


def _shortened(told: object) -> str:
    return " ".join(str(told).split())[:200]


class _Loader(yaml.SafeLoader):
    """Refuses what a person cannot mean: a key twice, values within themselves, nesting and aliases without an end."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.depth = 0
        self.sizes: dict[int, int] = {}  # of whole nodes, aliases written out

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark = self.peek_event().start_mark
        if self.depth == DEEPEST:
            raise yaml.MarkedYAMLError(problem=_TOO_DEEP, problem_mark=mark)
        alias = isinstance(self.peek_event(), yaml.AliasEvent)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        if node is None:
            return node
        if alias and id(node) not in self.sizes:
            raise yaml.MarkedYAMLError(problem="an alias stands within what it is an alias of", problem_mark=mark)
        if not alias:
            self._measure(node)
        if self.sizes[id(node)] > MOST:
            raise yaml.MarkedYAMLError(problem=f"aliases make more than {MOST:,} values", problem_mark=mark)
        return node

    def _measure(self, node: yaml.Node) -> None:
        """Notes how many values a node has; refuses a key that is there already."""
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            inner = node.value
        elif isinstance(node, yaml.MappingNode):
            inner = [each for pair in node.value for each in pair]
            lines: dict[tuple[str, str], int] = {}
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and (name := (key.tag, key.value)) in lines:
                    told = f"{key.value[:60]!r} stands in line {lines[name]} already, and again"
                    raise yaml.MarkedYAMLError(problem=told, problem_mark=key.start_mark)
                if isinstance(key, yaml.ScalarNode):
                    lines[key.tag, key.value] = key.start_mark.line + 1
        self.sizes[id(node)] = 1 + sum(self.sizes[id(each)] for each in inner)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode) and len(node.value) > _DIGITS and node.tag == "tag:yaml.org,2002:int":
            raise yaml.MarkedYAMLError(problem=_too_long(node.value), problem_mark=node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (
            ValueError,
            ArithmeticError,
            LookupError,
            TypeError,
            AttributeError,
        ) as error:  # such as a date that there is not
            raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from error
