"""Adapters, hooks and weights of a class of their own: what a person puts in a layer's place, or hangs on it, is
called, and sees the batch that BERT would show it."""

import pytest
import torch
from accelerate import init_empty_weights, load_checkpoint_and_dispatch, load_checkpoint_in_model
from captum.attr import LayerIntegratedGradients
from peft import IA3Config, LoraConfig, PeftModel, TrainableTokensConfig, get_peft_model
from safetensors.torch import load_file
from torch import nn
from transformers import BertConfig, BertModel

from mabert import MaBertForMaskedLM, MaBertForSequenceClassification, MaBertModel
from mabert.model.prepack import PackedLinear, can_prepack, prepack
from tests.model.helpers import LABELS, MAKINGS, MASK, TOKENS, build, config
from tests.tolerances import OUTPUTS

TRUTH = {MaBertForMaskedLM: TOKENS, MaBertForSequenceClassification: LABELS}
PREPACKS = can_prepack(torch.device("cpu"), torch.float32)

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),  # which PEFT asks for
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings"),
]


class OnlyMultiplies(torch.Tensor):
    """A weight that can be multiplied by and nothing else, as quantized and sharded ones are."""

    CAN = ("linear", "requires_grad_", "__get__")

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function.__name__ not in cls.CAN:
            raise NotImplementedError(f"{cls.__name__} cannot {function.__name__}")
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


def with_weights_that_only_multiply(model):
    for module in model.modules():
        if type(module) is nn.Linear:
            module._parameters["weight"] = module.weight.detach().as_subclass(OnlyMultiplies)
    return model


