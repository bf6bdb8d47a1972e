"""The models as transformers' users handle them: save and load, resizing, dtypes, checkpointing, heads."""

import copy
import itertools
import math
import weakref

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from mabert import (
    MaBertConfig,
    MaBertForMaskedLM,
    MaBertForMultipleChoice,
    MaBertForQuestionAnswering,
    MaBertForSequenceClassification,
    MaBertForTokenClassification,
    MaBertModel,
)
from mabert.model import attention as attention_module
from mabert.model.mamba import DT_INIT_FLOOR, Recurrence, SelectiveCore
from mabert.model.masking import PaddingMask
from mabert.ops import softmax_attention
from tests.model.helpers import LABELS, MAKINGS, VOCAB, build, config, ids

HEADS = {
    AutoModel: MaBertModel,
    AutoModelForMaskedLM: MaBertForMaskedLM,
    AutoModelForSequenceClassification: MaBertForSequenceClassification,
    AutoModelForTokenClassification: MaBertForTokenClassification,
    AutoModelForQuestionAnswering: MaBertForQuestionAnswering,
    AutoModelForMultipleChoice: MaBertForMultipleChoice,
}


def parts(model, kind):
    return [module for module in model.modules() if isinstance(module, kind)]


def steps_of(recurrence):
    """Step sizes as they were drawn."""
    return torch.nn.functional.softplus(recurrence.delta_bias)


def batch(rng=0, rows=2, time=6):
    return torch.as_tensor(ids(np.random.default_rng(rng), rows, time))


@pytest.mark.parametrize(
    ("auto", "making"),
    [
        *((auto, "a mixture") for auto in HEADS),
        *itertools.product((AutoModel, AutoModelForSequenceClassification), sorted({*MAKINGS} - {"a mixture"})),
    ],
)
def test_auto_classes_load_what_was_saved(auto, making, tmp_path):
    model = build(HEADS[auto], config(**MAKINGS[making]), dtype=torch.float32)
    model.save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.glob("*.safetensors")] == ["model.safetensors"]
    again = auto.from_pretrained(tmp_path)
    assert type(again) is HEADS[auto]
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    assert isinstance(AutoConfig.from_pretrained(tmp_path), MaBertConfig)
    tokens = batch()[None] if auto is AutoModelForMultipleChoice else batch()
    assert torch.equal(again(tokens)[0], model(tokens)[0])


@pytest.mark.parametrize(
    ("field", "layers"),
    [
        ("norm_bias", {"embeddings.norm", "norm", "mixer_norm", "feed_forward_norm", "transform.norm"}),
        ("attention_bias", {"query", "key", "value", "attention.output"}),
        ("mlp_bias", {"up", "down"}),
        ("ssm_bias", {"in_proj", "out_proj"}),
    ],
)
def test_layers_have_a_bias_where_the_configuration_says_so(field, layers):
    without, with_ = (set(MaBertForMaskedLM(config(**{field: has})).state_dict()) for has in (False, True))
    assert without < with_
    assert all(name.endswith(tuple(f"{layer}.bias" for layer in layers)) for name in with_ - without)
    assert all(any(name.endswith(f"{layer}.bias") for name in with_ - without) for layer in layers)


def test_norms_that_a_making_leaves_out_have_no_weights():
    def norms(**fields):
        names = MaBertForMaskedLM(config(layer_pattern="TT", **fields)).state_dict()
        return {name.removesuffix(".weight") for name in names if name.endswith("norm.weight")}

    all_of_them = norms()
    assert norms(norm_position="post") == all_of_them
    assert all_of_them - norms(first_norm=False) == {"mabert.layers.0.mixer_norm"}
    assert all_of_them - norms(final_norm=False) == {"mabert.norm"}


