"""Fine-tuning: seeds, grids, what is written, and what is refused."""

import json
import logging
import math
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForSequenceClassification

from mabert.data.encode import encode_rows
from mabert.data.glue import glue_task
from mabert.data.tasks import table_task
from mabert.train import finetune as finetuning
from mabert.train import finetune_run, trainer
from mabert.train.finetune_once import FinetuneTrainer
from mabert.train.finetune_run import epochs_of, logits_of
from mabert.train.kinds import Classification
from mabert.train.recipe import FinetuneRecipe
from mabert.train.trainer import TrainingDivergedError
from tests.train.helpers import At, interrupt, kill, of_family, on, rows, same_weights, tokenizer, too_much
from tests.train.tasks import go, record, splits

TESTED = splits() | {"test": rows(10, 2, False)}


def watched_batches(monkeypatch):
    """A list that every batch that is trained on goes to, as its ids."""
    seen, train_step = [], FinetuneTrainer.training_step

    def watched(self, model, inputs, *arguments):
        seen.append(inputs["input_ids"].clone())
        return train_step(self, model, inputs, *arguments)

    monkeypatch.setattr(FinetuneTrainer, "training_step", watched)
    return seen


def test_a_model_that_one_answer_to_all_would_match_is_told_of_once_a_seed(pretrained, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Classification, "predictions", lambda self, logits, examples: np.zeros(len(logits), int))
    result = go(pretrained, tmp_path, seeds=(0, 1), data=TESTED)
    labels = TESTED["validation"]["label"]
    accuracy = result["outcome"]["scores"]["validation"]["accuracy"]["mean"]
    assert accuracy == labels.count(0) / len(labels)
    usual = max(("no", labels.count(0)), ("yes", labels.count(1)), key=lambda each: each[1])
    line = (
        f"seed %d: accuracy on validation is {accuracy:.4f}, and answering {usual[0]!r} to all of its 40 examples "
        f"gives {usual[1] / 40:.4f}; a higher --learning-rate (now 0.02) or more --epochs may help"
    )
    assert [record.message for record in caplog.records if "answering" in record.message] == [line % 0, line % 1]


def test_a_run_says_what_it_took_and_a_tab_in_a_label_breaks_no_table(pretrained, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    odd = table_task("birds", ("n\to", "y\nes"))
    result = go(pretrained, tmp_path, task=odd, learning_rates=None, max_length=4, truncate=True)
    assert result["request"]["learning_rates"] == [result["outcome"]["learning_rate"]] == [9.6e-4]
    assert result["request"]["resolved"]["examples"] == {"train": 160, "validation": 40}
    written = (tmp_path / "seed-0/validation.tsv").read_text().splitlines()
    assert len(written) == 41
    told = [record.message for record in caplog.records if "cut" in record.message]
    assert told == ["texts that were cut to 4 tokens: 160 of 160 of train, 40 of 40 of validation"] * 2, (
        "and at the end"
    )
    assert {word for line in written[1:] for word in line.split("\t")[1:]} == {r"n\to", r"y\nes"}


def test_every_seed_runs_its_batches_as_it_is_asked_to(pretrained, tmp_path):
    seen = []
    look = on("on_step_begin", lambda model, **_: seen.append(model.config.unpad))
    go(pretrained, tmp_path, seeds=(0, 1), packing="none", callbacks=[look])
    assert seen == ["never"] * 20


@pytest.mark.slow
def test_a_budget_counts_padding_where_the_model_runs_it(pretrained, tmp_path, monkeypatch):
    seen = watched_batches(monkeypatch)

    def largest(model, name, **how):
        seen.clear()
        go(model, tmp_path / name, batch_tokens=100, batches="random", **how)
        return max(ids.numel() for ids in seen)

    assert largest(pretrained, "masked", padding_safe_masking="pre") <= 100
    assert largest(of_family("bert", tmp_path / "bert"), "other") <= 100
    assert largest(pretrained, "unpadded") > 100, "padding is not run, and not counted"


@pytest.mark.slow
def test_batches_are_of_like_length_or_at_random_as_asked(pretrained, tmp_path, monkeypatch):
    seen, padding = watched_batches(monkeypatch), {}
    for batches in ("length", "random"):
        go(pretrained, tmp_path / batches, batch_size=4, batches=batches)
        padding[batches] = np.mean([(ids == tokenizer().pad_token_id).float().mean().item() for ids in seen])
        seen.clear()
    assert padding["length"] < padding["random"] / 3


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["unpad", "pack", "none"])
def test_a_budget_of_tokens_fills_every_step_and_still_evaluates_after_each_epoch(
    pretrained, tmp_path, monkeypatch, packing
):
    seen = watched_batches(monkeypatch)
    go(pretrained, tmp_path, epochs=3, batch_tokens=100, packing=packing, select="best")
    steps = [ids.numel() for ids in seen]
    ends = [entry["step"] for entry in record(tmp_path)["history"] if "eval_accuracy" in entry]
    assert len(ends) == 3
    assert ends[-1] == len(steps)
    assert ends[0] == pytest.approx(len(steps) / 3, abs=2)
    assert packing == "unpad" or max(steps) <= 100
    assert packing != "pack" or np.mean(steps) > 90


