"""Small models and batches for the model's tests."""

import numpy as np
import torch

from mabert import MaBertConfig
from mabert.ops import use_backend

VOCAB = 61


def config(**fields):
    """A model of two narrow layers, one of each kind, without dropout."""
    small = {
        "vocab_size": VOCAB,
        "hidden_size": 8,
        "layer_pattern": "MT",
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "max_position_embeddings": 24,
        "ssm_state_size": 3,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.4,
    }
    return MaBertConfig(**{**small, **fields})


def build(kind, settings, seed=0, dtype=torch.float64):
    """A model with every parameter away from its special initial value (norms of one, biases of zero)."""
    torch.manual_seed(seed)
    model = kind(settings).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def ids(rng, batch, time):
    """Random token ids, (batch, time)."""
    return rng.integers(1, VOCAB, size=(batch, time))


def run(model, token_ids, mask=None, **options):
    """The model's first output by the reference operators, as float64 NumPy."""
    with use_backend("reference"):
        mask = None if mask is None else torch.as_tensor(np.asarray(mask))
        return model(torch.as_tensor(token_ids), mask, **options)[0]
