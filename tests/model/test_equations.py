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

OPTIONS = [
    {},
    *({"layer_pattern": letters} for letters in ("MM", "TT", "TM")),
    *({"ssm_direction": direction} for direction in ("backward", "bidirectional")),
    *({"ssm_conv_mode": "centered", **more} for more in ({}, {"ssm_conv_kernel": 3}, {"ssm_direction": "backward"})),
    *({"ssm_conv_kernel": width} for width in (1, 7)),
    *({"ssm_expand": factor} for factor in (1.5, 3)),
    *({"ssm_state_size": states} for states in (1, 19)),
    {"ssm_dt_rank": 5},
    *({"position_embedding": kind} for kind in ("rotary", "none")),
    {"feed_forward": "glu"},
    *({"norm_position": "post", "first_norm": first} for first in (True, False)),
    *({name: False} for name in ("first_norm", "final_norm", "norm_bias", "attention_bias", "mlp_bias")),
    {"ssm_bias": True},
    *({"embedding_size": width} for width in (5, 11)),
    {"position_embedding": "rotary", "layer_pattern": "TT", "rotary_base": [10.0, 100.0]},
    {"attention_window": [None, 1]},
    {"layer_pattern": "TT", "attention_window": [0, 2]},
    *MAKINGS.values(),
]
HEADS = [*({"pooling": kind} for kind in ("map", "attention", "cls", "mean")), *MAKINGS.values()]


def close(ours, truth):
    np.testing.assert_allclose(ours.detach().numpy(), truth, rtol=1e-9, atol=1e-10)


def both(**fields):
    """A model by SDPA and the same by eager attention, and the equations with its weights."""
    models = [build(MaBertModel, config(**fields, attn_implementation=name)) for name in ("sdpa", "eager")]
    return models, Equations(settings_of(models[0].config), weights_of(models[0]))


@pytest.mark.parametrize("fields", OPTIONS)
@pytest.mark.parametrize("padding", [None, *MASKS])
def test_every_option_follows_the_equations(fields, padding):
    models, equations = both(**fields, unpad="never")
    tokens, mask = ids(np.random.default_rng(1), 2, 6), MASKS.get(padding)
    truth = equations.encode(tokens, mask)
    for model in models:
        close(run(model, tokens, mask), truth)


@pytest.mark.parametrize("fields", OPTIONS)
@pytest.mark.parametrize("padding", MASKS)
def test_without_its_padding_each_text_follows_the_equations_alone(fields, padding):
    models, equations = both(**fields)
    tokens, mask = ids(np.random.default_rng(1), 2, 6), np.array(MASKS[padding])
    rows = [run(model, tokens, mask) for model in models]
    for text, valid, *found in zip(tokens, mask.astype(bool), *rows, strict=True):
        truth = equations.encode(text[valid][None], None)[0]
        for row in found:
            close(row[torch.as_tensor(valid)], truth)


@pytest.mark.parametrize("masking", ["none", "pre", "post", "pre+post", "exact"])
@pytest.mark.parametrize("direction", ["forward", "backward", "bidirectional"])
@pytest.mark.parametrize("padding", MASKS)
def test_every_masking_follows_the_equations(masking, direction, padding):
    fields = {"padding_safe_masking": masking, "ssm_direction": direction, "layer_pattern": "MTM"}
    (model, _), equations = both(**fields, unpad="never")
    tokens = ids(np.random.default_rng(2), 2, 6)
    close(run(model, tokens, MASKS[padding]), equations.encode(tokens, MASKS[padding]))


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_schedules_of_the_pattern_table(name):
    (model, _), equations = both(layer_pattern=name)
    assert model.config.num_hidden_layers == 12
    tokens = ids(np.random.default_rng(3), 1, 4)
    close(run(model, tokens), equations.encode(tokens))


def test_segments_and_given_positions():
    (model, _), equations = both()
    rng = np.random.default_rng(4)
    tokens, segments, positions = ids(rng, 2, 5), rng.integers(0, 2, (2, 5)), rng.integers(0, 24, (2, 5))
    ours = run(model, tokens, token_type_ids=torch.as_tensor(segments), position_ids=torch.as_tensor(positions))
    close(ours, equations.encode(tokens, None, segments, positions))


@pytest.mark.parametrize("fields", HEADS)
@pytest.mark.parametrize("padding", MASKS)
def test_heads_follow_the_equations(fields, padding):
    settings = config(**fields, num_labels=3, unpad="never")
    tokens, mask = ids(np.random.default_rng(5), 2, 6), MASKS[padding]
    for kind, head in ((MaBertForSequenceClassification, Heads.classify), (MaBertForMaskedLM, Heads.fill)):
        model = build(kind, settings)
        close(run(model, tokens, mask), head(Heads(settings_of(settings), weights_of(model)), tokens, mask))


def check_gradients(kind, settings, equations, step=1e-5):
    """Compares every parameter's gradient along a random direction with a central difference of the equations, which
    are a function of weights, tokens and mask."""
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
    """Whether options are of Mamba layers, the only ones that masking affects, or of whole models."""
    return not options or any(name.startswith(("ssm_", "layer_pattern")) for name in options)


@pytest.mark.parametrize(
    "fields",
    [
        *OPTIONS,
        *({**fields, "padding_safe_masking": "none"} for fields in OPTIONS if is_of_mamba(fields)),
        *(
            {"padding_safe_masking": masking, "ssm_direction": direction, "layer_pattern": "MTM"}
            for masking in ("pre", "post", "pre+post")
            for direction in ("forward", "backward", "bidirectional")
        ),
    ],
)
def test_gradients_agree_with_finite_differences_of_the_equations(fields):
    settings = config(**fields)
    plain = settings_of(settings)
    check_gradients(MaBertModel, settings, lambda weights, *batch: Equations(plain, weights).encode(*batch))


@pytest.mark.parametrize("fields", HEADS)
def test_gradients_of_a_classifier_agree_with_finite_differences_of_the_equations(fields):
    settings = config(**fields, num_labels=3)
    plain = settings_of(settings)
    check_gradients(
        MaBertForSequenceClassification, settings, lambda weights, *batch: Heads(plain, weights).classify(*batch)
    )
