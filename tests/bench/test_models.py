"""Whole models beside each other: what is timed, how ratios come about, and where the time of one forward goes."""

import contextlib
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

from mabert import MaBertConfig, MaBertModel
from mabert.bench import models, parts
from mabert.bench.rounds import interleave
from mabert.report.speed import speed_chart

SIZES = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96}


def small_models(length: int, dtype: torch.dtype) -> dict[str, torch.nn.Module]:
    both = {
        "mabert": MaBertModel(MaBertConfig(**SIZES, layer_pattern="MMT")),
        "bert": BertModel(BertConfig(**SIZES, num_hidden_layers=3), add_pooling_layer=False),
    }
    return {side: model.to(dtype).eval() for side, model in both.items()}


def test_sides_take_turns_after_a_call_that_does_not_count() -> None:
    calls: list[str] = []
    sides = {name: lambda name=name: calls.append(name) for name in ("ours", "theirs")}
    spreads = interleave(sides, least=2, most=5, budget=0.0)
    assert calls == ["ours", "theirs"] * 3
    assert {spread.samples for spread in spreads.values()} == {2}
    assert interleave(sides, least=1, most=4, budget=60.0)["ours"].samples == 4
    calls.clear()
    interleave(sides, least=1, most=1, budget=0.0, warm=False)
    assert calls == ["ours", "theirs"]


def test_a_run_writes_rows_and_ratios(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(models, "base_models", small_models)
    monkeypatch.setattr(models, "_cells", lambda quick: iter([("forward", "float32", 1, 20, 2, 2)]))
    result = models.run(quick=True, output=tmp_path)
    (path,) = tmp_path.glob("*-models.json")
    assert json.loads(path.read_text()) == result
    ours, theirs = sorted(result["rows"], key=lambda row: row["side"] != "mabert")
    assert (ours["side"], theirs["side"], ours["length"]) == ("mabert", "bert", 20)
    assert result["speed"] == {"forward, float32, 20": theirs["median_ms"] / ours["median_ms"]}
    assert ours["tokens_per_second"] == pytest.approx(20_000 / ours["median_ms"])
    chart = speed_chart(result)
    assert "MaBERT-base" in chart
    assert "BERT-base, SDPA" in chart


def test_a_training_step_lowers_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "STEP_SHAPE", (2, 9))
    for step in models.training_steps(torch.bfloat16).values():
        first, *_, last = [float(step()) for _ in range(4)]
        assert last < first


def test_floors_count_the_products_of_the_model() -> None:
    config = MaBertConfig(**SIZES, layer_pattern="MMT", ssm_dt_rank=4)
    model = MaBertModel(config).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 50, dtype=torch.long))
    least = parts.floors(config, 50, 4, matrix=1e3, copy=1e3)
    assert least["matrix products"] == counter.get_total_flops() - attention_flops(counter)
    assert least["attention"] == 4 * 50 * 50 * 64
    assert least["activation"] == 3 * 2 * 50 * 96 * 4


def attention_flops(counter: FlopCounterMode) -> int:
    return sum(flops for name, flops in counter.get_flop_counts()["Global"].items() if "attention" in str(name))


def test_every_part_of_a_forward_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "base_models", small_models)
    measured = parts.measure(40, torch.float32, rounds=1)
    assert set(measured) == {"whole", *parts.PARTS.values(), parts.REST}
    assert min(measured.values()) > 0


def test_a_part_is_the_sum_of_its_calls_and_what_they_called_is_not_counted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = {"aten::linear": 2000.0, "aten::addmm": 1900.0, "aten::gelu": 500.0}
    events = [SimpleNamespace(name=name, cpu_time_total=spent) for name, spent in calls.items()] * 2
    profiler = SimpleNamespace(events=lambda: events)
    monkeypatch.setattr(parts, "profile", lambda **options: contextlib.nullcontext(profiler))
    monkeypatch.setattr(parts, "forwards", lambda length, dtype: {"mabert": lambda: time.sleep(0.02)})
    measured = parts.measure(40, torch.float32, rounds=1)
    assert measured["matrix products"] == 4.0
    assert measured["activation"] == 1.0
    assert measured[parts.REST] >= 20 - 5
