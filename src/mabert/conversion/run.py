"""A whole conversion, from an encoder to a folder that is ready to use."""

import dataclasses
import logging
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast, set_seed

from mabert.baselines.uses import Use
from mabert.conversion import choose
from mabert.conversion.agreement import compare, lines
from mabert.conversion.card import card
from mabert.conversion.delta import CORE, save_delta
from mabert.conversion.initial import begin_from
from mabert.conversion.losses import Alignment, Distillation
from mabert.conversion.pieces import Frame, Pieces, cut, frames_of, read_pairs
from mabert.conversion.recipe import ConversionRecipe, checked_pattern
from mabert.conversion.speed import speed
from mabert.conversion.teacher import Teacher, open_teacher, student_of, use_of, weights_hash
from mabert.conversion.training import train
from mabert.conversion.watch import Item
from mabert.data.cache import IDS, Documents, build_cache
from mabert.data.collate import FlatteningCollator
from mabert.data.encode import Encoding, check_list
from mabert.data.mlm import MlmMasking
from mabert.data.tokenizer import fingerprint
from mabert.extras import EXTRAS, check_installed
from mabert.files.places import default_cache
from mabert.files.reading import digest
from mabert.files.sentences import copy_settings, is_cross_encoder
from mabert.files.writing import filling, write_text
from mabert.machine.precision import resolve_precision, warn_of_emulation
from mabert.opening.opened import Model
from mabert.train.fields import build
from mabert.train.run import UNFINISHED, RunFolder
from mabert.train.trainer import joined, size_of

logger = logging.getLogger(__name__)

FREE = ("resolved.processes",)
"""Settings that may change when a conversion is resumed."""

ALIGNING, END_TO_END = 2.5e-3, 3e-4
"""Learning rates of the two stages."""

HELD_OUT = 60_000
"""Tokens of text held out from learning, to compare teacher and student on; at most a tenth."""

STEP_SIZES = 6
"""Width divided by the rank r of the step sizes Δ. Mamba-1 has 16; in place of attention a higher rank learns better
(benchmarks/LOG.md)."""

SURVEYED, TYPICAL = 4_000, 512
"""Held-out tokens on which layers' importance is measured, and tokens of the longest text among them."""

TIMED = (128, 256, 512, 1024, 2048, 4096, 8192)
"""Text lengths at which teacher and student are timed, besides the longest learnt from."""

BEYOND = "the teacher has positions for {0:,} tokens; longer texts are taught in windows of {0:,} tokens"
"""Logged if texts may be longer than the teacher reads."""

BOTH = "{} does not say whether it reads texts or pairs of texts, so both are learnt; --pairs or --no-pairs says which"
"""Logged if a classifier's folder does not say what it reads."""


def convert(
    teacher: Model,
    texts: Sequence[str | Path],
    output: str | Path,
    *,
    resume: bool = False,
    text_column: str = "text",
    pair_column: str | None = None,
    pairs: bool | None = None,
    progress: bool = True,
    **recipe: Any,
) -> dict[str, Any]:
    """Converts an encoder to a MaBERT: trains Mamba cores to replace the attention of some of its layers.

    Args:
        teacher: Model folder, hub name, or a package of `mabert.files.places`: an encoder, a masked language
            model or a classifier of sequences, of a family in `mabert.conversion.families`.
        texts: Files, folders or hub data sets, as for `mabert pretrain`; all contribute equally many tokens.
        output: Folder for the student, ready to use, and `result.json`.
        resume: Whether to resume the conversion in `output`; the weights end the same as without interruption.
        text_column: Column of the text in tables; with `pair_column`, of the first text of a pair.
        pair_column: Column of the second text of a pair, for a teacher of pairs whose texts are tables of pairs.
        pairs: Whether a classifier reads pairs of texts; default, what its folder says, as those of
            sentence-transformers' CrossEncoder and of `mabert finetune` do, else the student learns from both. Without
            `pair_column` a pair is two neighbouring pieces of a text, and half of the second ones are exchanged.
        progress: Whether to show progress, and at the end the student's agreement with its teacher.
        recipe: Fields of `ConversionRecipe`.

    Returns:
        The content of `result.json`; empty in all processes but the main one.

    Raises:
        FileNotFoundError: If there is no teacher or text.
        ValueError: If the teacher cannot be converted, the text is too short, a number is out of range, the folder
            holds another run, or a package of the extra `train` is missing.
        KeyboardInterrupt: After Ctrl-C, when the state is saved.
    """
    check_installed(*EXTRAS["train"])
    asked = build(ConversionRecipe, recipe, "")
    if pair_column is not None and pairs is False:
        raise ValueError(f"pairs is off, and pair_column is {pair_column!r}; leave one of them out")
    if not isinstance(texts, str | Path):
        check_list(texts, "texts", "a list of files")
    texts = [texts] if isinstance(texts, str | Path) else list(texts)
    if not texts:
        raise ValueError("texts is empty; name at least one file, folder or hub data set to learn from")
    opened = open_teacher(teacher)
    use_of(opened)
    folder = RunFolder(output, FREE)
    processes = joined(asked.precision)
    request = {"teacher": opened.place.name, "texts": [str(text) for text in texts], **dataclasses.asdict(asked)}
    given = {"pairs": pairs, "pair_column": pair_column}
    request |= {name: value for name, value in given.items() if value is not None}
    if processes.is_main_process:
        warn_of_emulation(asked.precision)
        folder.check(request, resume)
    known = Teacher.at(opened)
    wanted = checked_pattern(asked.pattern, known.copy.config.num_hidden_layers)
    frames = frames_of(known.place, known.use, known.reader, known.sentences, True if pair_column else pairs)
    for line in warnings_of(known, frames, asked.length):
        if processes.is_main_process:
            logger.warning(line)
    columns = (text_column, pair_column)
    pieces, samples, corpus = learnt_from(texts, known, frames, asked, columns, progress)
    pattern, lost = chosen_pattern(wanted, known.copy, samples)
    request["resolved"] = resolved(known, corpus, pattern, asked, processes.num_processes)
    if processes.is_main_process:
        folder.claim(request, resume)
    if resume and (finished := folder.result()) is not None:
        return told(finished, progress) if processes.is_main_process else {}
    set_seed(asked.seed)
    student = begun(known.model, known.copy, known.use, changes_of(known, pattern, asked))
    stages = learn(known, student, pieces, folder.path, asked, resume, progress)
    if not processes.is_main_process:
        return {}
    about = {"use": known.use, "pattern": pattern, "importance": lost, "teacher_reads": known.longest, "stages": stages}
    outcome = {**about, **measured(known, student, samples, asked)}
    save(known, student, folder.path, request, outcome)
    shutil.rmtree(folder.path / UNFINISHED, ignore_errors=True)
    seconds = sum(stage["seconds"] for stage in stages.values())
    return told(folder.write_result(outcome, seconds, seed=asked.seed), progress)


