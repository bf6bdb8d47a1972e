"""The results that a report is made of: JSON files, found by what they say they are."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mabert_lab.report.efficiency import Results, merged, read_results
from mabert_lab.report.studies import QUESTIONS, Study, read_study

KINDS = {
    "study": "mabert study",
    "efficiency": "mabert bench models",
    "drift": "mabert study drift",
    "throughput": "mabert bench throughput",
}
"""What is read, and the command that writes it."""

_PASSED_OVER = ("cells", "cache", "tokenizers", "cluster", "conversion")
"""Folders of a study that it works in, whose files come and go; and conversions, which have pages of their own."""

_NEEDED = {
    "drift": (
        ("texts", "lengths", "rows"),
        ("weights", "direction", "conv", "side", "attention", "masking", "cls", "mean"),
    ),
    "throughput": (("rows",), ("model", "lengths", "status", "batch", "tokens_per_second")),
}


@dataclass(frozen=True)
class Found:
    """Everything to report.

    Attributes:
        studies: In the order of the paper's sections, each once for every scale.
        efficiency: Merged; None where there is none.
        drifts: File name and content.
        throughputs: File name and content.
        left_out: What was found and is not shown, with the reason, a line each.
    """

    studies: tuple[Study, ...]
    efficiency: Results | None
    drifts: tuple[tuple[str, dict[str, Any]], ...]
    throughputs: tuple[tuple[str, dict[str, Any]], ...]
    left_out: tuple[str, ...]


def find(paths: Iterable[Path | str]) -> Found:
    """Read everything that can be reported.

    A file that was asked for by name must be whole. One found in a folder that is not, or is a trial run, is left out
    and told of.

    Args:
        paths: JSON files, and folders to look through; JSON of other kinds is passed over.

    Raises:
        FileNotFoundError: A path is missing.
        ValueError: A file that was asked for is not JSON, or incomplete; or nothing that can be shown is there.
    """
    asked = [Path(path) for path in paths]
    whole: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    left_out = []
    for path in _files(asked):
        try:
            kind, result = _read(path)
        except ValueError as error:
            if path in asked:
                raise
            place = next((path.relative_to(folder) for folder in asked if path.is_relative_to(folder)), path)
            left_out.append(f"`{place}`: {str(error).removeprefix(f'{path}: ').removeprefix(f'{path.name}: ')}")
        else:
            if kind in KINDS:
                whole[kind].append((path, result) if kind == "study" else result)
    if not any(whole.values()):
        raise ValueError(
            f"{', '.join(map(str, asked)) or 'no paths'}: nothing to report; needed are JSON files that "
            f"{', '.join(KINDS.values())} wrote" + "".join(f"; {reason}" for reason in left_out)
        )
    studies, older = _studies(whole["study"])
    return Found(
        studies=studies,
        efficiency=merged(whole["efficiency"]) if whole["efficiency"] else None,
        drifts=tuple(whole["drift"]),
        throughputs=tuple(whole["throughput"]),
        left_out=(*older, *left_out),
    )


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    from mabert.data.files import check_can_read_twice
    from mabert.reading import files_below

    seen = set()
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file or folder; needed are results as JSON")
        if not path.is_dir():
            check_can_read_twice(path)
        for file in files_below(path, _PASSED_OVER) if path.is_dir() else [path]:
            if file.resolve() not in seen and (file.suffix == ".json" or file == path):
                seen.add(file.resolve())
                yield file


def _read(path: Path) -> tuple[str | None, Any]:
    """What a file says it is, and what it holds, checked; drift and throughput with the file's name."""
    from mabert.reading import read_json_value

    try:
        content = read_json_value(path, nan=True)
    except ValueError as error:
        raise ValueError(f"{error}; needed is a file of results") from None
    kind = content.get("kind") if isinstance(content, dict) else None
    try:
        if kind == "study":
            return kind, read_study(content, path.name)
        if kind == "efficiency":
            return kind, read_results(path)
        if kind in KINDS:
            own, of_row = _NEEDED[kind]
            absent = [name for name in own if name not in content]
            absent += [f"{name} of a row" for name in of_row if any(name not in row for row in content.get("rows", ()))]
            if absent:
                raise ValueError(f"{path}: lacks {', '.join(absent)}; {KINDS[kind]} writes them")
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not as {KINDS[str(kind)]} writes it ({type(error).__name__}: {error})") from None
    return kind, (path.name, content)


def _studies(studies: Iterable[tuple[Path, Study]]) -> tuple[tuple[Study, ...], list[str]]:
    """Of two files of one study at one scale the one stays whose last cell was finished later; the others are told of,
    by their paths where they have the same name."""
    latest: dict[tuple[str, str], tuple[Path, Study]] = {}
    older = []
    for path, study in sorted(studies, key=lambda found: found[1].finished):
        before, _ = latest.get((study.name, study.scale), (None, None))
        if before is not None:
            names = (before, path) if before.name == path.name else (before.name, path.name)
            older.append(f"`{names[0]}`: `{names[1]}` is a later state of the same study at the same scale")
        latest[study.name, study.scale] = path, study
    ranks = {question: rank for rank, question in enumerate(QUESTIONS.values())}

    def place(study: Study) -> tuple[int, str, str]:
        return ranks.get(study.question or "", len(ranks)), study.name, study.scale

    return tuple(sorted((study for _, study in latest.values()), key=place)), older
