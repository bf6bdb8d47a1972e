"""Wrong input; rows of several texts: how boundaries are told, and attention and pooling within texts a few calls at a
time. That a text is in such a row what it is alone stands in `test_invariances.py`."""

import itertools
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.attention.varlen
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from mabert import MaBertForMultipleChoice, MaBertForSequenceClassification, MaBertModel
from mabert.model import attention as attentions
from mabert.model import encoder
from mabert.model.attention import attend_packed, eager_attention
from mabert.model.packing import Packing
from mabert.ops import use_backend
from tests.model.helpers import MASK, TOKENS, VOCAB, build, config, ids, same


def test_unpadded_execution_builds_no_matrix_over_the_row(monkeypatch):
    sdpa, scores = torch.nn.functional.scaled_dot_product_attention, []

    def watched(query, key, value, attn_mask=None, **options):
        scores.append(query.shape[0] * query.shape[2] * key.shape[2])
        assert attn_mask is None or attn_mask.numel() == key.shape[0] * key.shape[2], "a matrix of pairs is given"
        return sdpa(query, key, value, attn_mask=attn_mask, **options)

    monkeypatch.setattr(encoder, "create_bidirectional_mask", Mock(side_effect=AssertionError("a mask was built")))
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    model = build(MaBertModel, config())
    with use_backend("reference"):
        model(TOKENS, MASK)
        assert 3 * 3 + 5 * 5 <= sum(scores) < 8 * 8
        model.config.unpad = "never"
        with pytest.raises(AssertionError, match="a mask was built"):
            model(TOKENS, MASK)


LENGTHS = [3, 5, 1]


