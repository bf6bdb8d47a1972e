"""Students with Mamba layers: exact under padding, their cores begin as attention of one token and learn."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.conversion.choose import OPEN
from mabert.conversion.teacher import check_copy, student_of
from mabert.conversion.training import Alignment, Distillation, divergence
from mabert.model.masking import PaddingMask
from mabert.ops import use_backend
from tests.conversion.helpers import FAMILIES, PAD, USES, VOCABULARY, row_of, student_and_copy, teacher, texts_of

EXACT = {torch.float32: 1e-5, torch.float64: 1e-11}
DIRECTIONS = ["forward", "backward", "bidirectional"]


def row(use="encoder"):
    return row_of(texts_of((9, 5, 14)), use)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", FAMILIES)
@settings(max_examples=3)
@given(
    st.lists(st.integers(1, 30), min_size=2, max_size=4),
    st.text("MT", min_size=3, max_size=3).filter(lambda letters: "M" in letters),
    st.sampled_from(DIRECTIONS),
    st.integers(0, 100),
)
@torch.no_grad()
def test_padding_changes_nothing(kind, use, lengths, pattern, direction, seed):
    # A classifier's few logits may all be near 0, where float32 has no bound that is relative to them.
    dtype, backend = (torch.float64, "reference") if use == "classifier" else (torch.float32, "auto")
    student = student_and_copy(kind, use, pattern, seed, ssm_direction=direction, ssm_expand=1)[0].to(dtype)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(PAD + 1, VOCABULARY, mask.shape, generator=torch.Generator().manual_seed(seed))
    with use_backend(backend):
        together = student(ids.masked_fill(~mask, PAD), mask.long())[0]
        for index, length in enumerate(lengths):
            alone = student(ids[index : index + 1, :length])[0][0]
            ours = together[index] if together.dim() == 2 else together[index, :length]
            assert (ours - alone).abs().max() <= EXACT[dtype] * alone.abs().max()


@pytest.mark.parametrize("kind", FAMILIES)
def test_what_is_no_core_is_the_teachers(kind):
    student, copy = student_and_copy(kind, pattern="MTM")
    weights, before = student.state_dict(), copy.state_dict()
    same = [name for name in weights if ".mixer." not in name]
    assert all(torch.equal(weights[name], before[name]) for name in same)
    assert {name for name in before if name not in same} == {
        name for name in before if name.startswith(("layers.0.attention.", "layers.2.attention."))
    }


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@torch.no_grad()
def test_a_core_without_memory_says_what_attention_says_of_one_token(kind, direction):
    # The pair of channels of a value lets it through as it is: SiLU(v) - SiLU(-v) = v.
    student, copy = student_and_copy(kind, pattern="M", ssm_direction=direction, ssm_expand=2)
    mixer, attention = student.layers[1].mixer, copy.layers[1].attention
    channels = mixer.out_proj.in_features
    mixer.in_proj.weight[channels:].zero_()  # the gate is its bias
    for core in mixer.cores:
        here = core.local_mixing.weight.abs().argmax(1)
        core.local_mixing.weight.zero_().scatter_(1, here[:, None], 1.0)
        core.x_proj.weight.zero_()  # B is zero: nothing is remembered
        core.recurrence.D.fill_(1.0)
    hidden = torch.randn(6, 1, copy.config.hidden_size, generator=torch.Generator().manual_seed(0))
    mask = PaddingMask(torch.ones(6, 1, dtype=torch.bool), "exact")
    wanted = attention(hidden, mask)[0]
    given = mixer(hidden, mask)[0]
    bias = 0 if mixer.out_proj.bias is None else mixer.out_proj.bias
    open_gate = torch.nn.functional.silu(torch.tensor(OPEN))
    torch.testing.assert_close((given - bias) / open_gate + bias, wanted, rtol=1e-4, atol=1e-5)
    assert open_gate.item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("mode", ["causal", "centered"])
@pytest.mark.parametrize("expand", [0.5, 1, 1.5, 2, 3])
def test_cores_of_any_size_begin_finite_and_the_same_for_a_seed(mode, expand):
    made = []
    for _ in range(2):
        torch.manual_seed(3)
        student, _ = student_and_copy(pattern="M", ssm_expand=expand, ssm_conv_mode=mode)
        made.append(student.state_dict())
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])
    assert all(weight.isfinite().all() for weight in made[0].values())


def test_aligning_changes_the_cores_alone_and_brings_them_nearer():
    student, copy = student_and_copy(pattern="MTM")
    alignment = Alignment(copy.requires_grad_(False), student.requires_grad_(False)).requires_grad_(True)
    before = {name: weight.clone() for name, weight in student.state_dict().items()}
    optimizer = torch.optim.Adam(alignment.parameters(), 3e-3)
    first = alignment(**row()).detach()
    for _ in range(20):
        optimizer.zero_grad()
        alignment(**row()).sum().backward()
        optimizer.step()
    last = alignment(**row()).detach()
    assert first.shape == (2,)
    assert (last < 0.7 * first).all()
    moved = {name for name, weight in student.state_dict().items() if not torch.equal(weight, before[name])}
    assert moved
    assert all(".mixer." in name for name in moved)


def test_layers_are_aligned_independently():
    student, copy = student_and_copy(pattern="MTM")
    alignment = Alignment(copy.requires_grad_(False), student)
    losses = alignment(**row())
    for number, (layer, mixer) in enumerate(alignment.mixers.items()):
        student.zero_grad()
        losses[number].backward(retain_graph=True)
        others = [other for name, other in alignment.mixers.items() if name != layer]
        assert any(weight.grad is not None and weight.grad.any() for weight in mixer.parameters())
        assert not any(weight.grad is not None and weight.grad.any() for o in others for weight in o.parameters())


@pytest.mark.parametrize("use", USES)
def test_a_student_that_is_its_teacher_has_nothing_to_learn(use):
    model = teacher("bert", use)
    copy = check_copy(model, use)
    same = Distillation(copy, student_of(model, use), use).train()
    with torch.no_grad():
        assert same(**row(use)).abs().max() < 1e-5
    student, copy = student_and_copy(use=use)
    other = Distillation(copy, student, use).train()
    losses = other(**row(use))
    assert not other.student.training
    assert len(losses) == (3 if use == "encoder" else 2)
    assert (losses > 1e-4).all()
    losses.sum().backward()
    learning = [weight.grad for name, weight in student.named_parameters() if ".mixer." in name]
    assert all(grad is not None and grad.isfinite().all() for grad in learning)
    assert not any(weight.grad is not None for weight in copy.parameters())


def test_several_labels_diverge_one_by_one():
    wanted = torch.tensor([[2.0, -1.0, 0.5]])
    assert divergence(wanted, wanted, "several").item() == pytest.approx(0, abs=1e-6)
    shifted = wanted + 1  # which no softmax sees
    assert divergence(shifted, wanted).item() == pytest.approx(0, abs=1e-6)
    pairs = [torch.stack((torch.zeros(3), logits[0]), -1) for logits in (shifted, wanted)]
    assert divergence(shifted, wanted, "several").item() == pytest.approx(3 * divergence(*pairs).item(), rel=1e-5)


def test_divergence_is_zero_for_the_same_answers_and_squares_a_number():
    draws = torch.Generator().manual_seed(0)
    logits, others = torch.randn(2, 5, 4, generator=draws)
    assert divergence(logits, logits).item() == pytest.approx(0, abs=1e-6)
    chances, mine = logits.softmax(1), others.softmax(1)
    wanted = (chances * (chances.log() - mine.log())).sum(1).mean()
    assert divergence(others, logits).item() == pytest.approx(wanted.item(), rel=1e-5)
    numbers = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.5], [0.0]])
    assert divergence(*numbers, "regression").item() == pytest.approx(4.25 / 2)
    two_each = (torch.cat((one, one + 1), 1) for one in numbers)
    assert divergence(*two_each, "regression").item() == pytest.approx(4.25 / 2)