def warnings_of(known: Teacher, frames: Sequence[Frame], length: int) -> list[str]:
    """Returns a warning for each thing that a user may not expect of what a student learns from.

    Raises:
        ValueError: If pairs are to be longer than the teacher reads.
    """
    kinds = {frame.is_pair for frame in frames}
    longer = length > known.longest
    if longer and kinds == {True}:
        raise ValueError(
            f"length is {length:,}; the teacher reads pairs of up to {known.longest:,} tokens: ask for that"
        )
    return [BOTH.format(known.place)] * (len(kinds) == 2) + [BEYOND.format(known.longest)] * longer


def told(result: dict[str, Any], progress: bool) -> dict[str, Any]:
    """Returns a conversion's result; with progress shown, also prints the student's agreement with its teacher."""
    if progress and sys.stdout is not None:
        for line in lines(result["outcome"]["agreement"]):
            sys.stdout.write(line + "\n")
    return result


def learnt_from(
    texts: Sequence[str | Path],
    known: Teacher,
    frames: Sequence[Frame],
    asked: ConversionRecipe,
    columns: tuple[str, str | None],
    progress: bool,
) -> tuple[Pieces, Pieces, str]:
    """Returns the pieces to learn from, those held out, and what identifies the corpus.

    Args:
        texts: Files, folders or hub data sets; tables of pairs if `columns` has two.
        known: The teacher.
        frames: What stands around texts.
        asked: Settings of the conversion.
        columns: Column of the text, and of a pair's second text or None.
        progress: Whether to show progress.
    """
    first, second = columns
    how: dict[str, Any] = {"length": asked.length, "seed": asked.seed}
    if second is not None:
        (frame,) = frames
        how |= {"frame": frame, "tokens": asked.tokens, "held_out": HELD_OUT}
        return read_pairs(texts, known.reader, (first, second), **how)
    training, held = read(texts, known.reader, asked, first, progress)
    how |= {"frames": frames, "longest_pair": min(asked.length, known.longest)}
    corpus = "+".join(digest(documents.cache.folder / IDS)[:16] for documents in training)
    pieces = cut(training, known.reader, tokens=asked.tokens, **how)
    return pieces, cut(held, known.reader, tokens=None, **how), corpus


