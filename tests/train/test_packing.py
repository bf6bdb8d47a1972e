"""Packing under transformers' Trainer: no example lost, none padded, evaluation in several processes, resume to the
same bits."""

import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainingArguments

from mabert import MaBertForMaskedLM
from mabert.data.collate import FlatteningCollator
from mabert.data.mlm import MlmMasking
from mabert.files.reading import parse_json
from mabert.train.packing import PackingTrainer
from tests.model.helpers import build, config
from tests.patience import HANG
from tests.train.helpers import WORDS, in_two, on, tokenizer

TEXTS = [" ".join((WORDS * 2)[place : place + 1 + place % 9]) for place in range(30)]


def rows():
    words = tokenizer()
    return [{"input_ids": words(text)["input_ids"], "number": place} for place, text in enumerate(TEXTS)]


def trainer_of(folder, batch_tokens=40, masked=True, lengths=None, **arguments):
    words = tokenizer()
    torch.manual_seed(0)
    settings = config(vocab_size=len(words), hidden_dropout_prob=0.1, sparse_prediction=True)
    model = build(MaBertForMaskedLM, settings, dtype=torch.float32)
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True}
    told = TrainingArguments(str(folder), seed=1, per_device_eval_batch_size=4, **quiet, **arguments)
    collator = FlatteningCollator(MlmMasking(words, probability=0.5)) if masked else None
    how = {"train_dataset": rows(), "eval_dataset": rows()[:18], "data_collator": collator}
    return PackingTrainer(model, told, batch_tokens=batch_tokens, lengths=lengths, **how)


def test_every_epoch_has_every_text_once_and_no_padding(tmp_path):
    trainer = trainer_of(tmp_path, masked=False, num_train_epochs=3, save_strategy="no")
    trainer.train_dataset = [{**row, "labels": row["input_ids"]} for row in trainer.train_dataset]
    seen = []

    def watch(_, given, named):
        ids, mask = given[:2]
        assert mask is None
        seen.append([tuple(text.tolist()) for text in ids.squeeze(0).split(named["cu_seq_lens_q"].diff().tolist())])

    trainer.model.mabert.register_forward_pre_hook(watch, with_kwargs=True)
    trainer.train()
    texts = Counter(tuple(row["input_ids"]) for row in trainer.train_dataset)
    assert Counter(text for batch in seen for text in batch) == Counter({text: 3 * n for text, n in texts.items()})
    assert all(sum(map(len, batch)) <= 40 for batch in seen)
    assert trainer.state.global_step == len(seen)
    assert trainer.args.num_train_epochs == 1


def test_the_callers_arguments_stay_as_they_are(tmp_path):
    told = TrainingArguments(str(tmp_path), num_train_epochs=3, use_cpu=True, report_to=[])
    trainer = PackingTrainer(build(MaBertForMaskedLM, config()), told, train_dataset=rows())
    assert (told.num_train_epochs, trainer.epochs) == (3, 3)
    assert told.accelerator_config.even_batches


