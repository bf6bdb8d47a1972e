"""What must not change a text's token vectors: padding (amount, side, content), the batch around it, its place."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert import (
    MaBertForMaskedLM,
    MaBertForQuestionAnswering,
    MaBertForSequenceClassification,
    MaBertForTokenClassification,
    MaBertModel,
)
from tests.model.helpers import MAKINGS, VOCAB, build, config, ids, makings, run

conv_modes = st.sampled_from(["causal", "centered"])
unpads = st.sampled_from(["auto", "never"])
attentions = st.sampled_from(["sdpa", "eager"])


def padded(tokens, left, right, content):
    """A row with so many padded positions on each side, holding that token, and its mask."""
    row = np.concatenate([np.full(left, content), tokens, np.full(right, content)])
    mask = np.concatenate([np.zeros(left), np.ones(len(tokens)), np.zeros(right)]).astype(int)
    return row[None], mask[None]


def same(a, b):
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-10, atol=1e-11)


@settings(max_examples=60, deadline=None)
@given(
    makings(), st.integers(1, 9), st.integers(0, 5), st.integers(0, 5), st.integers(0, VOCAB - 1), attentions, unpads
)
def test_padding_changes_no_token_vector(making, time, left, right, content, attention, unpad):
    model = build(MaBertModel, config(**making, attn_implementation=attention, unpad=unpad))
    tokens = ids(np.random.default_rng(time), 1, time)
    row, mask = padded(tokens[0], left, right, content)
    same(run(model, row, mask)[:, left : left + time], run(model, tokens))


@settings(max_examples=30, deadline=None)
@given(
    makings(),
    attentions,
    unpads,
    st.lists(st.integers(0, 6), min_size=2, max_size=4),
    st.randoms(use_true_random=False),
)
def test_a_text_is_the_same_in_any_batch_at_any_place(making, attention, unpad, lengths, random):
    model = build(MaBertModel, config(**making, attn_implementation=attention, unpad=unpad))
    rng = np.random.default_rng(0)
    texts = [ids(rng, 1, length)[0] for length in lengths]
    widest = max(max(lengths), 1)
    rows, masks, starts = [], [], []
    for text in texts:
        left = random.randint(0, widest - len(text))
        row, mask = padded(text, left, widest - len(text) - left, 0)
        rows.append(row), masks.append(mask), starts.append(left)
    together = run(model, np.concatenate(rows), np.concatenate(masks))
    for place, (text, left) in enumerate(zip(texts, starts, strict=True)):
        if len(text):
            same(together[place, left : left + len(text)], run(model, text[None])[0])


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 9), st.integers(0, 3), st.data(), attentions, st.booleans())
def test_a_window_is_all_that_attention_sees(time, window, data, attention, packed):
    changed = data.draw(st.integers(0, time - 1), label="changed")
    model = build(MaBertModel, config(layer_pattern="T", attention_window=[window], attn_implementation=attention))
    tokens = ids(np.random.default_rng(1), 1, time)
    other = tokens.copy()
    other[0, changed] = other[0, changed] % (VOCAB - 1) + 1
    row = {"cu_seq_lens_q": torch.tensor([0, time], dtype=torch.int32)} if packed else {}
    moved = (run(model, tokens, **row) != run(model, other, **row)).any(-1)[0]
    near = abs(np.arange(time) - changed) <= window
    assert moved.tolist() == near.tolist()


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 8), st.data(), st.sampled_from(["forward", "backward"]))
def test_a_mamba_only_model_is_causal_in_its_direction(time, data, direction):
    changed = data.draw(st.integers(0, time - 1), label="changed")
    model = build(MaBertModel, config(layer_pattern="MM", ssm_direction=direction, position_embedding="none"))
    tokens = ids(np.random.default_rng(1), 1, time)
    other = tokens.copy()
    other[0, changed] = other[0, changed] % (VOCAB - 1) + 1
    before, after = run(model, tokens), run(model, other)
    untouched = slice(0, changed) if direction == "forward" else slice(changed + 1, time)
    same(before[:, untouched], after[:, untouched])
    assert not torch.allclose(before[:, changed], after[:, changed])


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 8), st.sampled_from([1, 3, 5]), conv_modes)
def test_backward_is_forward_on_the_flipped_text(time, width, conv):
    fields = {"layer_pattern": "MM", "position_embedding": "none", "ssm_conv_kernel": width, "ssm_conv_mode": conv}
    forward = build(MaBertModel, config(**fields))
    backward = build(MaBertModel, config(**fields, ssm_direction="backward"))
    backward.load_state_dict(forward.state_dict())
    tokens = ids(np.random.default_rng(2), 2, time)
    same(run(backward, tokens), run(forward, tokens[:, ::-1].copy()).flip(1))


@pytest.mark.parametrize("fields", [{"pooling": kind} for kind in ("map", "cls", "mean")] + list(MAKINGS.values()))
def test_a_pooled_text_does_not_see_padding(fields):
    model = build(MaBertForSequenceClassification, config(**fields))
    tokens = ids(np.random.default_rng(3), 1, 5)
    for left, right in ((0, 4), (4, 0), (2, 3)):
        same(run(model, *padded(tokens[0], left, right, 7)), run(model, tokens))


@pytest.mark.parametrize("making", MAKINGS)
@pytest.mark.parametrize("kind", [MaBertForMaskedLM, MaBertForTokenClassification, MaBertForQuestionAnswering])
def test_heads_of_every_token_do_not_see_padding(kind, making):
    model = build(kind, config(**MAKINGS[making]))
    tokens = ids(np.random.default_rng(3), 1, 5)
    for left, right in ((0, 4), (4, 0), (2, 3)):
        same(run(model, *padded(tokens[0], left, right, 7))[:, left : left + 5], run(model, tokens))


@pytest.mark.parametrize("fields", [{"pooling": kind} for kind in ("map", "cls", "mean")] + list(MAKINGS.values()))
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("unpad", ["auto", "never"])
def test_a_row_of_padding_gives_zeros_and_harms_no_gradient(fields, attention, unpad):
    model = build(MaBertForSequenceClassification, config(**fields, attn_implementation=attention, unpad=unpad))
    tokens = ids(np.random.default_rng(4), 2, 4)
    mask = [[1, 1, 1, 0], [0, 0, 0, 0]]
    assert torch.equal(run(model.mabert, tokens, mask)[1], torch.zeros(4, 8, dtype=torch.float64))
    logits = run(model, tokens, mask)
    if model.config.pooler_act is None:  # which may make something of nothing
        same(logits[1], model.classifier.bias)
    logits.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("regime", ["none", "pre", "pre+post"])
def test_the_papers_masks_leak_under_left_padding_and_exact_does_not(regime):
    tokens = ids(np.random.default_rng(5), 1, 6)
    row, mask = padded(tokens[0], 3, 0, 0)
    shifts = {}
    for name in (regime, "exact"):
        model = build(MaBertModel, config(padding_safe_masking=name, layer_pattern="M"))
        shifts[name] = (run(model, row, mask)[:, 3:] - run(model, tokens)).abs().max().item()
    assert shifts[regime] > 1e-5
    assert shifts["exact"] < 1e-12
