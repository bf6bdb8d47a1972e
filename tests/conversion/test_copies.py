"""A conversion that keeps every layer gives what the teacher gives; what MaBERT does not know is refused."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, BertForSequenceClassification

from mabert.conversion import teacher as opening
from mabert.conversion.families import TEACHERS
from mabert.conversion.teacher import (
    check_copy,
    load_teacher,
    open_teacher,
    student_of,
    use_of,
    weights_hash,
)
from mabert.files.places import Place
from mabert.opening.opened import Opened
from tests.conversion.helpers import FAMILIES, OWN_HEAD, PAD, USES, VOCABULARY, teacher

ACTS = ["gelu", "relu", "silu", "gelu_new"]
ROUNDING = 1e-5
"""Share of the teacher's largest output, in float32."""


@st.composite
def cases(draw, kind, use):
    """A random teacher and a batch with padding on the right: ids, segments or None, and the mask."""
    heads = draw(st.sampled_from([1, 2, 3]))
    sizes = {
        "heads": heads,
        "width": heads * draw(st.sampled_from([4, 6, 8])),
        "depth": draw(st.integers(1, 4)),
        "inner": draw(st.integers(3, 30)),
        "positions": draw(st.integers(6, 40)),
        "eps": draw(st.sampled_from([1e-12, 1e-5, 1e-3])),
        "seed": draw(st.integers(0, 1000)),
    }
    if kind == "distilbert":
        sizes["eps"] = PAD  # which it has no field for
    own = use == "masked_lm" and kind in OWN_HEAD | {"modernbert"}
    sizes["act"] = "gelu" if own else draw(st.sampled_from(ACTS))
    more = {}
    if use == "classifier":
        more["num_labels"] = draw(st.integers(1, 4))
    if kind == "modernbert":
        flags = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias")
        more |= {name: draw(st.booleans()) for name in flags[:3]}
        more |= {"local_attention": draw(st.sampled_from([4, 8, 64]))}
        more |= {"global_attn_every_n_layers": draw(st.integers(1, 3))}
        more |= {"classifier_pooling": draw(st.sampled_from(["cls", "mean"]))}
        more |= {"classifier_activation": sizes["act"] if own else draw(st.sampled_from(ACTS))}
    lengths = torch.tensor(draw(st.lists(st.integers(1, sizes["positions"]), min_size=1, max_size=3)))
    rng = torch.Generator().manual_seed(sizes["seed"])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    ids = torch.randint(PAD + 1, VOCABULARY, mask.shape, generator=rng).masked_fill(~mask, PAD)
    batch = {"input_ids": ids, "attention_mask": mask.long()}
    if kind in ("bert", "electra") and draw(st.booleans()):
        batch["token_type_ids"] = torch.randint(0, 2, mask.shape, generator=rng)
    return teacher(kind, use, more=more, **sizes), batch


@torch.no_grad()
def outputs(model, batch):
    """The first output; of token vectors, those of tokens."""
    first = model(**batch)[0]
    return first[batch["attention_mask"] > 0] if first.dim() == 3 else first


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", FAMILIES)
@settings(max_examples=6)
@given(st.data())
def test_a_copy_that_keeps_every_layer_gives_the_teachers_outputs(kind, use, data):
    model, batch = data.draw(cases(kind, use))
    copy = check_copy(model, use)
    # A norm over three features enlarges float32's rounding without bound. In float64 only ModernBERT's rotary
    # positions, which transformers applies in float32, leave any of it. A classifier's one number may be near zero, so
    # outputs below 1 count as 1.
    theirs, ours = outputs(model.double(), batch), outputs(copy.double(), batch)
    bound = 1e-6 if kind == "modernbert" else 1e-13
    assert (ours - theirs).abs().max() <= bound * theirs.abs().max().clamp(min=1)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", FAMILIES)
def test_no_name_of_a_table_can_be_left_out(monkeypatch, kind, use):
    model, family = teacher(kind, use), TEACHERS[kind]
    table = "encoder" if use == "encoder" else use
    names = getattr(family, table)
    assert names
    for name in names:
        less = dataclasses.replace(family, **{table: {each: to for each, to in names.items() if each != name}})
        monkeypatch.setitem(TEACHERS, kind, less)
        with pytest.raises(ValueError, match=r"has no weight for|has a setting that cannot be converted"):
            check_copy(model, use)


