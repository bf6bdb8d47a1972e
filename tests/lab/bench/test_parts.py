"""Where the time of a forward goes: nothing that has a name is among the rest, and no floor above what was reached."""

import contextlib
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mabert.model import MaBertConfig, MaBertModel
from mabert.model.prepack import PackedLinear, can_prepack
from mabert_lab.bench import parts
from mabert_lab.bench.engines import contender
from mabert_lab.bench.limits import copy_rate, matrix_rate
from mabert_lab.bench.profiles import DTYPES, SMALL, Cell
from mabert_lab.bench.tasks import Forward


@pytest.mark.parametrize("profile", ["best", "paper"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_linear_layer_is_among_the_products(dtype, profile):
    forward = Forward(contender("mabert"), Cell("latency", profile, dtype, 64, small=True))
    products = []
    for module in forward.model.modules():
        if isinstance(module, nn.Linear | PackedLinear):
            module.register_forward_hook(lambda *_: products.append(1))
    found = parts.profiled(forward.run)
    assert len(found[parts.PRODUCTS]) == sum(products) > 0
    prepacked = profile == "best"  # which is the one measured
    assert bool(found["activation"]) != prepacked, "it is part of the products there"
    assert all(times for part, times in found.items() if prepacked and part != "activation")
    assert found[parts.REST][0] >= 0, "or something was counted twice"


def test_floors_count_the_products_of_the_model():
    config = MaBertConfig(**SMALL, ssm_dt_rank=4)
    model = MaBertModel(config).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 50, dtype=torch.long))
    least = parts.floors(config, 50, 4, matrix=1e3, copy=1e3)
    assert least[parts.PRODUCTS] == counter.get_total_flops() - attention_flops(counter)
    assert least["attention"] == 4 * 50 * 50 * 64
    assert least["activation"] == 3 * 2 * 50 * 96 * 4


def attention_flops(counter):
    return sum(flops for name, flops in counter.get_flop_counts()["Global"].items() if "attention" in str(name))


def test_every_part_of_a_forward_is_found():
    measured = parts.measure(600, "float32", rounds=1, small=True)
    assert set(measured) == {"whole", *parts.PARTS.values(), parts.REST}
    assert {part for part, spent in measured.items() if not spent} == {"activation"}


def test_a_part_is_the_sum_of_its_calls_and_what_they_called_is_not_counted_again(monkeypatch):
    calls = {"aten::linear": 2000.0, "aten::addmm": 1900.0, "aten::gelu": 500.0}
    events = [SimpleNamespace(name=name, cpu_time_total=spent) for name, spent in calls.items()] * 2
    profiler = SimpleNamespace(events=lambda: events)
    monkeypatch.setattr(parts, "profile", lambda **options: contextlib.nullcontext(profiler))
    monkeypatch.setattr(parts, "Forward", lambda family, cell: SimpleNamespace(run=lambda: time.sleep(0.02)))
    measured = parts.measure(40, "float32", rounds=1)
    assert measured[parts.PRODUCTS] == 4.0
    assert measured["activation"] == 1.0
    assert measured[parts.REST] >= 20 - 5


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_the_matrix_rate_is_of_the_faster_product(monkeypatch, dtype):
    if not can_prepack(torch.device("cpu"), dtype):
        pytest.skip("this processor has no product of prepacked weights in that dtype")
    times = iter([4.0] * 7 + [2.0] * 7)
    monkeypatch.setattr("mabert_lab.bench.limits.timed", lambda product: (product(), next(times))[1])
    monkeypatch.setattr("mabert_lab.bench.limits._MATRIX", 64)
    assert matrix_rate(dtype) == 2 * 64**3 / 2.0


def test_the_copy_rate_counts_both_ways(monkeypatch):
    monkeypatch.setattr("mabert_lab.bench.limits.timed", lambda copy: (copy(), 0.5)[1])
    monkeypatch.setattr("mabert_lab.bench.limits._COPIED_BYTES", 1024)
    assert copy_rate() == 2 * 1024 / 0.5
