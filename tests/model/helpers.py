"""Small models and batches for the model's tests."""

import numpy as np
import torch
from hypothesis import strategies as st

from mabert import MaBertConfig
from mabert.ops import use_backend

VOCAB = 61

TOKENS = torch.tensor([[5, 4, 3, 0, 0], [6, 7, 8, 9, 2]])
MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
"""Two texts, the first one padded."""

LABELS = torch.tensor([0, 1])

THREE = (
    torch.randint(1, VOCAB, (3, 20), generator=torch.Generator().manual_seed(0)),
    (torch.arange(20) < torch.tensor([[20], [7], [1]])).long(),
)
"""Three longer texts and their mask."""

BERT = {"layer_pattern": "TT", "norm_position": "post", "final_norm": False, "pooling": "cls", "pooler_act": "tanh"}
MAKINGS = {
    "the paper's": {},
    "BERT's": BERT,
    "ELECTRA's": {**BERT, "embedding_size": 5, "pooler_act": "gelu"},
    "ModernBERT's": {
        "layer_pattern": "TTT",
        "first_norm": False,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "feed_forward": "glu",
        "position_embedding": "rotary",
        "rotary_base": [160_000.0, 10_000.0, 10_000.0],
        "attention_window": [None, 1, 2],
        "pooling": "mean",
        "pooler_act": "gelu",
        "pooler_norm": True,
    },
    "a mixture": {
        "layer_pattern": "MTM",
        "norm_position": "post",
        "ssm_bias": True,
        "ssm_direction": "bidirectional",
        "mlp_bias": False,
        "embedding_size": 5,
        "position_embedding": "rotary",
        "rotary_base": [10.0, 100.0, 1000.0],
        "attention_window": [0, 1, None],
        "pooler_act": "relu",
        "pooler_norm": True,
    },
}
"""Fields of `config` by which a model is made as others are."""


@st.composite
def mixtures(draw):
    """Fields of `config`: every setting that says how a model is made, beside every other."""
    pattern = draw(st.sampled_from(["MT", "TM", "MM", "TT", "TMT"]))
    bases = st.sampled_from([10.0, 100.0])
    windows = st.none() | st.integers(0, 3)

    def of_layers(entries):
        return st.lists(entries, min_size=len(pattern), max_size=len(pattern))

    switches = ("first_norm", "final_norm", "norm_bias", "attention_bias", "mlp_bias", "ssm_bias")
    choices = {
        "norm_position": st.sampled_from(["pre", "post"]),
        "embedding_size": st.sampled_from([None, 5, 11]),
        "feed_forward": st.sampled_from(["mlp", "glu"]),
        "position_embedding": st.sampled_from(["learned", "rotary", "none"]),
        "rotary_base": bases | of_layers(bases),
        "attention_window": st.none() | of_layers(windows),
    }
    return {"layer_pattern": pattern, **draw(st.fixed_dictionaries(choices | dict.fromkeys(switches, st.booleans())))}


@st.composite
def makings(draw):
    """Fields of `config`: those of `MAKINGS` or a mixture, and how the Mamba layers are."""
    core = {
        "ssm_direction": st.sampled_from(["forward", "backward", "bidirectional"]),
        "ssm_conv_mode": st.sampled_from(["causal", "centered"]),
        "ssm_conv_kernel": st.integers(1, 5),
    }
    return draw(st.fixed_dictionaries(core)) | draw(st.sampled_from(list(MAKINGS.values())) | mixtures())


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


def saved(kind, folder, words, **fields):
    """Such a model in float32, saved with its tokenizer."""
    model = build(kind, config(**{"vocab_size": len(words), **fields}), dtype=torch.float32)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return model


def same(actual, expected):
    """Up to the rounding of float64."""
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-11)


def ids(rng, batch, time):
    return rng.integers(1, VOCAB, size=(batch, time))


def run(model, token_ids, mask=None, **options):
    """The model's first output by the reference operators, as float64 NumPy."""
    with use_backend("reference"):
        mask = None if mask is None else torch.as_tensor(np.asarray(mask))
        return model(torch.as_tensor(token_ids), mask, **options)[0]
