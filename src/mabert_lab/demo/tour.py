"""The tour: converts, queries and measures an encoder, pretrains a small one, and writes a page about it all, in about
nine minutes on two cores."""

import itertools
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import mabert
from mabert.data import corpus
from mabert.data.tokenizer import train_wordpiece
from mabert.files.reading import to_json
from mabert.files.writing import filling, write_text
from mabert_lab.demo import converted
from mabert_lab.demo.documentation import installed_documentation
from mabert_lab.demo.padding import padding_drift
from mabert_lab.demo.pretrained import demo_recipe, fill, judged, make_examples, run_finetuning, run_pretraining
from mabert_lab.english import split_sentences, unwrap
from mabert_lab.report.demo import headline, render

VOCABULARY = 6000
FEW_DOCUMENTS = 24
"""Below this number of documents, paragraphs or sentences are held out instead of documents."""

CONVERTED = "converted"
"""The student's folder within the tour's."""


class Steps:
    """Reports the tour's current step, and records how long each took.

    Attributes:
        seconds: Seconds by step.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str, told: str = "", *, quiet: bool = True) -> Iterator[None]:
        """Runs one step.

        Args:
            name: Short name for the page.
            told: Title for the terminal; default, the name.
            quiet: Whether the step shows no progress of its own.
        """
        self.console.print(f"[bold]{len(self.seconds) + 1}[/] {told or name}")
        started = time.perf_counter()
        with waiting(self.console if quiet else Console(quiet=True), name):
            yield
        self.seconds[name] = round(time.perf_counter() - started, 1)


def demo(
    output: str | Path | None = None,
    text: Sequence[str] | None = None,
    *,
    steps: int | None = None,
    teacher: str = converted.TEACHER,
    tokens: int = converted.TOKENS,
) -> dict[str, Any]:
    """Runs the tour.

    Args:
        output: Folder for the models and `index.html`; must be new or empty. Default, the first such of `demo-out`,
            `demo-out-2`, `demo-out-3`, ...
        text: Files of the user's own text; default, the documentation of Python and its packages.
        steps: Pretraining steps; default, the recipe's.
        teacher: The encoder to convert. If it is not available, the tour says so and only pretrains.
        tokens: Tokens to convert it from; nearly all of a shorter text.

    Returns:
        The content of the page.

    Raises:
        ValueError: If the folder is not empty, or there is too little text.
        FileNotFoundError: If a text file does not exist.
        KeyboardInterrupt: After Ctrl-C; the folder's content is then of no use.
    """
    folder = free_folder() if output is None else Path(output)
    if in_use(folder):
        raise ValueError(f"{folder} already holds files; name another folder with -o, or remove it")
    try:
        return walk(folder, text, steps, teacher, tokens)
    except KeyboardInterrupt as stop:
        left = f"; remove {folder}, where it got to" if in_use(folder) else ""
        raise KeyboardInterrupt(f"the tour does not go on, it begins anew{left}") from stop


def walk(folder: Path, text: Sequence[str] | None, steps: int | None, teacher: str, tokens: int) -> dict[str, Any]:
    """Runs the tour's steps; see `demo`."""
    console = Console(stderr=True, highlight=False)
    started, at = time.perf_counter(), Steps(console)
    console.print(f"a tour of eight to ten minutes on two idle cores; {folder} is to hold what it makes")
    with at.step("reading text"):
        documents = read_documents(text)
        topics = converted.help_topics() if text is None else []
        learnt, held_out = hold_out(documents)
        learnt = converted.without(learnt, topics)
        examples = make_examples(learnt, held_out)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "text.txt", "\n\n".join(learnt) + "\n")
    first = run_converted(at, folder, teacher, tokens, learnt, topics, held_out)
    with at.step("training a tokenizer", f"training a WordPiece tokenizer of {VOCABULARY:,} entries"):
        tokenizer = train_wordpiece(learnt, VOCABULARY)
    with filling(folder / "tokenizer") as staging:
        tokenizer.save_pretrained(staging)
    recipe = demo_recipe(folder, steps)
    lengths = " then ".join(str(stage.length) for stage in recipe.stages)
    with at.step("pretraining", f"pretraining by masked language modelling, windows of {lengths} tokens", quiet=False):
        pretrained = run_pretraining(recipe, folder, tokenizer)
    with at.step("fine-tuning", "fine-tuning: real sentences against sentences in broken word order", quiet=False):
        tuned = {name: run_finetuning(folder, examples, name) for name in ("pretrained", "from scratch")}
    with at.step("filling masks, padding", "filling masks, and padding a text to see whether anything moves"):
        masks = fill(folder, held_out if text else None)
        model = folder / ("pretrained" if "left_out" in first else CONVERTED)
        padding = padding_drift(model, examples["validation"]["text_a"][0])
    result = {
        "source": [str(file) for file in text] if text else "installed documentation",
        "characters": sum(map(len, documents)),
        "documents": len(documents),
        **first,
        "pretraining": pretrained,
        "fine-tuning": tuned,
        "masks": masks,
        "padding": padding,
        "examples": judged(folder, examples["validation"]),
        "steps": at.seconds,
        "seconds": round(time.perf_counter() - started, 1),
    }
    write_text(folder / "demo.json", to_json(result, indent=1, ascii_only=False) + "\n")
    write_text(folder / "index.html", render(result))
    for figure, meaning in headline(result):
        console.print(f"{figure} {meaning}")
    console.print(f"[bold]{folder / 'index.html'}[/] shows it all ({result['seconds']:.0f} s); go on with its models:")
    for line in next_commands(folder, "left_out" not in first):
        console.print(f"  {line}", markup=False, soft_wrap=True)
    return result