@pytest.mark.parametrize("how", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", ["mabert", "bert"])
def test_weights_of_a_class_of_their_own_are_left_to_their_layers_and_not_prepacked(kind, how):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    bert = BertModel(BertConfig(vocab_size=61, **sizes)).eval()
    model = build(MaBertModel, config(), dtype=torch.float32) if kind == "mabert" else bert
    expected = model(TOKENS, MASK)[0]
    with_weights_that_only_multiply(model)
    with how():
        torch.testing.assert_close(model(TOKENS, MASK)[0], expected)
        if PREPACKS:
            prepack(model)
            assert not any(isinstance(module, PackedLinear) for module in model.modules())
            torch.testing.assert_close(model(TOKENS, MASK)[0], expected)


def made(kind=MaBertModel, **fields):
    return build(kind, config(**fields), dtype=torch.float32)


def test_gradients_of_a_feed_forward_network_are_shown_to_its_hooks():
    model, seen = made(), []
    model.layers[0].feed_forward.register_full_backward_hook(lambda *_: seen.append(1))
    model(TOKENS, MASK).last_hidden_state.sum().backward()
    assert seen


@torch.no_grad()
def test_what_a_layer_in_anothers_place_gives_is_not_written_over():
    model = made()

    class Kept(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, hidden):
            self.given = self.inner(hidden)
            self.copy = self.given.clone()
            return self.given

    up = model.layers[0].feed_forward.up = Kept(model.layers[0].feed_forward.up)
    model(TOKENS, MASK)
    assert torch.equal(up.given, up.copy)


MIXTURE = MAKINGS["a mixture"]
PROJECTIONS = ["query", "value", "in_proj", "out_proj"]
WAYS = {
    "word embeddings": LoraConfig(target_modules=["word_embeddings"]),
    "every table": LoraConfig(target_modules=["word_embeddings", "position_embeddings", "token_type_embeddings"]),
    "some tokens": TrainableTokensConfig(token_indices=[5, 6], target_modules=["word_embeddings"]),
    "some tokens beside": LoraConfig(target_modules=["in_proj"], trainable_token_indices=[5, 6]),
    "whole tables": LoraConfig(target_modules=["in_proj"], modules_to_save=["word_embeddings"]),
    "step sizes": LoraConfig(target_modules=["dt_proj"]),
    "time constants": LoraConfig(target_modules=["dt_proj"], target_parameters=["A_log"]),
    "all layers": LoraConfig(target_modules="all-linear"),
    "head": LoraConfig(target_modules=["in_proj"], modules_to_save=["classifier", "pooler"]),
    "LoRA": LoraConfig(target_modules=PROJECTIONS),
    "DoRA": LoraConfig(target_modules=PROJECTIONS, use_dora=True),
    "IA3": IA3Config(target_modules=["key", "value", "in_proj", "down"], feedforward_modules=["down"]),
}


@pytest.mark.parametrize(("way", "making"), [*((way, {}) for way in WAYS), ("head", MIXTURE), ("all layers", MIXTURE)])
def test_adapters_of_peft_learn_and_are_saved(way, making, tmp_path):
    kind = MaBertForSequenceClassification if way == "head" else MaBertForMaskedLM
    model = get_peft_model(made(kind, **making), WAYS[way])
    model(TOKENS, MASK, labels=TRUTH[kind]).loss.backward()
    learned = {name: held for name, held in model.named_parameters() if held.requires_grad}
    assert learned
    assert all(held.grad is not None for held in learned.values())
    with torch.no_grad():
        for held in learned.values():
            held.add_(0.1)
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(made(kind, **making), tmp_path).eval()
    expected = model.eval()(TOKENS, MASK).logits
    assert torch.equal(again(TOKENS, MASK).logits, expected)
    assert not torch.equal(made(kind, **making)(TOKENS, MASK).logits, expected)


@pytest.mark.skipif(not PREPACKS, reason="oneDNN's layouts are for x86 processors")
@torch.no_grad()
def test_an_adapter_can_be_merged_into_a_prepacked_model():
    model = get_peft_model(made(), LoraConfig(target_modules=["up"]))
    for name, held in model.named_parameters():
        if "lora_B" in name:
            held.fill_(0.5)
    expected = model.eval()(TOKENS, MASK).last_hidden_state
    merged = prepack(model).merge_and_unload()
    torch.testing.assert_close(merged(TOKENS, MASK).last_hidden_state, expected, **OUTPUTS)


@pytest.mark.parametrize("kind", [MaBertForMaskedLM, MaBertForSequenceClassification, MaBertModel])
def test_whoever_sets_weights_by_their_names_in_a_file_sets_all_of_them(kind, tmp_path):
    saved = made(kind, ssm_direction="bidirectional")
    saved.save_pretrained(tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert names == saved.state_dict().keys() - {"predictions.decoder.weight"}, "all but the tied weight"
    drawn = build(kind, saved.config, seed=1, dtype=torch.float32)
    load_checkpoint_in_model(drawn, tmp_path, device_map={"": "cpu"})
    with init_empty_weights():
        empty = kind(saved.config)
    empty.tie_weights()
    empty = load_checkpoint_and_dispatch(empty, tmp_path, device_map={"": "cpu"}, strict=kind is not MaBertForMaskedLM)
    expected = saved(TOKENS, MASK)[0]
    for model in (drawn, empty.eval()):
        assert torch.equal(model(TOKENS, MASK)[0], expected)


def test_a_cores_parameters_have_the_order_by_which_optimizers_of_checkpoints_count_them():
    names = [name for name, _ in made(layer_pattern="M").layers[0].mixer.cores[0].named_parameters()]
    recurrence = [f"recurrence.{name}" for name in ("delta_bias", "A_log", "D")]
    assert names == ["local_mixing.weight", "local_mixing.bias", "dt_proj.weight", *recurrence, "x_proj.weight"]


@pytest.mark.parametrize("narrow", [{}, {"embedding_size": 5}])
def test_whoever_hooks_the_embeddings_sees_the_batch(narrow):
    model = made(MaBertForSequenceClassification, **narrow)
    width = narrow.get("embedding_size", 8)
    shapes = {}
    for name in ("embeddings", "embeddings.word_embeddings", "embeddings.norm"):
        module = model.mabert.get_submodule(name)
        module.register_forward_hook(lambda _, given, out, name=name: shapes.update({name: tuple(out.shape)}))
    expected = model(TOKENS, MASK).logits
    assert list(shapes.values()) == [(2, 5, width), (2, 5, width), (2, 5, 8)]
    noise = torch.randn(2, 5, width)
    model.mabert.embeddings.word_embeddings.register_forward_hook(lambda _, given, out: out + noise)
    moved = model(TOKENS, MASK).logits
    assert not torch.equal(moved, expected)
    noise[0, 3:] = torch.nan  # at padding
    assert torch.equal(model(TOKENS, MASK).logits, moved)


def test_captum_attributes_a_padded_batch_to_its_tokens():
    found = []
    for unpad in ("auto", "never"):
        model = made(MaBertForSequenceClassification, unpad=unpad)
        gradients = LayerIntegratedGradients(lambda *given, of=model: of(*given).logits[:, 0], model.mabert.embeddings)
        found.append(gradients.attribute(TOKENS, torch.zeros_like(TOKENS), additional_forward_args=(MASK,), n_steps=4))
    assert found[0].shape == (2, 5, 8)
    assert not found[0][0, 3:].any()
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)
