"""The configuration: schedules, derived fields, a round trip, and what it refuses."""

import json

import pytest
import torch
from transformers import AutoConfig

from mabert import SCHEDULES, MaBertConfig, MaBertModel
from mabert.model import expand_schedule
from mabert.model.config import LAYER_TYPES, make_config
from tests.model.helpers import MAKINGS, build, config


def test_the_defaults_are_mabert_base():
    base = MaBertConfig()
    assert base.layer_pattern == "MMT" * 4
    assert base.num_hidden_layers == 12
    assert base.layer_types == ["linear_attention", "linear_attention", "full_attention"] * 4
    assert (base.ssm_inner_size, base.ssm_dt_rank, base.head_size) == (1536, 48, 64)
    assert len(SCHEDULES) == len(set(SCHEDULES.values())) == 8
    assert all(len(letters) == 12 for letters in SCHEDULES.values())


def test_the_fast_preset_multiplies_less_a_layer_than_a_transformer():
    fast = MaBertConfig.fast(hidden_size=64, num_attention_heads=1, intermediate_size=256, layer_pattern="MT")
    mamba, transformer = MaBertModel(fast).layers
    counts = [
        sum(weight.numel() for weight in block.parameters() if weight.dim() == 2) for block in (mamba, transformer)
    ]
    kernels = fast.ssm_inner_size * (fast.ssm_conv_kernel + fast.ssm_state_size)  # which are no matrices of products
    small = fast.ssm_inner_size * (2 * fast.ssm_dt_rank + 2 * fast.ssm_state_size)
    assert [counts[0] - kernels - small, counts[1]] == [11 * 64**2, 12 * 64**2]
    assert MaBertConfig.fast(ssm_expand=3).ssm_expand == 3


@pytest.mark.parametrize(
    ("pattern", "depth", "letters"),
    [
        ("MMT", None, "MMT"),
        ("MMT*4", None, "MMT" * 4),
        ("ttm", None, "TTM" * 4),
        ("MMT", 7, "MMTMMTM"),
        ("mt", 3, "MTM"),
    ],
)
def test_schedules_are_written_out(pattern, depth, letters):
    made = config(layer_pattern=pattern, num_hidden_layers=depth)
    assert made.layer_pattern == letters
    assert made.num_hidden_layers == len(letters)


OTHER = {"layer_pattern": "MTM", "ssm_direction": "bidirectional", "pooling": "cls", "ssm_dt_rank": 3, "num_labels": 5}


@pytest.mark.parametrize("fields", [OTHER, *MAKINGS.values()])
def test_a_round_trip_keeps_everything(tmp_path, fields):
    made = config(**fields)
    made.save_pretrained(tmp_path)
    again = MaBertConfig.from_pretrained(tmp_path)
    assert again.to_dict() == made.to_dict()
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "mabert"


def test_a_folder_that_says_nothing_of_the_making_has_the_papers(tmp_path):
    model = build(MaBertModel, config(), dtype=torch.float32)
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    fields = json.loads(file.read_text())
    later = ("norm_position", "first_norm", "final_norm", "norm_bias", "attention_bias", "mlp_bias", "ssm_bias")
    later += ("embedding_size", "attention_window", "pooler_act", "pooler_norm", "normalize")
    file.write_text(json.dumps({name: value for name, value in fields.items() if name not in later}))
    again = MaBertModel.from_pretrained(tmp_path)
    assert again.config.to_dict() == {**model.config.to_dict(), "_name_or_path": str(tmp_path)}
    tokens = torch.arange(1, 7)[None]
    assert torch.equal(again(tokens).last_hidden_state, model(tokens).last_hidden_state)


def test_embeddings_are_as_wide_as_the_stack_unless_told_otherwise(tmp_path):
    config().save_pretrained(tmp_path)
    wider = MaBertConfig.from_pretrained(tmp_path, hidden_size=16)
    assert MaBertModel(wider).embeddings.projection is None
    narrow = config(embedding_size=5)
    assert MaBertModel(narrow).get_input_embeddings().weight.shape[1] == 5
    assert MaBertModel(config(embedding_size=8)).embeddings.projection is None


