"""Where the time of a forward goes: nothing that has a name is among the rest, and no floor above what was reached."""

import pytest
import torch
from torch import nn

from mabert.baselines.registry import FAMILIES
from mabert.bench import parts
from mabert.bench.limits import copy_rate, matrix_rate
from mabert.bench.tasks import DTYPES, Cell, Forward
from mabert.model import MaBertConfig, MaBertModel
from mabert.model.prepack import PackedLinear, can_prepack


@pytest.mark.parametrize("profile", ["best", "paper"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_linear_layer_is_among_the_products(dtype, profile):
    forward = Forward(FAMILIES["mabert"], Cell("latency", profile, dtype, 64, small=True))
    products = []
    for module in forward.model.modules():
        if isinstance(module, nn.Linear | PackedLinear):
            count_calls(module, "parts" if isinstance(module, PackedLinear) else "forward", products)
    found = parts.profiled(forward)
    steps = forward.model.config.layer_pattern.count("M")  # the step's projection has its bias in the scan
    assert len(found[parts.PRODUCTS]) == sum(products) + steps > steps
    if profile == "best":  # which is the one measured
        assert all(found.values())
    assert found[parts.REST][0] >= 0, "or something was counted twice"


def count_calls(layer, method, products):
    """Notes how many products each call of a layer is."""
    inner = getattr(layer, method)

    def counted(*given):
        result = inner(*given)
        products.append(len(result) if isinstance(result, list) else 1)
        return result

    setattr(layer, method, counted)


def test_the_parts_of_a_forward_add_up_to_it():
    measured = parts.measure(64, "float32", rounds=3, small=True)
    assert set(measured) == {*parts.PARTS.values(), parts.REST, "whole"}
    assert all(milliseconds > 0 for milliseconds in measured.values())


def test_floors_are_of_operations_and_of_bytes():
    config = MaBertConfig(layer_pattern="MMT")
    short, long = (parts.floors(config, length, 4, matrix=1e9, copy=1e9) for length in (64, 128))
    assert set(short) == {*parts.PARTS.values(), parts.REST}
    assert {part: long[part] / short[part] for part in short} == {
        part: pytest.approx(4 if part == "attention" else 2) for part in short
    }
    with torch.device("meta"):
        linear = [module for module in MaBertModel(config).modules() if isinstance(module, nn.Linear)]
    weights = sum(layer.weight.numel() for layer in linear)
    weights += 2 * config.ssm_dt_rank * config.ssm_inner_size  # the step's projection
    assert short[parts.PRODUCTS] == pytest.approx(1e3 * 2 * 64 * weights / 1e9)
    half = parts.floors(config, 64, 2, matrix=1e9, copy=1e9)
    assert half["scan"] == pytest.approx(short["scan"] / 2)
    assert half[parts.PRODUCTS] == short[parts.PRODUCTS]


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_the_matrix_rate_is_of_the_faster_product(monkeypatch, dtype):
    if not can_prepack(torch.device("cpu"), dtype):
        pytest.skip("this processor has no product of prepacked weights in that dtype")
    times = iter([4.0] * 7 + [2.0] * 7)
    monkeypatch.setattr("mabert.bench.limits.timed", lambda product: (product(), next(times))[1])
    monkeypatch.setattr("mabert.bench.limits._MATRIX", 64)
    assert matrix_rate(dtype) == 2 * 64**3 / 2.0


def test_the_copy_rate_counts_both_ways(monkeypatch):
    monkeypatch.setattr("mabert.bench.limits.timed", lambda copy: (copy(), 0.5)[1])
    monkeypatch.setattr("mabert.bench.limits._COPIED_BYTES", 1024)
    assert copy_rate() == 2 * 1024 / 0.5