def offsets(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


CUTS, ANEW = {"cu_seq_lens_q": offsets(0, 3, 6)}, "position_ids start anew inside a row"


def positions(*numbers, **more):
    return {"position_ids": torch.tensor([numbers]), **more}


def embedded(*shape):
    return {"input_ids": None, "inputs_embeds": torch.ones(*shape)}


@pytest.mark.parametrize(
    ("given_with", "message"),
    [
        ({"cu_seq_lens_q": offsets(0, 3, 5)}, r"cu_seq_lens_q covers 0 to 5; it must run from 0 to the row's 6 tokens"),
        ({"cu_seq_lens_q": offsets(1, 3, 6)}, r"cu_seq_lens_q covers 1 to 6"),
        ({"cu_seq_lens_q": offsets(0, 4, 2, 6)}, r"cu_seq_lens_q falls from 4 to 2"),
        ({"cu_seq_lens_q": [0, 3, 6]}, "cu_seq_lens_q is a list; it must be a tensor"),
        ({"cu_seq_lens_q": torch.tensor([0, 2.9, 6])}, "cu_seq_lens_q is a torch.float32; it must be a tensor of int"),
        ({**CUTS, "cu_seq_lens_k": offsets(0, 2, 6)}, "disagree about where sequences start"),
        ({**CUTS, "max_length_q": 2}, "max_length_q is 2, and a sequence is 3 tokens long"),
        ({**CUTS, "attention_mask": torch.ones(1, 6)}, "are both given"),
        ({**CUTS, "output_attentions": True}, "output_attentions is not there"),
        ({**CUTS, "input_ids": torch.ones(2, 3).long()}, "beside 2 rows; packed input is one row"),
        ({**CUTS, "cu_seq_lens_host": (0, 3, 5)}, "cu_seq_lens_host covers 0 to 5"),
        ({**CUTS, "cu_seq_lens_host": (0, 4, 6)}, "disagree about where"),
        ({"cu_seq_lens_q": offsets(0, 2, 4, 6), "cu_seq_lens_host": (0, 4, 2, 6)}, "cu_seq_lens_host falls"),
        ({"max_length_q": 3}, "max_length_q is given without cu_seq_lens_q"),
        ({"seq_idx": offsets(0, 0, 1)}, "seq_idx has 3 numbers for 6 tokens"),
        ({"seq_idx": offsets(0, 0, 1, 1, 0, 0)}, "seq_idx falls inside the row"),
        *((positions(*map(int, row)), ANEW) for row in ("012012", "001234", "567012", "568012", "345456")),
        (positions(0, 1, 2, 0, 1, 2, attention_mask=torch.ones(1, 6)), ANEW),
        (positions(0, 1, 2, 0, 1, 0, attention_mask=torch.tensor([[1, 1, 1, 1, 1, 0]])), ANEW),
        (
            positions(0, 1, 2, 0, 1, 2, cu_seq_lens_q=offsets(0, 2, 6)),
            "position_ids start anew at token 3, where cu_seq_lens_q has no boundary",
        ),
        (positions(0, 1, 2, 3, 4, 5, **CUTS), "position_ids count on over token 3, where cu_seq_lens_q has a boundary"),
        (positions(0, **CUTS), r"position_ids has shape \(1, 1\); it must be \(batch or 1, time\) = \(1, 6\)"),
        ({"position_ids": torch.arange(6)}, r"position_ids has shape \(6,\)"),
        (
            {"attention_mask": torch.tensor([[1, 1, 1, 2, 2, 2]])},
            "attention_mask has a 2 in it; it must be 1 at tokens",
        ),
        ({"attention_mask": torch.tensor([[0, 0, 0, 0, 0, -torch.inf]])}, "attention_mask has a -inf in it"),
        (
            {"cu_seq_lens_q": offsets(0, 25, 26), "input_ids": torch.ones(1, 26).long()},
            "the input is 25 tokens long, max_position_embeddings is 24",
        ),
        ({"input_ids": None}, "give exactly one of input_ids and inputs_embeds"),
        ({"input_ids": torch.full((1, 3), VOCAB)}, f"input_ids holds {VOCAB}; vocab_size is {VOCAB}"),
        ({"input_ids": torch.full((1, 3), -1)}, "input_ids holds -1"),
        ({"input_ids": torch.ones(1, 30).long()}, "the input is 30 tokens long, max_position_embeddings is 24"),
        ({"position_ids": torch.full((1, 6), 24)}, "position_ids holds 24"),
        ({"token_type_ids": torch.full((1, 6), 2)}, "token_type_ids holds 2"),
        (
            {"attention_mask": torch.ones(2, 4)},
            r"attention_mask has shape \(2, 4\); it must be \(batch, time\) = \(1, 6\)",
        ),
        ({"input_ids": torch.tensor([5, 4])}, r"input_ids has shape \(2,\); it must be \(batch, time\)"),
        (embedded(2, 8), r"inputs_embeds has shape \(2, 8\); it must be \(batch, time, 8\)"),
        (embedded(1, 2, 5), r"inputs_embeds has shape \(1, 2, 5\); it must be \(batch, time, 8\)"),
    ],
)
def test_wrong_input_and_wrong_or_missing_boundaries_are_errors(given_with, message):
    model = build(MaBertModel, config())
    with pytest.raises(ValueError, match=message):
        model(**{"input_ids": torch.ones(1, 6, dtype=torch.long), **given_with})


def test_a_packed_row_may_be_longer_than_the_table_of_positions():
    with use_backend("reference"):
        model = build(MaBertModel, config())
        row = model(torch.ones(1, 48).long(), cu_seq_lens_q=offsets(0, 24, 48)).last_hidden_state
        alone = model(torch.ones(1, 24).long()).last_hidden_state
    same(row, torch.cat([alone, alone], 1))


@pytest.mark.parametrize(
    ("positions", "mask"),
    [
        ([[1, 0, 1, 2, 3, 4]], [[0, 1, 1, 1, 1, 1]]),
        ([[0, 1, 2, 3, 0, 0]], [[1, 1, 1, 1, 0, 0]]),
        ([[0, 1, 5, 2, 3, 4]], [[1, 1, 0, 1, 1, 1]]),
        ([[5, 4, 3, 2, 1, 0]], None),
        ([[3, 3, 3, 3, 3, 3]], None),
    ],
)
def test_positions_of_one_text_are_taken_as_they_are(positions, mask):
    model = build(MaBertModel, config())
    mask = None if mask is None else torch.tensor(mask)
    tokens, positions = torch.ones(1, 6, dtype=torch.long), torch.tensor(positions)
    embedded = model.embeddings(tokens, None, positions, None)
    with use_backend("reference"), torch.no_grad():
        taken = model(tokens, mask, position_ids=positions, output_hidden_states=True).hidden_states[0]
    keep = slice(None) if mask is None else mask.bool()
    same(taken[keep], embedded[keep])


def test_choices_are_not_packed():
    model = build(MaBertForMultipleChoice, config())
    with pytest.raises(ValueError, match="cu_seq_lens_q is given; choices come as a padded batch"):
        model(torch.ones(1, 1, 6, dtype=torch.long), cu_seq_lens_q=offsets(0, 3, 6))


@pytest.mark.parametrize("name", ["input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds"])
def test_choices_without_an_axis_of_their_own_are_named(name):
    model, given = build(MaBertForMultipleChoice, config()), {"input_ids": torch.ones(1, 4, 6, dtype=torch.long)}
    if name == "inputs_embeds":
        del given["input_ids"]
    given[name] = torch.ones(4, 6, *([8] if name == "inputs_embeds" else []), dtype=torch.long)
    told = rf"{name} has shape \(4, 6(, 8)?\); it must be \(batch, choices, time(, embedding_size)?\)$"
    with pytest.raises(ValueError, match=told):
        model(**given)


@pytest.mark.parametrize("whole", [True, False])
def test_boundaries_under_capture_are_an_error(whole):
    model = build(MaBertForSequenceClassification, config(), dtype=torch.float32)
    if whole:
        model = torch.compile(model, backend="eager")
    else:
        model.mabert = torch.compile(model.mabert, backend="eager")
    with pytest.raises(Exception, match="cu_seq_lens_q is given while a graph is captured"):
        model(torch.ones(1, 6, dtype=torch.long), cu_seq_lens_q=offsets(0, 3, 6))


@pytest.mark.parametrize("window", [None, 0, 2])
@pytest.mark.parametrize("lengths", [[3, 5, 1], [4], [2, 0, 3]])
@pytest.mark.parametrize(("worth", "at_once"), [(-1, False), (1e15, True)])
def test_attention_within_texts_is_the_same_by_one_call_and_by_a_call_each(
    window, lengths, worth, at_once, monkeypatch
):
    monkeypatch.setattr(attentions, "CALL_WORTH", worth)
    attention = build(MaBertModel, config(attn_implementation="sdpa")).layers[1].attention
    sdpa, calls = attention._implementation(False), []

    def counted(*given, **options):
        calls.append(given)
        return sdpa(*given, **options)

    heads = torch.randn(3, 1, 2, sum(lengths), 4, dtype=torch.float64, requires_grad=True)
    packing = Packing.of_lengths(torch.tensor(lengths))
    mixed = attend_packed(attention, counted, *heads, packing, window, dropout=0.0, scaling=0.5)
    places = torch.arange(max(lengths))
    seen = (places[:, None] - places).abs() <= (max(lengths) if window is None else window)
    alone = [
        eager_attention(attention, *part, seen[:length, :length], scaling=0.5)[0]
        for part, length in zip(heads.split(lengths, dim=3), lengths, strict=True)
    ]
    same(mixed, torch.cat(alone, dim=1))
    (gradient,) = torch.autograd.grad(mixed.sin().sum(), heads)
    (expected,) = torch.autograd.grad(torch.cat(alone, dim=1).sin().sum(), heads)
    same(gradient, expected)
    assert len(calls) == (1 if at_once else sum(length > 0 for length in lengths))


@pytest.mark.parametrize("unpad", ["auto", "never"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_drops_weights_in_training_alone(attention, unpad):
    fields = {"layer_pattern": "T", "attention_probs_dropout_prob": 0.5, "attn_implementation": attention}
    model = build(MaBertModel, config(**fields, unpad=unpad))
    for training in (False, True):
        model.train(training)
        once, again = (model(TOKENS, MASK).last_hidden_state for _ in range(2))
        assert torch.equal(once, again) == (not training)


def shapes(lengths, spare=None):
    return Packing.of_lengths(torch.tensor(lengths, dtype=torch.int64)).batches(spare).shapes


def test_one_batch_serves_texts_of_like_length():
    assert shapes([12] * 32) == shapes([12] * 32, 0) == ((32, 12),)
    assert shapes([10, 40] * 8) == ((8, 10), (8, 40))
    assert shapes([10, 40] * 8, spare=1500) == ((16, 40),)
    assert shapes([10, 40] * 8, spare=1499) == ((8, 10), (8, 40))
    assert shapes([100, 4000, 99, 50]) == ((3, 100), (1, 4000))
    assert shapes([]) == ((0, 0),)


@given(
    st.lists(st.integers(0, 300), max_size=12)
    | st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda of: [of[0]] * of[1]),
    st.none() | st.integers(0, 90_000),
)
def test_batches_of_like_length_give_back_what_was_cut(lengths, spare):
    packing = Packing.of_lengths(torch.tensor(lengths, dtype=torch.int64))
    batches = packing.batches(spare)
    total = sum(lengths)
    row = torch.arange(1, 2 * total + 1).view(1, total, 2)
    parts = batches.cut(row)
    assert [part.shape for part in parts] == [(*shape, 2) for shape in batches.shapes]
    for part, mask in zip(parts, batches.masks, strict=True):
        assert torch.equal(part[..., 0] != 0, torch.ones_like(part[..., 0], dtype=torch.bool) if mask is None else mask)
    assert sum(rows for rows, _ in batches.shapes) == len(lengths)
    assert torch.equal(batches.join(parts), row)
    if len(set(lengths)) == 1:  # nothing is moved
        assert (batches.masks, batches.places, batches.order) == ((None,), None, None)
        assert parts[0].data_ptr() == row.data_ptr() == batches.join(parts).data_ptr()
    firsts = [torch.cat((part, part.new_zeros(len(part), 1, 2)), dim=1)[:, 0, 0] for part in parts]
    starts = itertools.accumulate(lengths, initial=0)
    expected = [2 * start + 1 if length else 0 for start, length in zip(starts, lengths, strict=False)]
    assert batches.in_order(firsts).tolist() == expected
    if spare is None:
        assert sum(rows * longest for rows, longest in batches.shapes) <= 2 * total
        assert len(batches.shapes) <= 2 + np.log2(max(lengths, default=1) or 1)


def test_a_long_text_pads_no_short_one_in_pooling_and_attention():
    model = build(MaBertForSequenceClassification, config(max_position_embeddings=600))
    lengths = [500, *[2] * 30]
    row = torch.as_tensor(ids(np.random.default_rng(0), 1, sum(lengths)))
    seen = []
    model.pooler.score.register_forward_hook(lambda _, given, __: seen.append(given[0].shape[:2].numel()))
    with use_backend("reference"), torch.no_grad():
        logits = model(row, cu_seq_lens_q=torch.tensor([0, *itertools.accumulate(lengths)])).logits
        assert sum(seen) == sum(lengths)
        seen.clear()
        for text, answer in zip(row[0].split(lengths), logits, strict=True):
            same(answer, model(text.unsqueeze(0)).logits[0])


def attention_within_texts():
    """Attention whose heads are wide enough for the variable-length kernel, and how it is called for `LENGTHS`."""
    how = {"packing": Packing.of_lengths(torch.tensor(LENGTHS)), "dropout": 0.0, "scaling": 8**-0.5}
    return build(MaBertModel, config(hidden_size=16, attn_implementation="sdpa")).layers[1].attention, how


def test_the_variable_length_kernel_is_given_what_attention_within_texts_needs(monkeypatch):
    def kernel(query, key, value, cuts, cuts_of_keys, longest, longest_of_keys):
        assert (cuts.dtype, cuts.tolist(), longest) == (torch.int32, [0, 3, 8, 9], 5)
        assert (cuts_of_keys is cuts, longest_of_keys) == (True, 5)
        texts = zip(*(x.transpose(0, 1).split(LENGTHS, dim=1) for x in (query, key, value)), strict=True)
        attended = [torch.nn.functional.scaled_dot_product_attention(*text) for text in texts]
        return torch.cat(attended, dim=1).transpose(0, 1)

    monkeypatch.setattr(attentions, "has_variable_length", lambda *_: True)
    attention, how = attention_within_texts()
    heads = torch.randn(3, 1, 2, sum(LENGTHS), 8, dtype=torch.float64)
    alone = [eager_attention(attention, *part, None, scaling=8**-0.5)[0] for part in heads.split(LENGTHS, dim=3)]
    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", kernel)
    same(attend_packed(attention, eager_attention, *heads, **how), torch.cat(alone, dim=1))
    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", None)  # which has no window
    attend_packed(attention, eager_attention, *heads, window=1, **how)


def test_on_a_gpu_in_half_precision_one_call_attends_within_all_texts(monkeypatch):
    attention, how = attention_within_texts()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(attentions, "flash_is_on", lambda: True)
    calls, kernel = [], torch.nn.attention.varlen.varlen_attn
    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", lambda *given: calls.append(given) or kernel(*given))
    with FakeTensorMode(allow_non_fake_inputs=True):
        heads = torch.empty(3, 1, 2, 9, 8, dtype=torch.bfloat16, device="cuda")
        mixed = attend_packed(attention, attention._implementation(False), *heads, **how)
    assert mixed.shape == (1, 9, 2, 8)
    ((q, _, _, cuts, _, longest, _),) = calls
    assert (q.shape, cuts.tolist(), longest) == ((9, 2, 8), [0, 3, 8, 9], 5)
