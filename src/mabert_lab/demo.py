"""`mabert demo`: converts and asks an encoder, pads a text, pretrains a small MaBERT, and writes a page of it all."""

import itertools
import os
import random
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import mabert
from mabert.conversion.convert import convert
from mabert.data import corpus
from mabert.data.tasks import as_rows, table_task
from mabert.data.tokenizer import load_tokenizer, train_wordpiece
from mabert.files.places import find
from mabert.files.reading import read_json
from mabert.files.writing import filling, in_use, write_json, write_text
from mabert.infer.model import TextModel
from mabert.opening.opened import open_model
from mabert.train.finetune import finetune
from mabert.train.folder import RESULT
from mabert.train.pretrain import pretrain
from mabert.train.recipe import FinetuneRecipe, load_recipe
from mabert_lab.english import installed_documentation, scrambled, sentences
from mabert_lab.report import conversion as converted
from mabert_lab.report.charts import Figure, line_chart, loss_chart
from mabert_lab.report.document import from_template

TEACHER = "sentence-transformers/all-MiniLM-L6-v2"
TOKENS = 400_000
VOCABULARY = 6000
SHARE = 0.88  # share of a short text's tokens to convert from, since a conversion holds out a tenth
EXAMPLES = {"train": 4000, "validation": 1000}
WORD_ORDER = table_task("word-order", ("scrambled", "real"))
PADDINGS = (1, 8, 32, 128)
QUESTIONS = (
    "When is an object deleted from memory?",
    "Why are default values shared between calls?",
    "What is the difference between a list and a tuple?",
    "How does Python find a module that I import?",
    "What happens when an exception is not caught?",
)
"""Questions to Python's own help; `benchmarks/LOG.md` says how they were chosen."""

WAYS = {
    "as it runs": {"unpad": "auto"},
    "padding run, three masks": {"unpad": "never", "padding_safe_masking": "exact"},
    "padding run, the paper's two": {"unpad": "never", "padding_safe_masking": "pre+post"},
    "padding run, no masks": {"unpad": "never", "padding_safe_masking": "none"},
}


def demo(
    output: str | Path | None = None,
    text: Sequence[str] | None = None,
    *,
    steps: int | None = None,
    teacher: str = TEACHER,
    tokens: int = TOKENS,
) -> dict[str, Any]:
    """Runs the tour into a folder and returns the content of its page, which is also in `demo.json`.

    Args:
        output: A new or empty folder; default, the first such of `demo-out`, `demo-out-2`, ...
        text: Files of the user's own text; default, the documentation of Python and its packages.
        steps: Steps of pretraining; default, the recipe's.
        teacher: Model to convert; where it is not available, the tour says so and only pretrains.
        tokens: Tokens to convert it from; nearly all of a shorter text.

    Raises ValueError if the folder is not empty or there is too little text, FileNotFoundError if a file does not
    exist, and KeyboardInterrupt after Ctrl-C, which leaves a folder of no use.
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
    took: dict[str, float] = {}
    began = time.perf_counter()

    @contextmanager
    def step(name: str, quiet: bool = False) -> Iterator[None]:
        """Names a step and takes its time; a quiet one has no progress of its own, so that it gets a spinner."""
        console.print(f"[bold]{len(took) + 1}[/] {name}")
        started = time.perf_counter()
        with console.status(name) if quiet and console.is_terminal else nullcontext():
            yield
        took[name] = round(time.perf_counter() - started, 1)

    console.print(f"a tour of ten to twenty minutes on two cores; {folder} is to hold what it makes")
    with step("reading text", quiet=True):
        documents = read_documents(text)
        learnt, held_out = hold_out(documents)
        examples = make_examples(learnt, held_out)
    result: dict[str, Any] = {"source": [*map(str, text or ["installed documentation"])], "documents": len(documents)}
    result["characters"] = sum(map(len, documents))
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "text.txt", "\n\n".join(learnt) + "\n")
    try:
        place, enough = teacher_here(teacher, learnt, tokens)
    except (FileNotFoundError, ValueError) as error:
        console.print(f"no conversion: {error}; the tour goes on with pretraining")
        result["left_out"] = str(error)
    else:
        with step("converting an encoder"):
            conversion = convert(teacher, [folder / "text.txt"], folder / "converted", tokens=enough)
            write_text(folder / "converted/conversion.html", converted.render(conversion))
        with step("searching", quiet=True):
            student, original = (mabert.load(each, precision="auto") for each in (folder / "converted", place))
            topics = help_topics() if text is None else []
            result["conversion"] = conversion | {"teacher": teacher, "wanted": tokens}
            result["questions"] = {"help": bool(topics), **search(student, original, *asked(topics, held_out))}
    with step("training a tokenizer", quiet=True):
        tokenizer = train_wordpiece(learnt, VOCABULARY)
        with filling(folder / "tokenizer") as staging:
            tokenizer.save_pretrained(staging)
    with step("pretraining"):
        recipe = load_recipe("demo")
        recipe.data.sources, recipe.data.cache = [str(folder / "text.txt")], str(folder / "cache")
        recipe = recipe if steps is None else recipe.at_budget(steps / recipe.training.steps)
        outcome = pretrain(recipe, folder / "pretrained", tokenizer=tokenizer)["outcome"]
        stages = [{"length": length, "steps": count} for length, count in recipe.steps_by_length()]
        result["pretraining"] = outcome | {"stages": stages}
    with step("fine-tuning"):
        result["fine-tuning"] = {name: tune(folder, examples, name) for name in ("pretrained", "from scratch")}
    with step("classifying, filling masks, padding", quiet=True):
        result |= used(folder, examples["validation"], held_out)
    result |= {"steps": took, "seconds": round(time.perf_counter() - began, 1)}
    write_json(folder / "demo.json", result, indent=1, ascii_only=False)
    write_text(folder / "index.html", render(result))
    console.print(f"[bold]{folder / 'index.html'}[/] shows it all ({result['seconds']:.0f} s); go on with its models:")
    for line in next_commands(folder):
        console.print(f"  {line}", markup=False, soft_wrap=True)
    return result


def free_folder() -> Path:
    """Returns the first of `demo-out`, `demo-out-2`, `demo-out-3`, ... that is not in use."""
    names = itertools.chain(["demo-out"], (f"demo-out-{number}" for number in itertools.count(2)))
    return next(place for place in map(Path, names) if not in_use(place))


def read_documents(text: Sequence[str] | None) -> list[str]:
    """Reads the user's documents, each on one line; default, the installed documentation."""
    if text is None:
        return installed_documentation()
    return [" ".join(document.split()) for document in corpus.read_documents(text)]


