"""The tour: from raw text to a fine-tuned model and a page that shows it, in about ten minutes on a plain CPU."""

import dataclasses
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from transformers import PreTrainedTokenizerFast

from mabert.data import corpus
from mabert.data.documentation import installed_documentation
from mabert.data.prose import split_sentences, unwrap
from mabert.data.sentences import LONGEST, SHORTEST, WORD_ORDER, sentences, word_order_examples
from mabert.data.tokenizer import load_tokenizer
from mabert.data.train_tokenizer import train_wordpiece
from mabert.infer.fill import fill_mask
from mabert.model import MaBertModel
from mabert.model.load import load_config, load_model
from mabert.reading import read_json
from mabert.report.demo import render
from mabert.train.finetune import finetune
from mabert.train.pretrain import pretrain
from mabert.train.recipe import FinetuneRecipe, PretrainRecipe, load_recipe
from mabert.train.run import RESULT
from mabert.writing import filling, write_text

VOCABULARY = 6000
EXAMPLES = {"train": 6000, "validation": 1000}
LEAST_SENTENCES = 50
FEW_DOCUMENTS = 24
"""Below this number of documents holding some out goes by paragraph, or by sentence."""
PADDINGS = (0, 1, 8, 32, 128)
MASKED_RUNS = ("none", "pre+post", "exact")
UNPADDED = "unpadded"
MASKED = (
    "the function returns a [MASK] of strings.",
    "if the file does not [MASK], an error is raised.",
    "the default value is [MASK].",
    "this method is called when the [MASK] is closed.",
)


def demo(
    output: str | Path | None = None, text: Sequence[str] | None = None, *, steps: int | None = None
) -> dict[str, Any]:
    """Runs the tour.

    Args:
        output: Folder for the models and `index.html`; must be new or empty. Default, the first such of `demo-out`,
            `demo-out-2`, `demo-out-3`, ...
        text: Files of the person's own text; default, the documentation that Python and its packages carry.
        steps: Pretraining steps in place of the recipe's.

    Returns:
        What the page shows.

    Raises:
        ValueError: If the folder is in use, or there is too little text.
        FileNotFoundError: If a file of text is not there.
        KeyboardInterrupt: After Ctrl-C; what is in the folder then is of no use.
    """
    folder = free_folder() if output is None else Path(output)
    if in_use(folder):
        raise ValueError(f"{folder} already holds files; name another folder with -o, or remove it")
    try:
        return walk(folder, text, steps)
    except KeyboardInterrupt as stop:
        left = f"; remove {folder}, where it got to" if in_use(folder) else ""
        raise KeyboardInterrupt(f"the tour does not go on, it begins anew{left}") from stop


