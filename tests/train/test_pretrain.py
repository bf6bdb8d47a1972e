"""Pretraining runs: they learn, resume to the bit, stop on divergence and on Ctrl-C, and never spoil a folder."""

import json
import math
import os
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from mabert import MaBertForMaskedLM
from mabert.data.tokenizer import fingerprint
from mabert.train import callbacks, trainer
from mabert.train import pretrain as pretraining
from mabert.train.folder import RunFolder
from mabert.train.objective import decay_parameter_names
from mabert.train.pretrain import pretrain
from mabert.train.pretrain_run import model_config, prepare_data
from mabert.train.recipe import recipe_of_run
from mabert.train.trainer import TrainingDivergedError
from tests.train.helpers import (
    At,
    corpus,
    in_two,
    kill_at,
    must_part,
    on,
    recipe,
    same_weights,
    stop_at,
    tokenizer,
    too_much,
    weights,
)


def go(plan, output, **options):
    return pretrain(plan, output, tokenizer=tokenizer(), progress=False, **options)


def of_documents(plan):
    """Windows that never cross a document, and so are of many lengths."""
    plan.data.windows = "document"
    return plan


def without_dropout(plan):
    plan.model |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return plan


def same_course(a, b):
    """Equal up to rounding, which the optimizer's division by tiny variances blows up from step to step."""
    assert a["outcome"]["tokens"] == b["outcome"]["tokens"]
    assert a["outcome"]["held_out_loss"] == pytest.approx(b["outcome"]["held_out_loss"], rel=2e-3)
    a, b = ([entry for entry in run["outcome"]["history"] if "loss" in entry] for run in (a, b))
    assert a[0]["loss"] == pytest.approx(b[0]["loss"], rel=1e-6)
    assert a[0]["grad_norm"] == pytest.approx(b[0]["grad_norm"], rel=1e-5)
    assert [x["loss"] for x in a] == pytest.approx([x["loss"] for x in b], rel=2e-3)


@pytest.mark.slow
def test_a_run_learns_and_leaves_a_model_and_a_record(tmp_path):
    plan = recipe(tmp_path, steps=60, warmup_steps=4, eval_steps=60, save_steps=60, eval_windows=64)
    outcome = go(plan, tmp_path / "run")["outcome"]
    assert outcome["held_out_loss"] < math.log(len(tokenizer())) - 0.5
    assert 0.1 < outcome["held_out_accuracy"] <= 1
    assert 0.99 < outcome["tokens"] / (8 * (45 * 12 + 15 * 24)) <= 1
    assert json.loads((tmp_path / "run/result.json").read_text())["seed"] == 0
    assert list((tmp_path / "run/tensorboard").iterdir())
    assert type(AutoModelForMaskedLM.from_pretrained(tmp_path / "run")).__name__ == "MaBertForMaskedLM"
    assert len(AutoTokenizer.from_pretrained(tmp_path / "run")("bird " * 99, truncation=True)["input_ids"]) == 24
    assert not list((tmp_path / "run").rglob("*.bin"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "training"),
    [(6, {"precision": "bf16"}), (10, {"packing": "pack"}), (11, {"optimizer": "adafactor", "schedule": "wsd"})],
)
def test_interrupted_and_resumed_ends_with_the_same_bits(tmp_path, step, training, capfd):
    plan = recipe(tmp_path, **training)
    go(plan, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt, match=rf"checkpoint-{step + 1}.*--resume"):
        go(plan, tmp_path / "broken", callbacks=[stop_at(step)])
    assert "mabert: ends this step, saves and stops; Ctrl-C again stops at once" in capfd.readouterr().err
    assert not (tmp_path / "broken/model.safetensors").exists()
    go(plan, tmp_path / "broken", resume=True)
    same_weights(tmp_path / "whole", tmp_path / "broken")


def test_an_interrupt_is_saved_where_nobody_reads_of_it_any_more(tmp_path, monkeypatch):
    monkeypatch.setattr(callbacks.os, "write", Mock(side_effect=OSError(5, "Input/output error")))
    with pytest.raises(KeyboardInterrupt, match="checkpoint-4"):
        go(recipe(tmp_path), tmp_path / "run", callbacks=[stop_at(3)])
    assert (tmp_path / "run/checkpoint-4").is_dir()


