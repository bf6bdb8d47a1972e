"""Fine-tuning: seeds, grids, what is written, resuming, and what is refused."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, TrainerCallback

from mabert import MaBertForMaskedLM, precision
from mabert.baselines.load import build
from mabert.baselines.registry import family_named
from mabert.data.glue import glue_task
from mabert.data.table import table_task
from mabert.data.tokenizer import load_tokenizer
from mabert.train import classifier as classifiers
from mabert.train import finetune as finetuning
from mabert.train.classifier import (
    ClassifierTrainer,
    Job,
    TaskData,
    encode_task,
    epochs_of,
    logits_of,
    rate_for,
    train_classifier,
)
from mabert.train.finetune import check_divides, finetune, warn_of_one_answer
from mabert.train.recipe import FinetuneRecipe
from mabert.train.trainer import TrainingDivergedError
from tests.model.helpers import config
from tests.train.helpers import WORDS, tokenizer

RECIPE = {"learning_rates": [2e-2], "epochs": 3, "batch_size": 16, "dropout": 0.0, "precision": "fp32"}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A model that was never trained; what matters here is the way."""
    folder = tmp_path_factory.mktemp("model")
    words = tokenizer()
    torch.manual_seed(1234)
    MaBertForMaskedLM(config(vocab_size=len(words), hidden_size=16, initializer_range=0.1)).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def rows(count, seed, labelled=True):
    """Texts that hold the word `bird` or not."""
    draw = np.random.default_rng(seed)
    plain = [word for word in WORDS if word != "bird"]
    texts, labels = [], []
    for number in range(count):
        words = list(draw.choice(plain, size=draw.integers(3, 9)))
        if number % 2:
            words[draw.integers(len(words))] = "bird"
        texts.append(" ".join(words))
        labels.append(number % 2)
    columns = {"text_a": texts, "index": list(range(count))}
    return Dataset.from_dict(columns | ({"label": labels} if labelled else {}))


def splits(test=False):
    return {"train": rows(160, 0), "validation": rows(40, 1)} | ({"test": rows(10, 2, False)} if test else {})


TASK = table_task("birds", ("no", "yes"))


def go(pretrained, output, seeds=(0,), task=TASK, test=False, resume=False, **changes):
    recipe = FinetuneRecipe(**{**RECIPE, **changes})
    return finetune(pretrained, task, splits(test), output, recipe, seeds, resume=resume, progress=False)


@pytest.mark.slow
def test_it_learns_and_writes_all_that_is_promised(pretrained, tmp_path):
    result = go(pretrained, tmp_path / "run", seeds=(3, 4), test=True, epochs=6)
    scores = result["outcome"]["scores"]["validation"]["accuracy"]
    assert scores["mean"] > 0.8
    assert scores["mean"] == pytest.approx(np.mean(scores["values"]))
    assert scores["std"] == pytest.approx(np.std(scores["values"], ddof=1))
    for seed in (3, 4):
        place = tmp_path / f"run/seed-{seed}"
        model = AutoModelForSequenceClassification.from_pretrained(place)
        assert model.config.id2label == {0: "no", 1: "yes"}
        written = list(csv.DictReader((place / "validation.tsv").read_text().splitlines(), delimiter="\t"))
        share = np.mean([row["prediction"] == row["label"] for row in written])
        own = json.loads((place / "result.json").read_text())
        assert share == pytest.approx(own["metrics"]["validation"]["accuracy"])
        assert len((place / "test.tsv").read_text().splitlines()) == 11


@pytest.mark.parametrize(
    ("task", "answers", "labels", "told"),
    [
        (TASK, [1, 1], [0, 1], 1),
        (TASK, [0, 1], [0, 1], 0),
        (TASK, [1, 1], [1, 1], 0),
        (glue_task("stsb"), [], [0, 1], 0),
    ],
)
def test_answers_that_are_all_of_one_class_are_told_of(caplog, task, answers, labels, told):
    logits = np.eye(2)[answers] if answers else np.ones((2, 1))
    warn_of_one_answer(TaskData(task, {}, {"validation": np.array(labels)}, {}), "validation", logits, 3, 2e-5)
    line = "seed 3 answers 'yes' to all 2 examples of validation; a higher --learning-rate (now 2e-05) or more --epochs"
    assert [record.message.startswith(line) for record in caplog.records] == [True] * told


