"""Resolves a conversion into one value before it begins: teacher, pieces of text, schedule, folder."""

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mabert.conversion import choose
from mabert.conversion.choose import begin_from
from mabert.conversion.pieces import Frame, Pieces, cut_pieces, frames_of, read_pairs
from mabert.conversion.recipe import ConversionRecipe, at_depth
from mabert.conversion.teacher import Teacher, open_teacher, student_of, weights_hash
from mabert.conversion.watch import Item
from mabert.data.cache import IDS, Documents, build_cache
from mabert.data.corpus import parse_sources
from mabert.data.encode import check_list
from mabert.data.tokenizer import fingerprint
from mabert.files.places import default_cache
from mabert.files.reading import digest
from mabert.machine.environment import resolve_precision, warn_of_emulation
from mabert.opening.opened import Model
from mabert.opening.uses import Use
from mabert.train.folder import RunFolder
from mabert.train.trainer import join_processes

if TYPE_CHECKING:
    from accelerate import PartialState

logger = logging.getLogger(__name__)

FREE = ("resolved.processes",)
"""Settings that may change when a conversion is resumed."""

HELD_OUT = 60_000
"""Tokens of text held out from learning, to compare teacher and student on; at most a tenth."""

WIDTH_PER_RANK = 6
"""Width divided by the rank r of the step sizes Δ. Mamba-1 has 16; in place of attention a higher rank learns better
(benchmarks/LOG.md)."""

SURVEYED, TYPICAL = 4_000, 512
"""Held-out tokens on which layers' importance is measured, and tokens of the longest text among them."""


@dataclass(frozen=True)
class ConversionRun:
    """A conversion that may begin: its folder is claimed, and nothing about it is decided later."""

    recipe: ConversionRecipe
    teacher: Teacher
    folder: RunFolder
    request: dict[str, Any]  # what determines the run, as the folder records it
    pattern: str  # the student's schedule
    importance: list[float]  # the loss without the attention of each of the teacher's layers
    pieces: Pieces  # what is learnt
    samples: Pieces  # what is held out
    precision: str  # `fp32` or `bf16`, of teacher and student
    processes: "PartialState"
    progress: bool
    result: dict[str, Any] | None  # if the run was finished before


def resolve(
    teacher: Model,
    texts: Sequence[str | Path],
    folder: RunFolder,
    recipe: ConversionRecipe,
    *,
    columns: tuple[str, str | None],
    pairs: bool | None,
    progress: bool,
) -> ConversionRun:
    """Resolves a conversion and claims its folder; errors and the other arguments are those of `mabert.convert`,
    `columns` the column of the text, and of a pair's second text or None."""
    pair_column = columns[1]
    if pair_column is not None and pairs is False:
        raise ValueError(f"pairs is off, and pair_column is {pair_column!r}; leave one of them out")
    if isinstance(texts, str | Path):
        texts = [texts]
    check_list(texts, "texts", "a list of files")
    texts = list(texts)
    if not texts:
        raise ValueError("texts is empty; name at least one file, folder or hub data set to learn from")
    warn_of_emulation(recipe.precision)
    opened = open_teacher(teacher)
    processes, precision = join_processes(), resolve_precision(recipe.precision)
    request = {"teacher": opened.place.name, "texts": [str(text) for text in texts], **dataclasses.asdict(recipe)}
    given = {"pairs": pairs, "pair_column": pair_column}
    request |= {name: value for name, value in given.items() if value is not None}
    if processes.is_main_process:
        folder.check(request)
    known = Teacher.of(opened)
    wanted = at_depth(recipe.pattern, known.copy.config.num_hidden_layers)
    if wanted != "auto" and ("M" not in wanted or set(wanted) - {"M", "T"}):
        raise ValueError(f"pattern is {recipe.pattern!r}; it must have at least one M, and no letters but M and T")
    frames = frames_of(known, True if pair_column else pairs)
    for line in warnings_of(known, frames, recipe.length):
        logger.warning(line)
    pieces, samples, corpus = learnt_from(texts, known, frames, recipe, columns, progress)
    pattern, importance = chosen_pattern(wanted, known.copy, samples)
    request["resolved"] = {
        "weights": weights_hash(known.copy),
        "vocabulary": fingerprint(opened.tokenizer),
        "corpus": corpus,
        "pattern": pattern,
        "precision": precision,
        "processes": processes.num_processes,
    }
    if processes.is_main_process:
        folder.claim(request)
    result = folder.result()
    return ConversionRun(
        recipe, known, folder, request, pattern, importance, pieces, samples, precision, processes, progress, result
    )


