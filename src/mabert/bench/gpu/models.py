"""MaBERT-base beside BERT-base on a GPU: both in bf16, BERT with SDPA's flash kernel, with and without compilation."""

import gc
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

from mabert.bench.gpu.clock import interleave, peak_bytes
from mabert.bench.models import base_models
from mabert.model import MaBertConfig, MaBertForMaskedLM

LENGTHS = (128, 512, 1024, 2048, 4096, 8192, 16384, 65536)
TRAINED_LENGTHS = (512, 4096, 16384)
EFFECTIVE_BATCH = 32
LARGEST_BATCH_TOKENS = 1 << 21
SCORED = 0.15
_STEPS = {"least": 3, "most": 10, "budget": 20.0}


def _ids(batch: int, length: int) -> Tensor:
    return torch.randint(1000, 30000, (batch, length), generator=torch.Generator().manual_seed(0)).cuda()


def _fits(call: Callable[[], object]) -> bool:
    try:
        call()
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return False
    return True


def _forward(model: nn.Module, ids: Tensor) -> Callable[[], object]:
    @torch.inference_mode()
    def call() -> object:
        return model(input_ids=ids).last_hidden_state

    return call


def measure_forwards(compiled: bool = False) -> dict[str, Any]:
    """Time one forward at batch 1, and tokens a second at the largest batch that fits.

    Args:
        compiled: Whether both go through `torch.compile` first; batch 1 only.

    Returns:
        ``rows``: side, length, batch, times, tokens a second, `weight_bytes`, and `peak_bytes`
        beyond these. A side that does not fit at batch 1 has no row.
    """
    rows: list[dict[str, Any]] = []
    for length in LENGTHS:
        models = {side: model.cuda() for side, model in base_models(length, torch.bfloat16).items()}
        if compiled:
            models = {side: torch.compile(model) for side, model in models.items()}
        one = {side: _forward(model, _ids(1, length)) for side, model in models.items()}
        one = {side: call for side, call in one.items() if _fits(call)}
        for side, spread in interleave(one, **_STEPS).items():
            rows.append(_row("latency", models[side], side, 1, length, asdict(spread), peak_bytes(one[side])))
        if not compiled:
            for side, model in models.items():
                batch = _largest_batch(model, length)
                call = _forward(model, _ids(batch, length))
                spread = interleave({side: call}, **_STEPS)[side]
                rows.append(_row("throughput", model, side, batch, length, asdict(spread), peak_bytes(call)))
        del models, one
        gc.collect()
        torch.cuda.empty_cache()
    return {"compiled": compiled, "rows": rows}


def _largest_batch(model: nn.Module, length: int) -> int:
    batch = max(1, LARGEST_BATCH_TOKENS // length)
    while batch > 1 and not _fits(_forward(model, _ids(batch, length))):
        batch //= 2
    return batch


def _row(
    task: str, model: nn.Module, side: str, batch: int, length: int, spread: dict[str, Any], peak: int
) -> dict[str, Any]:
    speed = 1e3 * batch * length / spread["median_ms"]
    row = {"task": task, "side": side, "batch": batch, "length": length, "tokens_per_second": speed}
    weights = sum(parameter.nbytes for parameter in model.parameters())
    return {**row, **spread, "weight_bytes": weights, "peak_bytes": peak}


def measure_training(compiled: bool = False) -> dict[str, Any]:
    """Time one optimizer step of masked language modelling at an effective batch of 32, by accumulation where needed.

    Returns:
        ``rows``: side, length, micro-batch, times, tokens a second, `weight_bytes`, and `peak_bytes` beyond
        weights and optimizer state.
    """
    rows: list[dict[str, Any]] = []
    for length in TRAINED_LENGTHS:
        torch.manual_seed(0)
        positions = max(512, length)
        models = {
            "mabert": MaBertForMaskedLM(MaBertConfig(max_position_embeddings=positions, sparse_prediction=True)),
            "bert": BertForMaskedLM(BertConfig(max_position_embeddings=positions, attn_implementation="sdpa")),
        }
        steps: dict[str, Callable[[], object]] = {}
        micro: dict[str, int] = {}
        for side, model in models.items():
            model = model.cuda().train()
            micro[side] = EFFECTIVE_BATCH
            used = torch.compile(model) if compiled else model
            while not _fits(step := _training_step(used, model, micro[side], length)) and micro[side] > 1:
                micro[side] //= 2
            steps[side] = step
        for side, spread in interleave(steps, **_STEPS).items():
            row = _row(
                "training step", models[side], side, EFFECTIVE_BATCH, length, asdict(spread), peak_bytes(steps[side])
            )
            rows.append({**row, "micro_batch": micro[side]})
        del models, steps
        gc.collect()
        torch.cuda.empty_cache()
    return {"compiled": compiled, "rows": rows}


def _training_step(used: nn.Module, model: nn.Module, micro: int, length: int) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = _ids(micro, length)
    scored = torch.rand((micro, length), generator=torch.Generator().manual_seed(1)) < SCORED
    labels = ids.masked_fill(~scored.cuda(), -100)

    def step() -> None:
        for _ in range(EFFECTIVE_BATCH // micro):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = used(input_ids=ids, labels=labels).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure_parts() -> dict[str, Any]:
    """Tell what share of a MaBERT-base training step at 8 x 4,096 scan and convolution take.

    Returns:
        ``milliseconds`` on the GPU by kernel, largest first, and ``share`` of scan and convolution together.
    """
    from torch.profiler import ProfilerActivity, profile

    torch.manual_seed(0)
    model = MaBertForMaskedLM(MaBertConfig(max_position_embeddings=4096, sparse_prediction=True)).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = _ids(8, 4096)
    scored = torch.rand((8, 4096), generator=torch.Generator().manual_seed(1)) < SCORED
    labels = ids.masked_fill(~scored.cuda(), -100)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
    kernels = {event.key[:80]: event.self_device_time_total / 1e3 for event in events if event.self_device_time_total}
    ours = sum(time for name, time in kernels.items() if name.startswith(("scan_", "conv_", "combine")))
    return {"milliseconds": dict(list(kernels.items())[:40]), "share": ours / sum(kernels.values())}
