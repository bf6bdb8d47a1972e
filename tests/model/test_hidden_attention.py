"""The matrices reported for Mamba layers: they are the scan, and their gradient is what it says."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert import MaBertModel
from mabert.model.mamba import hidden_attention
from mabert.ops import selective_scan, use_backend
from tests.model.helpers import MAKINGS, build, config, ids, run


def coefficients(seed, batch, time, channels, states):
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=draw)

    u, delta = normal(batch, time, channels), normal(batch, time, channels)
    A = -normal(channels, states).exp()
    return (u, delta, A, normal(batch, time, states), normal(batch, time, states), normal(channels)), normal(channels)


@settings(max_examples=25)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 4), st.booleans(), st.booleans(), st.integers(0, 99))
def test_one_matrix_a_channel_is_the_scan(time, channels, states, reverse, masked, seed):
    inputs, bias = coefficients(seed, 2, time, channels, states)
    mask = torch.rand(2, time, generator=torch.Generator().manual_seed(seed)) > 0.3 if masked else None
    options = {"delta_bias": bias, "mask": mask, "reverse": reverse}
    matrices = hidden_attention(*inputs, heads=channels, **options)
    with use_backend("reference"):
        scanned = selective_scan(*inputs, **options)
    torch.testing.assert_close(torch.einsum("bcts,bsc->btc", matrices, inputs[0]), scanned, rtol=1e-4, atol=1e-4)


def test_heads_are_means_of_neighbouring_channels():
    inputs, bias = coefficients(0, 1, 5, 7, 2)
    each = hidden_attention(*inputs, heads=7, delta_bias=bias)
    three = hidden_attention(*inputs, heads=3, delta_bias=bias)
    groups = [[0, 1, 2], [3, 4], [5, 6]]
    for head, group in enumerate(groups):
        torch.testing.assert_close(three[:, head], each[:, group].mean(1))


@pytest.mark.parametrize(
    "fields",
    [
        *({"ssm_direction": to, "layer_pattern": "MMT"} for to in ("forward", "backward", "bidirectional")),
        *MAKINGS.values(),
    ],
)
def test_asking_for_attention_changes_no_value_and_no_gradient(fields):
    model = build(MaBertModel, config(**fields))
    tokens, mask = ids(np.random.default_rng(0), 2, 5), [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    readout = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradients = []
    for asked in (False, True):
        model.zero_grad()
        out = run(model, tokens, mask, output_attentions=asked)
        (out * readout).sum().backward()
        gradients.append([out.detach(), *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-13)
