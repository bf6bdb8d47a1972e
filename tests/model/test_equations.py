"""The model against the paper's equations in NumPy: outputs for each option, and gradients by finite differences."""

import numpy as np
import pytest
import torch

from mabert import SCHEDULES, MaBertForMaskedLM, MaBertForSequenceClassification, MaBertModel
from tests.model.equations import Equations, Heads, settings_of, weights_of
from tests.model.helpers import MAKINGS, build, config, ids, run

MASKS = {
    "right": [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]],
    "left": [[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]],
    "both": [[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]],
    "hole": [[1, 1, 0, 1, 1, 1], [1, 0, 1, 0, 1, 1]],
}

POOLINGS = ["map", "attention", "cls", "mean"]

OPTIONS = {
    "defaults": {},
    "mamba only": {"layer_pattern": "MM"},
    "transformer only": {"layer_pattern": "TT"},
    "transformer first": {"layer_pattern": "TM"},
    "backward": {"ssm_direction": "backward"},
    "bidirectional": {"ssm_direction": "bidirectional"},
    "centered": {"ssm_conv_mode": "centered"},
    "centered, odd width": {"ssm_conv_mode": "centered", "ssm_conv_kernel": 3},
    "centered backward": {"ssm_conv_mode": "centered", "ssm_direction": "backward"},
    "wide conv": {"ssm_conv_kernel": 7},
    "width one": {"ssm_conv_kernel": 1},
    "expansion 1.5": {"ssm_expand": 1.5},
    "expansion 3": {"ssm_expand": 3},
    "one state": {"ssm_state_size": 1},
    "nineteen states": {"ssm_state_size": 19},
    "rank five": {"ssm_dt_rank": 5},
    "rotary": {"position_embedding": "rotary"},
    "no positions": {"position_embedding": "none"},
    "gated feed-forward": {"feed_forward": "glu"},
    "norms behind": {"norm_position": "post"},
    "norms behind, not of the first sub-layer": {"norm_position": "post", "first_norm": False},
    "no first norm": {"first_norm": False},
    "no last norm": {"final_norm": False},
    "norms without bias": {"norm_bias": False},
    "attention without bias": {"attention_bias": False},
    "feed-forward without bias": {"mlp_bias": False},
    "Mamba with bias": {"ssm_bias": True},
    "narrow embeddings": {"embedding_size": 5},
    "wide embeddings": {"embedding_size": 11},
    "two rotary bases": {"position_embedding": "rotary", "layer_pattern": "TT", "rotary_base": [10.0, 100.0]},
    "a window": {"attention_window": [None, 1]},
    "a window of the token alone": {"layer_pattern": "TT", "attention_window": [0, 2]},
    **MAKINGS,
}


