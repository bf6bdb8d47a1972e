"""The figures of agreement, on vectors made by hand and on students whose answer is known; and which layers matter."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.conversion import agreement
from mabert.conversion.agreement import compare, constants, correlation, in_words, nearest, same_answers, shuffled
from mabert.conversion.choose import Survey, pattern_warnings
from mabert.conversion.teacher import check_copy, student_of
from mabert.conversion.watch import attention_means, attention_of, held, hidden_states_of, packing_of, pooled
from mabert.conversion.watch import unexplained as share
from tests.conversion.helpers import (
    VOCABULARY,
    items_of,
    pieces_of,
    row_of,
    source,
    student_and_copy,
    teacher,
    texts_of,
)

ANGLES = np.deg2rad([0, 10, 90, 95])
FOUR = np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1).astype(np.float32)


def texts(lengths=(9, 5, 30, 12)):
    return texts_of(lengths)


def cut_texts(lengths, length):
    """Pieces of documents of random tokens."""
    documents = source(lengths)
    documents.cache.ids = np.random.default_rng(0).integers(4, VOCABULARY, size=len(documents.cache.ids))
    return pieces_of([documents], length)


def turned(degrees):
    turn = np.deg2rad(degrees)
    return np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]], np.float32)


@given(st.floats(0, 90))
def test_a_turn_of_all_vectors_costs_cosine_and_no_neighbour(degrees):
    told, cosine = agreement.agreement(FOUR, FOUR @ turned(degrees)), math.cos(math.radians(degrees))
    wanted = {"cosine": cosine, "cosine_p10": cosine, "neighbours": 1}
    assert told == pytest.approx(wanted, abs=1e-6)
    assert next(iter(in_words({"bands": {"3-32": {"student": told, "floor": told}}}))) == (
        f"texts of 3-32 tokens: cosine to the teacher {told['cosine']:.3f} (floor {told['cosine']:.3f}), "
        "nearest neighbour found 100% (floor 100%)"
    )


def test_one_vector_elsewhere():
    moved = FOUR.copy()
    moved[1] = moved[1] @ turned(90)  # now nearest to the last, not to the first
    told = agreement.agreement(FOUR, moved)
    assert told["cosine"] == pytest.approx(0.75)  # three of one, and the cosine of a right angle
    assert told["cosine_p10"] == pytest.approx(0.3)  # between 0 and 1, three tenths of the way
    assert nearest(FOUR).tolist() == [1, 0, 3, 2]
    assert nearest(moved)[:3].tolist() == [2, 3, 3], "3's is as near to 1 as to 2"
    assert told["neighbours"] <= 0.5


def test_answers_are_compared_by_kind():
    assert same_answers(np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2])) == 0.75
    sets = np.array([[1, 0], [1, 1], [0, 0]]), np.array([[1, 0], [1, 0], [0, 0]])
    assert same_answers(*sets) == pytest.approx(2 / 3)
    numbers = np.array([[0.1, 5], [0.4, 7], [0.9, 6]])  # two of each text
    assert same_answers(numbers, numbers + 1) == pytest.approx(1)
    assert same_answers(numbers, numbers * (1, -1)) == pytest.approx(0), "the mean of 1 and -1"
    assert correlation(np.array([1.0, 2.0]), np.array([3.0, 3.0])) == 0.0


def test_shuffling_keeps_the_tokens_and_the_ends():
    given = texts((9, 3, 30))
    other, again = ([each["input_ids"] for each in shuffled(items_of(given))] for _ in range(2))
    for before, behind in zip(given, other, strict=True):
        assert (before[0], before[-1]) == (behind[0], behind[-1])
        assert sorted(before.tolist()) == sorted(behind.tolist())
    assert not torch.equal(given[2], other[2])
    assert all(map(torch.equal, again, other))


@settings(max_examples=30)
@given(st.integers(0, 100), st.integers(2, 20), st.floats(0, 1))
def test_unexplained_variance_of_a_constant_is_one(seed, tokens, part):
    draws = torch.Generator().manual_seed(seed)
    wanted = torch.randn(1, tokens, 4, generator=draws)
    mean = wanted.mean(1, keepdim=True)
    assert share(wanted, wanted) == 0
    assert share(mean.expand_as(wanted), wanted).item() == pytest.approx(1, abs=1e-5)
    between = mean + part * (wanted - mean)
    assert share(between, wanted).item() == pytest.approx((1 - part) ** 2, abs=1e-5)


@pytest.mark.parametrize("use", ["encoder", "masked_lm", "classifier"])
def test_a_student_that_is_its_teacher_agrees_wholly(monkeypatch, use):
    monkeypatch.setattr(agreement, "by_layer", lambda *models: {})  # which wants a core
    model = teacher("bert", use)
    copy = check_copy(model, use)
    told = compare(copy, student_of(model, use), use, cut_texts([30] * 20, 24))
    for band in told["bands"].values():
        figures = ("cosine", "cosine_p10", "neighbours", "order")
        assert [band["student"][name] for name in figures] == pytest.approx([1, 1, 1, 1])
        assert band["student"].get("answers", 1) == 1
        assert ("answers" in band["floor"]) == (use != "encoder")


def test_a_constant_is_the_mean_over_all_tokens_of_all_texts():
    student, copy = student_and_copy()
    uneven = texts((9, 5, 30, 12))
    alone = [constants(copy, student, items_of([text])) for text in uneven]
    means = {
        layer: sum(len(text) * each[layer] for text, each in zip(uneven, alone, strict=True)) / sum(map(len, uneven))
        for layer in (0, 2)
    }
    together = constants(copy, student, items_of(uneven))
    assert set(together) == {0, 2}
    for layer, mean in means.items():
        torch.testing.assert_close(together[layer], mean)


def test_the_floor_is_the_teacher_with_constants_where_the_student_has_cores():
    student, copy = student_and_copy()
    pieces = cut_texts([30] * 20, 24)
    told = compare(copy, student, "encoder", pieces)
    assert [core is None for core in told["layers"]["core"]] == [False, True, False]
    assert all(value > 0 for value in told["layers"]["hidden"])
    (band,) = told["bands"].values()
    assert band["floor"]["cosine"] < 1
    assert band["student"] != band["floor"]
    again = compare(copy, student, "encoder", pieces)
    assert again == told  # the teacher is as it was


def test_bands_hold_the_texts_of_their_lengths_and_leave_out_single_ones(monkeypatch):
    student, copy = student_and_copy(pattern="TMT")
    pieces = cut_texts([20] * 30 + [38], 40)
    monkeypatch.setattr(agreement, "BANDS", (10, 20, 39))
    lengths = np.array(pieces.lengths)
    told = compare(copy, student, "encoder", pieces)["bands"]
    counts = {}
    for name, band in told.items():
        least, most = map(int, name.split("-"))
        counts[name] = ((lengths >= least) & (lengths <= most)).sum()
        assert band["texts"] == counts[name] > 1
    monkeypatch.setattr(agreement, "TEXTS", 5)
    assert {band["texts"] for band in compare(copy, student, "encoder", pieces)["bands"].values()} <= set(range(2, 6))


def test_watching_leaves_no_trace():
    encoder = check_copy(teacher("bert"), "encoder")
    row = row_of(texts())
    with torch.no_grad():
        before = encoder(**row)[0]
        with hidden_states_of(encoder) as states:
            encoder(**row)
        first = attention_of(encoder, row, [1])
        means = attention_means(encoder, row, range(3))
        with held(encoder, means):
            assert not torch.equal(encoder(**row)[0], before)
        assert torch.equal(encoder(**row)[0], before)
    assert (len(states), set(first), set(means)) == (3, {1}, {0, 1, 2})
    torch.testing.assert_close(first[1][1].mean((0, 1)), means[1])
    assert torch.equal(states[-1], before)
    assert not any(module._forward_hooks for module in encoder.modules())


def test_vectors_of_a_row_are_those_of_its_texts_alone():
    encoder = check_copy(teacher("bert"), "encoder")
    given = texts()
    with torch.no_grad():
        row = row_of(given)
        hidden = encoder(**row).last_hidden_state
        alone = [encoder(each[None]).last_hidden_state[0] for each in given]
        for pooling, wanted in (("mean", [each.mean(0) for each in alone]), ("cls", [each[0] for each in alone])):
            torch.testing.assert_close(pooled(hidden, packing_of(row), pooling), torch.stack(wanted))
            found = agreement.vectors(encoder, items_of(given), pooling)
            unit = torch.nn.functional.normalize(torch.stack(wanted), dim=1)
            np.testing.assert_allclose(found, unit, atol=1e-5)


@pytest.mark.parametrize("layer", range(3))
def test_layers_whose_attention_says_nothing_matter_nothing_and_that_which_matters_stays(layer):
    encoder = check_copy(teacher("bert"), "encoder")
    with torch.no_grad():
        for other in {0, 1, 2} - {layer}:
            encoder.layers[other].attention.output.weight.zero_()
    survey = Survey(encoder, items_of(texts((30, 30, 20))))
    lost = survey.importance()
    assert [lost[other] for other in range(3) if other != layer] == pytest.approx([0, 0], abs=1e-6)
    assert lost[layer] > 1e-3
    assert survey.pattern() == "".join("T" if each == layer else "M" for each in range(3))
    assert survey.lost([layer]) == pytest.approx(survey.lost([0, 1, 2]), rel=1e-4)


@pytest.mark.parametrize(("layers", "kept"), [(1, 0), (2, 1), (6, 2), (12, 4)])
def test_a_third_of_the_layers_keeps_attention(layers, kept):
    survey = Survey(check_copy(teacher("bert", depth=layers), "encoder"), items_of(texts((9, 8))))
    pattern = survey.pattern()
    assert (len(pattern), pattern.count("T")) == (layers, kept)


def test_a_layer_that_matters_much_and_goes_is_named_with_its_figure():
    lost = [0.02, 0.03, 0.5, 0.04, 0.9, 0.03]
    (line,) = pattern_warnings("MMMMTM", lost)
    assert line.startswith("layer 3 becomes Mamba, and its attention matters: without it 50% of")
    assert "where 4% is usual here" in line
    assert pattern_warnings("MMTMTM", lost) == []