@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize("epochs", [0.1, 0.25, 0.5, 1, 1.5, 2.25])
def test_a_share_of_an_epoch_has_that_share_of_the_steps_rounded_up_as_by_trainer(tmp_path, epochs, accumulated):
    a_row = rows()[0]
    trainer = trainer_of(
        tmp_path, len(a_row["input_ids"]), num_train_epochs=epochs, gradient_accumulation_steps=accumulated
    )
    trainer.train_dataset = [a_row] * 12  # a batch each: all epochs are as long as Trainer takes them to be
    steps = math.ceil(len(trainer.batches()) / accumulated)
    assert steps == math.ceil(epochs * (12 // accumulated))
    whole = trainer_of(tmp_path, len(a_row["input_ids"]), num_train_epochs=math.ceil(epochs))
    whole.train_dataset = trainer.train_dataset
    assert list(trainer.batches()) == list(whole.batches())[: len(trainer.batches())]


def test_a_share_of_an_epoch_is_trained(tmp_path):
    trainer = trainer_of(tmp_path, num_train_epochs=0.3, gradient_accumulation_steps=2, save_strategy="no")
    whole = trainer_of(tmp_path, num_train_epochs=1, gradient_accumulation_steps=2)
    trainer.train()
    assert trainer.state.global_step == math.ceil(0.3 * math.ceil(len(whole.batches()) / 2)) < len(whole.batches()) / 2


def test_a_number_that_is_not_finite_is_null_in_a_checkpoint_and_itself_for_callbacks(tmp_path):
    seen = []
    trainer = trainer_of(tmp_path, max_steps=1, save_steps=1, logging_steps=1)
    trainer.add_callback(on("on_log", lambda logs, **_: seen.append(logs.get("grad_norm"))))
    trainer.model.predictions.decoder.bias.register_hook(lambda gradient: gradient * math.inf)
    trainer.train()
    state = (tmp_path / "checkpoint-1/trainer_state.json").read_text()
    assert not math.isfinite(seen[0])
    assert parse_json(state, "there")["log_history"][0]["grad_norm"] is None


@pytest.mark.parametrize("form", [np.array, torch.tensor, tuple, iter, lambda all: pd.Series(all, range(9, 39))])
def test_lengths_are_taken_in_any_form(tmp_path, form):
    counts, expected = [len(row["input_ids"]) for row in rows()], list(trainer_of(tmp_path).batches())
    given = trainer_of(tmp_path, lengths=form(counts))
    assert list(given.batches()) == expected


@pytest.mark.slow
def test_a_run_of_so_many_steps_has_as_many_epochs_as_it_needs(tmp_path):
    trainer = trainer_of(tmp_path, max_steps=40, save_strategy="no", gradient_accumulation_steps=2)
    trainer.train()
    assert trainer.state.global_step == 40
    assert len(trainer.batches()) >= 80 > len(trainer.batches()) // trainer.batches().epochs


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path):
    weights = []
    for resume in (None, str(tmp_path / "checkpoint-13")):
        trainer = trainer_of(tmp_path, num_train_epochs=4, save_steps=13)
        an_epoch = len(trainer.batches()) // 4
        assert an_epoch < 13 < 2 * an_epoch, "the checkpoint lies inside the second epoch"
        trainer.train(resume_from_checkpoint=resume)
        weights.append(trainer.model.state_dict())
    for name, weight in weights[0].items():
        assert torch.equal(weights[1][name], weight), name


EPOCH_BY_EPOCH = [
    *((name, {"num_train_epochs": 2}) for name in ("eval_strategy", "save_strategy", "logging_strategy")),
    ("eval_strategy", {"max_steps": 5}),
]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"num_train_epochs": 0}, "num_train_epochs is 0; it must be above 0"),
        ({"num_train_epochs": -1.0}, "num_train_epochs is -1; it must be above 0"),
        ({"lengths": [3, 4]}, "lengths has 2 numbers, and train_dataset 30 examples"),
        *(({name: "epoch", **how}, f"{name} is 'epoch', and all epochs are one") for name, how in EPOCH_BY_EPOCH),
    ],
)
def test_what_cannot_be_trained_so_is_refused(tmp_path, asked, told):
    with pytest.raises(ValueError, match=told):
        trainer_of(tmp_path, **asked).train()


def test_a_stream_of_examples_is_refused(tmp_path):
    trainer = trainer_of(tmp_path, max_steps=5)
    trainer.train_dataset = iter(rows())
    with pytest.raises(ValueError, match="train_dataset has no length"):
        trainer.get_train_dataloader()


def test_decay_spares_what_pretraining_spares(tmp_path):
    names = trainer_of(tmp_path).get_decay_parameter_names(trainer_of(tmp_path).model)
    assert any(name.endswith("in_proj.weight") for name in names)
    assert not any(name.endswith(("A_log", ".D", "bias")) for name in names)


