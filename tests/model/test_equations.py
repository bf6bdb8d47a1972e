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


@pytest.mark.parametrize("kind", POOLINGS)
@pytest.mark.parametrize("padding", MASKS)
def test_pooling_and_classifier_follow_the_equations(kind, padding):
    settings = config(pooling=kind, num_labels=3, unpad="never")
    model = build(MaBertForSequenceClassification, settings)
    tokens = ids(np.random.default_rng(5), 2, 6)
    heads = Heads(settings_of(settings), weights_of(model))
    close(run(model, tokens, MASKS[padding]), heads.classify(tokens, MASKS[padding]))


@pytest.mark.parametrize("making", MAKINGS)
def test_heads_follow_the_equations_of_every_making(making):
    settings = config(**MAKINGS[making], num_labels=3, unpad="never")
    tokens, mask = ids(np.random.default_rng(5), 2, 6), MASKS["both"]
    for kind, head in ((MaBertForSequenceClassification, Heads.classify), (MaBertForMaskedLM, Heads.fill)):
        model = build(kind, settings)
        close(run(model, tokens, mask), head(Heads(settings_of(settings), weights_of(model)), tokens, mask))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("regime", ["none", "exact"])
def test_gradients_agree_with_finite_differences_of_the_equations(name, regime):
    check_gradients(config(**OPTIONS[name], padding_safe_masking=regime))


def check_gradients(settings):
    model = build(MaBertModel, settings)
    rng = np.random.default_rng(6)
    tokens, mask, readout = ids(rng, 2, 6), MASKS["both"], rng.standard_normal((2, 6, 8))
    (run(model, tokens, mask) * torch.as_tensor(readout)).sum().backward()

    def loss(weights):
        return (Equations(settings_of(settings), weights).encode(tokens, mask) * readout).sum()

    compare_slopes(model, loss, rng)


def compare_slopes(model, loss, rng, step=1e-5):
    """Every parameter's gradient along a random direction against a central difference of the equations."""
    weights = weights_of(model)
    for key, parameter in model.named_parameters():
        direction = rng.standard_normal(parameter.shape)
        direction /= np.linalg.norm(direction)
        slope = (parameter.grad.numpy() * direction).sum()
        ahead, behind = (loss({**weights, key: weights[key] + sign * step * direction}) for sign in (1, -1))
        np.testing.assert_allclose(slope, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("regime", ["pre", "post", "pre+post"])
@pytest.mark.parametrize("direction", ["forward", "backward", "bidirectional"])
def test_gradients_of_the_papers_masks(regime, direction):
    check_gradients(config(ssm_direction=direction, padding_safe_masking=regime, layer_pattern="MTM"))


@pytest.mark.parametrize("fields", [{"pooling": kind} for kind in POOLINGS] + list(MAKINGS.values()))
def test_gradients_of_pooling_and_classifier(fields):
    settings = config(**fields, num_labels=3)
    model = build(MaBertForSequenceClassification, settings)
    rng = np.random.default_rng(7)
    tokens, mask, readout = ids(rng, 2, 6), MASKS["both"], rng.standard_normal((2, 3))
    (run(model, tokens, mask) * torch.as_tensor(readout)).sum().backward()

    def loss(weights):
        return (Heads(settings_of(settings), weights).classify(tokens, mask) * readout).sum()

    compare_slopes(model, loss, rng)
