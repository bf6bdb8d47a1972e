"""Finds results to report: searches folders, reads and checks each file, and keeps the latest state of each study."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from mabert_lab.report import costs
from mabert_lab.report.costs import Results
from mabert_lab.report.studies import QUESTIONS, StudyRun, read_study

_PASSED_OVER = ("cells", "cache", "tokenizers")  # what studies work in


@dataclass(frozen=True, eq=False)
class Found:
    """Everything to report of one folder, or of files that were given by name."""

    studies: tuple[StudyRun, ...] = ()  # studies in the order of the paper's sections, each once per scale
    costs: Results | None = None  # merged; None if there are none
    drifts: tuple[tuple[str, dict[str, Any]], ...] = ()  # file name and content, as of the next
    engines: tuple[tuple[str, dict[str, Any]], ...] = ()
    left_out: tuple[str, ...] = ()  # one line per file that is not shown, with the reason
    folder: str = ""  # the folder, as it was given; empty if everything is from one

    @property
    def whence(self) -> str:
        """What titles of its results end in; empty if everything is from one folder."""
        return f", from {self.folder}" if self.folder else ""


def find(paths: Iterable[Path | str], apart: bool = True) -> tuple[Found, ...]:
    """Finds and reads all results that can be reported: JSON files, which count as one folder, and those in folders,
    each apart unless told otherwise (`apart`). A file given by name must be complete; one in a folder that is
    incomplete or from a trial run goes to `left_out`, and JSON of other kinds is ignored. FileNotFoundError if a path
    is missing; ValueError if a file given by name is not JSON or incomplete, or there is nothing to show."""
    asked = [Path(path) for path in paths]
    held: dict[str, dict[str, list[tuple[Path, Any]]]] = {}
    left_out: dict[str, list[str]] = defaultdict(list)
    for given, path in _files(asked):
        folder = str(given) if apart and given.is_dir() else "files given by name"
        try:
            kind, result = _read_result(path)
        except ValueError as error:
            if path in asked:
                raise
            reason = str(error).removeprefix(f"{path}: ")
            left_out[folder].append(f"`{path.relative_to(given)}`: {reason}")
            continue
        if kind in KINDS:
            held.setdefault(folder, defaultdict(list))[kind].append((path, result))
        elif kind and path in asked:
            raise ValueError(f"{path} holds results of kind {kind!r}, which no page shows; {HELPS}")
    if not held:
        nothing = f"{', '.join(map(str, asked)) or 'no paths'}: nothing to report"
        raise ValueError("; ".join([nothing, HELPS, *chain(*left_out.values())]))
    several, first = len(held) > 1, next(iter(held))
    for folder in sorted(left_out.keys() - held.keys()):
        left_out[first] += [f"{folder}, {line}" for line in left_out[folder]]
    return tuple(_found(whole, left_out[folder], folder if several else "") for folder, whole in held.items())


def _found(held: Mapping[str, list[tuple[Path, Any]]], left_out: Sequence[str], folder: str) -> Found:
    """Collects the files of a folder by kind, each with what was read of it."""
    studies, older = _latest(held["study"])
    measured = costs.merged(result for _, result in held["efficiency"]) if held["efficiency"] else None
    drifts, engines = (tuple((path.name, result) for path, result in held[kind]) for kind in ("drift", "engines"))
    return Found(studies, measured, drifts, engines, (*older, *left_out), folder)


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, Path]]:
    """Yields each file once, with the path that was given for it."""
    from mabert.files.reading import files_below
    from mabert.files.tables import check_can_read_twice

    seen = set()
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file or folder; give results as JSON")
        if not path.is_dir():
            check_can_read_twice(path)
        for file in files_below(path, _PASSED_OVER) if path.is_dir() else [path]:
            if file.resolve() not in seen and (file.suffix == ".json" or file == path):
                seen.add(file.resolve())
                yield path, file


def _read_result(path: Path) -> tuple[str, Any]:
    """Reads and checks a file; returns its kind and content, or empty values if it states no kind."""
    from mabert.files.reading import read_json_value

    try:
        content = read_json_value(path, nan=True)
    except ValueError as error:
        raise ValueError(f"{error}; give a file of results") from None
    kind = str(content.get("kind", "")) if isinstance(content, dict) else ""
    if kind not in KINDS:
        return kind, content
    writer, read = KINDS[kind]
    try:
        return kind, read(content, str(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not as {writer} writes it ({type(error).__name__}: {error})") from None


def _with_fields(own: str, of_row: str) -> Callable[[dict[str, Any], str], Any]:
    """Returns a function that checks that a file has some fields, and others in each row, and returns its content."""

    def checked(content: dict[str, Any], _: str) -> dict[str, Any]:
        itemgetter(*own.split())(content)
        for row in content["rows"]:
            itemgetter(*of_row.split())(row)
        return content

    return checked


_DRIFT = "weights direction conv side attention masking cls mean"
_ENGINES = "measure model dtype length median_ms samples reason setting"


def _read_engines(content: dict[str, Any], file: str) -> dict[str, Any]:
    """Checks a file of models in their engines, whose page is of times alone."""
    _with_fields("environment rows", _ENGINES)(content, file)
    if not any(row["measure"] == "latency" for row in content["rows"]):
        raise ValueError("no latency is measured in it, and the page of engines is of latencies")
    return content


KINDS: Mapping[str, tuple[str, Callable[[dict[str, Any], str], Any]]] = {
    "study": ("mabert study", lambda content, _: read_study(content)),
    "efficiency": ("mabert bench models", costs.read_results),  # costs, by the word that committed files have
    "drift": ("mabert study drift", _with_fields("texts lengths rows", _DRIFT)),
    "engines": ("mabert bench models", _read_engines),
}
"""Kinds of results: what writes them, and the function that checks them."""

HELPS = f"give JSON files that {', '.join(dict.fromkeys(writer for writer, _ in KINDS.values()))} wrote"


def _latest(studies: Iterable[tuple[Path, StudyRun]]) -> tuple[tuple[StudyRun, ...], list[str]]:
    """Keeps the latest state of each study and scale; reports the others, by path if they have the same name."""
    latest: dict[tuple[str, str], tuple[Path, StudyRun]] = {}
    older = []
    for path, study in sorted(studies, key=lambda found: found[1].finished):
        before, _ = latest.get((study.name, study.scale), (None, None))
        if before is not None:
            names = (before, path) if before.name == path.name else (before.name, path.name)
            older.append(f"`{names[0]}`: `{names[1]}` is a later state of the same study at the same scale")
        latest[study.name, study.scale] = path, study
    order = [*QUESTIONS.values(), None]
    places = {study: (order.index(study.question), study.name, study.scale) for _, study in latest.values()}
    return tuple(sorted(places, key=places.__getitem__)), older