@pytest.mark.slow
def test_a_grid_is_tried_with_the_first_seed_and_a_rate_that_diverges_is_left_out(pretrained, tmp_path):
    result = go(pretrained, tmp_path, learning_rates=[1e30, 2e-2, 1e-6], epochs=6)["outcome"]
    assert result["learning_rate"] == 2e-2
    assert result["tried"].pop("1e+30") is None
    assert result["tried"]["0.02"] > result["tried"]["1e-06"]
    kept = json.loads((tmp_path / "grid/1e+30.json").read_text())
    assert kept["score"] is None
    assert "the loss is " in kept["diverged"]
    message = r"diverged at every learning rate: at 1e\+30 the loss is .*; at 1e\+29 the loss"
    with pytest.raises(ValueError, match=message):
        go(pretrained, tmp_path / "all", learning_rates=[1e30, 1e29], epochs=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_a_last_step_that_leaves_no_numbers_is_divergence(pretrained, tmp_path, kind):
    def spoil(args, model, **_):
        """Does what a step of a great rate does, after the last loss was looked at."""
        if args.learning_rate > 1e-2:
            model.classifier.weight.data.fill_(float("nan"))

    spoilt = on("on_train_end", spoil)
    result = go(pretrained, tmp_path, kind, learning_rates=[1e-3, 2e-2], callbacks=[spoilt])
    assert result["outcome"]["learning_rate"] == 1e-3
    assert result["outcome"]["tried"]["0.02"] is None


@pytest.mark.slow
def test_a_seed_that_diverges_is_named_and_the_others_are_finished(pretrained, tmp_path, monkeypatch):
    whole = finetuning.run_seed

    def spoilt(run, rate, seed, *others):
        if seed == 1:
            raise TrainingDivergedError("the loss is nan")
        return whole(run, rate, seed, *others)

    monkeypatch.setattr(finetuning, "run_seed", spoilt)
    with pytest.raises(ValueError, match="under seed 1 the loss is nan; the other seeds are finished and kept"):
        go(pretrained, tmp_path, seeds=(0, 1, 2))
    assert not (tmp_path / "result.json").exists()
    assert go(pretrained, tmp_path, seeds=(0, 2), resume=True)["seeds"] == [0, 2]


def test_a_model_is_saved_before_it_is_measured(pretrained, tmp_path, monkeypatch):
    monkeypatch.setattr(finetuning, "write_predictions", lambda *_: pytest.fail("measured"))
    with pytest.raises(pytest.fail.Exception, match="measured"):
        go(pretrained, tmp_path)
    assert (tmp_path / "seed-0/model.safetensors").is_file()
    assert not (tmp_path / "seed-0/result.json").exists()


@pytest.mark.slow
def test_the_record_is_of_all_seeds_however_they_were_added(pretrained, tmp_path):
    whole = go(pretrained, tmp_path / "whole", seeds=(0, 1, 2))
    run = tmp_path / "run"
    go(pretrained, run, seeds=(2, 0))
    kept = (run / "seed-0/model.safetensors").stat().st_mtime_ns
    added = go(pretrained, run, seeds=(0, 1), resume=True)
    assert (run / "seed-0/model.safetensors").stat().st_mtime_ns == kept
    assert added["seeds"] == [0, 1, 2]
    assert added["outcome"] == whole["outcome"]
    assert added["seconds"] == pytest.approx(sum(record(run, seed)["seconds"] for seed in (0, 1, 2)))
    before = record(run)
    del before["metrics"]["validation"]["f1_macro"]
    (run / "seed-0/result.json").write_text(json.dumps(before))
    fewer = go(pretrained, run, seeds=(0, 1), resume=True)["outcome"]["scores"]["validation"]
    assert set(fewer) == set(whole["outcome"]["scores"]["validation"]) - {"f1_macro"}, "as an earlier version measured"
    (run / "seed-0/result.json").write_text(json.dumps({**record(run), "learning_rate": 7e-7}))
    assert go(pretrained, run, seeds=(1,), resume=True)["seeds"] == [1, 2], "of one rate"


class Ends(At):
    """Ends a process, once, after so many steps, or in the evaluation there; the head is lost at the last one."""

    def on_evaluate(self, *given, **more):
        self.on_step_begin(*given, **more)

    def on_step_end(self, args, state, control, model, **_):
        if state.global_step == state.max_steps:
            model.classifier.weight.data.zero_()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "how", "step", "kept"),
    [
        ({"batches": "length", "packing": "none"}, interrupt, 25, 26),
        ({"batches": "random"}, interrupt, 30, 30),
        ({"batch_tokens": 100, "packing": "pack"}, kill, 25, 25),
        ({"learning_rates": [1e-2, 2e-2]}, kill, 25, 25),
    ],
    ids=["Ctrl-C", "Ctrl-C in the last evaluation", "a kill, batches of tokens", "a kill, in a grid"],
)
def test_a_seed_that_was_stopped_goes_on_to_the_same_weights(
    pretrained, tmp_path, monkeypatch, recipe, how, step, kept
):
    monkeypatch.setattr(trainer.MaBertTrainer, "save_seconds", math.inf)

    def start(folder, step, **options):
        changes = {"epochs": 3, "dropout": 0.1, "select": "best", **recipe, **options}
        return go(pretrained, tmp_path / folder, seeds=(0, 1), callbacks=[Ends(step, how)], **changes)

    whole, seen = start("whole", None), watched_batches(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(trainer.MaBertTrainer, "save_seconds", 0.0 if how is kill else math.inf)
        with pytest.raises((SystemError, KeyboardInterrupt)) as stop:
            start("stopped", step)
    assert how is kill or f"checkpoint-{kept}; go on with --resume" in str(stop.value)
    with pytest.raises(ValueError, match=r"already holds files.*--resume"):
        start("stopped", None)
    seen.clear()
    again = start("stopped", None, resume=True)
    one, two = (tmp_path / folder for folder in ("whole", "stopped"))
    steps = max(entry["step"] for entry in record(one)["history"])
    assert len(seen) == steps * (2 + len(again["outcome"]["tried"])) - kept
    assert again["outcome"] == whole["outcome"]
    for seed in (0, 1):
        same_weights(one / f"seed-{seed}", two / f"seed-{seed}")
        mine, theirs = (record(folder, seed)["history"] for folder in (one, two))
        # A mean loss is over the steps since the start where that came after the last one was noted.
        unlike = {"loss": None, "seconds": None}
        assert [entry | unlike for entry in mine] == [entry | unlike for entry in theirs]
        assert mine[-1]["epoch"] == 3
    assert not (two / "unfinished").exists()


def test_an_interrupt_behind_the_last_epoch_stops_a_run_that_has_no_checkpoint_yet(pretrained, tmp_path):
    with pytest.raises(KeyboardInterrupt, match=r"^finished seeds are kept; go on with --resume$"):
        go(pretrained, tmp_path / "run", callbacks=[on("on_train_end", lambda **_: interrupt())])
    assert not list((tmp_path / "run").rglob("checkpoint-*"))
    go(pretrained, tmp_path / "run", resume=True)
    assert (tmp_path / "run/seed-0/result.json").is_file()


def test_a_disk_that_is_full_costs_checkpoints_and_not_the_training(pretrained, tmp_path, monkeypatch, caplog):
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(trainer.MaBertTrainer, "save_seconds", 0.0)
    monkeypatch.setattr(FinetuneTrainer, "_save_optimizer_and_scheduler", Mock(side_effect=full))
    go(pretrained, tmp_path / "run")
    assert (tmp_path / "run/seed-0/result.json").is_file()
    assert "No space left on device" in caplog.text
    assert caplog.text.count("are free on that disk; training goes on") == 10
    with pytest.raises(OSError, match="No space left on device"):
        go(pretrained, tmp_path / "other", callbacks=[Ends(3, interrupt)])


def test_another_request_or_other_examples_are_no_resumption(pretrained, tmp_path):
    go(pretrained, tmp_path)
    with pytest.raises(ValueError, match=r"already holds files.*--resume"):
        go(pretrained, tmp_path)
    with pytest.raises(ValueError, match="differs in epochs: 1 there, 2 here"):
        go(pretrained, tmp_path, epochs=2, resume=True)
    with pytest.raises(ValueError, match=r"another run; it differs in resolved.data"):
        go(pretrained, tmp_path, seeds=(0, 1), data={**splits(), "train": rows(160, 9)}, resume=True)


@pytest.mark.slow
def test_a_classifier_gets_a_new_head_for_a_new_task(pretrained, tmp_path):
    go(pretrained, tmp_path / "first")
    first = tmp_path / "first/seed-0"
    go(first, tmp_path / "second", task=table_task("three", ("a", "b", "c")), learning_rates=[0.0])
    second = AutoModelForSequenceClassification.from_pretrained(tmp_path / "second/seed-0")
    assert second.classifier.weight.shape[0] == 3
    go(first, tmp_path / "third", learning_rates=[0.0])
    old = AutoModelForSequenceClassification.from_pretrained(first)
    third = AutoModelForSequenceClassification.from_pretrained(tmp_path / "third/seed-0")
    assert not (third.classifier.weight == old.classifier.weight).any()
    table = "mabert.embeddings.word_embeddings.weight"
    assert (third.state_dict()[table] == old.state_dict()[table]).all()


@pytest.mark.slow
def test_seeds_that_are_added_are_trained_at_the_rate_that_the_first_chose(pretrained, tmp_path):
    rates = {"learning_rates": [1e-6, 2e-2]}
    first = go(pretrained, tmp_path, seeds=(3,), **rates)["outcome"]
    other = tmp_path / "grid/1e-06.json"
    other.write_text(json.dumps({**json.loads(other.read_text()), "seed": 7, "score": 2.0}))
    assert go(pretrained, tmp_path, seeds=(3,), resume=True, **rates)["outcome"] == first
    assert json.loads(other.read_text())["seed"] == 3, "what was tried under another seed is tried anew"
    tried = {file: file.stat().st_mtime_ns for file in (tmp_path / "grid").iterdir()}
    more = go(pretrained, tmp_path, seeds=(0, 1), resume=True, **rates)["outcome"]
    assert (more["learning_rate"], more["tried"]) == (first["learning_rate"], first["tried"])
    assert {file: file.stat().st_mtime_ns for file in tried} == tried, "nothing is tried anew"
    one = record(tmp_path, 1)
    (tmp_path / "seed-1/result.json").write_text(json.dumps({**one, "learning_rate": 7e-7}))
    with pytest.raises(ValueError, match=r"seed-1 was trained at a learning rate of 7e-07, the grid chose "):
        go(pretrained, tmp_path, seeds=(2, 1), resume=True, **rates)
    assert not (tmp_path / "seed-2").exists(), "told before anything is trained"
    (tmp_path / "seed-1/result.json").write_text(json.dumps(one))
    request = yaml.safe_load((tmp_path / "request.yaml").read_text())
    assert request["resolved"].pop("chosen_under") == 3
    (tmp_path / "request.yaml").write_text(yaml.safe_dump(request))
    assert go(pretrained, tmp_path, seeds=(3, 0), resume=True, **rates)["seeds"] == [0, 1, 3], (
        "of one begun before, too"
    )


@pytest.mark.parametrize(("rows", "epochs"), [(1, 30), (250, 30), (334, 30), (1000, 10), (3400, 3), (10**6, 3)])
def test_few_rows_of_ones_own_are_seen_more_often(rows, epochs):
    assert epochs_of(FinetuneRecipe(), table_task("rte", ("a", "b")), rows) == epochs
    assert epochs_of(FinetuneRecipe(epochs=2), table_task("rte", ("a", "b")), rows) == 2


def test_tasks_of_glue_have_the_papers_epochs_however_many_rows_are_used():
    assert [epochs_of(FinetuneRecipe(), glue_task(name), 100) for name in ("rte", "sst2")] == [10, 3]


@pytest.fixture
def to_measure(pretrained):
    examples = encode_rows(splits()["validation"][:], tokenizer(), 24)
    return AutoModelForSequenceClassification.from_pretrained(pretrained), examples, tokenizer().pad_token_id


def test_padded_batches_of_mixed_lengths_are_measured_in_order(to_measure, monkeypatch):
    model, examples, pad = to_measure
    seen, forward = [], model.forward
    monkeypatch.setattr(model, "forward", lambda **given: seen.append(given["input_ids"]) or forward(**given))
    in_order = logits_of(*to_measure, rows=16)
    assert [len(batch) for batch in seen] == [16, 16, 8]
    first = [ids[ids != pad].tolist() for ids in seen[0]]
    assert first == [examples[number]["input_ids"] for number in range(16)]
    np.testing.assert_allclose(in_order, logits_of(*to_measure), atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (16, r"in evaluation, with 16 rows at once \(\d+ tokens, padding included\); a smaller batch helps"),
        (None, r"in evaluation, with 40 rows at once \(\d+ tokens, padding included\); shorter examples help"),
    ],
)
def test_want_of_memory_in_an_evaluation_names_the_batch(to_measure, monkeypatch, rows, message):
    monkeypatch.setattr(to_measure[0], "forward", too_much)
    with pytest.raises(MemoryError, match=message):
        logits_of(*to_measure, rows=rows)


