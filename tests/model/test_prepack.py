"""A prepacked model says what it said before; it saves, copies and converts like any other, and refuses to train."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import AlbertConfig, AutoModel, BertConfig, ElectraConfig
from transformers.activations import ACT2FN

import mabert
from mabert import MaBertForMaskedLM, MaBertForSequenceClassification, MaBertModel
from mabert.model.blocks import FeedForward
from mabert.model.packing import total_of
from mabert.model.prepack import FUSED, NO_ACTIVATION, PackedLinear, can_prepack, prepack
from mabert.ops import use_backend
from tests.model.helpers import MAKINGS, THREE, VOCAB, build, config
from tests.tolerances import OUTPUTS, assert_close

CPU = torch.device("cpu")
DTYPES = [dtype for dtype in (torch.float32, torch.bfloat16) if can_prepack(CPU, dtype)]
CLOSE = {
    torch.float32: {"rtol": 2e-6, "atol": 2e-6},
    torch.bfloat16: {"rtol": 2**-7, "atol": 2**-8},
}  # one unit in the last place

pytestmark = pytest.mark.skipif(not DTYPES, reason="oneDNN's layouts are for x86 processors")


def layers(width=24, out=40, bias=True, dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Linear(width, out, bias=bias).to(dtype)


class RoundedOnce(nn.Module):
    """A layer and the activation behind it, computed in float32 and rounded once: what a prepacked model does."""

    def __init__(self, linear, activation):
        super().__init__()
        self.linear, self.activation = linear, activation

    def forward(self, hidden):
        weights = (None if held is None else held.float() for held in (self.linear.weight, self.linear.bias))
        return self.activation(nn.functional.linear(hidden.float(), *weights)).to(hidden.dtype)


def rounded_once(model):
    for network in [module for module in model.modules() if type(module) is FeedForward and not module.gated]:
        network.up, network.activation = RoundedOnce(network.up, network.activation), nn.Identity()
    return model


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (5,), (2, 3), (1, 300), (1, 0)])
def test_a_layer_multiplies_as_it_did(shape, dtype, bias):
    linear = layers(bias=bias, dtype=dtype)
    hidden = torch.randn(*shape, 24).to(dtype)
    apart = torch.randn(24, *shape).to(dtype).movedim(0, -1)
    with torch.no_grad():
        for given in (hidden, apart):
            torch.testing.assert_close(PackedLinear(linear, dtype)(given), linear(given), **CLOSE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_layout_gives_the_weight_back_to_the_bit(dtype):
    linear = layers(width=23, out=37, dtype=dtype)
    packed = PackedLinear(linear)
    assert torch.equal(packed.weight, linear.weight)
    assert packed.nbytes == linear.weight.nbytes + linear.bias.nbytes
    assert {name: held.shape for name, held in packed.state_dict().items()} == {"weight": (37, 23), "bias": (37,)}


@pytest.mark.parametrize("making", MAKINGS)
@pytest.mark.parametrize("kind", [MaBertModel, MaBertForSequenceClassification])
@pytest.mark.parametrize("dtype", DTYPES)
@torch.no_grad()
def test_models_of_every_making_say_what_they_said_padded_or_not(dtype, kind, making):
    model = build(kind, config(**MAKINGS[making]), dtype=dtype)
    tokens, mask = THREE
    expected = rounded_once(copy.deepcopy(model))(tokens, mask)[0]
    assert prepack(model) is model
    assert not any(type(module) is nn.Linear for module in model.modules())
    found = model(tokens, mask)[0]
    torch.testing.assert_close(found, expected, **CLOSE[dtype])
    if dtype == torch.float32 or making == "the paper's":  # norms behind sub-layers spread roundings of bfloat16
        alone = model(tokens[1:2, :7])[0]
        torch.testing.assert_close(found[1:2, :7] if kind is MaBertModel else found[1:2], alone, **CLOSE[dtype])
    assert kind is not MaBertModel or not model(tokens, torch.zeros_like(mask))[0].any()


def test_totals_are_few_and_near():
    totals = [total_of(tokens) for tokens in range(20_000)]
    assert len(set(totals[1:513])) == 19
    assert len(set(totals)) < 100
    for tokens, total in enumerate(totals):
        assert total_of(total) == total, "a row of such a length stays as it is"
        most = 8 if tokens <= 16 else 16 if tokens <= 128 else 32 if tokens <= 384 else max(64, tokens // 16 + 1)
        assert 0 <= total - tokens < most


@given(st.lists(st.integers(0, 70), min_size=1, max_size=4), st.sampled_from(["left", "right"]), st.booleans())
@settings(max_examples=40)
@torch.no_grad()
def test_products_meet_few_numbers_of_rows_and_say_the_same_whatever_the_lengths(lengths, side, recorded):
    model = build(MaBertModel, config(max_position_embeddings=80), dtype=torch.float32)
    valid = torch.arange(max(1, *lengths)) < torch.tensor(lengths)[:, None]
    valid = valid.flip(1) if side == "left" else valid
    tokens = torch.randint(1, VOCAB, valid.shape, generator=torch.Generator().manual_seed(0))
    masks = [valid.long(), *([None] if valid.all() else [])]  # texts of one length need no mask
    with use_backend("reference"):
        exact = copy.deepcopy(model).double()(tokens, masks[0], output_hidden_states=True)
    prepack(model)
    rows = set()
    for layer in (module for module in model.modules() if isinstance(module, PackedLinear)):
        layer.register_forward_pre_hook(lambda _, given: rows.add(given[0].shape[:-1].numel()))
    for mask in masks:
        found = model(tokens, mask, output_hidden_states=recorded)
        pairs = [(found.last_hidden_state, exact.last_hidden_state)]
        if recorded:
            pairs += zip(found.hidden_states, exact.hidden_states, strict=True)
        for ours, theirs in pairs:
            assert_close("prepacked model", "hidden states", ours, theirs)
    assert not valid.any() or rows == {total_of(int(valid.sum()))}


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "silu", "relu", "gelu_fast"])
@pytest.mark.parametrize("kind", ["mlp", "glu", "bert", "albert", "electra"])
@torch.no_grad()
def test_an_activation_behind_a_layer_becomes_part_of_its_product(kind, act):
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 12}
    rivals = {"bert": BertConfig, "albert": AlbertConfig, "electra": ElectraConfig}
    if kind in rivals:
        model = AutoModel.from_config(rivals[kind](vocab_size=VOCAB, hidden_act=act, **sizes)).eval()
    else:
        model = build(MaBertModel, config(hidden_act=act, feed_forward=kind), dtype=torch.float32)
    expected = model(*THREE)[0]
    torch.testing.assert_close(prepack(model)(*THREE)[0], expected, **OUTPUTS)
    applied = [module for module in model.modules() if getattr(module, "activation", NO_ACTIVATION) in FUSED.values()]
    assert bool(applied) == (kind != "glu" and type(ACT2FN[act]) in FUSED)


@torch.no_grad()
def test_a_network_of_ones_own_keeps_its_activation_whatever_its_name():
    class OfTheSameName(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)
            self.activation = ACT2FN["gelu"]

        def forward(self, hidden):
            return self.down(self.activation(self.gate(hidden)) * self.up(hidden))

    OfTheSameName.__name__ = FeedForward.__name__
    torch.manual_seed(0)
    network, hidden = OfTheSameName().eval(), torch.randn(2, 8)
    expected = network(hidden)
    torch.testing.assert_close(prepack(network)(hidden), expected, **OUTPUTS)


@torch.no_grad()
def test_a_layer_that_two_networks_share_applies_no_activation():
    model = build(MaBertModel, config(layer_pattern="MT"), dtype=torch.float32)
    first, second = (layer.feed_forward for layer in model.layers)
    second.up, second.activation = first.up, ACT2FN["silu"]
    expected = model(*THREE).last_hidden_state
    torch.testing.assert_close(prepack(model)(*THREE).last_hidden_state, expected, **OUTPUTS)


@torch.no_grad()
def test_an_activation_that_somebody_watches_stays():
    model, seen = build(MaBertModel, config(), dtype=torch.float32), []
    model.layers[0].feed_forward.activation.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    prepack(model)(*THREE)
    assert (seen[0] < -0.2).any(), "GELU is nowhere below -0.17: this is what it was given"
    assert type(model.layers[1].feed_forward.activation) is nn.Identity


@pytest.mark.skipif(torch.bfloat16 not in DTYPES, reason="no instructions for bf16")
@torch.no_grad()
def test_autocast_finds_its_weights_cast():
    model = build(MaBertForSequenceClassification, config(num_labels=3), dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(*THREE).logits
        prepack(model, torch.bfloat16)
        actual = model(*THREE).logits
    assert {module.dtype for module in model.modules() if isinstance(module, PackedLinear)} == {torch.bfloat16}
    torch.testing.assert_close(actual, expected, **CLOSE[torch.bfloat16])
    with pytest.raises(RuntimeError, match=r"input is of torch.float32; the model was prepacked for torch.bfloat16"):
        model(*THREE)


def test_layers_that_others_look_into_stay_as_they_are():
    model = build(MaBertForMaskedLM, config(), dtype=torch.float32)
    seen = []
    model.mabert.layers[0].feed_forward.up.register_forward_hook(lambda *_: seen.append(1))
    prepack(model)
    tied = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    assert tied == ["mabert.layers.0.feed_forward.up", "predictions.decoder"]
    assert model.predictions.decoder.weight is model.get_input_embeddings().weight
    with torch.no_grad():
        model(THREE[0])
    assert seen


def test_a_layer_in_two_places_is_packed_once():
    shared = layers(24, 24)
    model = prepack(nn.ModuleDict({"one": shared, "other": shared, "third": nn.Sequential(shared)}))
    assert model["one"] is model["other"] is model["third"][0]
    assert isinstance(model["one"], PackedLinear)


@pytest.mark.parametrize("making", MAKINGS)
@torch.no_grad()
def test_what_is_saved_is_the_ordinary_model(tmp_path, making):
    model = build(MaBertForMaskedLM, config(**MAKINGS[making]), dtype=torch.float32)
    before = {name: held.clone() for name, held in model.state_dict().items()}
    prepack(model).save_pretrained(tmp_path)
    again = MaBertForMaskedLM.from_pretrained(tmp_path)
    assert again.state_dict().keys() == before.keys()
    for name, held in again.state_dict().items():
        assert torch.equal(held, before[name]), name


@torch.no_grad()
def test_it_is_copied_pickled_and_converted():
    model = prepack(build(MaBertModel, config(), dtype=torch.float32))
    expected = model(*THREE).last_hidden_state
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.to("cpu")):
        assert torch.equal(again(*THREE).last_hidden_state, expected)
    if torch.bfloat16 in DTYPES:
        short = build(MaBertModel, config(), dtype=torch.float32).to(torch.bfloat16)
        expected = rounded_once(short)(*THREE).last_hidden_state
        actual = copy.deepcopy(model).to(torch.bfloat16)(*THREE).last_hidden_state
        torch.testing.assert_close(actual, expected, **CLOSE[torch.bfloat16])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_torch_without_onednn_prepacks_nothing(monkeypatch, dtype):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not can_prepack(CPU, dtype)


def test_what_it_cannot_do_gets_one_line():
    model = prepack(build(MaBertModel, config(), dtype=torch.float32))
    assert not any(parameter.requires_grad for parameter in model.parameters())
    wanted = torch.randn(1, 4, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match="has no gradients; load the model again to train it"):
        model(inputs_embeds=wanted)
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"is in no graph of torch.compile or torch.export"):
        torch.compile(model, backend="eager", fullgraph=True)(THREE[0])
    with pytest.raises(RuntimeError, match=r"cannot be moved to cpu in torch.float64; load it again"):
        model.to(torch.float64)
    with pytest.raises(RuntimeError, match=r"cannot be moved to meta"):
        model.to("meta")
    with pytest.raises(ValueError, match=r"instructions for; \w+ is on cpu, in torch.float64"):
        mabert.prepack(nn.Sequential(nn.Linear(2, 2, dtype=torch.float64)))
    with pytest.raises(ValueError, match="is on meta"):
        mabert.prepack(nn.Sequential(nn.Linear(2, 2, device="meta")))


@pytest.mark.parametrize("strict", [True, False])
@torch.no_grad()
def test_it_loads_weights_its_own_and_those_of_a_model_as_trained(strict):
    model = prepack(build(MaBertForSequenceClassification, config(), dtype=torch.float32))
    expected = model(*THREE).logits
    assert str(model.load_state_dict(model.state_dict(), strict)) == "<All keys matched successfully>"
    assert torch.equal(model(*THREE).logits, expected)
    other = build(MaBertForSequenceClassification, config(), seed=1, dtype=torch.float32)
    for assign in (False, True):
        model.load_state_dict(other.state_dict(), strict, assign)
        torch.testing.assert_close(model(*THREE).logits, other(*THREE).logits, **CLOSE[torch.float32])


@pytest.mark.parametrize("dtype", DTYPES)
@torch.no_grad()
def test_weights_are_loaded_in_the_dtype_that_was_packed_for(dtype):
    linear, hidden = layers(), torch.randn(2, 24).to(dtype)
    packed = PackedLinear(linear, dtype)
    expected = packed(hidden)
    packed.load_state_dict(linear.state_dict(), assign=True)
    assert packed.weight.dtype == packed.bias.dtype == dtype
    assert torch.equal(packed(hidden), expected)


@torch.no_grad()
def test_weights_that_are_missing_or_of_another_size_are_named():
    packed = PackedLinear(layers())
    given = packed.state_dict()
    assert packed.load_state_dict({"bias": given["bias"]}, strict=False).missing_keys == ["weight"]
    with pytest.raises(RuntimeError, match=r"size mismatch for weight: it is \(40, 23\), the layer's \(40, 24\)"):
        packed.load_state_dict({**given, "weight": torch.zeros(40, 23)})
    assert torch.equal(packed.weight, given["weight"])
