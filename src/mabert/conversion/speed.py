"""Speed of a conversion: forwards of student and teacher at several lengths, in turns."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from transformers import PreTrainedModel

from mabert.machine.rounds import interleave

BUDGET = 6.0
"""Seconds after which no more rounds of a length begin, once the minimum number is done."""


def speed(
    teacher: PreTrainedModel, student: PreTrainedModel, lengths: Sequence[int], longest: int, dtype: str
) -> list[dict[str, Any]]:
    """Times inference on one text at a time, in `fp32` or in `bf16` by autocast, as in `mabert.load`. The teacher is
    timed with SDPA and with `attn_implementation="mabert"`, on texts of at most `longest` tokens, for which it has
    positions.

    Returns for each length the `Spread` in milliseconds of `student`, `teacher` and `teacher, mabert's attention`.
    """
    rows = []
    before = teacher.config._attn_implementation
    for length in lengths:
        draws = torch.Generator().manual_seed(length)
        ids = torch.randint(5, teacher.config.vocab_size, (1, length), generator=draws).to(student.device)
        sides = {"student": forward_of(student, ids, dtype)}
        if length <= longest:
            sides["teacher"] = forward_of(teacher, ids, dtype, "sdpa")
            sides["teacher, mabert's attention"] = forward_of(teacher, ids, dtype, "mabert")
        spreads = interleave(sides, least=3, most=15, budget=BUDGET)
        rows.append({"length": length, **{side: asdict(spread) for side, spread in spreads.items()}})
    teacher.set_attn_implementation(before)
    return rows


def forward_of(
    model: PreTrainedModel, ids: torch.Tensor, dtype: str, attention: str | None = None
) -> Callable[[], Any]:
    """Returns a function that runs one forward of a model, with the given attention."""

    def run() -> Any:
        if attention is not None:
            model.set_attn_implementation(attention)
        with torch.inference_mode(), torch.autocast(ids.device.type, torch.bfloat16, enabled=dtype == "bf16"):
            return model(input_ids=ids)

    return run