def part_of_two(folder, resume=None):
    """One of two processes: trains with evaluations on the way, writes what it came to."""
    trainer = trainer_of(folder, num_train_epochs=3, save_steps=5, eval_strategy="steps", eval_steps=3)
    seen = []
    trainer.model.mabert.register_forward_pre_hook(
        lambda module, given: seen.append(given[0].shape[1]) if module.training else None
    )
    trainer.train(resume_from_checkpoint=resume)
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    end = {
        "losses": losses,
        "batches": len(seen),
        "tokens": sum(seen),
        "weight": trainer.model.predictions.decoder.bias.tolist(),
    }
    (folder / f"of-{trainer.args.process_index}{'-resumed' if resume else ''}.json").write_text(json.dumps(end))


def both_parts(folder):
    """All that one of two processes does."""
    part_of_two(folder)
    part_of_two(folder, f"{folder}/checkpoint-5")
    six_steps(folder / "copies").accelerator.end_training()


@pytest.fixture(scope="module")
def by_two(tmp_path_factory):
    """A folder with what two processes trained, which take long to start."""
    folder = tmp_path_factory.mktemp("two")
    in_two(both_parts, folder)
    return folder


@pytest.mark.slow
def test_two_processes_share_the_texts_evaluate_on_the_way_and_resume_to_the_same_bits(by_two):
    first, second, again = (json.loads((by_two / f"of-{name}.json").read_text()) for name in ("0", "1", "0-resumed"))
    assert first["batches"] == second["batches"]
    assert first["losses"] == second["losses"]
    assert len(first["losses"]) == math.ceil(first["batches"] / 3) > 2, "every third batch and the last one"
    left_out = 3 * sum(len(row["input_ids"]) for row in rows()) - first["tokens"] - second["tokens"]
    assert 0 <= left_out <= 40, "a batch at most has no process left for it"
    assert first["weight"] == second["weight"] == again["weight"]
    assert again["batches"] == first["batches"] - 5


AS_ON_GPUS = """
import sys
import torch
from accelerate import PartialState
from accelerate.utils import DistributedType

# accelerate shards on accelerators alone, and trains whole copies on CPUs: they pass for GPUs.
PartialState._prepare_backend = lambda *_: ("gloo", DistributedType.MULTI_GPU)
PartialState.set_device = lambda state: setattr(state, "device", torch.device("cpu"))
torch.distributed.init_process_group("gloo")

from tests.train.test_packing import six_steps
output, resumed = sys.argv[1:]
six_steps(output, sharded=True)
six_steps(resumed, output + "/checkpoint-3", sharded=True).accelerator.end_training()
"""


def six_steps(output, resume=None, sharded=False):
    """Trains in one of two processes, and saves the model."""
    # The keys' bias has no gradient but rounding, of which Adam with its small epsilon makes whole steps.
    trainer = trainer_of(output, max_steps=6, save_steps=3, adam_epsilon=1e-5)
    trainer.train(resume_from_checkpoint=resume)
    kinds = {type(held).__name__ for held in trainer.model.parameters()}
    assert (kinds == {"DTensor"}) == trainer.is_fsdp_enabled == sharded
    trainer.save_model(f"{output}/end")
    return trainer


@pytest.mark.slow
def test_shards_by_the_configuration_of_the_guide_train_the_model_of_whole_copies_and_resume(by_two, tmp_path):
    page = (Path(__file__).parents[2] / "docs/many-machines.md").read_text(encoding="utf-8")
    (settings,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "fsdp.yaml").write_text(settings, encoding="utf-8")
    (tmp_path / "program.py").write_text(AS_ON_GPUS)
    launcher = ["accelerate.commands.launch", "--num_processes=2", "--main_process_port=0"]
    told = [f"--config_file={tmp_path / 'fsdp.yaml'}", tmp_path / "program.py", tmp_path / "shards"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *launcher, *map(str, told), str(tmp_path / "resumed")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=HANG)
    assert done.returncode == 0, done.stderr
    places = by_two / "copies", tmp_path / "shards", tmp_path / "resumed"
    copies, shards, resumed = (load_file(place / "end/model.safetensors") for place in places)
    for name, value in copies.items():
        torch.testing.assert_close(shards[name], value)
        assert torch.equal(resumed[name], shards[name]), name
