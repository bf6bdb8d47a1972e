"""MaBERT-base beside BERT-base on a GPU: both in bf16, BERT with SDPA's flash kernel, with and without compilation."""

import functools
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

from mabert.baselines.registry import FAMILIES
from mabert.memory import is_out_of_memory
from mabert.model import MaBertConfig, MaBertForMaskedLM
from mabert_lab.bench import lengths
from mabert_lab.bench.gpu.clock import interleave, peak_bytes
from mabert_lab.bench.gpu.pieces import Pieces
from mabert_lab.bench.profiles import Cell
from mabert_lab.bench.tasks import Forward, compiled

LENGTHS = (128, 512, 1024, 2048, 4096, 8192, 16384, 65536)
TRAINED_LENGTHS = (512, 4096, 16384)
EFFECTIVE_BATCH = 32
LARGEST_BATCH_TOKENS = 1 << 19
SCORED = 0.15
SPARE_BYTES = 2 << 30
MORE_TEXTS = 8
"""Times as many texts a batch as on a CPU."""

_STEPS: dict[str, Any] = {"least": 3, "most": 10, "budget": 20.0}


def _ids(batch: int, length: int) -> Tensor:
    return torch.randint(1000, 30000, (batch, length), generator=torch.Generator().manual_seed(0)).cuda()


def _spare() -> Tensor:
    """Memory that the clock needs beside a call, held while what fits is sought."""
    return torch.empty(SPARE_BYTES, dtype=torch.uint8, device="cuda")


def _fits(call: Callable[[], object]) -> bool:
    try:
        call()
        torch.cuda.synchronize()
        return True
    except RuntimeError as error:  # of drivers and kernels too, which have errors of their own for it
        if not is_out_of_memory(error):
            raise
    torch.cuda.empty_cache()  # when the error no longer holds what the call had
    return False


def _forward(model: nn.Module, ids: Tensor) -> Callable[[], object]:
    @torch.inference_mode()
    def call() -> object:
        return model(input_ids=ids).last_hidden_state

    return call


def measure_forwards(pieces: Pieces, compiled: bool = False) -> dict[str, Any]:
    """Time one forward at batch 1, and tokens a second at the largest batch that fits.

    Args:
        pieces: Keeps each length's rows, as for all that follow.
        compiled: Whether both go through `torch.compile` first; batch 1 only.

    Returns:
        ``rows``: side, length, batch, times, tokens a second, `weight_bytes`, and `peak_bytes`
        beyond these. A side that does not fit at batch 1 has no row.
    """
    lengths = {f"{length:,} tokens": functools.partial(_forwards, length, compiled) for length in LENGTHS}
    return {"compiled": compiled, "rows": _joined(pieces.measure(lengths))}


