"""Every number of every recipe, configuration and option has a range, and what is out of it is refused in one line,
before anything is allocated."""

import argparse
import dataclasses
import json
import shutil
import typing
from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, BertModel

from mabert import MaBertConfig
from mabert.cli import parser
from mabert.machine import memory
from mabert.schema.ranges import RANGES
from mabert.train.recipe import DataRecipe, MaskingRecipe, TrainingRecipe
from mabert_lab.cli import COMMANDS
from tests.bad_input.conftest import hashes

HOSTILE = [".nan", ".inf", "-.inf", "-1", "1" * 30, "1e400", "null", "[1]", "yes", "1" * 5000]


def test_every_number_of_the_configuration_has_a_range():
    own = {
        field.name: field.type
        for field in dataclasses.fields(MaBertConfig)
        if field.name in MaBertConfig.__annotations__
    }
    named = {name for name, hint in own.items() if hint in (int, float) or {int, float} & set(typing.get_args(hint))}
    rest = {name for name in named - set(RANGES) if "dropout" not in name}
    assert rest == {"pad_token_id"}, "whose range is the vocabulary's"


def test_every_number_of_an_option_has_a_range():
    def options(top):
        for action in top._actions:
            if isinstance(action, argparse._SubParsersAction):
                for each in action.choices.values():
                    yield from options(each)
            elif action.type in (int, float):
                yield f"{top.prog} {action.dest}"

    assert list(options(parser(COMMANDS))) == []


FIELDS = [
    *(f"data.{field.name}" for field in dataclasses.fields(DataRecipe) if field.name in ("held_out", "max_tokens")),
    *(f"masking.{field.name}" for field in dataclasses.fields(MaskingRecipe) if field.name != "whole_word"),
    *(
        f"training.{name}"
        for name, hint in typing.get_type_hints(TrainingRecipe).items()
        if {int, float} & {hint, *typing.get_args(hint)}
    ),
    *(f"model.{name}" for name in MaBertConfig.__annotations__ if name in RANGES),
    "model.hidden_dropout_prob",
    "model.pad_token_id",
]
MAY_BE_NULL = ("data.max_tokens", "training.eval_steps", "training.save_steps", "training.log_steps")
MAY_BE_NULL += ("model.num_hidden_layers", "model.ssm_dt_rank", "model.pad_token_id")
MAY_BE_NULL += ("model.embedding_size", "model.attention_window")


@pytest.mark.parametrize("field", FIELDS)
def test_a_recipe_with_a_number_that_cannot_be_meant_is_refused(made, tmp_path, refused, field):
    for value in HOSTILE:
        if (value == "null" and field in MAY_BE_NULL) or (value == "1" * 30 and field == "training.learning_rate"):
            continue
        told = refused("pretrain", made / "plan.yaml", f"{field}={value}", "-o", tmp_path / "run")
        assert field.rpartition(".")[2] in told, value
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "field",
    [
        "training.workers=100000",
        "training.batch_size=1000000000",
        "training.micro_batch_size=1000000000",
        "training.steps=10000000000",
        "model.layer_pattern=M*99999999",
        f"model.layer_pattern={'MT' * 5000}",
        f"model.layer_pattern=M*{'9' * 5000}",
        "model.layer_pattern=",
        "model.num_hidden_layers=100000000",
        "model.hidden_size=1000000000",
        "model.vocab_size=1000000000000",
        "model.ssm_expand=0",
        "model.ssm_expand=0.001",
        "stages=[{length: 99999999999, share: 1}]",
        "stages=[{length: 12, share: .nan}]",
        "model.pad_token_id=99999",
    ],
)
def test_a_size_that_nobody_can_mean_is_refused_by_its_name(made, tmp_path, refused, field):
    told = refused("pretrain", made / "plan.yaml", field, "-o", tmp_path / "run")
    name = field.partition("=")[0].replace("stages", "length" if "length: 99" in field else "share")
    assert f"{name.rpartition('.')[2]} is " in told
    assert "Error" not in told


@pytest.mark.parametrize("family", ["bert", "albert", "longformer", "bigbird", "deberta", "modernbert"])
def test_other_families_have_the_same_ranges(made, tmp_path, refused, family):
    for field in (
        "hidden_size=1000000000",
        "layer_pattern=M*99999999",
        "initializer_range=-1",
        "initializer_range=often",
        "vocab_size=1000000000000",
    ):
        told = refused("pretrain", made / "plan.yaml", "--model", family, f"model.{field}", "-o", tmp_path / "run")
        assert field.partition("=")[0] in told


@pytest.mark.parametrize("command", ["embed", "predict", "info", "finetune", "extend"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pad_token_id", 99999),
        ("pad_token_id", -1),
        ("initializer_range", -1.0),
        ("vocab_size", 10**12),
        ("hidden_size", 10**9),
        ("layer_pattern", "M*99999999"),
        ("num_hidden_layers", 10**8),
        ("num_labels", 10**9),
        ("layer_norm_eps", -1.0),
        ("id2label", ["no", "yes"]),
        ("id2label", {"0": "no", "5": "yes"}),
    ],
)
def test_a_configuration_that_torch_would_refuse_is_refused_by_file_and_field(
    made, tmp_path, refused, command, name, value
):
    model = shutil.copytree(made / "tuned/seed-0", tmp_path / "model")
    more = {
        "info": [],
        "finetune": ["--train", made / "classes.csv", "-o", tmp_path / "new"],
        "extend": ["--length", "99", "-o", tmp_path / "new"],
    }
    content = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**content, name: value}))
    before = hashes(tmp_path)
    told = refused(command, model, *more.get(command, [made / "classes.csv"]))
    assert f"{model / 'config.json'}: {name} is {value!r}; it must" in told
    assert hashes(tmp_path) == before


