"""Finds the JSON files of results for a report by the kind that they state."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from mabert_lab.report.efficiency import Results, merged, read_results
from mabert_lab.report.studies import QUESTIONS, Study, read_study

_PASSED_OVER = ("cells", "cache", "tokenizers", "conversion")
"""Working folders of studies, whose files come and go; and conversions, which have their own pages."""


@dataclass(frozen=True)
class Found:
    """Everything to report.

    Attributes:
        studies: Studies in the order of the paper's sections, each once per scale.
        efficiency: Merged efficiency results; None if there are none.
        drifts: File name and content.
        throughputs: File name and content.
        engines: File name and content.
        left_out: One line per file that is not shown, with the reason.
    """

    studies: tuple[Study, ...]
    efficiency: Results | None
    drifts: tuple[tuple[str, dict[str, Any]], ...]
    throughputs: tuple[tuple[str, dict[str, Any]], ...]
    engines: tuple[tuple[str, dict[str, Any]], ...]
    left_out: tuple[str, ...]


def find(paths: Iterable[Path | str]) -> Found:
    """Finds and reads all results that can be reported.

    A file given by name must be complete. A file in a folder that is incomplete or from a trial run goes to `left_out`.
    With several folders, the title of a study names its folder.

    Args:
        paths: JSON files, and folders to search; JSON of other kinds is ignored.

    Raises:
        FileNotFoundError: A path is missing.
        ValueError: A file given by name is not JSON or is incomplete, or there is nothing to show.
    """
    asked = [Path(path) for path in paths]
    folders = [path for path in asked if path.is_dir()]
    whole: dict[str, list[tuple[Path, Any]]] = {kind: [] for kind in KINDS}
    left_out = []
    for path in _files(asked):
        try:
            kind, result = _read(path)
        except ValueError as error:
            if path in asked:
                raise
            place = next((path.relative_to(folder) for folder in asked if path.is_relative_to(folder)), path)
            left_out.append(f"`{place}`: {str(error).removeprefix(f'{path}: ')}")
        else:
            if isinstance(result, Study) and len(folders) > 1:
                own = next((folder for folder in folders if path.is_relative_to(folder)), path)
                result = replace(result, title=f"{result.title}, from {own}")
            if kind in KINDS:
                whole[kind].append((path, result))
    if not any(whole.values()):
        raise ValueError(
            f"{', '.join(map(str, asked)) or 'no paths'}: nothing to report; give JSON files that "
            f"{', '.join(dict.fromkeys(writer for writer, _ in KINDS.values() if writer != EARLIER))} wrote"
            + "".join(f"; {each}" for each in left_out)
        )
    studies, older = _latest(whole["study"])
    named = {kind: tuple((path.name, result) for path, result in found) for kind, found in whole.items()}
    efficiency = merged(result for _, result in named["efficiency"]) if named["efficiency"] else None
    return Found(studies, efficiency, named["drift"], named["throughput"], named["engines"], (*older, *left_out))


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    from mabert.data.rows import check_can_read_twice
    from mabert.files.reading import files_below

    seen = set()
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file or folder; give results as JSON")
        if not path.is_dir():
            check_can_read_twice(path)
        for file in files_below(path, _PASSED_OVER) if path.is_dir() else [path]:
            if file.resolve() not in seen and (file.suffix == ".json" or file == path):
                seen.add(file.resolve())
                yield file


def _read(path: Path) -> tuple[str, Any]:
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


def _whole(content: dict[str, Any], file: str, own: Sequence[str], of_row: Sequence[str]) -> dict[str, Any]:
    """Checks that a file has some fields, and others in each row; returns its content."""
    itemgetter(*own)(content)
    for row in content["rows"]:
        itemgetter(*of_row)(row)
    return content


EARLIER = "an earlier version"
"""Writer of results that no command writes any more, and that the committed page shows."""

KINDS: Mapping[str, tuple[str, Callable[[dict[str, Any], str], Any]]] = {
    "study": ("mabert study", lambda content, _: read_study(content)),
    "efficiency": ("mabert bench models", read_results),
    "drift": (
        "mabert study drift",
        partial(
            _whole,
            own=("texts", "lengths", "rows"),
            of_row=("weights", "direction", "conv", "side", "attention", "masking", "cls", "mean"),
        ),
    ),
    "throughput": (
        EARLIER,
        partial(_whole, own=("rows",), of_row=("model", "lengths", "status", "batch", "tokens_per_second")),
    ),
    "engines": (
        "mabert bench models",
        partial(
            _whole,
            own=("environment", "rows"),
            of_row=("measure", "model", "dtype", "length", "median_ms", "samples", "reason", "setting"),
        ),
    ),
}
"""Kinds of results: what writes them, and the function that checks them."""


def _latest(studies: Iterable[tuple[Path, Study]]) -> tuple[tuple[Study, ...], list[str]]:
    """Keeps the file with the latest finished cell of each study and scale; reports the others, by path if they have
    the same name."""
    latest: dict[tuple[str, str], tuple[Path, Study]] = {}
    older = []
    for path, study in sorted(studies, key=lambda found: found[1].finished):
        before, _ = latest.get((study.name, study.scale), (None, None))
        if before is not None:
            names = (before, path) if before.name == path.name else (before.name, path.name)
            older.append(f"`{names[0]}`: `{names[1]}` is a later state of the same study at the same scale")
        latest[study.name, study.scale] = path, study
    order = list(QUESTIONS.values())

    def place(study: Study) -> tuple[int, str, str]:
        return order.index(study.question) if study.question else len(order), study.name, study.scale

    return tuple(sorted((study for _, study in latest.values()), key=place)), older