def close(ours, truth):
    np.testing.assert_allclose(ours.detach().numpy(), truth, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("padding", [None, *MASKS])
def test_every_option_follows_the_equations(name, padding):
    settings = config(**OPTIONS[name], unpad="never")
    model = build(MaBertModel, settings)
    tokens = ids(np.random.default_rng(1), 2, 6)
    mask = None if padding is None else MASKS[padding]
    close(run(model, tokens, mask), Equations(settings_of(settings), weights_of(model)).encode(tokens, mask))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("padding", MASKS)
def test_without_its_padding_each_text_follows_the_equations_alone(name, padding):
    settings = config(**OPTIONS[name])
    model = build(MaBertModel, settings)
    tokens, mask = ids(np.random.default_rng(1), 2, 6), np.array(MASKS[padding])
    equations = Equations(settings_of(settings), weights_of(model))
    for row, text, valid in zip(run(model, tokens, mask), tokens, mask.astype(bool), strict=True):
        if valid.any():
            close(row[torch.as_tensor(valid)], equations.encode(text[valid][None], None)[0])


@pytest.mark.parametrize("regime", ["none", "pre", "post", "pre+post", "exact"])
@pytest.mark.parametrize("direction", ["forward", "backward", "bidirectional"])
@pytest.mark.parametrize("padding", MASKS)
def test_every_regime_of_masking_follows_the_equations(regime, direction, padding):
    settings = config(padding_safe_masking=regime, ssm_direction=direction, layer_pattern="MTM", unpad="never")
    model = build(MaBertModel, settings)
    tokens = ids(np.random.default_rng(2), 2, 6)
    truth = Equations(settings_of(settings), weights_of(model)).encode(tokens, MASKS[padding])
    close(run(model, tokens, MASKS[padding]), truth)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_schedules_of_the_pattern_table(name):
    settings = config(layer_pattern=name)
    assert settings.num_hidden_layers == 12
    model = build(MaBertModel, settings)
    tokens = ids(np.random.default_rng(3), 1, 4)
    close(run(model, tokens), Equations(settings_of(settings), weights_of(model)).encode(tokens))


def test_segments_and_given_positions():
    settings = config()
    model = build(MaBertModel, settings)
    rng = np.random.default_rng(4)
    tokens, segments, positions = ids(rng, 2, 5), rng.integers(0, 2, (2, 5)), rng.integers(0, 24, (2, 5))
    ours = run(model, tokens, token_type_ids=torch.as_tensor(segments), position_ids=torch.as_tensor(positions))
    truth = Equations(settings_of(settings), weights_of(model)).encode(tokens, None, segments, positions)
    close(ours, truth)


@pytest.mark.parametrize("fields", [*({"pooling": kind} for kind in POOLINGS), *MAKINGS.values()])
@pytest.mark.parametrize("padding", MASKS)
def test_heads_follow_the_equations(fields, padding):
    settings = config(**fields, num_labels=3, unpad="never")
    tokens, mask = ids(np.random.default_rng(5), 2, 6), MASKS[padding]
    for kind, head in ((MaBertForSequenceClassification, Heads.classify), (MaBertForMaskedLM, Heads.fill)):
        model = build(kind, settings)
        close(run(model, tokens, mask), head(Heads(settings_of(settings), weights_of(model)), tokens, mask))


def check_gradients(kind, settings, equations, step=1e-5):
    """Compares every parameter's gradient along a random direction with a central difference of the equations.

    Args:
        kind: The model's class.
        settings: Its configuration.
        equations: From weights, tokens and mask to what the model gives.
        step: Of the difference.
    """
    model, rng = build(kind, settings), np.random.default_rng(6)
    tokens, mask = ids(rng, 2, 6), MASKS["both"]
    given = run(model, tokens, mask)
    readout = rng.standard_normal(given.shape)
    (given * torch.as_tensor(readout)).sum().backward()
    weights = weights_of(model)
    for key, parameter in model.named_parameters():
        direction = rng.standard_normal(parameter.shape)
        direction /= np.linalg.norm(direction)
        slope = (parameter.grad.numpy() * direction).sum()
        ahead, behind = (
            (equations({**weights, key: weights[key] + sign * step * direction}, tokens, mask) * readout).sum()
            for sign in (1, -1)
        )
        np.testing.assert_allclose(slope, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-6, err_msg=key)


def is_of_mamba(options):
    """Whether options are of Mamba layers, to which alone a regime matters, or of whole models."""
    return not options or any(name.startswith(("ssm_", "layer_pattern")) for name in options)


REGIMES = [
    {"padding_safe_masking": regime, "ssm_direction": direction, "layer_pattern": "MTM"}
    for regime in ("pre", "post", "pre+post")
    for direction in ("forward", "backward", "bidirectional")
]


@pytest.mark.parametrize(
    "fields",
    [
        *OPTIONS.values(),
        *({**OPTIONS[name], "padding_safe_masking": "none"} for name in OPTIONS if is_of_mamba(OPTIONS[name])),
        *REGIMES,
    ],
)
def test_gradients_agree_with_finite_differences_of_the_equations(fields):
    settings = config(**fields)
    plain = settings_of(settings)
    check_gradients(MaBertModel, settings, lambda weights, *batch: Equations(plain, weights).encode(*batch))


@pytest.mark.parametrize("fields", [*({"pooling": kind} for kind in POOLINGS), *MAKINGS.values()])
def test_gradients_of_a_classifier_agree_with_finite_differences_of_the_equations(fields):
    settings = config(**fields, num_labels=3)
    plain = settings_of(settings)
    check_gradients(
        MaBertForSequenceClassification, settings, lambda weights, *batch: Heads(plain, weights).classify(*batch)
    )