def test_a_configuration_of_another_family_too(made, tmp_path, refused):
    tiny = BertConfig(vocab_size=99, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    BertModel(tiny).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    for name, value in (("pad_token_id", 99999), ("initializer_range", -1.0), ("hidden_dropout_prob", 2.0)):
        (tmp_path / "config.json").write_text(json.dumps({**content, name: value}))
        told = refused("embed", tmp_path, made / "classes.csv")
        assert f"{tmp_path / 'config.json'}: {name} is {value}; it must" in told


OPTIONS = {
    "finetune": "--seeds --learning-rate --epochs --batch-size --batch-tokens --dropout --max-length",
    "convert": "--tokens --length --expand --end-to-end --seed --batch-tokens",
    "embed": "--max-length --batch-tokens",
    "fill-mask": "--top --batch-tokens",
    "extend": "--length",
    "bench models": "--limit --budget --lengths",
    "study drift": "--limit --padding",
    "study pattern": "--seeds --conversions",
}


@pytest.mark.parametrize(("command", "option"), [(name, each) for name in OPTIONS for each in OPTIONS[name].split()])
def test_an_option_with_a_number_that_cannot_be_meant_is_refused(refused, command, option):
    large = "9" * (50 if option == "--learning-rate" else 20)
    for value in ("nan", "inf", "-1", large, "9" * 5000, "0x1", "0-99999999999", ""):
        told = refused(*command.split(), f"{option}={value}")
        assert f"{option}: " in told or f"{option} is " in told, value


def test_what_is_trained_on_a_gpu_must_fit_its_memory_alone(monkeypatch):
    monkeypatch.setattr(memory, "memory_left", lambda: 0)
    on_gpu = {"mem_get_info": (3 << 30, 8 << 30), "memory_reserved": 2 << 30, "memory_allocated": 1 << 30}
    for name, value in on_gpu.items():
        monkeypatch.setattr(f"torch.cuda.{name}", lambda device, value=value: value)
    gpu = torch.device("cuda")
    memory.check_fits("the model", 1 << 28, 4, 3 << 30, device=gpu)
    with pytest.raises(ValueError, match=r"4\.0 GiB of GPU memory; 4\.0 GiB are free"):
        memory.check_fits("the model", (1 << 28) + 1, 16, device=gpu)


WIDE = ("model.hidden_size=4096", "model.intermediate_size=65536")
MANY = (*WIDE, "training.micro_batch_size=1048576", "training.batch_size=1048576")


@pytest.mark.parametrize(
    ("field", "more", "less", "sized", "before", "share"),
    [
        ("training.optimizer", "adamw", "adafactor", WIDE, "at least ", 2),
        ("data.windows", "packed", "document", MANY, "memory, ", 24),  # tokens of a window
    ],
)
def test_what_needs_less_memory_is_known(made, tmp_path, refused, monkeypatch, field, more, less, sized, before, share):
    monkeypatch.setattr(memory, "memory_left", lambda: 0)
    needed = []
    for value in (more, less):
        told = refused("pretrain", made / "plan.yaml", "-o", tmp_path / "run", *sized, f"{field}={value}")
        needed.append(float(told.split(before)[1].split(" GiB")[0].replace(",", "")))
    assert needed[0] == pytest.approx(share * needed[1], rel=0.01)


def test_training_asks_the_memory_of_the_device_that_it_is_to_run_on(made, tmp_path, refused, monkeypatch):
    gpu = torch.device("cuda")
    monkeypatch.setattr(memory, "gpu_memory_left", lambda device: int(device == gpu))
    monkeypatch.setattr("transformers.TrainingArguments.device", gpu)
    assert "GiB of GPU memory" in refused("pretrain", made / "plan.yaml", "-o", tmp_path / "run")
    alone = SimpleNamespace(num_processes=1, is_main_process=True, device=gpu)
    monkeypatch.setattr("mabert.train.finetune_run.join_processes", lambda: alone)
    tune = ["finetune", made / "run", "--train", made / "classes.csv", "-o", tmp_path / "tuned"]
    assert "GiB of GPU memory" in refused(*tune)


def test_what_the_memory_cannot_hold_is_refused_before_it_is_allocated(made, tmp_path, refused, monkeypatch):
    monkeypatch.setattr(memory, "memory_left", lambda: 1 << 30)
    pretrain = ["pretrain", made / "plan.yaml", "-o", tmp_path / "run"]
    told = refused(*pretrain, "model.hidden_size=4096", "model.intermediate_size=65536")
    assert "GiB of memory" in told
    assert "1.0 GiB are free" in told
    told = refused(*pretrain, "training.micro_batch_size=1048576", "training.batch_size=1048576")
    assert "GiB of it for a batch" in told
    model = shutil.copytree(made / "tuned/seed-0", tmp_path / "model")
    content = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**content, "hidden_size": 8192, "intermediate_size": 2**20}))
    for command in ("embed", "predict", "info"):
        told = refused(command, model, *([] if command == "info" else [made / "classes.csv"]))
        assert f"the model that {model} describes has" in told
        assert "1.0 GiB are free" in told
    assert "the longer model" in refused("extend", made / "run", "--length", 2**24, "-o", tmp_path / "longer")