@pytest.mark.parametrize(
    ("pattern", "foreign"),
    [("", ""), ("MMX", "X"), ("YMMX*4", "X, Y"), ("mmtt", ""), ("MT*0", ""), ("M T", ""), ("MMT*", "")],
)
def test_other_letters_are_refused_by_name(pattern, foreign):
    with pytest.raises(ValueError, match="must be letters M and T") as refused:
        expand_schedule(pattern)
    assert foreign == "" or f"; {foreign} must first be added by mabert.register_mixer" in str(refused.value)
    assert ("register_mixer" in str(refused.value)) == bool(foreign)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ssm_state_size": 0}, "ssm_state_size is 0; it must be at least 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be at least 1"),
        ({"ssm_expand": 0.01}, "ssm_expand is 0.01; of hidden_size 8 it makes no channel"),
        ({"ssm_dt_min": 0.2}, "ssm_dt_min 0.2 and ssm_dt_max 0.1 must be positive and in that order"),
        ({"pooling": "max"}, "pooling"),
        ({"padding_safe_masking": "both"}, "padding_safe_masking"),
        ({"ssm_direction": "up"}, "ssm_direction"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"hidden_act": "foo"}, "hidden_act is 'foo'; transformers knows"),
        ({"pooler_act": "foo"}, "pooler_act is 'foo'; transformers knows"),
        ({"pooler_act": ""}, "pooler_act is ''; transformers knows"),
        ({"pooler_norm": True}, "pooler_norm is True, and pooler_act, the activation before that norm, is not given"),
        ({"embedding_size": 0}, "embedding_size is 0; it must be at least 1"),
        ({"embedding_size": "wide"}, "embedding_size is 'wide'; it must be a whole number or null"),
        ({"attention_window": [1]}, "attention_window is a list of 1; it must have 2 entries, one a layer"),
        ({"attention_window": []}, "attention_window is a list of 0; it must have 2 entries, one a layer"),
        ({"attention_window": [None, -1]}, r"attention_window\[1\] is -1; it must be at least 0"),
        ({"attention_window": [None, 1.5]}, r"attention_window\[1\] is 1.5; it must be a whole number or null"),
        ({"attention_window": [None, "wide"]}, r"attention_window\[1\] is 'wide'; it must be a whole number or null"),
        ({"attention_window": 4}, "attention_window is 4; it must be a list with one entry per layer or null"),
        ({"rotary_base": [10.0]}, "rotary_base is a list of 1; it must have 2 entries, one a layer"),
        ({"rotary_base": [10.0, 0]}, r"rotary_base\[1\] is 0; it must be above 0"),
        ({"rotary_base": [10.0, None]}, r"rotary_base\[1\] is None; it must be a number"),
        ({"norm_position": "between"}, "norm_position is 'between'; it must be one of 'pre', 'post'"),
        ({"final_norm": "no"}, "final_norm is 'no'; it must be true or false"),
        ({"hidden_dropout_prob": 2}, "hidden_dropout_prob is 2; it must be at least 0 and below 1"),
        ({"initializer_range": 1}, "initializer_range is 1; it must be a number written with a point, such as 1.0"),
        ({"initializer_range": -1}, "initializer_range is -1; it must be at least 0 and at most"),
        ({"layer_types": ["full_attention"]}, r"layer_types .* is not what layer_pattern 'MT' means"),
    ],
)
def test_values_out_of_range_are_named(fields, message):
    with pytest.raises(ValueError, match=message) as raised:
        make_config(**config().to_dict() | {"layer_types": None} | fields)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"num_hidden_layers": 2}, "MM"),
        ({"num_hidden_layers": 4}, "MMTM"),
        ({"layer_pattern": "mt"}, "MT" * 6),
        ({"layer_pattern": "TM*2"}, "TMTM"),
        ({"layer_pattern": "TM", "num_hidden_layers": 3}, "TMT"),
    ],
)
def test_a_saved_model_takes_another_schedule_as_it_is_opened(tmp_path, fields, pattern):
    build(MaBertModel, config(layer_pattern="MMT")).save_pretrained(tmp_path)
    for opened in (
        MaBertModel.from_pretrained(tmp_path, **fields).config,
        AutoConfig.from_pretrained(tmp_path, **fields),
    ):
        assert (opened.layer_pattern, opened.num_hidden_layers) == (pattern, len(pattern))
        assert opened.layer_types == [LAYER_TYPES[letter] for letter in pattern]


def test_overrides_are_checked_and_what_is_unused_comes_back(tmp_path):
    config().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="layer_pattern is 'XYZ'"):
        AutoConfig.from_pretrained(tmp_path, layer_pattern="XYZ")
    opened, unused = AutoConfig.from_pretrained(tmp_path, pooling="mean", other=1, return_unused_kwargs=True)
    assert (opened.pooling, unused) == ("mean", {"other": 1})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_attention_heads": 3}, "hidden_size 8 is not a multiple of num_attention_heads 3"),
        ({"num_attention_heads": 8, "position_embedding": "rotary"}, r"rotary positions need an even head size.* is 1"),
        *(
            (fields, r"layer_pattern .* and num_hidden_layers \d+ do not agree")
            for fields in ({"num_hidden_layers": 1}, {"layer_pattern": "mmt"}, {"layer_pattern": "MT*2"})
        ),
        *(
            ({name: [1, 2]}, f"{name} is a list of 2; it must have 3 entries, one a layer")
            for name in ("rotary_base", "attention_window")
        ),
    ],
)
def test_fields_that_were_set_one_by_one_must_agree(fields, message):
    changed = config(layer_pattern="MMT")
    for name, value in fields.items():
        setattr(changed, name, value)
    with pytest.raises(ValueError, match=message):
        MaBertModel(changed)
