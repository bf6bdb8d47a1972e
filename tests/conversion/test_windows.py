"""A teacher's windows: every token spoken for once, where it stands most in the middle; and the longer table of
positions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.conversion import agreement
from mabert.conversion.teacher import check_copy, student_of
from mabert.conversion.training import Alignment, Distillation, divergence
from mabert.conversion.watch import attention_of, packing_of
from mabert.conversion.windows import lengthened, steps, windows_of
from tests.conversion.helpers import USES, row_of, student_and_copy, teacher, texts_of

POSITIONS = 40

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=5)
LIMITS = st.integers(3, 70)


def counted_row(lengths, use="encoder"):
    """Texts as a row whose ids tell every token from every other."""
    return row_of(torch.arange(sum(lengths)).split(lengths), use)


def random_row(lengths, use="encoder"):
    return row_of(texts_of(lengths), use)


@settings(max_examples=30)
@given(LENGTHS, LIMITS)
def test_every_token_is_spoken_for_once_in_a_slice_of_its_text_where_it_stands_most_in_the_middle(lengths, limit):
    row = counted_row(lengths, "masked_lm")
    windows = windows_of(row, limit)
    found, cut = windows.row["input_ids"][0], list(packing_of(windows.row).lengths)
    assert torch.equal(found[windows.index], row["input_ids"][0])
    assert windows.index.unique().numel() == sum(lengths)
    labels = windows.row["labels"]
    assert torch.equal(labels[labels >= 0], row["labels"][row["labels"] >= 0]), "in the order of the row"
    assert max(cut) <= limit
    assert torch.equal(windows.text.unique(), torch.arange(len(lengths)))
    texts = row["input_ids"][0].split(lengths)
    for part, number in zip(found.split(cut), windows.text.tolist(), strict=True):
        assert (part[0], part[-1]) == (texts[number][0], texts[number][-1])
        inside = part[1:-1]
        assert torch.equal(inside, inside[:1] + torch.arange(len(inside)))
    off = (torch.cat([torch.arange(each) for each in cut]) - (limit - 1) / 2).abs()
    least = off.new_full((sum(lengths),), torch.inf).scatter_reduce(0, found, off, "amin")
    inner = torch.cat([text[1:-1] for text in texts])
    assert torch.equal(off[windows.index[inner]], least[inner])


@settings(max_examples=30)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(30, 60), st.sampled_from(USES))
def test_texts_that_fit_stay_as_they_are(lengths, limit, use):
    row = counted_row(lengths, use)
    windows = windows_of(row, limit)
    assert set(windows.row) == set(row)
    for name, value in row.items():
        assert torch.equal(torch.as_tensor(windows.row[name]), torch.as_tensor(value))
    hidden = torch.randn(1, sum(lengths), 4)
    assert torch.equal(windows.of_tokens(hidden), hidden)
    answers = torch.randn(len(lengths), 3)
    assert torch.equal(windows.of_texts(answers), answers)


@settings(max_examples=30)
@given(LENGTHS, LIMITS)
def test_means_weigh_windows_by_the_tokens_that_they_speak_for(lengths, limit):
    row = counted_row(lengths)
    windows = windows_of(row, limit)
    ones = windows.of_texts(torch.ones(len(windows.text), 2))
    torch.testing.assert_close(ones, torch.ones(len(lengths), 2))
    # What a window says at each of its tokens alike is, on the average over a text's tokens, the mean over windows.
    said = torch.randn(len(windows.text), 2)
    spread = said.repeat_interleave(torch.tensor(packing_of(windows.row).lengths), 0)[None]
    means = [part.mean(0) for part in spread[0, windows.index].split(lengths)]
    torch.testing.assert_close(torch.stack(means), windows.of_texts(said))
    starts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
    torch.testing.assert_close(windows.of_tokens(spread)[0, starts], windows.of_texts(said))


@settings(max_examples=30)
@given(st.integers(3, 70), st.integers(0, 300))
def test_the_longer_table_is_that_of_the_windows_where_they_speak(limit, more):
    table = torch.arange(limit)[:, None].float()
    longer = lengthened(table, limit + more)
    assert torch.equal(longer[:limit], table)
    length = limit + more + limit  # whose last window, which speaks at its end as well, lies behind the table
    windows = windows_of(counted_row([length]), limit)
    positions = windows.row["position_ids"][0, windows.index]
    assert torch.equal(longer[limit:, 0].long(), positions[limit : limit + more])
    step, before = steps(limit)
    assert ((longer[limit:] >= before) & (longer[limit:] < before + step)).all()


def test_what_the_teacher_says_is_what_it_says_of_each_window():
    copy = check_copy(teacher("bert"), "encoder")
    row = random_row((100, 20, 41))
    windows = windows_of(row, POSITIONS)
    with torch.no_grad():
        whole = windows.of_tokens(copy(**windows.row).last_hidden_state)[0]
    text = row["input_ids"][0, :100]
    with torch.no_grad():
        second = copy(torch.cat((text[:1], text[21:59], text[-1:]))[None]).last_hidden_state[0]
        short = copy(row["input_ids"][:, 100:120]).last_hidden_state[0]
        parts = windows.row["input_ids"][0, : 4 * POSITIONS].split(POSITIONS)
        firsts = [copy(each[None]).last_hidden_state[0, 0] for each in parts]
    torch.testing.assert_close(whole[30:50], second[10:30])
    torch.testing.assert_close(whole[100:120], short)
    torch.testing.assert_close(whole[0], sum(w * f for w, f in zip((0.3, 0.2, 0.2, 0.3), firsts, strict=True)))


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_a_longer_student_says_the_same_on_texts_that_fit_its_teacher(kind):
    model = teacher(kind)
    longer = student_of(model, "encoder", max_position_embeddings=150)
    row = random_row((POSITIONS, 7, 21))
    with torch.no_grad():
        wanted = check_copy(model, "encoder")(**row).last_hidden_state
        torch.testing.assert_close(longer(**row).last_hidden_state, wanted)
        assert longer(**random_row((150,))).last_hidden_state.shape == (1, 150, 16)


def test_the_first_layer_reads_what_it_reads_in_the_windows():
    model = teacher("bert")
    copy, longer = check_copy(model, "encoder"), student_of(model, "encoder", max_position_embeddings=200)
    row = random_row((150,))
    windows = windows_of(row, POSITIONS)
    wanted = windows.of_tokens(attention_of(copy, windows.row, [0])[0][0])[0]
    given = attention_of(longer, row, [0])[0][0][0]
    last = 20 * (windows.text.numel() - 1) + 30  # from where on the last window speaks because there is no other
    torch.testing.assert_close(given[:30], wanted[:30])
    torch.testing.assert_close(given[POSITIONS:last], wanted[POSITIONS:last])


@pytest.mark.parametrize("use", ["classifier", "masked_lm"])
def test_the_answer_to_learn_is_that_of_a_tokens_window_or_the_mean_over_those_of_a_text(use):
    model = teacher("bert", use)
    copy, student = check_copy(model, use), student_of(model, use, max_position_embeddings=120)
    row = random_row((100, 20))
    if use == "masked_lm":
        row["labels"] = torch.full_like(row["input_ids"], -100)
        row["labels"][0, [5, 35, 95, 110]] = 7
    windows = windows_of(row, POSITIONS).row["input_ids"][0].split((40, 40, 40, 40, 20))
    with torch.no_grad():
        said = [copy(each[None]).logits[0] for each in windows]
        if use == "masked_lm":  # the windows of the first text begin at its tokens 0, 20, 40 and 60
            wanted = torch.stack((said[0][5], said[1][35 - 20], said[3][95 - 60], said[4][10]))
        else:
            mean = sum(w * each for w, each in zip((0.3, 0.2, 0.2, 0.3), said[:4], strict=True))
            wanted = torch.stack((mean, said[4]))
        loss = Distillation(copy, student, use)(**row)[1]
        torch.testing.assert_close(loss, divergence(student(**row).logits, wanted))
    assert loss > 1e-4


@pytest.mark.parametrize("use", USES)
def test_cores_learn_from_long_texts(use):
    student, copy = student_and_copy(use=use, max_position_embeddings=120)
    row = random_row((100, 20, 75), use)
    for losses in (
        Alignment(copy.base_model, student.base_model)(**random_row((100, 20, 75))),
        Distillation(copy, student, use).train()(**row),
    ):
        student.zero_grad()
        losses.sum().backward()
        learning = [weight.grad for name, weight in student.named_parameters() if ".mixer." in name]
        assert all(grad is not None and grad.isfinite().all() and grad.any() for grad in learning)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_long_texts_vector_is_the_mean_over_its_windows(pooling):
    copy = check_copy(teacher("bert"), "encoder")
    row = random_row((90,))
    windows = windows_of(row, POSITIONS)
    with torch.no_grad():
        hidden = copy(**windows.row).last_hidden_state
    told = windows.of_tokens(hidden)[0]
    wanted = told.mean(0) if pooling == "mean" else told[0]
    (found,) = agreement.vectors(copy, [{"input_ids": row["input_ids"][0]}], pooling)
    torch.testing.assert_close(torch.from_numpy(found), torch.nn.functional.normalize(wanted, dim=0))