def hold_out(documents: list[str]) -> tuple[list[str], list[str]]:
    """Splits documents, or the sentences of a few, into those to learn from and every eighth, which is held out."""
    pieces = documents if len(documents) >= 24 else re.split(r"(?<=[.!?]) ", " ".join(documents))
    return [text for place, text in enumerate(pieces) if place % 8], pieces[::8]


def help_topics() -> list[str]:
    """Returns Python's own help, a text per topic; empty if the installation lacks it."""
    return list(import_module("pydoc_data.topics").topics.values()) if find_spec("pydoc_data") else []


def make_examples(learnt: list[str], held_out: list[str]) -> dict[str, Any]:
    """Makes `train` and `validation` of plain sentences, half of them scrambled; ValueError if there are too few."""
    known = dict.fromkeys(filter(scrambled, sentences(learnt)))
    others = [each for each in sentences(held_out) if each not in known and scrambled(each)]
    if min(len(known), len(others)) < 50:
        raise ValueError(
            f"the text has {len(known)} plain English sentences to learn from and {len(others)} others in the eighth "
            f"that is held out; at least 50 of each are needed"
        )
    made = {}
    for split, real in {"train": list(known), "validation": others}.items():
        random.Random(split).shuffle(real)
        real = real[: EXAMPLES[split]]
        labels = [place % 2 for place in range(len(real))]
        texts = [text if label else scrambled(text) for text, label in zip(real, labels, strict=True)]
        made[split] = as_rows({"text_a": texts, "label": labels, "index": list(range(len(real)))})
    return made


def teacher_here(name: str, texts: Iterable[str], wanted: int) -> tuple[Path, int]:
    """Returns the teacher's folder and the tokens to convert from; FileNotFoundError or ValueError if too few."""
    place, there = find(name).path, 0
    tokenizer = load_tokenizer(str(place))
    for text in texts:
        there += len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        if SHARE * there >= wanted:
            return place, wanted
    if SHARE * there < 1000:
        raise ValueError(f"the text has {there:,} tokens, too few for a conversion")
    return place, int(SHARE * there)