def test_what_validation_is_answered_is_looked_at(pretrained, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(finetuning, "warn_of_one_answer", lambda data, split, *rest: seen.append(split))
    go(pretrained, tmp_path / "run", seeds=(0, 1), test=True, epochs=1)
    assert seen == ["validation", "validation"]


@pytest.mark.parametrize(("width", "rate"), [(768, 2e-5), (192, 8e-5), (128, 1.2e-4), (1024, 1.5e-5)])
def test_the_default_rate_suits_the_width(width, rate):
    assert rate_for(SimpleNamespace(hidden_size=width)) == rate


def test_a_run_says_which_rate_it_took(pretrained, tmp_path):
    result = go(pretrained, tmp_path / "run", learning_rates=None, epochs=1)
    assert result["request"]["learning_rates"] == [result["outcome"]["learning_rate"]] == [9.6e-4]


def test_a_tab_in_a_label_breaks_no_table(pretrained, tmp_path):
    go(pretrained, tmp_path / "run", task=table_task("birds", ("n\to", "y\nes")), epochs=1)
    written = (tmp_path / "run/seed-0/validation.tsv").read_text().splitlines()
    assert len(written) == 41
    assert {word for line in written[1:] for word in line.split("\t")[1:]} == {r"n\to", r"y\nes"}


@pytest.mark.slow
def test_a_glue_test_split_gets_the_leaderboards_file(pretrained, tmp_path):
    go(pretrained, tmp_path / "run", task=glue_task("sst2"), test=True, epochs=1)
    lines = (tmp_path / "run/seed-0/SST-2.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    assert len(lines) == 11


@pytest.mark.slow
def test_the_same_seed_gives_the_same_scores(pretrained, tmp_path):
    a = go(pretrained, tmp_path / "a", epochs=1)
    b = go(pretrained, tmp_path / "b", epochs=1)
    assert a["outcome"] == b["outcome"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["none", "pack"])
def test_packing_changes_nothing_but_rounding(pretrained, tmp_path, way):
    plain = go(pretrained, tmp_path / "plain", epochs=1)
    other = go(pretrained, tmp_path / "other", epochs=1, packing=way)
    losses = [
        [
            entry["loss"]
            for entry in json.loads((tmp_path / name / "seed-0/result.json").read_text())["history"]
            if "loss" in entry
        ]
        for name in ("plain", "other")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert plain["outcome"]["scores"] == other["outcome"]["scores"]
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "other/seed-0")
    assert model.config.unpad == "auto"


@pytest.mark.slow
def test_a_budget_counts_padding_where_the_model_runs_it(pretrained, tmp_path, monkeypatch):
    seen = watched_batches(monkeypatch)
    how = {"epochs": 1, "batch_tokens": 100, "batches": "random"}
    go(pretrained, tmp_path / "masked", padding_safe_masking="pre", **how)
    assert max(ids.numel() for ids in seen) <= 100
    seen.clear()
    go(bert(tmp_path / "bert"), tmp_path / "other", **how)
    assert max(ids.numel() for ids in seen) <= 100
    seen.clear()
    go(pretrained, tmp_path / "unpadded", **how)
    assert max(ids.numel() for ids in seen) > 100, "padding is not run, and not counted"


def watched_batches(monkeypatch):
    """A list that every batch that is trained on goes to, as its ids."""
    seen, train_step = [], ClassifierTrainer.training_step

    def watched(self, model, inputs, *arguments):
        seen.append(inputs["input_ids"].clone())
        return train_step(self, model, inputs, *arguments)

    monkeypatch.setattr(ClassifierTrainer, "training_step", watched)
    return seen


@pytest.mark.slow
def test_batches_are_of_like_length_or_at_random_as_asked(pretrained, tmp_path, monkeypatch):
    seen, padding = watched_batches(monkeypatch), {}
    for batches in ("length", "random"):
        go(pretrained, tmp_path / batches, epochs=1, batch_size=4, batches=batches)
        padding[batches] = np.mean([(ids == tokenizer().pad_token_id).float().mean().item() for ids in seen])
        seen.clear()
    assert padding["length"] < padding["random"] / 3


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["unpad", "pack", "none"])
def test_a_budget_of_tokens_fills_every_step_and_still_evaluates_after_each_epoch(
    pretrained, tmp_path, monkeypatch, packing
):
    seen = watched_batches(monkeypatch)
    go(pretrained, tmp_path / "run", epochs=3, batch_tokens=100, packing=packing, select="best")
    steps = [ids.numel() for ids in seen]
    history = json.loads((tmp_path / "run/seed-0/result.json").read_text())["history"]
    ends = [entry["step"] for entry in history if "eval_accuracy" in entry]
    assert len(ends) == 3
    assert ends[-1] == len(steps)
    assert ends[0] == pytest.approx(len(steps) / 3, abs=2)
    if packing == "none":
        assert max(steps) <= 100
    if packing == "pack":
        assert max(steps) <= 100
        assert np.mean(steps) > 90


@pytest.mark.slow
def test_a_grid_is_tried_with_the_first_seed(pretrained, tmp_path):
    result = go(pretrained, tmp_path / "run", learning_rates=[1e-6, 2e-2], epochs=6)
    tried = result["outcome"]["tried"]
    assert set(tried) == {"1e-06", "0.02"}
    assert result["outcome"]["learning_rate"] == 2e-2
    assert tried["0.02"] > tried["1e-06"]


@pytest.mark.slow
def test_a_rate_that_diverges_is_left_out_of_the_grid(pretrained, tmp_path):
    result = go(pretrained, tmp_path / "run", learning_rates=[1e30, 2e-2, 1e-6], epochs=2)["outcome"]
    assert result["tried"].pop("1e+30") is None
    assert result["tried"][f"{result['learning_rate']:g}"] == max(result["tried"].values())
    kept = json.loads((tmp_path / "run/grid/1e+30.json").read_text())
    assert kept["score"] is None
    assert "the loss is " in kept["diverged"]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_a_last_step_that_leaves_no_numbers_is_divergence(pretrained, tmp_path, task):
    class Spoilt(TrainerCallback):
        """What a step of a great rate does, after the last loss was looked at."""

        def on_train_end(self, args, state, control, model, **_):
            if state.max_steps and args.learning_rate > 1e-2:
                with torch.no_grad():
                    model.classifier.weight.fill_(float("nan"))

    data, what = splits(), TASK
    if task == "numbers":
        what = table_task("lengths", ())
        data = {name: part.map(lambda row: {"label": float(row["label"])}) for name, part in data.items()}
    recipe = FinetuneRecipe(**{**RECIPE, "epochs": 1, "learning_rates": [1e-3, 2e-2]})
    result = finetune(pretrained, what, data, tmp_path / "run", recipe, progress=False, callbacks=[Spoilt()])
    assert result["outcome"]["learning_rate"] == 1e-3
    assert result["outcome"]["tried"]["0.02"] is None


@pytest.mark.slow
def test_a_grid_that_diverges_whole_says_so_of_each_rate(pretrained, tmp_path):
    with pytest.raises(
        ValueError, match=r"diverged at every learning rate: at 1e\+30 the loss is .*; at 1e\+29 the loss"
    ):
        go(pretrained, tmp_path / "run", learning_rates=[1e30, 1e29], epochs=2)


@pytest.mark.slow
def test_a_seed_that_diverges_is_named_and_the_others_are_finished(pretrained, tmp_path, monkeypatch):
    whole = finetuning.run_seed

    def spoilt(job, place, rate, seed, *others):
        if seed == 1:
            raise TrainingDivergedError("the loss is nan")
        return whole(job, place, rate, seed, *others)

    monkeypatch.setattr(finetuning, "run_seed", spoilt)
    with pytest.raises(ValueError, match="under seed 1 the loss is nan; the other seeds are finished and kept"):
        go(pretrained, tmp_path / "run", seeds=(0, 1, 2), epochs=1)
    assert not (tmp_path / "run/result.json").exists()
    result = go(pretrained, tmp_path / "run", seeds=(0, 2), epochs=1, resume=True)
    assert result["seeds"] == [0, 2]


def test_a_model_is_saved_before_it_is_measured(pretrained, tmp_path, monkeypatch):
    monkeypatch.setattr(finetuning, "write_predictions", lambda *_: pytest.fail("measured"))
    with pytest.raises(pytest.fail.Exception, match="measured"):
        go(pretrained, tmp_path / "run", epochs=1)
    assert (tmp_path / "run/seed-0/model.safetensors").is_file()
    assert not (tmp_path / "run/seed-0/result.json").exists()


@pytest.mark.slow
def test_resuming_keeps_finished_seeds(pretrained, tmp_path):
    go(pretrained, tmp_path / "run", epochs=1)
    kept = (tmp_path / "run/seed-0/model.safetensors").stat().st_mtime_ns
    with pytest.raises(ValueError, match=r"already holds files.*--resume"):
        go(pretrained, tmp_path / "run", epochs=1)
    with pytest.raises(ValueError, match="differs in epochs: 1 there, 2 here"):
        go(pretrained, tmp_path / "run", epochs=2, resume=True)
    result = go(pretrained, tmp_path / "run", seeds=(0, 1), epochs=1, resume=True)
    assert len(result["outcome"]["scores"]["validation"]["accuracy"]["values"]) == 2
    assert (tmp_path / "run/seed-0/model.safetensors").stat().st_mtime_ns == kept


@pytest.mark.slow
def test_seeds_that_were_measured_by_fewer_metrics_are_added_to(pretrained, tmp_path):
    """A later version may measure by more."""
    go(pretrained, tmp_path / "run", seeds=[0])
    file = tmp_path / "run/seed-0/result.json"
    record = json.loads(file.read_text())
    (dropped,) = set(record["metrics"]["validation"]) & {"f1_macro"}
    del record["metrics"]["validation"][dropped]
    file.write_text(json.dumps(record))
    scores = go(pretrained, tmp_path / "run", seeds=[0, 1], resume=True)["outcome"]["scores"]["validation"]
    assert dropped not in scores
    assert len(scores["accuracy"]["values"]) == 2


@pytest.mark.slow
def test_the_record_is_of_all_seeds_however_they_were_added(pretrained, tmp_path):
    whole = go(pretrained, tmp_path / "whole", seeds=(0, 1, 2), epochs=1)
    go(pretrained, tmp_path / "run", seeds=(2, 0), epochs=1)
    added = go(pretrained, tmp_path / "run", seeds=(1,), epochs=1, resume=True)
    assert added["seeds"] == [0, 1, 2]
    assert added["outcome"] == whole["outcome"]
    places = [tmp_path / f"run/seed-{seed}/result.json" for seed in (0, 1, 2)]
    assert added["seconds"] == pytest.approx(sum(json.loads(place.read_text())["seconds"] for place in places))
    other = json.loads(places[0].read_text())
    places[0].write_text(json.dumps({**other, "learning_rate": 7e-7}))
    again = go(pretrained, tmp_path / "run", seeds=(1,), epochs=1, resume=True)
    assert again["seeds"] == [1, 2], "of one rate"


@pytest.mark.slow
def test_a_run_that_failed_before_its_first_result_leaves_room(pretrained, tmp_path):
    class Refuse(TrainerCallback):
        def on_train_begin(self, args, state, control, **_):
            raise ValueError("not today")

    recipe = FinetuneRecipe(**{**RECIPE, "epochs": 1})
    with pytest.raises(ValueError, match="not today"):
        finetune(pretrained, TASK, splits(), tmp_path / "run", recipe, progress=False, callbacks=[Refuse()])
    (kept,) = (tmp_path / "run/unfinished").iterdir()
    (kept / "checkpoint").touch()
    with pytest.raises(ValueError, match=r"already holds files.*--resume"):
        go(pretrained, tmp_path / "run", epochs=1)
    (kept / "checkpoint").unlink()
    go(pretrained, tmp_path / "run", epochs=1)


class Ends(TrainerCallback):
    """Ends a process, once, after so many steps; the head of the model is lost at the last one."""

    def __init__(self, step, how):
        self.step, self.how = step, how

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == self.step:
            self.step = None
            self.how()

    on_evaluate = on_step_begin

    def on_step_end(self, args, state, control, model, **_):
        if state.global_step == state.max_steps:
            with torch.no_grad():
                model.classifier.weight.zero_()


def killed():
    raise SystemError("killed")


def interrupted():
    signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "how", "step", "kept"),
    [
        ({"batches": "random"}, killed, 25, 25),
        ({"batches": "length", "packing": "none"}, interrupted, 25, 26),
        ({"batches": "random"}, interrupted, 30, 30),
        ({"batch_tokens": 100, "packing": "pack"}, killed, 25, 25),
        ({"learning_rates": [1e-2, 2e-2]}, killed, 25, 25),
    ],
    ids=["a kill", "Ctrl-C", "Ctrl-C in the last evaluation", "a kill, batches of tokens", "a kill, in a grid"],
)
def test_a_seed_that_was_stopped_goes_on_to_the_same_weights(
    pretrained, tmp_path, monkeypatch, recipe, how, step, kept
):
    monkeypatch.setattr(classifiers, "SAVE_SECONDS", 0.0 if how is killed else math.inf)
    how_trained = FinetuneRecipe(**{**RECIPE, "dropout": 0.1, "select": "best", **recipe})

    def start(folder, step, **options):
        given = (pretrained, TASK, splits(), tmp_path / folder, how_trained, (0, 1))
        return finetune(*given, progress=False, callbacks=[Ends(step, how)], **options)

    whole, seen = start("whole", None), watched_batches(monkeypatch)
    with pytest.raises((SystemError, KeyboardInterrupt)) as stop:
        start("stopped", step)
    if how is interrupted:
        assert f"checkpoint-{kept}; go on with --resume" in str(stop.value)
    with pytest.raises(ValueError, match=r"already holds files.*--resume"):
        start("stopped", None)
    seen.clear()
    again = start("stopped", None, resume=True)
    one, two = (tmp_path / folder for folder in ("whole", "stopped"))
    steps = max(entry["step"] for entry in json.loads((one / "seed-0/result.json").read_text())["history"])
    assert len(seen) == steps * (2 + len(again["outcome"]["tried"])) - kept
    assert again["outcome"] == whole["outcome"]
    for seed in ("seed-0", "seed-1"):
        other = load_file(two / seed / "model.safetensors")
        assert all(
            (weight == other[name]).all() for name, weight in load_file(one / seed / "model.safetensors").items()
        )
        mine, theirs = (json.loads((folder / seed / "result.json").read_text())["history"] for folder in (one, two))
        # A mean loss is over the steps since the start where that came after the last one was noted.
        assert [{**entry, "loss": None} for entry in mine] == [{**entry, "loss": None} for entry in theirs]
        assert mine[-1]["epoch"] == 3
    assert not (two / "unfinished").exists()