def walk(folder: Path, text: Sequence[str] | None, steps: int | None) -> dict[str, Any]:
    """The tour's steps; see `demo`."""
    console = Console(stderr=True, highlight=False)
    started = time.perf_counter()
    console.print("[bold]1[/] reading text")
    with waiting(console, "reading"):
        documents = read_documents(text)
        learnt, held_out = hold_out(documents)
        examples = make_examples(learnt, held_out)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "text.txt", "\n\n".join(learnt) + "\n")
    console.print(f"[bold]2[/] training a WordPiece tokenizer of {VOCABULARY:,} entries")
    with waiting(console, "training"):
        tokenizer = train_wordpiece(learnt, VOCABULARY)
    with filling(folder / "tokenizer") as staging:
        tokenizer.save_pretrained(staging)
    recipe = demo_recipe(folder, steps)
    lengths = " then ".join(str(stage.length) for stage in recipe.stages)
    console.print(f"[bold]3[/] pretraining by masked language modelling, windows of {lengths} tokens")
    pretrained = run_pretraining(recipe, folder, tokenizer)
    console.print("[bold]4[/] fine-tuning: real sentences against sentences in broken word order")
    tuned = {name: run_finetuning(folder, examples, name) for name in ("pretrained", "from scratch")}
    console.print("[bold]5[/] filling masks, and padding a text to see whether anything moves")
    with waiting(console, "measuring"):
        masks = fill(folder, held_out if text else None)
        padding = padding_drift(folder, examples["validation"]["text_a"][0])
    result = {
        "source": [str(file) for file in text] if text else "installed documentation",
        "characters": sum(map(len, documents)),
        "documents": len(documents),
        "pretraining": pretrained,
        "fine-tuning": tuned,
        "masks": masks,
        "padding": padding,
        "examples": judged(folder, examples["validation"]),
        "seconds": round(time.perf_counter() - started, 1),
    }
    write_text(folder / "demo.json", json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    write_text(folder / "index.html", render(result))
    report(console, result, folder)
    return result


def free_folder(name: str = "demo-out") -> Path:
    """The first of `name`, `name-2`, `name-3`, ... that is not in use."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(Path(name) for name in names if not in_use(Path(name)))


def in_use(folder: Path) -> bool:
    """Whether there is a file of this name, or a folder with something in it."""
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))


@contextmanager
def waiting(console: Console, title: str) -> Iterator[None]:
    """A spinner and the time so far, gone when the work is done; nothing where there is no terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task(title, total=None)
        yield


def read_documents(text: Sequence[str] | None) -> list[str]:
    """The person's documents, a paragraph on a line, or those of the installation."""
    if text is None:
        return installed_documentation()
    return [unwrap(document) for document in corpus.read_documents(text)]


def hold_out(documents: list[str]) -> tuple[list[str], list[str]]:
    """Documents to learn from, and every eighth to be judged by: the model never reads those before.

    Of few documents, every eighth paragraph is held out; of few paragraphs, every eighth sentence.
    """
    pieces = documents
    for split in (str.splitlines, split_sentences):
        if len(pieces) < FEW_DOCUMENTS:
            pieces = [part for piece in pieces for part in split(piece) if part]
    return [text for place, text in enumerate(pieces) if place % 8], pieces[::8]


def make_examples(learnt: list[str], held_out: list[str]) -> dict[str, Any]:
    """Real sentences and ones in broken word order, half and half; no sentence is on both sides of the split.

    Returns:
        Data sets `train` and `validation`, see `word_order_examples`.

    Raises:
        ValueError: If there are too few sentences.
    """
    known = list(sentences(learnt))
    fresh = set(sentences(held_out)) - set(known)
    unknown = [text for text in sentences(held_out) if text in fresh]
    if min(len(known), len(unknown)) < LEAST_SENTENCES:
        raise ValueError(
            f"the text has {len(known)} plain English sentences of {SHORTEST} to {LONGEST} words to learn from and "
            f"{len(unknown)} others, from the eighth of it that is held out, to be judged by; at least "
            f"{LEAST_SENTENCES} of each are needed"
        )
    return {
        "train": word_order_examples(known, seed=0, limit=EXAMPLES["train"]),
        "validation": word_order_examples(unknown, seed=1, limit=EXAMPLES["validation"]),
    }


def demo_recipe(folder: Path, steps: int | None) -> PretrainRecipe:
    """The demo's recipe on the text in the folder."""
    recipe = load_recipe("demo")
    recipe = dataclasses.replace(
        recipe,
        data=dataclasses.replace(recipe.data, sources=[str(folder / "text.txt")], cache=str(folder / "cache")),
    )
    return recipe if steps is None else recipe.at_budget(steps / recipe.training.steps)


def run_pretraining(recipe: PretrainRecipe, folder: Path, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """What came out of pretraining, and its length schedule."""
    outcome = pretrain(recipe, folder / "pretrained", tokenizer=tokenizer)["outcome"]
    stages = zip(recipe.stages, recipe.stage_steps(), strict=True)
    return {**outcome, "stages": [{"length": stage.length, "steps": steps} for stage, steps in stages]}


def run_finetuning(folder: Path, examples: dict[str, Any], name: str) -> dict[str, Any]:
    """One classifier, from the pretrained weights or from random ones; the same model and data otherwise."""
    recipe = FinetuneRecipe(
        learning_rates=[5e-4], epochs=3, batch_size=32, truncate=True, from_scratch=name == "from scratch"
    )
    place = place_of(folder, name)
    outcome = finetune(folder / "pretrained", WORD_ORDER, examples, place, recipe, [0])["outcome"]
    record = read_json(place / "seed-0" / RESULT)
    return {"accuracy": outcome["scores"]["validation"]["accuracy"]["mean"], "history": record["history"]}


def fill(folder: Path, own: list[str] | None) -> list[dict[str, Any]]:
    """Guesses for a few sentences; for a person's own text, sentences of theirs with a word hidden."""
    texts = list(MASKED) if own is None else hide_a_word(own)
    guesses = fill_mask(folder / "pretrained", texts, top=5, progress=False)
    return [{"text": text, "guesses": masks[0]} for text, masks in zip(texts, guesses, strict=True)]


def hide_a_word(documents: list[str]) -> list[str]:
    """The first few plain sentences with their middle word masked."""
    hidden = []
    for sentence in sentences(documents):
        words = sentence.split()
        words[len(words) // 2] = "[MASK]"
        hidden.append(" ".join(words))
        if len(hidden) == len(MASKED):
            break
    return hidden


@torch.inference_mode()
def padding_drift(folder: Path, text: str) -> list[dict[str, Any]]:
    """Largest change of any token vector when a text is padded, by masking and side.

    The trained model, in float32: run with its padding under three maskings, of which `none` is what most state-space
    encoders do, and `unpadded`, as it runs by default.
    """
    tokenizer = load_tokenizer(str(folder / "pretrained"))
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    rows = []
    for regime in (*MASKED_RUNS, UNPADDED):
        config = load_config(folder / "pretrained")
        config.unpad = "auto" if regime == UNPADDED else "never"
        config.padding_safe_masking = "exact" if regime == UNPADDED else regime
        model = load_model(MaBertModel, folder / "pretrained", config=config)
        alone = model(ids).last_hidden_state
        for side in ("left", "right"):
            for padding in PADDINGS:
                empty = torch.full((1, padding), tokenizer.pad_token_id)
                parts = (empty, ids) if side == "left" else (ids, empty)
                mask = torch.cat([torch.ones_like(part) * (part is ids) for part in parts], dim=1)
                out = model(torch.cat(parts, dim=1), mask).last_hidden_state
                start = padding if side == "left" else 0
                moved = (out[:, start : start + ids.shape[1]] - alone).abs().max().item()
                rows.append({"masking": regime, "side": side, "padding": padding, "moved": moved})
    return rows


def judged(folder: Path, validation: Any, count: int = 8) -> list[dict[str, str]]:
    """The first few sentences with the truth and the pretrained classifier's verdict."""
    lines = (place_of(folder, "pretrained") / "seed-0" / "validation.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines[1 : count + 1]]
    texts = validation["text_a"][:count]
    return [{"text": text, "verdict": row[1], "truth": row[2]} for text, row in zip(texts, rows, strict=True)]


def place_of(folder: Path, name: str) -> Path:
    """Where a fine-tuning run lies."""
    return folder / f"classifier-{name.replace(' ', '-')}"


def report(console: Console, result: dict[str, Any], folder: Path) -> None:
    """The last lines in the terminal."""
    scores = {name: run["accuracy"] for name, run in result["fine-tuning"].items()}
    exact = max(row["moved"] for row in result["padding"] if row["masking"] in ("exact", UNPADDED))
    console.print(
        f"held-out MLM loss {result['pretraining']['held_out_loss']:.2f}; accuracy {scores['pretrained']:.1%} "
        f"pretrained, {scores['from scratch']:.1%} from scratch; padding moves token vectors by {exact:.1e} at most"
    )
    console.print(f"[bold]{folder / 'index.html'}[/] shows it all ({result['seconds']:.0f} s)")