def test_mamba_parameters_start_as_in_mamba_1():
    torch.manual_seed(0)
    model = MaBertModel(config(hidden_size=256, ssm_state_size=5, layer_pattern="M", num_attention_heads=4))
    (core,) = parts(model, SelectiveCore)
    steps = steps_of(core.recurrence)
    assert 1e-3 * 0.999 <= steps.min() <= steps.max() <= 1e-1 * 1.001
    assert abs(steps.log().median().item() - (math.log(1e-3) + math.log(1e-1)) / 2) < 0.5
    torch.testing.assert_close(core.recurrence.A_log.exp(), torch.arange(1.0, 6).expand(512, 5))
    assert torch.equal(core.recurrence.D, torch.ones(512))
    assert core.dt_proj.weight.abs().max() <= 16**-0.5
    assert core.local_mixing.bias.abs().max() <= 0.5
    assert core.local_mixing.bias.std() > 0.1
    assert DT_INIT_FLOOR < 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_recurrence_is_float32_however_a_model_comes_to_short_floats(dtype, tmp_path):
    model = build(MaBertModel, config(), dtype=torch.float32)
    model.save_pretrained(tmp_path)
    read = MaBertModel.from_pretrained(tmp_path, dtype=dtype)
    with_added_layers = MaBertModel.from_pretrained(tmp_path, layer_pattern="MTMM", dtype=dtype)
    moved, made = copy.deepcopy(model).to(dtype), MaBertModel._from_config(config(), dtype=dtype)
    for short in (read, moved, made, with_added_layers):
        kept = [getattr(scan, name) for scan in parts(short, Recurrence) for name in Recurrence.FLOAT32]
        assert {weight.dtype for weight in kept} == {torch.float32}
        assert {layer.mixer.in_proj.weight.dtype for layer in short.layers if hasattr(layer, "mixer")} == {dtype}
    for short in (read, moved):
        for scan, other in zip(parts(model, Recurrence), parts(short, Recurrence), strict=True):
            assert all(map(torch.equal, scan.parameters(), other.parameters()))
        out, truth = short(batch()).last_hidden_state, model(batch()).last_hidden_state
        assert out.dtype == dtype
        assert (out.float() - truth).norm() / truth.norm() < 0.05
    for scan in (*parts(made, Recurrence), *parts(with_added_layers, Recurrence)[1:]):
        assert 0.99e-3 < steps_of(scan).min() <= steps_of(scan).max() < 0.101


def test_loading_and_initialising_again_keep_the_recurrence(tmp_path):
    build(MaBertModel, config(), dtype=torch.float32).save_pretrained(tmp_path)
    again = MaBertForSequenceClassification.from_pretrained(tmp_path)
    (core,) = parts(again, SelectiveCore)
    before = copy.deepcopy(core.state_dict())
    again.init_weights()
    assert all(torch.equal(before[name], held) for name, held in core.state_dict().items())


@pytest.mark.parametrize("kind", [MaBertForMaskedLM, MaBertForSequenceClassification])
@pytest.mark.parametrize("making", MAKINGS)
def test_gradient_checkpointing_runs_blocks_again_and_changes_no_gradient(kind, making):
    model = build(kind, config(**MAKINGS[making]), dtype=torch.float32).train()
    labels = batch(1) if kind is MaBertForMaskedLM else LABELS
    calls, gradients = [], []
    for layer in model.mabert.layers:
        layer.feed_forward.register_forward_pre_hook(lambda *ran: calls.append(ran))
    for checkpointing in (False, True):
        if checkpointing:
            model.activation_checkpointing_enable()
        model.zero_grad()
        calls.clear()
        model(batch(), labels=labels).loss.backward()
        assert len(calls) == len(model.mabert.layers) * (1 + checkpointing)
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)


PADDED = {"input_ids": batch(), "attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])}
PACKED = {"input_ids": batch().view(1, 12), "cu_seq_lens_q": torch.tensor([0, 5, 12], dtype=torch.int32)}


@pytest.mark.parametrize(
    ("fields", "given", "layers"),
    [
        *(({"layer_pattern": "TMT", "position_embedding": name}, PADDED, [0, 2]) for name in ("learned", "rotary")),
        *(
            ({"layer_pattern": "TTMT", "attention_window": [1, None, None, 2], "unpad": unpad}, given, [1])
            for unpad in ("auto", "never")
            for given in (PADDED, PACKED)
        ),
    ],
)
@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False)]
)
def test_fused_attention_says_what_sdpa_says_in_layers_without_a_window(
    fields, given, layers, dtype, autocast, monkeypatch
):
    settings = config(hidden_size=64, num_attention_heads=2, attn_implementation="sdpa", **fields)
    model = build(MaBertModel, settings, dtype=torch.float32).to(dtype)
    fused, running, outputs = [], [], []
    for index, layer in enumerate(model.layers):
        layer.register_forward_pre_hook(lambda *_, index=index: running.append(index))

    def spy(*inputs, **options):
        fused.append(running[-1])
        return softmax_attention(*inputs, **options)

    monkeypatch.setattr(attention_module, "softmax_attention", spy)
    for pays in (True, False):
        monkeypatch.setattr(attention_module, "attention_pays", lambda *_, pays=pays: pays)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            outputs.append(model(**given).last_hidden_state)
    assert fused == layers
    bound = 1e-5 if dtype == torch.float32 and not autocast else 2**-5
    torch.testing.assert_close(*outputs, rtol=bound, atol=bound)