def warnings_of(teacher: Teacher, frames: Sequence[Frame], length: int) -> list[str]:
    """Returns a warning for each thing that a user may not expect of what a student learns from; ValueError if pairs
    are to be longer than the teacher reads."""
    kinds, longest, told = {frame.is_pair for frame in frames}, f"{teacher.longest:,}", []
    if length > teacher.longest and kinds == {True}:
        raise ValueError(f"length is {length:,}; the teacher reads pairs of up to {longest} tokens: ask for that")
    if len(kinds) == 2:
        both = "does not say whether it reads texts or pairs of texts, so both are learnt"
        told.append(f"{teacher.opened.place} {both}; --pairs or --no-pairs says which")
    if length > teacher.longest:
        windows = f"longer texts are taught in windows of {longest} tokens"
        told.append(f"the teacher has positions for {longest} tokens; {windows}")
    return told


def learnt_from(
    texts: Sequence[str | Path],
    teacher: Teacher,
    frames: Sequence[Frame],
    recipe: ConversionRecipe,
    columns: tuple[str, str | None],
    progress: bool,
) -> tuple[Pieces, Pieces, str]:
    """Returns the pieces to learn from, those held out, and what identifies the corpus; with a second column, `texts`
    are tables of pairs."""
    first, second = columns
    how: dict[str, Any] = {"length": recipe.length, "seed": recipe.seed}
    if second is not None:
        (frame,) = frames
        how |= {"frame": frame, "tokens": recipe.tokens, "held_out": HELD_OUT}
        return read_pairs(texts, teacher.reader, (first, second), **how)
    training, held = tokenised(texts, teacher.reader, recipe, first, progress)
    how |= {"frames": frames, "longest_pair": min(recipe.length, teacher.longest)}
    corpus = "+".join(digest(documents.cache.folder / IDS)[:16] for documents in training)
    pieces = cut_pieces(training, teacher.reader, tokens=recipe.tokens, **how)
    return pieces, cut_pieces(held, teacher.reader, tokens=None, **how), corpus


def tokenised(
    texts: Sequence[str | Path],
    tokenizer: PreTrainedTokenizerFast,
    recipe: ConversionRecipe,
    text_column: str,
    progress: bool,
) -> tuple[list[Documents], list[Documents]]:
    """Tokenises as much of each source as may be needed; returns training documents and held-out ones."""
    wanted = -(-recipe.tokens // len(texts)) + HELD_OUT
    how: dict[str, Any] = {"max_tokens": wanted + wanted // 10, "progress": progress}
    parsed = (parse_sources(str(text), text_column) for text in texts)
    caches = [build_cache(sources, tokenizer, default_cache(), **how) for sources in parsed]
    parts = [cache.split(min(0.1, HELD_OUT / len(texts) / len(cache.ids))) for cache in caches]
    return [training for training, _ in parts], [held for _, held in parts]


def some(pieces: Pieces, tokens: int, longest: int) -> list[Item]:
    """Returns the first pieces, `tokens` in all, of at most `longest` tokens, so that a few long ones do not dominate.

    If all pieces are longer, takes from all.
    """
    lengths = np.array(pieces.lengths)
    chosen = np.flatnonzero(lengths <= longest) if lengths.min() <= longest else np.arange(len(lengths))
    enough = int(np.searchsorted(lengths[chosen].cumsum(), tokens)) + 1
    return [pieces[index] for index in chosen[:enough]]


def chosen_pattern(wanted: str, copy: Any, samples: Pieces) -> tuple[str, list[float]]:
    """Returns the wanted schedule, or for `auto` the one that a survey of the teacher's attention chooses, and the loss
    without the attention of each layer; warns of layers whose attention it should keep."""
    survey = choose.Survey(copy.base_model, some(samples, SURVEYED, TYPICAL))
    lost = survey.importance()
    if wanted == "auto":
        return survey.pattern(), lost
    for line in choose.pattern_warnings(wanted, lost):
        logger.warning(line)
    return wanted, lost


def begun(model: PreTrainedModel, copy: Any, use: Use, changes: dict[str, Any]) -> Any:
    """Makes the untrained student: the teacher's weights, and cores initialized near the attention they replace."""
    student: Any = student_of(model, use, **changes)
    for block, before in zip(student.base_model.layers, copy.base_model.layers, strict=True):
        if hasattr(block, "mixer"):
            begin_from(block.mixer, before.attention)
    return student


def changes_of(teacher: Teacher, pattern: str, recipe: ConversionRecipe) -> dict[str, Any]:
    """Returns the fields of the student's configuration that do not follow from the teacher's."""
    changes: dict[str, Any] = {
        "layer_pattern": pattern,
        "ssm_direction": recipe.direction,
        "ssm_expand": recipe.expand,
        "ssm_dt_rank": -(-teacher.copy.config.hidden_size // WIDTH_PER_RANK),
        "max_position_embeddings": max(recipe.length, teacher.longest),
    }
    if (sentences := teacher.opened.sentences) is not None:
        changes |= {"pooling": sentences.pooling, "normalize": sentences.normalize}
    return changes