STOPPED = """
import sys
from mabert.train import classifier
from tests.train.helpers import must_part
from tests.train import test_finetune as tests
classifier.SAVE_SECONDS = 0.0
must_part()
recipe = tests.FinetuneRecipe(**{**tests.RECIPE, "learning_rates": [1e-2, 2e-2], "dropout": 0.1, "select": "best"})
ends = tests.Ends(int(sys.argv[3]), tests.killed)
given = (sys.argv[1], tests.TASK, tests.splits(), sys.argv[2], recipe)
tests.finetune(*given, progress=False, resume=sys.argv[4:] == ["resume"], callbacks=[ends])
"""


@pytest.mark.slow
def test_several_processes_go_on_to_the_same_weights(pretrained, tmp_path):
    (tmp_path / "program.py").write_text(STOPPED)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}

    def start(folder, *more):
        arguments = [str(tmp_path / "program.py"), str(pretrained), str(tmp_path / folder), *more]
        return subprocess.run([*launch, *arguments], capture_output=True, text=True, env=environment)

    whole = start("whole", "-1")
    assert whole.returncode == 0, whole.stderr
    stopped = start("stopped", "25")
    assert "SystemError: killed" in stopped.stderr
    assert list((tmp_path / "stopped/unfinished").glob("seed-0-lr-0.01/checkpoint-25"))
    again = start("stopped", "-1", "resume")
    assert again.returncode == 0, again.stderr
    one, two = (load_file(tmp_path / folder / "seed-0/model.safetensors") for folder in ("whole", "stopped"))
    assert all((weight == two[name]).all() for name, weight in one.items())
    assert not (tmp_path / "stopped/unfinished").exists()