def read(
    texts: Sequence[str | Path],
    tokenizer: PreTrainedTokenizerFast,
    asked: ConversionRecipe,
    text_column: str,
    progress: bool,
) -> tuple[list[Documents], list[Documents]]:
    """Tokenises as much of each source as may be needed; returns training documents and held-out ones."""
    wanted = -(-asked.tokens // len(texts)) + HELD_OUT
    caches = [
        build_cache(
            str(text),
            tokenizer,
            default_cache(),
            text_column=text_column,
            max_tokens=wanted + wanted // 10,
            progress=progress,
        )
        for text in texts
    ]
    parts = [cache.split(min(0.1, HELD_OUT / len(texts) / len(cache.ids))) for cache in caches]
    return [training for training, _ in parts], [held for _, held in parts]


def measured(known: Teacher, student: Any, samples: Pieces, asked: ConversionRecipe) -> dict[str, Any]:
    """Measures the student's agreement with its teacher, and the speed of both."""
    dtype = resolve_precision(asked.precision)
    lengths = [*(tokens for tokens in TIMED if tokens < asked.length), asked.length]
    with torch.autocast(student.device.type, torch.bfloat16, enabled=dtype == "bf16"):
        agreement = compare(known.copy, student, known.use, samples)
    times = speed(known.model.to(student.device), student, lengths, known.longest, dtype)
    return {"agreement": agreement, "speed": times}


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
    for line in choose.warnings_of(wanted, lost):
        logger.warning(line)
    return wanted, lost


def resolved(known: Teacher, corpus: str, pattern: str, asked: ConversionRecipe, processes: int) -> dict[str, Any]:
    """Returns a conversion's inputs other than its request, which must not change on resuming."""
    return {
        "weights": weights_hash(known.copy),
        "vocabulary": fingerprint(known.tokenizer),
        "corpus": corpus,
        "pattern": pattern,
        "precision": resolve_precision(asked.precision),
        "processes": processes,
    }


def begun(model: PreTrainedModel, copy: Any, use: Use, changes: dict[str, Any]) -> Any:
    """Makes the untrained student: the teacher's weights, and cores initialized near the attention they replace."""
    student: Any = student_of(model, use, **changes)
    for block, before in zip(student.base_model.layers, copy.base_model.layers, strict=True):
        if hasattr(block, "mixer"):
            begin_from(block.mixer, before.attention)
    return student


def changes_of(known: Teacher, pattern: str, asked: ConversionRecipe) -> dict[str, Any]:
    """Returns the fields of the student's configuration that do not follow from the teacher's."""
    changes: dict[str, Any] = {
        "layer_pattern": pattern,
        "ssm_direction": asked.direction,
        "ssm_expand": asked.expand,
        "ssm_dt_rank": -(-known.copy.config.hidden_size // STEP_SIZES),
        "max_position_embeddings": max(asked.length, known.longest),
    }
    if known.sentences is not None:
        changes |= {"pooling": known.sentences.pooling, "normalize": known.sentences.normalize}
    return changes


def learn(
    known: Teacher,
    student: Any,
    pieces: Pieces,
    folder: Path,
    asked: ConversionRecipe,
    resume: bool,
    progress: bool,
) -> dict[str, Any]:
    """Runs both stages; returns the report of `train` on each."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    copy, use = known.copy.to(device).requires_grad_(False), known.use
    student.to(device)
    masking = MlmMasking(known.tokenizer) if use == "masked_lm" else None
    how: dict[str, Any] = {"collate": FlatteningCollator(masking, asked.seed), "resume": resume}
    first, second = divided(pieces, 1 - asked.end_to_end)
    spent: dict[str, Any] = {}
    if len(first):
        student.requires_grad_(False)
        alignment = Alignment(copy.base_model, student.base_model)
        alignment.requires_grad_(True)
        title = "aligning" if progress else None
        place = folder / UNFINISHED / "align"
        spent["align"] = train(alignment, first, place, asked, title=title, rate=ALIGNING, **how)
    if len(second):
        for name, weight in student.named_parameters():
            weight.requires_grad_(CORE in name)
        whole = Distillation(copy, student, use)
        title = "end to end" if progress else None
        place = folder / UNFINISHED / "end-to-end"
        spent["end_to_end"] = train(whole, second, place, asked, title=title, rate=END_TO_END, **how)
    student.config.sparse_prediction = False
    return spent


def divided(pieces: Pieces, share: float) -> tuple[Pieces, Pieces]:
    """Splits pieces in two, the first with a given share of them."""
    border = round(share * len(pieces))
    first, second = pieces.places[:border], pieces.places[border:]
    return dataclasses.replace(pieces, places=first), dataclasses.replace(pieces, places=second)


def save(known: Teacher, student: Any, folder: Path, request: dict[str, Any], outcome: dict[str, Any]) -> None:
    """Writes the student's folder: weights, tokenizer, card, files of sentence-transformers and `mabert predict`.

    If the student reads longer texts than its teacher, every file that holds a length gets the student's.
    """
    length, sentences = request["length"], known.sentences
    longer = length if length > known.longest else None
    encoding = Encoding.beside(known.place)
    advice = "the last checkpoint is whole; make room and go on by --resume"
    with filling(folder, size_of(student), advice) as staging:
        if request["delta"]:
            named = request["teacher"]
            named = str(Path(named).absolute()) if Path(named).exists() else named
            save_delta(student, outcome["use"], named, request["resolved"]["weights"], staging)
        else:
            student.save_pretrained(staging)
        known.tokenizer.model_max_length = longer or known.tokenizer.model_max_length
        known.tokenizer.save_pretrained(staging)
        if sentences is not None:  # sentence-transformers cuts texts there, and the student has learnt from longer ones
            cut_before = sentences.longest is not None and length > sentences.longest
            sentences.copy_to(staging, length if cut_before else longer)
        elif is_cross_encoder(known.place):
            copy_settings(known.place, staging)
        if encoding is not None:
            dataclasses.replace(encoding, max_length=longer or encoding.max_length).save(staging)
        write_text(staging / "README.md", card(known.place, request, outcome))