@pytest.mark.slow
def test_a_run_that_was_killed_between_its_checkpoints_goes_on_from_the_clocks_to_the_same_bits(tmp_path, monkeypatch):
    plan = recipe(tmp_path, save_steps=4, keep_checkpoints=2)
    go(plan, tmp_path / "whole")
    monkeypatch.setattr(trainer.MaBertTrainer, "save_seconds", 0.0)

    def kept():
        return {int(path.name.removeprefix("checkpoint-")) for path in (tmp_path / "run").glob("checkpoint-*")}

    with pytest.raises(SystemError, match="killed"):
        go(plan, tmp_path / "run", callbacks=[kill_at(10)])
    assert kept() == {4, 8, 10}, "those by the clock are one, and push none out"
    later = recipe(tmp_path, save_steps=5, keep_checkpoints=2)
    with pytest.raises(SystemError, match="killed"):
        go(later, tmp_path / "run", resume=True, callbacks=[kill_at(11)])
    assert kept() == {4, 8, 11}, "those that count stay, whatever is asked for later"
    go(plan, tmp_path / "run", resume=True)
    assert kept() == {8, 12}
    same_weights(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
def test_the_micro_batch_changes_nothing_but_rounding(tmp_path):
    runs = [go(without_dropout(recipe(tmp_path, micro_batch_size=size)), tmp_path / f"run-{size}") for size in (8, 2)]
    same_course(*runs)


@pytest.mark.slow
def test_packing_changes_nothing_but_rounding_and_only_tokens_are_counted(tmp_path):
    ways = ("none", "unpad", "pack")
    plans = [of_documents(without_dropout(recipe(tmp_path, packing=way))) for way in ways]
    first, *others = (go(plan, tmp_path / way) for plan, way in zip(plans, ways, strict=True))
    for run, way in zip(others, ways[1:], strict=True):
        same_course(first, run)
        assert AutoModelForMaskedLM.from_pretrained(tmp_path / way).config.unpad == "auto"
    stream = prepare_data(
        plans[0], plans[0].steps_by_length(), plans[0].data.readable(), tokenizer(), progress=False
    ).stream
    assert first["outcome"]["tokens"] == sum(len(stream[i]["input_ids"]) for i in range(12 * 8))


@pytest.mark.parametrize(("packing", "unpad"), [("none", "never"), ("unpad", "auto"), ("pack", "auto")])
def test_padding_is_run_or_taken_out_as_asked(tmp_path, packing, unpad):
    assert model_config(recipe(tmp_path, packing=packing), tokenizer()).unpad == unpad


def test_going_on_needs_no_field_a_second_time_and_refuses_other_text(tmp_path):
    plan = recipe(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        go(plan, tmp_path / "run", callbacks=[stop_at(6)])
    assert recipe_of_run(tmp_path / "run") == plan
    assert recipe_of_run(tmp_path / "run", ["training.workers=1"]).training.workers == 1
    assert RunFolder(tmp_path / "run", resume=True).resolved()["vocabulary"] == fingerprint(tokenizer())
    with pytest.raises(ValueError, match="holds no run to resume"):
        recipe_of_run(tmp_path)
    corpus(tmp_path / "text.txt", seed=1)
    with pytest.raises(ValueError, match=r"another run; it differs in resolved.corpus"):
        go(plan, tmp_path / "run", resume=True)


@pytest.mark.slow
def test_seconds_count_every_start(tmp_path):
    plan, slow = recipe(tmp_path), on("on_step_end", lambda **_: time.sleep(0.1))
    with pytest.raises(KeyboardInterrupt):
        go(plan, tmp_path / "run", callbacks=[stop_at(6), slow])
    assert go(plan, tmp_path / "run", resume=True, callbacks=[slow])["seconds"] >= 1.2


def test_the_optimizer_is_what_the_recipe_says(tmp_path):
    seen = {}

    def look(optimizer, model, **_):
        groups = optimizer.param_groups
        seen["decay"] = [(group["weight_decay"], group["betas"], group["eps"]) for group in groups]
        named = {id(parameter): name for name, parameter in model.named_parameters()}
        seen["names"] = [{named[id(parameter)] for parameter in group["params"]} for group in groups]
        seen["kind"] = type(optimizer.optimizer).__name__

    plan = recipe(tmp_path, adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-5, weight_decay=0.3)
    go(plan, tmp_path / "run", callbacks=[on("on_train_begin", look)])
    assert "AdamW" in seen["kind"]
    assert seen["decay"] == [(0.3, (0.8, 0.95), 1e-5), (0.0, (0.8, 0.95), 1e-5)]
    assert seen["names"][0] == set(decay_parameter_names(MaBertForMaskedLM(model_config(plan, tokenizer()))))


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("linear", [(10 - step) / 10 for step in range(10)]),
        ("constant", [1.0] * 10),
        ("cosine", [(1 + math.cos(math.pi * step / 10)) / 2 for step in range(10)]),
        ("wsd", [1.0] * 21 + [0.5]),
    ],
)
def test_schedules_differ_after_warm_up_alone(tmp_path, schedule, shares):
    rates = []
    look = on("on_step_begin", lambda lr_scheduler, **_: rates.append(lr_scheduler.get_last_lr()[0]))
    go(recipe(tmp_path, schedule=schedule, steps=2 + len(shares)), tmp_path / "run", callbacks=[look])
    assert rates == pytest.approx([1e-2 * share for share in (0.0, 0.5, *shares)])