def test_a_disk_that_is_full_costs_checkpoints_and_not_the_training(pretrained, tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(classifiers, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(ClassifierTrainer, "_save_optimizer_and_scheduler", full)
    go(pretrained, tmp_path / "run", epochs=1)
    assert (tmp_path / "run/seed-0/result.json").is_file()
    assert "No space left on device" in caplog.text
    assert caplog.text.count("are free on that disk; training goes on") == 10
    given = (pretrained, TASK, splits(), tmp_path / "other", FinetuneRecipe(**RECIPE))
    with pytest.raises(OSError, match="No space left on device"):
        finetune(*given, progress=False, callbacks=[Ends(3, interrupted)])


@pytest.mark.parametrize(("dtype", "remarks"), [("float32", 1), ("bfloat16", 0)])
def test_bf16_without_instructions_for_it_is_remarked(pretrained, tmp_path, monkeypatch, caplog, dtype, remarks):
    monkeypatch.setattr(precision, "fast_dtype", lambda device: dtype)
    go(pretrained, tmp_path / "run", precision="bf16", epochs=1)
    assert caplog.text.count("precision is bf16, for which this CPU has no instructions") == remarks


@pytest.mark.slow
def test_a_rate_that_changed_is_not_gone_on_with(pretrained, tmp_path, monkeypatch):
    monkeypatch.setattr(classifiers, "SAVE_SECONDS", 0.0)
    recipe = FinetuneRecipe(**RECIPE)
    with pytest.raises(SystemError):
        finetune(pretrained, TASK, splits(), tmp_path / "run", recipe, progress=False, callbacks=[Ends(25, killed)])
    data = encode_task(TASK, splits(), load_tokenizer(str(pretrained)), 64, False)
    seen = watched_batches(monkeypatch)
    train_classifier(Job(pretrained, load_tokenizer(str(pretrained)), data, recipe, False), tmp_path / "run", 1e-3, 0)
    assert len(seen) == 30


def test_other_examples_are_no_resumption(pretrained, tmp_path):
    go(pretrained, tmp_path / "run", epochs=1)
    data = splits()
    data["train"] = rows(160, 9)
    recipe = FinetuneRecipe(**{**RECIPE, "epochs": 1})
    with pytest.raises(ValueError, match=r"another run; it differs in resolved.data"):
        finetune(pretrained, TASK, data, tmp_path / "run", recipe, [0, 1], resume=True, progress=False)


@pytest.mark.slow
def test_a_classifier_gets_a_new_head_for_a_new_task(pretrained, tmp_path):
    go(pretrained, tmp_path / "first", epochs=1)
    first = tmp_path / "first/seed-0"
    go(first, tmp_path / "second", task=table_task("three", ("a", "b", "c")), epochs=1, learning_rates=[0.0])
    second = AutoModelForSequenceClassification.from_pretrained(tmp_path / "second/seed-0")
    assert second.classifier.weight.shape[0] == 3
    go(first, tmp_path / "third", epochs=1, learning_rates=[0.0])
    old = AutoModelForSequenceClassification.from_pretrained(first)
    third = AutoModelForSequenceClassification.from_pretrained(tmp_path / "third/seed-0")
    assert not (third.classifier.weight == old.classifier.weight).any()
    table = "mabert.embeddings.word_embeddings.weight"
    assert (third.state_dict()[table] == old.state_dict()[table]).all()


@pytest.mark.slow
def test_the_orders_of_seeds_and_epochs_are_all_different(pretrained, tmp_path, monkeypatch):
    seen = watched_batches(monkeypatch)
    go(pretrained, tmp_path / "run", seeds=(0, 1, 2), epochs=2, batches="random")
    orders = {str([ids.tolist() for ids in seen[first : first + 10]]) for first in range(0, 60, 10)}
    assert (len(seen), len(orders)) == (60, 6)


@pytest.mark.slow
def test_a_rate_that_was_tried_under_another_seed_is_tried_anew(pretrained, tmp_path):
    rates = {"learning_rates": [1e-6, 2e-2], "epochs": 6}
    go(pretrained, tmp_path / "run", **rates)
    file = tmp_path / "run/grid/1e-06.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "seed": 7, "score": 2.0}))
    assert go(pretrained, tmp_path / "run", resume=True, **rates)["outcome"]["learning_rate"] == 2e-2
    assert json.loads(file.read_text())["seed"] == 0


@pytest.mark.slow
def test_seeds_that_are_added_are_trained_at_the_rate_that_the_first_chose(pretrained, tmp_path):
    rates = {"learning_rates": [1e-6, 2e-2], "epochs": 1}
    first = go(pretrained, tmp_path / "run", (3,), **rates)["outcome"]
    tried = {file: file.stat().st_mtime_ns for file in (tmp_path / "run/grid").iterdir()}
    more = go(pretrained, tmp_path / "run", (0, 1), resume=True, **rates)["outcome"]
    assert (more["learning_rate"], more["tried"]) == (first["learning_rate"], first["tried"])
    assert {file: file.stat().st_mtime_ns for file in tried} == tried, "nothing is tried anew"
    one = json.loads((tmp_path / "run/seed-1/result.json").read_text())
    (tmp_path / "run/seed-1/result.json").write_text(json.dumps({**one, "learning_rate": 7e-7}))
    with pytest.raises(ValueError, match=r"seed-1 was trained at a learning rate of 7e-07, the grid chose "):
        go(pretrained, tmp_path / "run", (2, 1), resume=True, **rates)
    assert not (tmp_path / "run/seed-2").exists(), "told before anything is trained"
    (tmp_path / "run/seed-1/result.json").write_text(json.dumps(one))
    request = yaml.safe_load((tmp_path / "run/request.yaml").read_text())
    assert request["resolved"].pop("chosen_under") == 3
    (tmp_path / "run/request.yaml").write_text(yaml.safe_dump(request))
    again = go(pretrained, tmp_path / "run", (3, 0), resume=True, **rates)
    assert again["seeds"] == [0, 1, 3], "one begun before has a record of all"


def test_only_glues_own_small_tasks_get_more_epochs():
    assert epochs_of(FinetuneRecipe(), glue_task("rte")) == 10
    assert epochs_of(FinetuneRecipe(), table_task("rte", ("a", "b"))) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "fp16"}, r"precision is 'fp16'; it must be one of \['auto', 'fp32', 'bf16'\]"),
        ({"select": "Best"}, "select is 'Best'"),
        ({"batches": "rand"}, "batches is 'rand'"),
        ({"packing": "unpadded"}, "packing is 'unpadded'"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused_in_python_too(changes, message):
    with pytest.raises(ValueError, match=message):
        FinetuneRecipe(**changes)


def test_padded_batches_of_mixed_lengths_are_measured_in_order(pretrained, monkeypatch):
    words = tokenizer()
    data = encode_task(TASK, splits(), words, 24, False)
    model = AutoModelForSequenceClassification.from_pretrained(pretrained)
    seen = []
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda **given: seen.append(given["input_ids"]) or forward(**given))
    examples = data.splits["validation"]
    in_order = logits_of(model, examples, words.pad_token_id, rows=16)
    assert [len(batch) for batch in seen] == [16, 16, 8]
    first = [ids[ids != words.pad_token_id].tolist() for ids in seen[0]]
    assert first == [examples[number]["input_ids"] for number in range(16)]
    np.testing.assert_allclose(in_order, logits_of(model, examples, words.pad_token_id), atol=1e-5)


