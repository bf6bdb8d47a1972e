"""Arms that are conversions of one trained encoder, and the arm that keeps all its attention layers."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from mabert.conversion.choose import layers_kept
from mabert.conversion.pieces import Frame, cut_pieces
from mabert.conversion.recipe import ConversionRecipe, at_depth
from mabert.conversion.resolve import begun, changes_of, tokenised
from mabert.conversion.teacher import Teacher, student_config, weights_hash
from mabert.data.cache import FORMAT as TOKENS
from mabert.data.corpus import identities, parse_sources
from mabert.data.tokenizer import fingerprint
from mabert.files.writing import filling
from mabert.machine.environment import resolve_precision
from mabert.machine.memory import parameters_of, size_of
from mabert.opening.uses import class_for
from mabert.schema.check import check
from mabert.train.folder import RunFolder
from mabert.train.recipe import check_seeds
from mabert_lab.study.cells import FORMAT, WITHOUT_WEIGHTS, Cell, absolute, without
from mabert_lab.study.grid import Arm, ConvertSettings, Scale

BLOCK = 100
"""The fine-tunings of conversion c have the seeds from 100 c on. So conversions vary independently: no two share a head
or an order of examples. Adding seeds or conversions leaves existing cells unchanged."""


class Conversions:
    """Lays conversions out as cells; FileNotFoundError or ValueError if teacher, text or seeds are missing or wrong."""

    def __init__(self, scale: Scale) -> None:
        self.asked, self.seeds = scale.convert or ConvertSettings(), scale.seeds
        if self.asked.teacher is None:
            raise ValueError("the study converts an encoder; give --from MODEL, a folder or hub name")
        if not self.asked.texts:
            raise ValueError("the study names no text; give --text files, folders or hub data sets")
        if max(self.seeds) >= BLOCK:
            raise ValueError(f"seeds are {self.seeds}; where arms are conversions, they must be below {BLOCK}")
        check_seeds(self.tuned_under(self.asked.seeds))
        self.known = Teacher.of(self.asked.teacher)
        self.depth = self.known.copy.config.num_hidden_layers
        self.about = {"teacher": weights_hash(self.known.copy), "vocabulary": fingerprint(self.known.opened.tokenizer)}
        self.text = text_of(self.asked.texts, self.asked.text_column)
        self.enough: set[tuple[int, int]] = set()

    def tuned_under(self, seeds: Sequence[int]) -> list[int]:
        """Returns the fine-tuning seeds of the conversions with these seeds."""
        return [BLOCK * seed + each for seed in seeds for each in self.seeds]

    def cells(self, title: str, arm: Arm) -> Iterator[tuple[str, Cell, PreTrainedConfig, list[int]]]:
        """Yields an arm's conversions: title, cell, configuration, fine-tuning seeds; the unchanged teacher once."""
        fields = {**self.asked.recipe, **(arm.convert or {})}
        try:
            recipe = check(ConversionRecipe, fields)
            pattern = at_depth(recipe.pattern, self.depth)
            if learns(pattern):
                self.check_text(recipe)
        except ValueError as error:
            raise ValueError(f"the conversion of {title}: {error}") from error
        if not learns(pattern):
            kept = ConversionRecipe(pattern=pattern, length=recipe.length, precision="fp32")
            yield title, *self.cell(title, kept), self.tuned_under(self.asked.seeds)
            return
        for seed in self.asked.seeds:
            which = f"{title}, conversion {seed}"
            one = ConversionRecipe(**{**asdict(recipe), "pattern": pattern, "seed": seed})
            yield which, *self.cell(which, one), self.tuned_under([seed])

    def check_text(self, recipe: ConversionRecipe) -> None:
        """Refuses a text with fewer tokens than a conversion asks for, before any conversion is made."""
        if (recipe.length, recipe.tokens) in self.enough:
            return
        tokenizer = self.known.opened.tokenizer
        training, _ = tokenised(self.asked.texts, tokenizer, recipe, self.asked.text_column, progress=False)
        frames = (Frame.of(tokenizer),)
        for seed in self.asked.seeds:
            cut_pieces(training, tokenizer, length=recipe.length, tokens=recipe.tokens, seed=seed, frames=frames)
        self.enough.add((recipe.length, recipe.tokens))

    def cell(self, title: str, recipe: ConversionRecipe) -> tuple[Cell, PreTrainedConfig]:
        letters = recipe.pattern
        if letters == "auto":  # which layers it will choose is not known yet, but how many is
            letters = ("T" * layers_kept(self.depth)).ljust(self.depth, "M")
        changes = changes_of(self.known, letters, recipe)
        config = student_config(self.known.model.config, self.known.use, **changes)
        content: dict[str, Any] = {"format": FORMAT, "kind": "conversion", **self.about, "recipe": asdict(recipe)}
        content["recipe"]["precision"] = resolve_precision(recipe.precision)
        content["recipe"]["model"] = without(config.to_dict(), (*WITHOUT_WEIGHTS, "layer_pattern", "layer_types"))
        if learns(recipe.pattern):
            content |= {"tokens": TOKENS, "text": self.text}
        teacher = str(self.asked.teacher)
        order: dict[str, Any] = {"teacher": absolute(teacher) if Path(teacher).exists() else teacher}
        order |= {"texts": [absolute(text) for text in self.asked.texts], "text_column": self.asked.text_column}
        order["recipe"] = asdict(recipe)
        steps = math.ceil(recipe.tokens / recipe.batch_tokens) if learns(recipe.pattern) else 0
        parameters = parameters_of(class_for("encoder", config), config)
        cell = Cell(content, order, f"convert {title}", steps=steps, parameters=parameters)
        return cell, config


def learns(pattern: str) -> bool:
    """Checks whether a conversion trains anything: the one that keeps all attention layers is the teacher itself."""
    return set(pattern) != {"T"}


def text_of(texts: Sequence[str], text_column: str) -> list[list[dict[str, Any]]]:
    """Returns what identifies each text, by its own files: a conversion takes equally many tokens of each."""
    return [identities(parse_sources(text, text_column)) for text in texts]


def keep(known: Teacher, recipe: ConversionRecipe, folder: Path, resume: bool) -> None:
    """Writes the MaBERT that keeps all attention layers of a teacher, with what `mabert finetune` needs."""
    began = time.monotonic()
    with RunFolder(folder, resume) as run:
        run.claim({"pattern": recipe.pattern})
        student = begun(known.model, known.copy, known.use, changes_of(known, recipe.pattern, recipe))
        with filling(folder, size_of(student), "make room and start the study again") as staging:
            student.save_pretrained(staging)
            known.opened.tokenizer.save_pretrained(staging)
        run.write_result({"use": known.use, "pattern": recipe.pattern}, time.monotonic() - began)
