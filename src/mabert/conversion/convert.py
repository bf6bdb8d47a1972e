"""A whole conversion, from an encoder to a folder that is ready to use."""

import dataclasses
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from mabert.conversion.agreement import compare, speed
from mabert.conversion.card import card
from mabert.conversion.delta import CORE, save_delta
from mabert.conversion.recipe import ConversionRecipe
from mabert.conversion.resolve import FREE, ConversionRun, begun, changes_of, resolve
from mabert.conversion.training import Alignment, Distillation, train
from mabert.data.collate import FlatteningCollator
from mabert.data.mlm import MlmMasking
from mabert.files.places import CARD, expanded
from mabert.files.writing import filling, write_text
from mabert.machine.environment import EXTRAS, check_installed
from mabert.machine.memory import size_of
from mabert.opening.opened import Model
from mabert.schema.check import check
from mabert.train.folder import MAKE_ROOM, UNFINISHED, RunFolder

logger = logging.getLogger(__name__)

ALIGNING, END_TO_END = 2.5e-3, 3e-4
"""Learning rates of the two stages."""

TIMED = (128, 256, 512, 1024, 2048, 4096, 8192)
"""Text lengths at which teacher and student are timed, besides the longest learnt from."""


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
        teacher: Model folder, hub name, a package of `mabert.files.places`, or an opened model: an encoder, a masked
            language model or a classifier of sequences, of a family in `mabert.conversion.families`.
        texts: Files, folders or hub data sets, as for `mabert pretrain`; all contribute equally many tokens.
        output: Folder for the student, ready to use, and `result.json`.
        resume: Whether to resume the conversion in `output`; the weights end the same as without interruption.
        text_column: Column of the text in tables; with `pair_column`, of the first text of a pair.
        pair_column: Column of the second text of a pair, for a teacher of pairs whose texts are tables of pairs.
        pairs: Whether a classifier reads pairs of texts; default, what its folder says, as those of
            sentence-transformers' CrossEncoder and of `mabert finetune` do, else the student learns from both. Without
            `pair_column` a pair is two neighbouring pieces of a text, and half of the second ones are exchanged.
        progress: Whether to show progress.
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
    asked, columns = check(ConversionRecipe, recipe), (text_column, pair_column)
    with RunFolder(output, resume, free=FREE) as folder:
        run = resolve(teacher, texts, folder, asked, columns=columns, pairs=pairs, progress=progress)
        known, writes = run.teacher, run.processes.is_main_process
        if run.result is not None:
            return run.result if writes else {}
        set_seed(run.recipe.seed)
        student = begun(known.model, known.copy, known.use, changes_of(known, run.pattern, run.recipe))
        stages = learn(run, student)
        if not writes:
            return {}
        about = {"use": known.use, "pattern": run.pattern, "importance": run.importance, "teacher_reads": known.longest}
        outcome = {**about, "stages": stages, **measured(run, student)}
        save(run, student, outcome)
        shutil.rmtree(folder.path / UNFINISHED, ignore_errors=True)
        seconds = sum(stage["seconds"] for stage in stages.values())
        return folder.write_result(outcome, seconds, seed=run.recipe.seed)


def measured(run: ConversionRun, student: Any) -> dict[str, Any]:
    """Measures the student's agreement with its teacher, and the speed of both."""
    teacher, longest = run.teacher, run.recipe.length
    lengths = [*(tokens for tokens in TIMED if tokens < longest), longest]
    with torch.autocast(student.device.type, torch.bfloat16, enabled=run.precision == "bf16"):
        agreement = compare(teacher.copy, student, teacher.use, run.samples)
    timed = speed(teacher.model.to(student.device), student, lengths, teacher.longest, run.precision)
    return {"agreement": agreement, "speed": timed}


def learn(run: ConversionRun, student: Any) -> dict[str, Any]:
    """Runs both stages; returns the report of `train` on each."""
    device = run.processes.device
    copy, use = run.teacher.copy.to(device).requires_grad_(False), run.teacher.use
    student.to(device)
    collate = FlatteningCollator(
        MlmMasking(run.teacher.opened.tokenizer) if use == "masked_lm" else None, run.recipe.seed
    )
    places, border = run.pieces.places, round((1 - run.recipe.end_to_end) * len(run.pieces))
    first, second = (dataclasses.replace(run.pieces, places=some) for some in (places[:border], places[border:]))
    spent: dict[str, Any] = {}
    if len(first):
        student.requires_grad_(False)
        alignment = Alignment(copy.base_model, student.base_model)
        alignment.requires_grad_(True)
        spent["align"] = train(run, "align", "aligning", alignment, first, collate, ALIGNING)
    if len(second):
        for name, weight in student.named_parameters():
            weight.requires_grad_(CORE in name)
        whole = Distillation(copy, student, use)
        spent["end_to_end"] = train(run, "end-to-end", "end to end", whole, second, collate, END_TO_END)
    student.config.sparse_prediction = False
    return spent


def save(run: ConversionRun, student: Any, outcome: dict[str, Any]) -> None:
    """Writes the student's folder: weights, tokenizer, card, files of sentence-transformers and `mabert predict`.

    If the student reads longer texts than its teacher, every file that holds a length gets the student's.
    """
    opened, request = run.teacher.opened, run.request
    length, tokenizer, encoding = run.recipe.length, opened.tokenizer, opened.encoding
    longer = length if length > run.teacher.longest else None
    if longer is not None:
        tokenizer.model_max_length = longer
        encoding = encoding and dataclasses.replace(encoding, max_length=longer)
    # sentence-transformers cuts texts at a length, and the student may have learnt from longer ones.
    cut = None if opened.sentences is None else opened.sentences.longest
    with filling(run.folder.path, size_of(student), MAKE_ROOM) as staging:
        if run.recipe.delta:
            named = request["teacher"]
            named = str(here.absolute()) if (here := expanded(named)).exists() else named
            save_delta(student, outcome["use"], named, request["resolved"]["weights"], staging)
        else:
            student.save_pretrained(staging)
        opened.save_beside(staging, length if cut is not None and length > cut else longer, encoding)
        write_text(staging / CARD, card(opened.place.path, request, outcome))
