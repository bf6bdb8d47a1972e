"""How closely a student agrees with its teacher on held-out texts, compared with a constant as the floor; and
how fast both are."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from mabert.conversion.pieces import Pieces
from mabert.conversion.training import Alignment
from mabert.conversion.watch import (
    Item,
    PackedRow,
    attention_means,
    held,
    hidden_states_of,
    packed,
    packing_of,
    pooled,
    unexplained,
)
from mabert.conversion.windows import TeacherWindows, windows_of
from mabert.data.batches import batches_by_length
from mabert.machine.rounds import interleave
from mabert.model.pooling import Pooler
from mabert.opening.uses import Use, kind_of_labels

TOKENS = 4096
"""Tokens per batch."""

TOKENS_WITH_LOGITS = 512
"""Tokens per batch where each token may have a logit for every entry of the vocabulary."""

BANDS = (32, 128, 512, 2048)
"""Upper limits, in tokens, of the groups of texts that are compared together."""

PAIRS = "pairs of "
"""How the names of bands of pairs begin."""

TEXTS = 500
"""Texts compared in a band at most. Among more texts the nearest one is harder to find."""

LAYERED = 100
"""Texts on which the layers are measured: several times as many change the figures by only a few per cent."""


def compare(copy: Any, student: Any, use: Use, pieces: Pieces) -> dict[str, Any]:
    """Compares teacher (its copy that keeps all layers) and student, with heads of the same kind, on held-out pieces,
    both in the caller's precision (a conversion's own). The teacher reads texts beyond its positions in windows.

    Returns `layers`, see `by_layer`, and `bands` by length, those of pairs apart (`PAIRS`). Each band has the number of
    `texts`, and for `student` and `floor` (the teacher with its attention held at its mean wherever the student has
    none) the results of `agreement`, `order` (see `nearness`), and, with a head, `answers` (see `same_answers`).
    """
    teacher, ours = copy.base_model, student.base_model
    pooling = student.config.pooling if student.config.pooling in Pooler.FIXED else "mean"
    lengths, pairs = np.array(pieces.lengths), pieces.are_pairs
    constant = constants(teacher, ours, [pieces[index] for index in range(min(len(pieces), 50))])
    bands: dict[str, Any] = {}
    limits = list(zip((3, *(band + 1 for band in BANDS)), (*BANDS, np.inf), strict=True))
    for kind, (least, most) in product((False, True), limits):
        chosen = np.flatnonzero((pairs == kind) & (lengths >= least) & (lengths <= most))[:TEXTS]
        if len(chosen) < 2:
            continue
        texts = [pieces[index] for index in chosen]
        wanted = vectors(teacher, texts, pooling)
        near = nearness(teacher, texts, pooling, wanted)
        right = None if use == "encoder" else answers(copy, texts)
        band: dict[str, Any] = {"texts": len(texts)}
        for name, encoder, model in (("student", ours, student), ("floor", teacher, copy)):
            with held(teacher, constant) if name == "floor" else nullcontext():
                found = vectors(encoder, texts, pooling)
                order = nearness(encoder, texts, pooling, found)
                band[name] = {**agreement(wanted, found), "order": correlation(near, order)}
                if right is not None:
                    band[name]["answers"] = same_answers(right, answers(model, texts))
        bands[f"{PAIRS * kind}{least}-{int(lengths[chosen].max())}"] = band
    texts = [pieces[index] for index in range(min(len(pieces), LAYERED))]
    return {"layers": by_layer(teacher, ours, texts), "bands": bands}


def in_words(agreement: dict[str, Any]) -> Iterator[str]:
    """Words the result of `compare`, one line per band of lengths."""
    for name, band in agreement["bands"].items():
        student, floor = band["student"], band["floor"]
        answers = f", same answer {student['answers']:.1%}" if "answers" in student else ""
        yield (
            f"{texts_of(name)}: cosine to the teacher {student['cosine']:.3f} (floor {floor['cosine']:.3f}), "
            f"nearest neighbour found {student['neighbours']:.0%} (floor {floor['neighbours']:.0%}){answers}"
        )


def texts_of(band: str) -> str:
    """Words a band of the result of `compare`."""
    return f"{band if band.startswith(PAIRS) else f'texts of {band}'} tokens"


def constants(teacher: Any, student: Any, texts: Sequence[Item]) -> dict[int, Tensor]:
    """Returns the mean output of the teacher's attention in the layers where the student has none, (D,) by layer."""
    row = windows_of(packed(texts, teacher.device), teacher.config.max_position_embeddings).row
    return attention_means(teacher, row, [n for n, block in enumerate(student.layers) if hasattr(block, "mixer")])


def rows(
    texts: Sequence[Item], model: Any, tokens: int = TOKENS
) -> Iterator[tuple[list[int], PackedRow, TeacherWindows]]:
    """Yields packed rows of texts of similar lengths, with the indices of the texts and the windows by which the model
    reads them."""
    for chosen in batches_by_length([len(text["input_ids"]) for text in texts], tokens):
        row = packed([texts[index] for index in chosen], model.device)
        yield chosen, row, windows_of(row, model.config.max_position_embeddings)