def next_commands(folder: Path, with_converted: bool) -> list[str]:
    """Returns lines for a shell that use the models in the tour's folder, each on a text of its own."""
    activate = Path(os.path.relpath(sys.prefix)) / "bin/activate"
    lines = [] if shutil.which("mabert") or not activate.is_file() else [f". {shlex.quote(str(activate))}"]
    student, classifier, pretrained = (
        shlex.quote(str(folder / name)) for name in (CONVERTED, "classifier-pretrained/seed-0", "pretrained")
    )
    lines += [f"echo 'When is memory freed?' | mabert embed {student}"] if with_converted else []
    return [
        *lines,
        f"echo 'The is file closed.' | mabert predict {classifier}",
        f"echo 'The file is [MASK].' | mabert fill-mask {pretrained}",
    ]


def run_converted(
    at: Steps, folder: Path, teacher: str, tokens: int, learnt: list[str], topics: list[str], held_out: list[str]
) -> dict[str, Any]:
    """Runs the first half; returns `conversion`, `questions` and `long`, or `left_out` with the reason why not."""
    try:
        place, enough = converted.teacher_here(teacher, learnt, tokens)
    except converted.NoConversionError as error:
        at.console.print(f"no conversion: {error}; the tour goes on with pretraining")
        return {"left_out": str(error)}
    less = "" if enough == tokens else ", nearly all it has"
    with at.step("converting", f"converting {teacher} from {enough:,} tokens of the text{less}", quiet=False):
        told = converted.run_conversion(teacher, folder / "text.txt", folder / CONVERTED, enough)
    with at.step("searching, reading", "searching passages for five questions' answers, and reading a long text"):
        student, original = (mabert.load(each, precision="auto") for each in (folder / CONVERTED, place))
        questions, passages = converted.asked(topics, held_out)
        return {
            "conversion": told | {"wanted": tokens},
            "questions": converted.search(student, original, questions, passages) | {"help": bool(topics)},
            "long": converted.read_long(student, original, max(topics or held_out, key=len)),
        }


def free_folder(name: str = "demo-out") -> Path:
    """Returns the first of `name`, `name-2`, `name-3`, ... that is not in use."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(Path(name) for name in names if not in_use(Path(name)))


def in_use(folder: Path) -> bool:
    """Checks whether there is a file of this name, or a folder that is not empty."""
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))


@contextmanager
def waiting(console: Console, title: str) -> Iterator[None]:
    """Shows a spinner and the elapsed time until the work is done, if there is a terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task(title, total=None)
        yield


def read_documents(text: Sequence[str] | None) -> list[str]:
    """Reads the user's documents, one paragraph per line, or those of the installation."""
    if text is None:
        return installed_documentation()
    return [unwrap(document) for document in corpus.read_documents(text)]


def hold_out(documents: list[str]) -> tuple[list[str], list[str]]:
    """Splits documents into training documents and every eighth, which is held out for evaluation.

    With few documents, every eighth paragraph is held out; with few paragraphs, every eighth sentence.
    """
    pieces = documents
    for split in (str.splitlines, split_sentences):
        if len(pieces) < FEW_DOCUMENTS:
            pieces = [part for piece in pieces for part in split(piece) if part]
    return [text for place, text in enumerate(pieces) if place % 8], pieces[::8]