def _joined(parts: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [row for rows in parts.values() for row in rows]


def _forwards(length: int, compiled: bool) -> list[dict[str, Any]]:
    cell = Cell("latency", "best", "bfloat16", length, "cuda")
    models: dict[str, nn.Module] = {side: Forward(FAMILIES[side], cell).model for side in ("mabert", "bert")}
    used = compile_all(models) if compiled else models
    one = {side: _forward(model, _ids(1, length)) for side, model in used.items()}
    one = _fitting(one, f"a forward of {length:,} tokens")
    rows = [
        _row("latency", models[side], side, 1, length, asdict(spread), peak_bytes(one[side]))
        for side, spread in interleave(one, **_STEPS).items()
    ]
    for side in () if compiled else one:
        model = models[side]
        batch = _largest_batch(model, length)
        call = _forward(model, _ids(batch, length))
        spread = interleave({side: call}, **_STEPS)[side]
        rows.append(_row("throughput", model, side, batch, length, asdict(spread), peak_bytes(call)))
    return rows


def _fitting(calls: dict[str, Callable[[], object]], what: str) -> dict[str, Callable[[], object]]:
    """Leave out the sides that do not fit, and say so."""
    fitting = {side: call for side, call in calls.items() if _fits(call)}
    for side in calls:
        if side not in fitting:
            sys.stdout.write(f"{what}: {side} is left out, because memory ran out\n")
    return fitting


def compile_all(models: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Compile each for the shapes at hand."""
    return {side: compiled(model) for side, model in models.items()}


def _largest_batch(model: nn.Module, length: int) -> int:
    """Halve until a forward fits, with room for what the clock needs beside it."""
    batch = max(1, LARGEST_BATCH_TOKENS // length)
    spare = _spare()
    while batch > 1 and not _fits(_forward(model, _ids(batch, length))):
        batch //= 2
    del spare
    return batch


def _row(
    task: str, model: nn.Module, side: str, batch: int, length: int, spread: dict[str, Any], peak: int
) -> dict[str, Any]:
    speed = 1e3 * batch * length / spread["median_ms"]
    row = {"task": task, "side": side, "batch": batch, "length": length, "tokens_per_second": speed}
    weights = sum(parameter.nbytes for parameter in model.parameters())
    return {**row, **spread, "weight_bytes": weights, "peak_bytes": peak}


def measure_training(pieces: Pieces, compiled: bool = False) -> dict[str, Any]:
    """Time one optimizer step of masked language modelling at an effective batch of 32, by accumulation where needed.

    Both compute logits at every position, as BERT does, and neither has dropout in its attention, for which no flash
    kernel is there in every version.

    Returns:
        ``rows``: side, length, micro-batch, times, tokens a second, `weight_bytes`, and `peak_bytes` beyond
        weights and optimizer state. A side that does not fit at one text has no row. Where not ``compiled``, ``parts``:
        see `measure_parts`.
    """
    lengths = {f"{length:,} tokens": functools.partial(_trained, length, compiled) for length in TRAINED_LENGTHS}
    measured = pieces.measure(lengths if compiled else {**lengths, "parts": measure_parts})
    parts = {"parts": measured.pop("parts")} if "parts" in measured else {}
    return {"compiled": compiled, "rows": _joined(measured), **parts}


def _trained(length: int, compiled: bool) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    positions = max(512, length)
    ours = MaBertConfig(max_position_embeddings=positions, attention_probs_dropout_prob=0.0)
    theirs = BertConfig(max_position_embeddings=positions, attention_probs_dropout_prob=0.0, attn_implementation="sdpa")
    models: dict[str, nn.Module] = {"mabert": MaBertForMaskedLM(ours), "bert": BertForMaskedLM(theirs)}
    models = {side: model.cuda().train() for side, model in models.items()}
    used = compile_all(models) if compiled else models
    spare = _spare()
    # Sought without compilation, which takes a minute for each micro-batch.
    micro = {side: _largest_micro_batch(model, length) for side, model in models.items()}
    steps = {side: _training_step(used[side], models[side], micro[side], length) for side in models}
    # One text may not fit either, and a compiled step may want more than the one that was sought with.
    steps = _fitting(steps, f"a training step of {length:,} tokens")
    del spare
    rows = []
    for side, spread in interleave(steps, **_STEPS).items():
        peak = peak_bytes(steps[side])
        row = _row("training step", models[side], side, EFFECTIVE_BATCH, length, asdict(spread), peak)
        rows.append({**row, "micro_batch": micro[side]})
    return rows


def _largest_micro_batch(model: nn.Module, length: int) -> int:
    """Halve until a step fits; at one text nobody knows."""
    micro = EFFECTIVE_BATCH
    while micro > 1 and not _fits(_training_step(model, model, micro, length)):
        micro //= 2
        model.zero_grad(set_to_none=True)
    return micro


def _training_step(
    used: nn.Module, model: nn.Module, micro: int, length: int, batch: int = EFFECTIVE_BATCH
) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = _ids(micro, length)
    scored = torch.rand((micro, length), generator=torch.Generator().manual_seed(1)) < SCORED
    labels = ids.masked_fill(~scored.cuda(), -100)

    def step() -> None:
        for _ in range(batch // micro):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = used(input_ids=ids, labels=labels).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure_parts() -> dict[str, Any]:
    """Tell what share of a MaBERT-base training step at 8 x 4,096 scan and convolution take.

    Returns:
        ``milliseconds`` on the GPU by kernel, largest first; ``operators``, those of scan and convolution; ``share`` of
        these in all.

    Raises:
        RuntimeError: The profiler saw no kernel, as where it may not read the GPU's counters.
    """
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    torch.manual_seed(0)
    model = MaBertForMaskedLM(MaBertConfig(max_position_embeddings=4096)).cuda().train()
    step = _training_step(model, model, 8, 4096, batch=8)
    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    events = profiler.key_averages()
    # What ran on the GPU; the operators that started it and the profiler's own marks have the same time once more.
    run = [event for event in events if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    kernels: Counter[str] = Counter()
    for event in run:
        kernels[event.key[:80]] += event.self_device_time_total / 1e3
    if not sum(kernels.values()):
        raise RuntimeError("torch's profiler saw no kernel on the GPU")
    # An operator's time is that of all it starts: its sums over parts and its copies as well as its kernels.
    ours = {event.key: event.device_time_total / 1e3 for event in events if event.key.startswith("mabert::")}
    return {
        "milliseconds": dict(kernels.most_common(40)),
        "operators": ours,
        "share": sum(ours.values()) / sum(kernels.values()),
    }


def measure_lengths(pieces: Pieces) -> dict[str, Any]:
    """Time batches of texts of uneven length, unpadded and padded; see `mabert_lab.bench.lengths`.

    Returns:
        ``rows`` and ``speed`` as there, ``lengths`` of the texts. A side that does not fit has no row.
    """
    drawn = {name: lengths.draw(*how[:3], MORE_TEXTS * how[3]) for name, how in lengths.NORMAL.items()}
    drawn |= {name: MORE_TEXTS * list(few) for name, few in lengths.REAL.items()}
    rows = _joined(pieces.measure({name: functools.partial(_uneven, name, texts) for name, texts in drawn.items()}))
    return {"lengths": drawn, "rows": rows, "speed": lengths.speeds([lengths.Row(**row) for row in rows])}


def _uneven(name: str, texts: list[int]) -> list[dict[str, Any]]:
    sides = _fitting(lengths.calls(texts, torch.bfloat16, "cuda"), f"texts of {name}")
    return [asdict(lengths.row_of(name, side, texts, spread)) for side, spread in interleave(sides, **_STEPS).items()]