def bert(folder):
    """A small BERT that was never trained, with the vocabulary of the tests."""
    words, family = tokenizer(), family_named("bert")
    sizes = {"hidden_size": 16, "layer_pattern": "TT", "num_attention_heads": 2, "intermediate_size": 32}
    special = family.special_ids(words.pad_token_id, words.cls_token_id, words.sep_token_id)
    fields = family.config_of({**sizes, "max_position_embeddings": 24}, vocab_size=len(words), **special)
    torch.manual_seed(0)
    build("masked_lm", fields).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (16, r"in evaluation, with 16 rows at once \(\d+ tokens, padding included\); a smaller batch helps"),
        (None, r"in evaluation, with 40 rows at once \(\d+ tokens, padding included\); shorter examples help"),
    ],
)
def test_want_of_memory_in_an_evaluation_names_the_batch(pretrained, monkeypatch, rows, message):
    def too_much(*given, **more):
        raise torch.OutOfMemoryError("CUDA out of memory")

    words = tokenizer()
    examples = encode_task(TASK, splits(), words, 24, False).splits["validation"]
    model = AutoModelForSequenceClassification.from_pretrained(pretrained)
    monkeypatch.setattr(model, "forward", too_much)
    with pytest.raises(MemoryError, match=message):
        logits_of(model, examples, words.pad_token_id, rows=rows)


