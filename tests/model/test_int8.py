"""A layer in 8 bits says what the rounded numbers say, one token whatever stands beside it; a model of such layers is
padded, saved and copied like any other."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from mabert import MaBertForSequenceClassification, MaBertModel
from mabert.model import prepack as prepacking
from mabert.model.prepack import FUSED, NO_ACTIVATION, Int8Linear, PackedLinear, prepack
from mabert.ops import int8
from tests.model.helpers import MAKINGS, THREE, build, config

try:
    int8.check()
except ValueError as error:
    pytest.skip(str(error), allow_module_level=True)

from mabert.ops.cpu import int8 as kernels

FUNCTIONS = {
    NO_ACTIVATION: lambda x: x,
    ("relu", ""): functional.relu,
    ("gelu", "none"): functional.gelu,
    ("gelu", "tanh"): lambda x: functional.gelu(x, approximate="tanh"),
    ("swish", ""): functional.silu,
}
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-7}
"""Two roundings of the result."""


def rows(count, width, dtype=torch.float32, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    size = 10 ** (6 * torch.rand(count, 1, generator=drawn) - 3)
    return (size * torch.randn(count, width, generator=drawn)).to(dtype)


def to_levels(x):
    """By torch, in float64: a row's levels and its scale."""
    scale = x.double().abs().amax(-1, keepdim=True) / 127
    return (x.double() / scale.clamp(min=1e-300)).round(), scale


@pytest.fixture
def small(monkeypatch):
    """Lets layers of any size have 8 bits."""
    monkeypatch.setattr(prepacking, "SMALLEST", 0)


def model_of(kind=MaBertModel, dtype=torch.float32, **changes):
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
    return build(kind, config(**{**sizes, **changes}), dtype=dtype)


