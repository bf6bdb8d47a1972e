"""The tour's second half: pretrains a small MaBERT from random weights, fine-tunes it, and fills masks."""

import dataclasses
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from mabert.files.reading import read_json
from mabert.infer.model import load
from mabert.train.finetune import finetune
from mabert.train.pretrain import pretrain
from mabert.train.recipe import FinetuneRecipe, PretrainRecipe, load_recipe
from mabert.train.run import RESULT
from mabert_lab.demo.sentences import LONGEST, SHORTEST, WORD_ORDER, sentences, word_order_examples

EXAMPLES = {"train": 4000, "validation": 1000}
LEAST_SENTENCES = 50
MASKED = (
    "the function returns a [MASK] of strings.",
    "if the file does not [MASK], an error is raised.",
    "the default value is [MASK].",
    "this method is called when the [MASK] is closed.",
)


def make_examples(learnt: list[str], held_out: list[str]) -> dict[str, Any]:
    """Makes examples of real and scrambled sentences, half each; no sentence is in both splits.

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
    """Returns the demo's recipe for the text in the folder."""
    recipe = load_recipe("demo")
    recipe = dataclasses.replace(
        recipe,
        data=dataclasses.replace(recipe.data, sources=[str(folder / "text.txt")], cache=str(folder / "cache")),
    )
    return recipe if steps is None else recipe.at_budget(steps / recipe.training.steps)


def run_pretraining(recipe: PretrainRecipe, folder: Path, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Pretrains; returns the outcome and the length schedule."""
    outcome = pretrain(recipe, folder / "pretrained", tokenizer=tokenizer)["outcome"]
    stages = zip(recipe.stages, recipe.stage_steps(), strict=True)
    return {**outcome, "stages": [{"length": stage.length, "steps": steps} for stage, steps in stages]}


def run_finetuning(folder: Path, examples: dict[str, Any], name: str) -> dict[str, Any]:
    """Fine-tunes a classifier from the pretrained or from random weights, on the same data."""
    recipe = FinetuneRecipe(
        learning_rates=[5e-4], epochs=3, batch_size=32, truncate=True, from_scratch=name == "from scratch"
    )
    place = place_of(folder, name)
    outcome = finetune(folder / "pretrained", WORD_ORDER, examples, place, recipe, [0])["outcome"]
    record = read_json(place / "seed-0" / RESULT)
    return {"accuracy": outcome["scores"]["validation"]["accuracy"]["mean"], "history": record["history"]}


def fill(folder: Path, own: list[str] | None) -> list[dict[str, Any]]:
    """Fills masks in a few sentences, taken from the user's own text if there is one."""
    texts = list(MASKED) if own is None else hide_a_word(own)
    guesses = load(folder / "pretrained").fill_mask(texts, top=5, progress=False)
    return [{"text": text, "guesses": masks[0]} for text, masks in zip(texts, guesses, strict=True)]


def hide_a_word(documents: list[str]) -> list[str]:
    """Returns the first few plain sentences with their middle word masked."""
    hidden = []
    for sentence in sentences(documents):
        words = sentence.split()
        words[len(words) // 2] = "[MASK]"
        hidden.append(" ".join(words))
        if len(hidden) == len(MASKED):
            break
    return hidden


def judged(folder: Path, validation: Any, count: int = 8) -> list[dict[str, str]]:
    """Returns the first few sentences with the true label and the pretrained classifier's answer."""
    lines = (place_of(folder, "pretrained") / "seed-0" / "validation.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines[1 : count + 1]]
    texts = validation["text_a"][:count]
    return [{"text": text, "verdict": row[1], "truth": row[2]} for text, row in zip(texts, rows, strict=True)]


def place_of(folder: Path, name: str) -> Path:
    """Returns the folder of a fine-tuning run."""
    return folder / f"classifier-{name.replace(' ', '-')}"