def test_a_folder_with_another_run_is_left_alone_and_a_finished_one_is_not_run_again(tmp_path, caplog):
    plan = recipe(tmp_path, steps=2)
    first, before = go(plan, tmp_path / "run"), (tmp_path / "run/model.safetensors").read_bytes()
    assert "training.warmup_steps is 2, training.steps 2: the learning rate never reaches its peak" in caplog.text
    assert (
        "the held-out loss is of 7 tokens alone, which says little; a larger data.held_out (now 0.1) helps"
        in caplog.text
    )
    with pytest.raises(ValueError, match=r"already holds files.*--resume"):
        go(plan, tmp_path / "run")
    with pytest.raises(ValueError, match=r"another run.*training.steps: 2 there, 4 here"):
        go(recipe(tmp_path, steps=4), tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="no run to resume"):
        go(recipe(tmp_path, steps=4), tmp_path / "nothing", resume=True)
    assert go(plan, tmp_path / "run", resume=True) == first
    assert (tmp_path / "run/model.safetensors").read_bytes() == before
    (tmp_path / "run/model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"finished, but its model is gone; remove result\.json"):
        go(plan, tmp_path / "run", resume=True)
    (tmp_path / "run/result.json").unlink()
    go(plan, tmp_path / "run", resume=True)
    assert (tmp_path / "run/model.safetensors").read_bytes() == before


def test_a_resumed_run_saves_as_often_as_it_is_now_asked_to(tmp_path):
    plan = recipe(tmp_path, keep_checkpoints=3)
    with pytest.raises(KeyboardInterrupt):
        go(plan, tmp_path / "run", callbacks=[stop_at(6)])
    plan.training.save_steps = 1
    go(plan, tmp_path / "run", resume=True)
    assert {path.name for path in (tmp_path / "run").glob("checkpoint-*")} >= {"checkpoint-11", "checkpoint-12"}


def test_a_micro_batch_of_many_scored_tokens_is_no_divergence(tmp_path):
    plan = of_documents(recipe(tmp_path, micro_batch_size=1, steps=3))
    plan.masking.probability = 0.5
    documents = [*["bird"] * 7, " ".join(["bird", "house"] * 11)] * 8
    Path(plan.data.sources[0]).write_text("\n\n".join(documents) + "\n")
    assert go(plan, tmp_path / "run")["outcome"]["steps"] == 3


@pytest.mark.parametrize(
    ("bias", "told"),
    [(lambda bias: bias * math.nan, "nan"), (lambda bias: torch.arange(len(bias)) * 100.0, r"[\d.]+")],
    ids=["not a number", "exploded"],
)
def test_divergence_names_step_and_batch_and_keeps_checkpoints(tmp_path, bias, told):
    poison = At(5, lambda model: model.predictions.decoder.bias.copy_(bias(model.predictions.decoder.bias)))
    with pytest.raises(TrainingDivergedError, match=rf"the loss is {told} at step 6, in the batch of samples 40 to 47"):
        go(recipe(tmp_path), tmp_path / "run", callbacks=[poison])
    assert all(torch.isfinite(v).all() for v in weights(tmp_path / "run/checkpoint-4").values())


@pytest.mark.parametrize("due", [{"save_steps": 6}, {"eval_steps": 6}, {"log_steps": 6}, {"steps": 6}, {}])
def test_a_loss_that_is_read_late_names_its_step_and_nothing_is_built_on_it(tmp_path, monkeypatch, due):
    """With one micro-batch a step, a loss is read in the next step, or before its step is saved, measured or logged."""
    poison, measured = At(5, lambda model: model.predictions.decoder.bias.fill_(math.nan)), Mock()
    monkeypatch.setattr(pretraining, "held_out_sums", measured)
    plan = recipe(tmp_path, micro_batch_size=8, **{"save_steps": 100, "eval_steps": 100, "log_steps": 100, **due})
    with pytest.raises(TrainingDivergedError, match="the loss is nan at step 6, in the batch of samples 40 to 47"):
        go(plan, tmp_path / "run", callbacks=[poison])
    assert not measured.called
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_a_last_step_that_leaves_no_numbers_is_divergence(tmp_path):
    plan = recipe(tmp_path, steps=1, warmup_steps=0, learning_rate=1e30)
    with pytest.raises(TrainingDivergedError, match="the loss is nan on held-out text after step 1; a lower learning"):
        go(plan, tmp_path / "run")
    assert not (tmp_path / "run/result.json").exists()


@pytest.mark.parametrize("eval_steps", [6, 100])
def test_a_held_out_loss_that_explodes_is_divergence(tmp_path, monkeypatch, eval_steps):
    monkeypatch.setattr(pretraining, "held_out_sums", lambda *_: torch.tensor([150.0, 0.0, 10.0]))
    step = min(eval_steps, 12)
    with pytest.raises(TrainingDivergedError, match=f"the loss is 15 on held-out text after step {step}"):
        go(recipe(tmp_path, eval_steps=eval_steps), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["unpad", "pack"])
def test_want_of_memory_names_step_and_rows_and_a_smaller_batch_goes_on(tmp_path, monkeypatch, packing):
    grow = At(10, lambda model: monkeypatch.setattr(MaBertForMaskedLM, "forward", too_much))
    plan = recipe(tmp_path, packing=packing)
    with pytest.raises(MemoryError, match=r"at step 11, with 4 rows at once \(96 tokens, padding included\); go on by"):
        go(plan, tmp_path / "run", callbacks=[grow])
    monkeypatch.undo()
    plan.training.micro_batch_size = 2
    assert go(plan, tmp_path / "run", resume=True)["outcome"]["steps"] == 12
    monkeypatch.setattr(pretraining, "held_out_sums", too_much)
    with pytest.raises(MemoryError, match="in the evaluation after step 6, with 4 rows at once; go on"):
        go(recipe(tmp_path), tmp_path / "other")


@pytest.mark.parametrize(
    ("section", "field", "value", "message"),
    [
        ("data", "sources", [], "names no text"),
        ("model", "max_position_embeddings", 20, r"windows of 24 tokens, model.max_position_embeddings is 20"),
        ("masking", "probability", 15, "15"),
        ("training", "micro_batch_size", 3, "batch_size 8 is not a multiple of training.micro_batch_size 3 times 1"),
    ],
)
def test_what_a_run_cannot_start_without_is_told_before_any_text_is_read(
    tmp_path, monkeypatch, section, field, value, message
):
    monkeypatch.setattr("mabert.train.pretrain_run.build_cache", lambda *_, **__: pytest.fail("read"))
    plan = recipe(tmp_path)
    if section == "model":
        plan.model[field] = value
    else:
        setattr(getattr(plan, section), field, value)
    with pytest.raises(ValueError, match=message):
        go(plan, tmp_path / "run")


def test_a_tokenizer_that_knows_no_word_of_the_text_is_told_and_the_folder_stays_free(tmp_path):
    plan = recipe(tmp_path)
    text = Path(plan.data.sources[0]).read_text()
    Path(plan.data.sources[0]).write_text("\n\n".join(["река дом птица"] * 60), encoding="utf-8")
    with pytest.raises(ValueError, match="nothing in the held-out text can be hidden: the tokenizer knows none of its"):
        go(plan, tmp_path / "run")
    Path(plan.data.sources[0]).write_text(text)
    with pytest.raises(SystemError):
        go(plan, tmp_path / "run", callbacks=[kill_at(0)])
    go(recipe(tmp_path, steps=1), tmp_path / "run")


def go_shared(folder, output, packing, dropout=0.0, stop=-1, resume=False):
    """A run whose batches several processes can share."""
    plan = of_documents(recipe(folder, micro_batch_size=4, eval_windows=5, packing=packing))
    plan.model |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return go(plan, folder / output, callbacks=[stop_at(stop)], resume=resume)


def one_after_another(folder):
    """All that one of two processes does, of which a launcher wants another precision than the recipe."""
    must_part()
    os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16"
    with pytest.raises(KeyboardInterrupt, match=f"saved {folder / 'broken/checkpoint-7'}; go on with --resume"):
        go_shared(folder, "broken", "unpad", 0.1, stop=6)
    go_shared(folder, "whole", "unpad", 0.1)
    go_shared(folder, "broken", "unpad", 0.1, resume=True)
    for packing in ("unpad", "pack"):
        go_shared(folder, packing, packing)


@pytest.mark.slow
def test_processes_train_the_model_of_one_and_end_with_the_same_bits_when_they_were_stopped(tmp_path):
    # Another run stands between both parts of what is stopped, so that no state of a process can pass from one to the
    # other.
    in_two(one_after_another, tmp_path)
    same_weights(tmp_path / "whole", tmp_path / "broken")
    for packing in ("unpad", "pack"):
        alone = go_shared(tmp_path, f"alone, {packing}", packing)
        shared = json.loads((tmp_path / packing / "result.json").read_text())
        assert shared["request"]["resolved"]["processes"] == 2
        same_course(alone, shared)


@pytest.mark.parametrize("name", trainer.SHARDING)
def test_a_launcher_that_wants_the_model_in_parts_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "true")
    with pytest.raises(ValueError, match=f"{name} is set, which asks accelerate to shard the model"):
        go(recipe(tmp_path), tmp_path / "run")
    assert not (tmp_path / "run").exists()
