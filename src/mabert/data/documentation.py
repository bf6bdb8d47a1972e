"""English text that every Python installation carries: the documentation of its library and of the installed packages.

It is read from the source files by `ast`; nothing is imported or run.
"""

from __future__ import annotations

import ast
import gc
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mabert.data.progress import Progress
from mabert.data.prose import prose

# Folders whose doc strings are about tests, are copies of other packages, or would bring this package's own.
_LEFT_OUT = {"test", "tests", "testing", "idlelib", "lib2to3", "vendor", "_vendor", "__pycache__", "mabert"}
_LEFT_OUT |= {"site-packages", "dist-packages"}  # within the folder of the standard library
_TOPICS = Path("pydoc_data", "topics.py")
# Files with little documentation take most of the time to parse and give next to nothing.
_LEAST_SHARE = 0.3
_TRIPLE_QUOTED = re.compile(rb'"""(.*?)"""', re.DOTALL)
_LEAST_WORDS = 20


def installed_documentation(roots: Iterable[str | Path] | None = None, progress: bool = True) -> list[str]:
    """Collects the prose of doc strings and of Python's own help topics.

    Examples, parameter tables, code, formulas and repeated sentences are left out. The order is that of the paths, so
    the same installation always gives the same documents.

    Args:
        roots: folders of Python source; by default the standard library and the installed packages.
        progress: show a progress bar.

    Returns:
        A document a module or help topic, its paragraphs separated by line feeds.

    Raises:
        ValueError: nothing was found, as where the library is stripped of its sources.
    """
    with _without_collector():
        return _collect([Path(root) for root in roots] if roots is not None else _installed_roots(), progress)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Syntax trees hold no cycles, and looking for some takes a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _collect(folders: list[Path], progress: bool) -> list[str]:
    sources = [path for folder in folders for path in _python_files(folder)]
    seen: set[str] = set()
    documents = []
    with Progress("documentation", sum(path.stat().st_size for path in sources), progress) as bar:
        done = 0
        for path in sources:
            for texts in _documentation(path):
                fresh = _unseen(texts, seen)
                if sum(len(paragraph.split()) for paragraph in fresh) >= _LEAST_WORDS:
                    documents.append("\n".join(fresh))
            done += path.stat().st_size
            bar.update(done, f"{len(documents)} documents")
    if not documents:
        raise ValueError(f"no documentation found in {', '.join(map(str, folders))}")
    return documents


def _installed_roots() -> list[Path]:
    paths = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    return list(dict.fromkeys(Path(path).resolve() for path in paths if path))


def _python_files(folder: Path) -> Iterator[Path]:
    """Regular files that may be read: a link that leads nowhere in somebody's package ends no work."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT and not name.startswith("."))
        paths = (Path(place, name) for name in sorted(names) if name.endswith(".py"))
        yield from (path for path in paths if os.path.isfile(path) and os.access(path, os.R_OK))


def _documentation(path: Path) -> Iterator[list[str]]:
    """Groups of texts of one file, each of which makes a document."""
    source = path.read_bytes()
    topics = path.parts[-2:] == _TOPICS.parts
    if not topics and sum(map(len, _TRIPLE_QUOTED.findall(source))) < _LEAST_SHARE * len(source):
        return
    try:
        with warnings.catch_warnings():
            # Other people's invalid escape sequences.
            warnings.simplefilter("ignore")
            module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    if topics:
        yield from ([text] for text in _strings_of_dictionaries(module))
    else:
        yield list(_docstrings(module))


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Doc strings of a module, its classes, functions and methods, in the order of the source."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node, clean=False)
        if text:
            yield text
    if isinstance(node, ast.Module | ast.ClassDef | ast.If | ast.Try):
        for child in node.body:
            yield from _docstrings(child)


def _strings_of_dictionaries(module: ast.Module) -> Iterator[str]:
    for statement in module.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            for value in statement.value.values:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value


def _unseen(texts: Iterable[str], seen: set[str]) -> list[str]:
    """The paragraphs of texts without the sentences seen before, which are copies: what is left differs everywhere."""
    fresh = []
    for text in texts:
        for sentences in prose(text):
            new = [sentence for sentence in sentences if sentence not in seen]
            seen.update(new)
            if new:
                fresh.append(" ".join(new))
    return fresh