def asked(topics: Sequence[str], held_out: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    """Returns questions and passages that may answer them: of Python's help, else sentences that ask for their like."""
    if topics:
        parts = (part.replace("**", "") for topic in topics for part in topic.split("\n\n"))
        passages = [" ".join(part.split()) for part in parts if part[:1].isalpha()]
        return QUESTIONS, [passage for passage in passages if passage[-1] in ".:" and len(passage.split()) >= 12]
    passages = list(itertools.islice(sentences(held_out), 1000))
    questions = passages[:: len(passages) // len(QUESTIONS)][: len(QUESTIONS)]
    return questions, [passage for passage in passages if passage not in questions]


def search(student: TextModel, teacher: TextModel, questions: Sequence[str], passages: Sequence[str]) -> dict[str, Any]:
    """Returns the number of `passages`; `alike`, the mean cosine between both models' vectors of a passage; and
    `answers`, both models' best passage for each question, and the rank of the teacher's for the student."""
    ours, theirs = (embed(model, passages) for model in (student, teacher))
    answers = []
    scores = embed(student, questions) @ ours.T, embed(teacher, questions) @ theirs.T
    for question, mine, right in zip(questions, *scores, strict=True):
        best, first = int(mine.argmax()), int(right.argmax())
        found = {"question": question, "answer": passages[best], "cosine": float(mine[best])}
        found |= {"teacher": passages[first], "teacher_cosine": float(right[first])}
        answers.append(found | {"place": 1 + int((mine > mine[first]).sum())})
    return {"passages": len(passages), "alike": float((ours * theirs).sum(1).mean()), "answers": answers}


def embed(model: TextModel, texts: Sequence[str]) -> Any:
    """Returns normalized vectors of texts, which are cut where they are too long: (texts, width)."""
    return model.embed(texts, truncate=True, normalize=True, progress=False)


def used(folder: Path, judged: Any, held_out: list[str]) -> dict[str, Any]:
    """Returns `examples`, sentences that the classifier judged; `masks`, guesses for hidden words; and `padding`."""
    texts, truths = judged["text_a"][:8], (WORD_ORDER.label_names[label] for label in judged["label"][:8])
    verdicts = mabert.load(folder / "classifier-pretrained/seed-0").predict(texts, progress=False)
    plain = list(itertools.islice(sentences(held_out), 4))
    hidden = []
    for words in map(str.split, plain):
        words[len(words) // 2] = "[MASK]"
        hidden.append(" ".join(words))
    guesses = mabert.load(folder / "pretrained").fill_mask(hidden, top=5, progress=False)
    model = folder / "converted" if (folder / "converted").exists() else folder / "pretrained"
    return {
        "examples": [
            {"text": text, "truth": truth, "verdict": verdict["label"]}
            for text, truth, verdict in zip(texts, truths, verdicts, strict=True)
        ],
        "masks": [{"text": text, "guesses": found[0]} for text, found in zip(hidden, guesses, strict=True)],
        "padding": moved_by_padding(model, plain[0]),
    }


def tune(folder: Path, examples: dict[str, Any], name: str) -> dict[str, Any]:
    """Fine-tunes a classifier, `pretrained` or `from scratch`, on the same data; returns its accuracy and history."""
    place, anew = folder / f"classifier-{name.replace(' ', '-')}", name == "from scratch"
    recipe = FinetuneRecipe(learning_rates=[5e-4], epochs=3, batch_size=32, truncate=True, from_scratch=anew)
    scores = finetune(folder / "pretrained", WORD_ORDER, examples, place, recipe, [0])["outcome"]["scores"]
    history = read_json(place / "seed-0" / RESULT)["history"]
    return {"accuracy": scores["validation"]["accuracy"]["mean"], "history": history}


@torch.inference_mode()
def moved_by_padding(folder: Path, text: str) -> dict[str, float]:
    """Returns the largest change of any token's vector in float32 when a text is padded, by how the model runs."""
    opened = open_model(folder)
    ids = opened.tokenizer(text, return_tensors="pt")["input_ids"]
    moved = {}
    for name, fields in WAYS.items():
        model = opened.changed(**fields).plain("encoder")
        alone, changes = model(ids).last_hidden_state, []
        for sides in [(count, 0) for count in PADDINGS] + [(0, count) for count in PADDINGS]:
            padded = torch.nn.functional.pad(ids, sides, value=opened.tokenizer.pad_token_id)
            mask = torch.nn.functional.pad(torch.ones_like(ids), sides)
            out = model(padded, mask).last_hidden_state[:, sides[0] : sides[0] + ids.shape[1]]
            changes.append((out - alone).abs().max().item())
        moved[name] = max(changes)
    return moved


def render(result: dict[str, Any]) -> str:
    """Renders what `demo` returns as one self-contained page."""
    pretraining = result["pretraining"]
    changes = list(itertools.accumulate(stage["steps"] for stage in pretraining["stages"]))[:-1]
    tuned = {}
    for name, run in result["fine-tuning"].items():
        scored = [entry for entry in run["history"] if "eval_accuracy" in entry]
        tuned[name] = ([entry["epoch"] for entry in scored], [entry["eval_accuracy"] for entry in scored])
    shown: dict[str, Any] = {
        "result": result,
        "loss": Figure(loss_chart(pretraining["history"], changes), "Loss against step, training and held out"),
        "accuracy": Figure(line_chart(tuned, "epoch", "accuracy on unseen sentences", dots=True), "Accuracy by epoch"),
    }
    if conversion := result.get("conversion"):
        outcome = conversion["outcome"]
        shown["schedule"] = converted.schedule(outcome["pattern"], outcome["importance"])
        if bands := outcome["agreement"]["bands"]:
            shown["agreement"] = converted.agreement(bands)
            shown["cosine"] = converted.weighted(bands, "student", "cosine")
    return from_template("demo.html", **shown)


def next_commands(folder: Path) -> list[str]:
    """Returns lines for a shell that use the models in the tour's folder, each on a text of its own."""
    activate = Path(os.path.relpath(sys.prefix)) / "bin/activate"
    lines = [] if shutil.which("mabert") or not activate.is_file() else [f". {shlex.quote(str(activate))}"]
    places = {
        folder / "converted": "echo 'When is memory freed?' | mabert embed",
        folder / "classifier-pretrained/seed-0": "echo 'The is file closed.' | mabert predict",
        folder / "pretrained": "echo 'The file is [MASK].' | mabert fill-mask",
    }
    return lines + [f"{use} {shlex.quote(str(place))}" for place, use in places.items() if place.exists()]