@torch.no_grad()
def vectors(encoder: Any, texts: Sequence[Item], pooling: str) -> np.ndarray:
    """Returns a MaBERT's vectors of texts, scaled to length one, float32 (texts, D); `pooling` is `mean` or `cls`.

    It reads texts beyond its positions in windows and takes the mean over them.
    """
    found = np.empty((len(texts), encoder.config.hidden_size), np.float32)
    for chosen, row, windows in rows(texts, encoder):
        hidden = windows.of_tokens(encoder(**windows.row).last_hidden_state)
        vectors = pooled(hidden, packing_of(row), pooling)
        found[chosen] = torch.nn.functional.normalize(vectors.float(), dim=-1).cpu().numpy()
    return found


@torch.no_grad()
def answers(model: Any, texts: Sequence[Item]) -> np.ndarray:
    """Returns a head's answers: the most likely class per text, or all its labels where it may have several; the most
    likely vocabulary entry per token; or a regression's numbers per text, as floats."""
    found = []
    for _, _, windows in rows(texts, model, TOKENS_WITH_LOGITS):
        logits = model(**windows.row).logits
        if logits.dim() == 3:
            said = logits.argmax(2)[0, windows.index]
        else:
            logits = windows.of_texts(logits)
            kind = kind_of_labels(model.config)
            said = logits.float() if kind == "regression" else logits > 0 if kind == "several" else logits.argmax(1)
        found.append(said.cpu().numpy())
    return np.concatenate(found)


def agreement(theirs: np.ndarray, ours: np.ndarray) -> dict[str, float]:
    """Compares vectors of the same texts, (texts, D) each, of length one. Returns `cosine`, the mean cosine between the
    two vectors of a text; `cosine_p10`, its tenth percentile; `neighbours`, the share of texts whose nearest other text
    is the same by both."""
    cosines = (theirs * ours).sum(1)
    return {
        "cosine": float(cosines.mean()),
        "cosine_p10": float(np.quantile(cosines, 0.1)),
        "neighbours": float((nearest(theirs) == nearest(ours)).mean()),
    }


def nearest(vectors: np.ndarray) -> np.ndarray:
    """Returns the nearest other text of each text, int64 (texts,)."""
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -np.inf)
    return scores.argmax(1)


def same_answers(theirs: np.ndarray, ours: np.ndarray) -> float:
    """Returns the share of equal answers, all labels of a text together; for a regression's floats, their correlation,
    the mean over the numbers of a text."""
    if np.issubdtype(theirs.dtype, np.floating):
        return float(np.mean([correlation(*pair) for pair in zip(theirs.T, ours.T, strict=True)]))
    equal = theirs == ours
    return float(equal.reshape(len(equal), -1).all(1).mean())


def nearness(encoder: Any, texts: Sequence[Item], pooling: str, found: np.ndarray) -> np.ndarray:
    """Returns each text's similarity to itself with shuffled words, (texts,); `found` are its vectors, (texts, D).

    A model that only counts words finds the two equal. The correlation between student and teacher tells whether the
    student is sensitive to word order where its teacher is.
    """
    return (found * vectors(encoder, shuffled(texts), pooling)).sum(1)


def shuffled(texts: Sequence[Item]) -> list[Item]:
    """Returns the texts with the tokens between the first and the last one shuffled; types stay at their places."""
    draws = torch.Generator().manual_seed(0)
    found = []
    for text in texts:
        ids = text["input_ids"].clone()
        ids[1:-1] = ids[1:-1][torch.randperm(len(ids) - 2, generator=draws)]
        found.append({**text, "input_ids": ids})
    return found


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Returns Pearson's correlation; 0 if one side is constant."""
    return float(np.corrcoef(first, second)[0, 1]) if first.std() and second.std() else 0.0


@torch.no_grad()
def by_layer(teacher: Any, student: Any, texts: Sequence[Item]) -> dict[str, list[float | None]]:
    """Returns the unexplained variance by layer, mean over rows of texts: `hidden`, of each layer's output when the
    whole student runs; `core`, of each core's output in place of attention, from the teacher's own hidden states, None
    where attention stayed."""
    alignment = Alignment(teacher, student)
    hidden, core = [], []
    for _, row, windows in rows(texts, teacher):
        with hidden_states_of(teacher) as seen:
            teacher(**windows.row)
        theirs = map(windows.of_tokens, seen)
        with hidden_states_of(student) as ours:
            student(**row)
        hidden.append([float(unexplained(mine, end)) for mine, end in zip(ours, theirs, strict=True)])
        core.append(alignment(**row).tolist())
    cores = dict(zip(map(int, alignment.mixers), np.mean(core, 0).tolist(), strict=True))
    return {"hidden": np.mean(hidden, 0).tolist(), "core": [cores.get(layer) for layer in range(len(teacher.layers))]}


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