@pytest.mark.parametrize("kind", FAMILIES)
def test_two_names_of_a_table_cannot_be_exchanged(monkeypatch, kind):
    model, family = teacher(kind), TEACHERS[kind]
    shapes = {name: tuple(weight.shape) for name, weight in student_of(model, "encoder").state_dict().items()}

    def shape(to):
        return "*" in to, shapes[f"{to.replace('*', '1')}.weight"]

    single = {name: to for name, to in family.encoder.items() if isinstance(to, str) and "projection" not in to}
    alike = [(a, b) for a in single for b in single if a < b and shape(single[a]) == shape(single[b])]
    assert alike
    for first, second in alike:
        swapped = {**family.encoder, first: single[second], second: single[first]}
        monkeypatch.setitem(TEACHERS, kind, dataclasses.replace(family, encoder=swapped))
        with pytest.raises(ValueError, match=r"the copy differs from it by|has no weight for"):
            check_copy(model, "encoder")


def test_the_parts_of_a_weight_that_is_cut_cannot_be_exchanged(monkeypatch):
    family = TEACHERS["modernbert"]
    query, key, value = family.encoder["layers.*.attn.Wqkv"]
    for wrong in ((key, query, value), (value, key, query)):
        changed = dataclasses.replace(family, encoder={**family.encoder, "layers.*.attn.Wqkv": wrong})
        monkeypatch.setitem(TEACHERS, "modernbert", changed)
        with pytest.raises(ValueError, match="differs from it by"):
            check_copy(teacher("modernbert"), "encoder")


ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


@pytest.mark.parametrize(
    ("kind", "use", "options", "message"),
    [
        *((kind, "masked_lm", {"act": "relu"}, f"this {kind} has a setting") for kind in sorted(OWN_HEAD)),
        *((kind, "encoder", {"more": {"is_decoder": True}}, "a setting") for kind in ("bert", "roberta", "electra")),
        ("modernbert", "encoder", {"more": {"rope_parameters": ROPES}}, r"rope_parameters are .*: .*scaled"),
    ],
)
def test_a_setting_that_mabert_does_not_know_is_refused(kind, use, options, message):
    with pytest.raises(ValueError, match=f"{message}.*cannot be converted") as refused:
        check_copy(teacher(kind, use, **options), use)
    assert "\n" not in str(refused.value)
    if "act" in options:
        check_copy(teacher(kind, "encoder", **options), "encoder")


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_teacher_is_opened_from_its_folder_with_its_head(tmp_path, kind, use):
    model = teacher(kind, use)
    model.save_pretrained(tmp_path)
    opened = open_teacher(tmp_path)
    assert open_teacher(opened) is opened
    loaded = load_teacher(opened)
    assert type(loaded) is type(model)
    assert use_of(opened) == use
    copy = check_copy(loaded, use)
    copy.save_pretrained(tmp_path / "copy")
    assert (tmp_path / "copy/model.safetensors").is_file()


def test_labels_tokens_and_problem_type_are_kept():
    labels = {"id2label": {0: "x", 1: "y"}, "label2id": {"x": 0, "y": 1}, "problem_type": "multi_label_classification"}
    config = check_copy(teacher("bert", "classifier", more=labels), "classifier").config
    assert config.id2label == labels["id2label"]
    assert config.label2id == labels["label2id"]
    assert config.problem_type == "multi_label_classification"
    assert config.pad_token_id == PAD


@pytest.mark.parametrize(
    ("kind", "name", "use"),
    [
        ("bert", "BertForPreTraining", "masked_lm"),
        ("electra", "ElectraForPreTraining", "encoder"),
        ("bert", None, "encoder"),
    ],
)
def test_what_a_teacher_is_for_is_told_by_its_class(tmp_path, kind, name, use):
    config = AutoConfig.for_model(kind)
    config.architectures = name and [name]
    assert use_of(Opened(Place("teacher", tmp_path, {}), config)) == use


def test_the_hash_of_weights_does_not_depend_on_the_file_and_tells_models_apart(tmp_path):
    model = teacher("bert", "classifier")
    own = weights_hash(model)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert weights_hash(load_teacher(open_teacher(tmp_path))) == own
    with torch.no_grad():
        model.classifier.bias[0] += 1e-3
    assert isinstance(model, BertForSequenceClassification)
    assert weights_hash(model) != own


def test_difference_sees_padding_and_lengths_beyond_a_window():
    model = teacher("modernbert", more={"local_attention": 8})
    copy = student_of(model, "encoder")
    assert opening.difference(model, copy) <= ROUNDING
    for block in copy.layers:
        window = block.attention.window
        if window is not None:
            block.attention.window = window + 1
    assert opening.difference(model, copy) > ROUNDING
