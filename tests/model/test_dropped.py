"""Attention with dropout by blocks: without draws it is SDPA, and with them the equation with those draws."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import BertConfig, BertModel

from mabert import MaBertModel
from mabert.model import dropped
from mabert.model.attention import near
from tests.model.helpers import build, config

TIME, HEADS, WIDTH = 300, 2, 8  # two blocks and a part of one
SEEN = torch.arange(TIME) < torch.tensor([[TIME], [170], [0]])
MASKS = {
    "none": None,
    "padding": SEEN[:, None, None, :],
    "window": near(TIME, 9, torch.device("cpu")),
    "both": near(TIME, 9, torch.device("cpu"), SEEN[:, None, None, :]),
}


def inputs(width=WIDTH):
    generator = torch.Generator().manual_seed(0)
    # Heads beside one another in memory, as projections leave them.
    made = (torch.randn(3, TIME, HEADS, width, generator=generator) for _ in range(3))
    return [x.transpose(1, 2).requires_grad_() for x in made]


def gradients(output, given):
    weight = torch.linspace(-1, 1, output.numel()).view_as(output)
    return torch.autograd.grad((output * weight).sum(), given)


def drawn(query, key, mask, rate):
    """The weights after dropout, which a value of one at one place each shows."""
    one = torch.eye(TIME).expand(3, HEADS, TIME, TIME)
    return dropped.attention(query, key, one, mask, WIDTH**-0.5, rate)


@pytest.mark.parametrize("mask", MASKS)
def test_without_draws_it_is_sdpa_forward_and_backward(mask):
    given = inputs()
    ours = dropped.attention(*given, MASKS[mask], 0.3, 0.0)
    theirs = scaled_dot_product_attention(*given, attn_mask=MASKS[mask], scale=0.3)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(ours, given), gradients(theirs, given))


@pytest.mark.parametrize("mask", MASKS)
def test_with_draws_it_is_the_equation_forward_and_backward(mask):
    query, key, value = given = inputs()
    torch.manual_seed(3)
    stays = drawn(query, key, MASKS[mask], 0.25).detach() > 0
    torch.manual_seed(3)
    ours = dropped.attention(query, key, value, MASKS[mask], WIDTH**-0.5, 0.25)
    scores = query @ key.transpose(2, 3) * WIDTH**-0.5
    if MASKS[mask] is not None:
        scores = scores.masked_fill(~MASKS[mask], torch.finfo(torch.float32).min)
    theirs = (scores.softmax(-1) * stays / 0.75) @ value
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(ours, given), gradients(theirs, given))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_each_weight_is_dropped_as_often_as_asked_and_by_draws_of_its_own(rate):
    query, key, _ = inputs()
    torch.manual_seed(0)
    stays = drawn(query, key, None, rate) > 0
    tried = stays.numel()
    assert abs(stays.float().mean() - (1 - rate)) < 4 * (rate * (1 - rate) / tried) ** 0.5
    rows = stays.view(-1, TIME)
    assert len(rows.unique(dim=0)) == len(rows), "no two rows of any text, head or block have the same draws"
    assert (drawn(query, key, None, rate) > 0).ne(stays).any(), "each call draws anew"
    torch.manual_seed(0)
    assert (drawn(query, key, None, rate) > 0).eq(stays).all(), "by torch's own state, so a resumed run draws alike"


@pytest.mark.parametrize("autocast", [False, True], ids=["bf16", "autocast"])
def test_in_bf16_it_computes_as_in_fp32_and_rounds_once(autocast):
    given = [x.detach().bfloat16().requires_grad_() for x in inputs()]
    wide = [x.detach().float().requires_grad_() for x in given]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        torch.manual_seed(0)
        ours = dropped.attention(*given, MASKS["padding"], 0.3, 0.25)
        torch.manual_seed(0)
        theirs = dropped.attention(*wide, MASKS["padding"], 0.3, 0.25)
        assert torch.equal(ours, theirs.bfloat16())
        for narrow, exact in zip(gradients(ours, given), gradients(theirs.bfloat16(), wide), strict=True):
            assert torch.equal(narrow, exact.bfloat16())


def calls_of(monkeypatch):
    """The shapes of the queries that come to attention by blocks."""
    calls, attention = [], dropped.attention
    monkeypatch.setattr(dropped, "attention", lambda *given: calls.append(given[0].shape) or attention(*given))
    return calls


@pytest.mark.parametrize("otherwise", [{}, {"tokens": dropped.PAYS - 1}, {"training": False}, {"rate": 0.0}])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("unpad", ["auto", "never"])
def test_a_model_takes_it_for_long_texts_in_training(monkeypatch, otherwise, autocast, unpad):
    training, tokens, rate = ({"training": True, "tokens": dropped.PAYS, "rate": 0.1} | otherwise).values()
    settings = config(attention_probs_dropout_prob=rate, max_position_embeddings=tokens, unpad=unpad)
    model = build(MaBertModel, settings, dtype=torch.float32)
    calls = calls_of(monkeypatch)
    ids = torch.randint(1, settings.vocab_size, (2, tokens))
    mask = (torch.arange(tokens) < torch.tensor([[tokens], [7]])).long()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        model.train(training)(input_ids=ids, attention_mask=mask).last_hidden_state.sum().backward()
    assert bool(calls) == (not otherwise)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("rate", [0.1, 0.0])
def test_other_encoders_train_with_it_too(monkeypatch, rate, padded):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    settings = BertConfig(**sizes, attention_probs_dropout_prob=rate, attn_implementation="mabert")
    calls = calls_of(monkeypatch)
    ids = torch.ones(2, dropped.PAYS, dtype=torch.int64)
    mask = (torch.arange(dropped.PAYS) < torch.tensor([[dropped.PAYS], [7 if padded else dropped.PAYS]])).long()
    BertModel(settings).train()(ids, attention_mask=mask).last_hidden_state.sum().backward()
    assert calls == [(2, 2, dropped.PAYS, 8)] * bool(rate)