def test_several_processes_share_what_is_measured(pretrained, monkeypatch):
    words = tokenizer()
    examples = encode_task(TASK, splits(), words, 24, False).splits["validation"]
    model = AutoModelForSequenceClassification.from_pretrained(pretrained)
    alone, ran, parts = logits_of(model, examples, words.pad_token_id, rows=16), [], []
    model.register_forward_hook(lambda module, inputs, output: ran.append(len(output.logits)))
    monkeypatch.setattr(classifiers, "reduce", lambda part, how: parts.append((part, how)) or part)
    for rank in range(2):
        one = SimpleNamespace(process_index=rank, num_processes=2)
        monkeypatch.setattr(classifiers, "PartialState", lambda one=one: one)
        logits_of(model, examples, words.pad_token_id, rows=16)
    assert sum(ran) == len(examples) == len(alone) > max(ran) > 0
    assert [how for _, how in parts] == ["sum", "sum"]
    np.testing.assert_array_equal(sum(part for part, _ in parts).numpy(), alone)


PROGRAM = """
import sys
from tests.train.helpers import must_part
from tests.train.test_finetune import go
must_part()
how = {"batch_tokens": 100} if sys.argv[3] == "tokens" else {"batches": sys.argv[3], "batch_size": 22}
go(sys.argv[1], sys.argv[2], seeds=(0, 1), epochs=2, learning_rates=[1e-6, 2e-2], **how)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "batches"), [("mabert", "length"), ("mabert", "random"), ("mabert", "tokens"), ("bert", "length")]
)
def test_several_processes_share_each_batch_to_the_last(pretrained, tmp_path, family, batches):
    pretrained = pretrained if family == "mabert" else bert(tmp_path / "bert")
    (tmp_path / "program.py").write_text(PROGRAM)
    for processes in (1, 2):
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        arguments = [str(tmp_path / "program.py"), str(pretrained), str(tmp_path / str(processes)), batches]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
        done = subprocess.run([*launch, *arguments], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
    one, two = (json.loads((tmp_path / f"{count}/result.json").read_text())["outcome"] for count in (1, 2))
    assert one["learning_rate"] == two["learning_rate"]
    for seed in (0, 1):
        alone, shared = (load_file(tmp_path / f"{count}/seed-{seed}/model.safetensors") for count in (1, 2))
        for name in alone:
            if not name.endswith("attention.key.bias"):  # its gradient is zero, and AdamW makes steps of its rounding
                torch.testing.assert_close(shared[name], alone[name], rtol=1e-3, atol=1e-4, msg=name)
        histories = [
            json.loads((tmp_path / f"{count}/seed-{seed}/result.json").read_text())["history"] for count in (1, 2)
        ]
        steps, losses = (
            [[entry[what] for entry in history if what in entry] for history in histories] for what in ("step", "loss")
        )
        assert steps[0] == steps[1]
        assert losses[0] == pytest.approx(losses[1], rel=1e-2)


def test_batches_that_processes_cannot_share_are_refused():
    with pytest.raises(ValueError, match="batch_size is 32, not a multiple of 3 processes"):
        check_divides(FinetuneRecipe(), 3)
    check_divides(FinetuneRecipe(batch_tokens=512), 3)


@pytest.mark.slow
@pytest.mark.parametrize("select", ["best", "last"])
def test_the_epoch_that_is_asked_for_is_kept(pretrained, tmp_path, select):
    class Spoilt(TrainerCallback):
        """The last epoch ends with a head that calls everything a bird."""

        def on_step_end(self, args, state, control, model, **_):
            if state.global_step == state.max_steps:
                with torch.no_grad():
                    model.classifier.weight.zero_()
                    model.classifier.bias.copy_(torch.tensor([-1.0, 1.0]))

    recipe = FinetuneRecipe(**{**RECIPE, "epochs": 4, "select": select})
    finetune(pretrained, TASK, splits(), tmp_path / "run", recipe, progress=False, callbacks=[Spoilt()])
    own = json.loads((tmp_path / "run/seed-0/result.json").read_text())
    seen = [entry["eval_accuracy"] for entry in own["history"] if "eval_accuracy" in entry]
    assert seen[-1] == 0.5 < max(seen)
    assert own["metrics"]["validation"]["accuracy"] == (max(seen) if select == "best" else 0.5)


def test_from_scratch_takes_no_weights(pretrained, tmp_path):
    go(pretrained, tmp_path / "run", from_scratch=True, epochs=1, learning_rates=[0.0])
    start = AutoModelForSequenceClassification.from_pretrained(pretrained).mabert
    drawn = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run/seed-0").mabert
    table = "embeddings.word_embeddings.weight"
    assert not (start.state_dict()[table] == drawn.state_dict()[table])[1:].any()


@pytest.mark.slow
def test_masking_and_pooling_take_the_place_of_the_models_own(pretrained, tmp_path):
    go(pretrained, tmp_path / "run", padding_safe_masking="pre+post", pooling="cls", packing="none", epochs=1)
    trained = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run/seed-0").config
    assert (trained.padding_safe_masking, trained.pooling) == ("pre+post", "cls")
    go(pretrained, tmp_path / "own", epochs=1)
    own = AutoModelForSequenceClassification.from_pretrained(tmp_path / "own/seed-0").config
    assert (own.padding_safe_masking, own.pooling) == ("exact", "map")


@pytest.mark.slow
def test_models_are_kept_unless_they_are_not_wanted(pretrained, tmp_path):
    recipe = FinetuneRecipe(**{**RECIPE, "epochs": 1})
    for keep in (True, False):
        finetune(pretrained, TASK, splits(), tmp_path / str(keep), recipe, progress=False, keep_models=keep)
    kept, left = ({path.name for path in (tmp_path / str(keep) / "seed-0").iterdir()} for keep in (True, False))
    assert left == {"result.json", "validation.tsv"}
    assert left < kept
    assert "model.safetensors" in kept


@pytest.mark.slow
def test_regression(pretrained, tmp_path):
    task = table_task("lengths", ())
    data = {
        name: Dataset.from_dict(
            {
                "text_a": rows["text_a"],
                "index": rows["index"],
                "label": [len(text.split()) / 4 for text in rows["text_a"]],
            }
        )
        for name, rows in splits().items()
    }
    recipe = FinetuneRecipe(**{**RECIPE, "epochs": 8})
    outcome = finetune(pretrained, task, data, tmp_path / "run", recipe, progress=False)["outcome"]
    assert outcome["scores"]["validation"]["pearson"]["mean"] > 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_length": 4}, r"birds train: \d+ of 160 texts are longer than 4 tokens"),
        ({"max_length": 99}, "max_length is 99, the model has positions for 24 tokens"),
        ({"seeds": ()}, r"seeds are \[\]; needed is one at least, none twice"),
        ({"seeds": (0, 0)}, r"seeds are \[0, 0\]"),
        ({"epochs": 0}, "epochs is 0; it must be at least 1"),
        ({"max_length": 0}, "max_length is 0; it must be at least 1"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"batch_tokens": 0}, "batch_tokens is 0; it must be at least 1"),
        ({"learning_rates": []}, r"learning_rates are \[\]"),
        ({"dropout": 1}, "dropout is 1; it must be at least 0 and below 1"),
        ({"pooling": "max"}, "pooling"),
    ],
)
def test_what_is_refused(pretrained, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        go(pretrained, tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_longer_texts_are_cut_if_asked(pretrained, tmp_path):
    result = go(pretrained, tmp_path / "run", max_length=4, truncate=True, epochs=1)
    assert result["request"]["resolved"]["examples"] == {"train": 160, "validation": 40}