@settings(max_examples=40)
@given(
    count=st.integers(1, 40), width=st.integers(1, 9), dtype=st.sampled_from(list(ROUNDING)), seed=st.integers(0, 99)
)
def test_a_row_is_rounded_to_its_own_255_levels(count, width, dtype, seed):
    x = rows(count, 16 * width, dtype, seed)
    found, scales = kernels.to_bytes(x)
    scale = x.double().abs().amax(-1, keepdim=True) / 127
    torch.testing.assert_close(scales.double(), scale.squeeze(-1), rtol=1e-6, atol=0)
    apart = found.double() - kernels.ZERO - x.double() / scale
    assert apart.abs().max() < 0.5 + 1e-4  # the quotient is float32's
    assert torch.equal((found.int() - kernels.ZERO).abs().amax(-1), torch.full((count,), 127, dtype=torch.int32))


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("activation", FUNCTIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_is_the_product_of_the_levels(bias, activation, dtype):
    torch.manual_seed(0)
    linear = nn.Linear(48, 80, bias=bias)
    x = rows(50, 48, dtype) / 100
    layer = Int8Linear(linear.to(dtype), activation=activation)
    levels, scale = to_levels(x)
    weight, column = to_levels(linear.weight.detach())
    expected = (levels @ weight.T) * scale * column.T + (linear.bias.detach().double() if bias else 0)
    found = layer(x)
    assert found.dtype == dtype
    size = expected.abs().amax(-1, keepdim=True) + 1  # a level more or less moves a sum by so much of its row
    near = (found.double() - FUNCTIONS[activation](expected)).abs() / size
    assert near.max() < 2 * ROUNDING[dtype] + 1e-3
    assert near.mean() < ROUNDING[dtype] + 1e-5


def test_every_activation_that_a_product_may_have_is_known():
    assert {NO_ACTIVATION, *FUSED.values()} == set(kernels.ACTIVATIONS) == set(FUNCTIONS)


@pytest.mark.parametrize("activation", FUNCTIONS)
def test_activations_are_torchs_over_the_whole_line(activation):
    x = torch.cat([torch.linspace(-12, 12, 4000), torch.tensor([0.0, -0.0, 1e-30, -1e-30, 3e4, -3e4] * 16)])
    x = torch.cat([x, torch.zeros(-len(x) % 16)])[None]
    found = kernels.from_bytes(x.clone(), torch.ones(1), None, kernels.ACTIVATIONS[activation])
    torch.testing.assert_close(found, FUNCTIONS[activation](x), rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_token_without_numbers_spoils_itself_alone(bad, dtype):
    layer = Int8Linear(nn.Linear(32, 16).to(dtype))
    x = rows(7, 32, dtype)
    clean = layer(x)
    x[3, 5] = bad
    found = layer(x)
    assert found[3].isnan().all()
    others = torch.arange(7) != 3
    assert torch.equal(found[others], clean[others])
    assert torch.equal(layer(torch.zeros(2, 32, dtype=dtype)), layer.bias.to(dtype).expand(2, -1))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_token_has_the_same_bits_whatever_stands_beside_it(threads):
    torch.set_num_threads(threads)  # until the test ends
    layer = Int8Linear(nn.Linear(512, 1024), activation=("gelu", "none"))
    x = rows(600, 512)
    whole = layer(x)
    for first, last in ((0, 1), (3, 300), (599, 600)):
        assert torch.equal(layer(x[first:last]), whole[first:last])
    assert torch.equal(layer(x.view(3, 200, 512)).view(600, -1), whole)
    assert torch.equal(layer(x.T.contiguous().T), whole)
    assert layer(x[:0].view(2, 0, 512)).shape == (2, 0, 1024)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("making", MAKINGS)
@torch.no_grad()
def test_padding_and_neighbours_change_nothing(small, making, dtype):
    model = prepack(model_of(dtype=dtype, **MAKINGS[making]), "int8")
    assert any(isinstance(module, Int8Linear) for module in model.modules())
    whole = model(*THREE).last_hidden_state
    alone = model(THREE[0][1:2, :7]).last_hidden_state
    # What is not a product may round otherwise, and a level that it tips is a hundredth.
    torch.testing.assert_close(whole[1:2, :7], alone, rtol=0.02, atol=0.02 if dtype == torch.float32 else 0.06)
    assert not whole[1, 7:].any() or model.config.padding_safe_masking != "exact"


@torch.no_grad()
def test_a_model_says_nearly_what_it_said(small):
    model = model_of(MaBertForSequenceClassification, num_labels=3)
    before = model(*THREE, output_hidden_states=True).hidden_states[-1]
    after = prepack(model, "int8")(*THREE, output_hidden_states=True).hidden_states[-1]
    near = functional.cosine_similarity(before[0], after[0])
    assert near.mean() > 0.998
    assert near.min() > 0.99
    assert not torch.equal(before, after)
    kinds = {type(module) for module in model.modules()}
    assert nn.Linear not in kinds
    assert PackedLinear in kinds, "the classifier's three rows are no whole vector"


def test_only_large_layers_of_whole_vectors_have_8_bits(monkeypatch):
    monkeypatch.setattr(prepacking, "SMALLEST", 32 * 64)
    model = nn.Sequential(*[nn.Linear(*widths) for widths in ((32, 64), (64, 33), (33, 64), (64, 16), (64, 48))])
    kinds = [type(layer) for layer in prepack(model, "int8")]
    assert kinds == [Int8Linear, PackedLinear, PackedLinear, PackedLinear, Int8Linear]


def test_a_model_without_such_layers_is_refused_and_stays():
    model = nn.Sequential(nn.Linear(64, 64))
    with pytest.raises(ValueError, match="int8 gains nothing: no linear layer here has 524,288 weights"):
        prepack(model, "int8")
    assert type(model[0]) is nn.Linear
    assert model[0].weight.requires_grad


def test_a_processor_without_the_instructions_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    with pytest.raises(ValueError, match="VNNI"):
        prepack(nn.Sequential(nn.Linear(1024, 1024)), "int8")
    with pytest.raises(ValueError, match="int8 is for a CPU, and the model is on cuda"):
        int8.check("cuda")


@torch.no_grad()
def test_it_is_copied_pickled_saved_and_loaded(small, tmp_path):
    model = prepack(model_of(dtype=torch.bfloat16), "int8")
    said = model(*THREE).last_hidden_state
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(again(*THREE).last_hidden_state, said)
    model.save_pretrained(tmp_path)
    ordinary = MaBertModel.from_pretrained(tmp_path)
    for name, held in ordinary.state_dict().items():
        assert torch.equal(held, model.state_dict()[name].to(held.dtype)), name
    other = prepack(model_of(dtype=torch.bfloat16, hidden_act="gelu"), "int8")
    other.load_state_dict(ordinary.state_dict())
    found = functional.cosine_similarity(other(*THREE).last_hidden_state[0].float(), said[0].float())
    assert found.min() > 0.999


def test_it_refuses_gradients_and_other_floats():
    layer = Int8Linear(nn.Linear(32, 48))
    with pytest.raises(RuntimeError, match="no gradients"):
        layer(torch.zeros(1, 32, requires_grad=True))
    with pytest.raises(RuntimeError, match=r"of torch\.float16; a model in 8 bits takes float32 or bfloat16"):
        layer(torch.zeros(1, 32, dtype=torch.float16))
    with pytest.raises(RuntimeError, match=r"torch\.compile"):
        torch.compile(layer, backend="eager", fullgraph=False)(torch.zeros(1, 32))


def test_autocast_says_what_comes_out():
    layer = Int8Linear(nn.Linear(32, 48))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.zeros(1, 32)).dtype == torch.bfloat16
    assert layer(torch.zeros(1, 32)).dtype == torch.float32