def test_attention_is_fused_in_inference_only(monkeypatch):
    monkeypatch.setattr(attention_module, "attention_pays", lambda *_: True)

    def fuses(attention="sdpa", width=64, training=False, output_attentions=False):
        settings = config(hidden_size=width, attn_implementation=attention, attention_probs_dropout_prob=0.1)
        asked = {"training": training, "output_attentions": output_attentions}
        return attention_module.can_fuse(settings, torch.zeros(1, 3, width), 1, **asked)

    assert not fuses()
    with torch.no_grad():
        assert fuses()
        assert not any((fuses("eager"), fuses(width=8), fuses(training=True), fuses(output_attentions=True)))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("fields", [{"layer_pattern": "MMT"}, *MAKINGS.values()])
def test_hidden_states_and_attentions_of_every_layer(attention, fields):
    model = build(MaBertModel, config(**fields), dtype=torch.float32)
    model.set_attn_implementation(attention)
    out = model(batch(), output_hidden_states=True, output_attentions=True)
    depth = model.config.num_hidden_layers
    assert [tuple(h.shape) for h in out.hidden_states] == [(2, 6, 8)] * (depth + 1)
    assert torch.equal(out.hidden_states[-1], out.last_hidden_state)
    assert [tuple(a.shape) for a in out.attentions] == [(2, 2, 6, 6)] * depth
    places = torch.arange(6)
    for layer, letter in enumerate(model.config.layer_pattern):
        if letter == "T":
            window = model.config.of_layer("attention_window", layer)
            torch.testing.assert_close(out.attentions[layer].sum(-1), torch.ones(2, 2, 6))
            seen = (places[:, None] - places).abs() <= (6 if window is None else window)
            assert torch.equal(out.attentions[layer] > 0, seen.expand(2, 2, 6, 6))


@pytest.mark.parametrize("making", MAKINGS)
def test_the_decoder_is_tied_and_resized_with_the_tokens(making):
    model = build(MaBertForMaskedLM, config(**MAKINGS[making]), dtype=torch.float32)
    assert model.predictions.decoder.weight is model.mabert.embeddings.word_embeddings.weight
    old = model.predictions.decoder.weight.detach().clone()
    model.resize_token_embeddings(VOCAB + 7)
    assert model.predictions.decoder.weight is model.mabert.embeddings.word_embeddings.weight
    assert torch.equal(model.predictions.decoder.weight[:VOCAB], old)
    assert model(batch()).logits.shape == (2, 6, VOCAB + 7)
    untied = build(MaBertForMaskedLM, config(tie_word_embeddings=False))
    assert untied.predictions.decoder.weight is not untied.mabert.embeddings.word_embeddings.weight


@pytest.mark.parametrize("kind", [MaBertModel, MaBertForSequenceClassification])
@pytest.mark.parametrize("making", ["the paper's", "BERT's", "ELECTRA's"])
def test_positions_are_stretched_by_interpolation(kind, making):
    model = build(kind, config(**MAKINGS[making]), dtype=torch.float32)
    old = model.get_position_embeddings().weight.detach().clone()
    model.get_position_embeddings().weight.requires_grad_(False)
    model.resize_position_embeddings(47)
    new = model.get_position_embeddings().weight
    assert not new.requires_grad, "a frozen table stays frozen"
    assert model.config.max_position_embeddings == 47
    torch.testing.assert_close(new[::2], old)
    torch.testing.assert_close(new[1::2], (old[1:] + old[:-1]) / 2)
    assert model(batch(time=40))[0].isfinite().all()
    with pytest.raises(ValueError, match="new_num_position_embeddings is 0"):
        model.resize_position_embeddings(0)
    with pytest.raises(ValueError, match="position_embedding is 'rotary'"):
        build(kind, config(position_embedding="rotary")).resize_position_embeddings(9)