def test_several_processes_share_what_is_measured(to_measure, monkeypatch):
    alone, ran, parts = logits_of(*to_measure, rows=16), [], []
    to_measure[0].register_forward_hook(lambda module, inputs, output: ran.append(len(output.logits)))
    monkeypatch.setattr(finetune_run, "reduce", lambda part, how: parts.append((part, how)) or part)
    for rank in range(2):
        one = SimpleNamespace(process_index=rank, num_processes=2)
        monkeypatch.setattr(finetune_run, "PartialState", lambda one=one: one)
        logits_of(*to_measure, rows=16)
    assert sum(ran) == len(alone) > max(ran) > 0
    assert [how for _, how in parts] == ["sum", "sum"]
    np.testing.assert_array_equal(sum(part for part, _ in parts).numpy(), alone)


def test_batches_that_processes_cannot_share_are_refused(pretrained, tmp_path, monkeypatch):
    three = SimpleNamespace(num_processes=3, is_main_process=False)
    monkeypatch.setattr(finetune_run, "join_processes", lambda: three)
    with pytest.raises(ValueError, match="batch_size is 16, not a multiple of 3 processes"):
        go(pretrained, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("select", ["best", "last"])
def test_the_epoch_that_is_asked_for_is_kept(pretrained, tmp_path, select):
    def spoil(state, model, **_):
        """Ends the last epoch with a head that calls everything a bird."""
        if state.global_step == state.max_steps:
            model.classifier.weight.data.zero_()
            model.classifier.bias.data.copy_(torch.tensor([-1.0, 1.0]))

    go(pretrained, tmp_path, epochs=4, select=select, callbacks=[on("on_step_end", spoil)])
    own = record(tmp_path)
    seen = [entry["eval_accuracy"] for entry in own["history"] if "eval_accuracy" in entry]
    assert seen[-1] == 0.5 < max(seen)
    assert own["metrics"]["validation"]["accuracy"] == (max(seen) if select == "best" else 0.5)


@pytest.mark.slow
def test_what_a_run_leaves_and_how_its_model_is_changed_is_as_asked(pretrained, tmp_path):
    asked = {"padding_safe_masking": "pre+post", "pooling": "cls", "packing": "none", "keep_models": True}
    go(pretrained, tmp_path / "glue", task=glue_task("sst2"), data=TESTED, **asked)
    lines = (tmp_path / "glue/seed-0/SST-2.tsv").read_text().splitlines()
    assert (lines[0], len(lines)) == ("index\tprediction", 11), "the leaderboard's file"
    go(pretrained, tmp_path / "own", data=TESTED, packing="none")
    for name, expected in (("glue", ("pre+post", "cls")), ("own", ("exact", "map"))):
        trained = AutoModelForSequenceClassification.from_pretrained(tmp_path / name / "seed-0").config
        assert (trained.padding_safe_masking, trained.pooling, trained.unpad) == (*expected, "auto")
    assert trained.id2label == {0: "no", 1: "yes"}
    assert len((tmp_path / "own/seed-0/test.tsv").read_text().splitlines()) == 11
    go(pretrained, tmp_path / "left", keep_models=False)
    assert {path.name for path in (tmp_path / "left/seed-0").iterdir()} == {"result.json", "validation.tsv"}


def test_from_scratch_takes_no_weights(pretrained, tmp_path):
    go(pretrained, tmp_path, from_scratch=True, learning_rates=[0.0])
    start = AutoModelForSequenceClassification.from_pretrained(pretrained).mabert
    drawn = AutoModelForSequenceClassification.from_pretrained(tmp_path / "seed-0").mabert
    table = "embeddings.word_embeddings.weight"
    assert not (start.state_dict()[table] == drawn.state_dict()[table])[1:].any()
