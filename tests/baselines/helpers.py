"""Small models of every family."""

from mabert.baselines.registry import FAMILIES
from mabert.opening.uses import build

VOCAB = 61
SIZES = {
    "hidden_size": 32,
    "layer_pattern": "MMT",
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
NAMES = list(FAMILIES)
PAD, CLS, SEP = 1, 2, 3


def small_config(name, vocab_size=VOCAB, **fields):
    family = FAMILIES[name]
    return family.config_of({**SIZES, **fields}, vocab_size=vocab_size, **family.special_ids(PAD, CLS, SEP))


def small(name, use="masked_lm", **fields):
    """A model in evaluation mode whose biases and norms are away from their special initial values."""
    import torch

    torch.manual_seed(0)
    model = build(use, small_config(name, **fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model