@pytest.mark.parametrize("making", MAKINGS)
def test_sparse_prediction_has_the_dense_loss_and_gradients(making):
    labels = torch.where(torch.rand(2, 6, generator=torch.Generator().manual_seed(0)) < 0.4, batch(1), -100)
    results = []
    for sparse in (False, True):
        model = build(MaBertForMaskedLM, config(**MAKINGS[making], sparse_prediction=sparse), dtype=torch.float32)
        out = model(batch(), labels=labels)
        out.loss.backward()
        logits = out.logits if sparse else out.logits[labels != -100]
        results.append((out.loss, model.predictions.decoder.weight.grad, logits))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    ("kind", "more"), [(MaBertForTokenClassification, set()), (MaBertForSequenceClassification, {"pooled_logits"})]
)
def test_a_loss_of_ones_own_gets_what_transformers_heads_give_theirs(kind, more):
    model, given = build(kind, config(), dtype=torch.float32), {}
    model.loss_function = lambda **found: given.update(found) or found["logits"].sum()
    assert model(batch(), labels=batch()[:, 0] % 2).loss == given["logits"].sum()
    assert given.keys() == {"logits", "labels", "config"} | more


def test_kinds_of_labels():
    regression = build(MaBertForSequenceClassification, config(num_labels=1), dtype=torch.float32)
    out = regression(batch(), labels=torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(out.loss, ((out.logits[:, 0] - torch.tensor([0.5, 2.0])) ** 2).mean())
    several = build(MaBertForSequenceClassification, config(num_labels=3), dtype=torch.float32)
    labels = torch.tensor([[1.0, 0, 1], [0, 0, 1]])
    out = several(batch(), labels=labels)
    torch.testing.assert_close(out.loss, torch.nn.functional.binary_cross_entropy_with_logits(out.logits, labels))
    spans = build(MaBertForQuestionAnswering, config(), dtype=torch.float32)
    assert spans.qa_outputs.out_features == 2, "BERT's name, which PEFT trains beside the adapters"
    choice = build(MaBertForMultipleChoice, config(), dtype=torch.float32)
    tokens = torch.stack([batch(0), batch(1), batch(2)], dim=1)
    assert choice(tokens, labels=torch.tensor([2, 0])).logits.shape == (2, 3)


@pytest.mark.parametrize("kind", [MaBertForSequenceClassification, MaBertForMultipleChoice, MaBertForQuestionAnswering])
def test_trainer_averages_where_the_loss_does_not_count_items(kind):
    assert kind.accepts_loss_kwargs is False


@pytest.mark.parametrize("position", ["pre", "post"])
def test_what_attention_puts_out_is_gone_when_the_feed_forward_network_runs(position):
    (block,) = build(MaBertModel, config(layer_pattern="T", norm_position=position)).layers
    kept, alive = [], []
    block.attention.register_forward_hook(lambda module, args, output: kept.append(weakref.ref(output[0])))
    block.feed_forward.register_forward_pre_hook(lambda module, args: alive.append(kept[0]() is not None))
    with torch.no_grad():
        block(torch.ones(1, 3, 8, dtype=torch.float64), PaddingMask(None))
    assert alive == [False]


@pytest.mark.parametrize("letter", ["T", "M"])
@pytest.mark.parametrize("position", ["pre", "post"])
def test_what_all_sub_layers_put_out_is_dropped_and_the_residual_stays(position, letter):
    settings = config(layer_pattern=letter, norm_position=position)
    (block,) = build(MaBertModel, settings, dtype=torch.float32).train().layers
    block.dropout.p = 1.0
    hidden = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    left = hidden if position == "pre" else block.feed_forward_norm(block.mixer_norm(hidden))
    assert torch.equal(block(hidden, PaddingMask(None)), left)
