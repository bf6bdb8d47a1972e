"""English text in every Python installation: the docstrings of its packages, and Python's own help.

The text is read from source files by `ast`; nothing is imported or run.
"""

from __future__ import annotations

import ast
import gc
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from mabert.machine.progress import ByteProgress
from mabert_lab.english import is_prose, split_sentences

# Folders with docstrings about tests, copies of other packages, or this package's own docstrings.
_LEFT_OUT = {"test", "tests", "testing", "idlelib", "lib2to3", "vendor", "_vendor", "__pycache__", "mabert"}
_LEFT_OUT |= {"site-packages", "dist-packages"}  # within the folder of the standard library
_BULLET = re.compile(r"^\s*[-*+]\s+", re.MULTILINE)
_MARKUP = [
    (re.compile(r"`~[^`]*\.([^`.]*)`"), r"`\1`"),
    (re.compile(r"(?::[a-z][\w:+-]*:)?`{1,2}~?([^`<]*?)(?:\s*<[^>`]*>)?`{1,2}_{0,2}"), r"\1"),
    (re.compile(r"\s*\[\w+\]_"), ""),
    (re.compile(r"(?<![\w*])\*{1,2}(\w[^*]*?)\*{1,2}(?!\w)"), r"\1"),
]
# Files with little documentation take most of the parsing time and yield almost nothing.
_LEAST_SHARE = 0.3
_TRIPLE_QUOTED = re.compile(rb'"""(.*?)"""', re.DOTALL)
_LEAST_WORDS = 20


def installed_documentation(roots: Iterable[str | Path] | None = None, progress: bool = True) -> list[str]:
    """Collects the prose of docstrings and of Python's own help topics.

    Code, formulas, headings, tables of parameters and repeated sentences are left out. Documents are in the order of
    their paths, so the same installation always gives the same ones.

    Args:
        roots: Folders of Python source; by default the standard library and the installed packages.
        progress: Show a progress bar.

    Returns:
        One document per module or help topic, with line feeds between paragraphs.

    Raises:
        ValueError: If nothing was found, for example in an installation without source files.
    """
    installed = filter(None, map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
    folders = list(map(Path, roots)) if roots is not None else [Path(path).resolve() for path in installed]
    sources = [path for folder in dict.fromkeys(folders) for path in _python_files(folder)]
    enabled = gc.isenabled()
    gc.disable()  # syntax trees have no cycles, and searching for them takes a third of the time
    try:
        documents = _collect(sources, progress)
    finally:
        if enabled:
            gc.enable()
    if not documents:
        raise ValueError(f"no documentation found in {', '.join(map(str, folders))}")
    return documents


def _collect(sources: list[Path], progress: bool) -> list[str]:
    seen: set[str] = set()
    documents: list[str] = []
    done = 0
    with ByteProgress("documentation", sum(path.stat().st_size for path in sources), progress) as bar:
        for path in sources:
            for texts in _documentation(path):
                paragraphs = [" ".join(sentences) for text in texts for sentences in _new_prose(text, seen)]
                if sum(len(paragraph.split()) for paragraph in paragraphs) >= _LEAST_WORDS:
                    documents.append("\n".join(paragraphs))
            done += path.stat().st_size
            bar.advance_to(done, f"{len(documents)} documents")
    return documents


def prose(docstring: str) -> Iterator[list[str]]:
    """Yields the sentences of a docstring's prose by paragraph, without markup.

    Indented text may describe parameters, so only its paragraphs of several sentences are kept.
    """
    for block in re.split(r"\n[^\S\n]*\n", inspect.cleandoc(docstring)):
        paragraph = " ".join(_BULLET.sub("", block).split())
        for pattern, replacement in _MARKUP:
            paragraph = pattern.sub(replacement, paragraph)
        sentences = list(filter(is_prose, split_sentences(paragraph)))
        if len(sentences) >= (2 if re.match(r"\s", block) else 1):
            yield sentences


def _new_prose(text: str, seen: set[str]) -> Iterator[list[str]]:
    """Yields paragraphs without sentences seen before, so that no sentence is repeated."""
    for sentences in prose(text):
        new = [sentence for sentence in sentences if sentence not in seen]
        seen.update(new)
        if new:
            yield new


def _python_files(folder: Path) -> Iterator[Path]:
    """Yields readable regular files; skips broken links."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT and not name.startswith("."))
        paths = (Path(place, name) for name in sorted(names) if name.endswith(".py"))
        yield from (path for path in paths if path.is_file() and os.access(path, os.R_OK))


def _documentation(path: Path) -> Iterator[list[str]]:
    """Yields groups of texts in a file; each group makes a document."""
    source = path.read_bytes()
    topics = path.parts[-2:] == ("pydoc_data", "topics.py")
    if not topics and sum(map(len, _TRIPLE_QUOTED.findall(source))) < _LEAST_SHARE * len(source):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's invalid escape sequences
            module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    if topics:
        found = (value for node in ast.walk(module) if isinstance(node, ast.Dict) for value in node.values)
        texts = (value.value for value in found if isinstance(value, ast.Constant))
        yield from ([text] for text in texts if isinstance(text, str))
    else:
        yield list(_docstrings(module))


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Yields the docstrings of a module, its classes, functions and methods, in source order."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        if text := ast.get_docstring(node, clean=False):
            yield text
        if not isinstance(node, ast.Module | ast.ClassDef):
            return
    for child in getattr(node, "body", []) if isinstance(node, ast.stmt | ast.Module) else []:
        yield from _docstrings(child)
