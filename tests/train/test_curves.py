"""Curves: each step once, in the table, in TensorBoard's events and in the record, however often a run was stopped."""

import csv
from typing import ClassVar

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from mabert.cli import main
from mabert.machine.environment import check_reporters
from mabert.train import trainer
from mabert.train.callbacks import table
from mabert.train.pretrain import pretrain
from mabert.train.recipe import FinetuneRecipe, as_mapping
from tests.train.helpers import kill_at, recipe, tokenizer
from tests.train.tasks import go, record


def read(file):
    with file.open(newline="") as rows:
        return list(csv.DictReader(rows))


def events(folder):
    """Steps and values by tag, as TensorBoard shows them."""
    found = EventAccumulator(str(folder)).Reload()
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def agree(rows, logged, tag, column):
    """TensorBoard and a table have the same steps in order, each once, with the same values to float32."""
    mine = [(int(row["step"]), float(row[column])) for row in rows if row[column]]
    steps, values = zip(*mine, strict=True)
    assert len(mine) > 1
    assert list(steps) == [step for step, _ in logged[tag]] == sorted(set(steps))
    assert values == pytest.approx([value for _, value in logged[tag]], rel=1e-6)


def once(history):
    """No step has two losses or two evaluations in a record."""
    known = [(entry["step"], "loss" in entry) for entry in history]
    assert len(known) == len(set(known))


def test_a_step_has_one_row_with_its_loss_and_its_evaluation():
    first = {"step": 2, "loss": 3.0, "epoch": 0.5, "seconds": 1.0}
    rows = table([first, {"step": 2, "eval_loss": 2.5, "epoch": 0.5, "seconds": 1.5}, {"step": 4, "loss": None}])
    assert rows == "step,epoch,loss,learning_rate,eval_loss,seconds\n2,0.5,3.0,,2.5,1.5\n4,,,,,\n"


@pytest.mark.slow
def test_a_pretraining_that_was_killed_goes_on_with_each_step_once(tmp_path):
    plan, place = recipe(tmp_path, log_steps=1, eval_steps=5), tmp_path / "run"

    def run(**options):
        return pretrain(plan, place, tokenizer=tokenizer(), progress=False, **options)

    with pytest.raises(SystemError, match="killed"):
        run(callbacks=[kill_at(10)])
    assert [int(row["step"]) for row in read(place / "history.csv")] == list(range(1, 11))
    assert (place / "checkpoint-8").is_dir()
    outcome = run(resume=True)["outcome"]
    rows, logged = read(place / "history.csv"), events(place / "tensorboard")
    assert len(list((place / "tensorboard").iterdir())) == 2, "the killed start's events are there, and replaced"
    assert [int(row["step"]) for row in rows] == list(range(1, 13))
    assert [int(row["step"]) for row in rows if row["eval_loss"]] == [5, 10, 12]
    assert sorted(float(row["seconds"]) for row in rows) == [float(row["seconds"]) for row in rows]
    agree(rows, logged, "train/loss", "loss")
    agree(rows, logged, "train/learning_rate", "learning_rate")
    agree(rows, logged, "eval/loss", "eval_loss")
    once(outcome["history"])
    assert float(rows[-1]["eval_loss"]) == outcome["held_out_loss"]


@pytest.mark.slow
def test_each_training_of_a_grid_has_its_curves_and_each_step_once(pretrained, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer.MaBertTrainer, "save_seconds", 0.0)
    how = {"learning_rates": [1e-2, 2e-2], "seeds": (0, 1), "epochs": 2}
    with pytest.raises(SystemError, match="killed"):
        go(pretrained, tmp_path / "run", callbacks=[kill_at(7)], **how)
    outcome = go(pretrained, tmp_path / "run", resume=True, **how)["outcome"]
    best = f"{outcome['learning_rate']:g}"
    names = {"seed-0-lr-0.01", "seed-0-lr-0.02", f"seed-1-lr-{best}"}
    assert {file.stem for file in (tmp_path / "run/history").iterdir()} == names
    assert {file.name for file in (tmp_path / "run/tensorboard").iterdir()} == names
    for name in names:
        rows, logged = read(tmp_path / f"run/history/{name}.csv"), events(tmp_path / "run/tensorboard" / name)
        agree(rows, logged, "train/loss", "loss")
        agree(rows, logged, "eval/accuracy", "eval_accuracy")
    for seed in (0, 1):
        once(record(tmp_path / "run", seed)["history"])
        scored = [row["eval_accuracy"] for row in read(tmp_path / f"run/history/seed-{seed}-lr-{best}.csv")]
        assert float(scored[-1]) == record(tmp_path / "run", seed)["metrics"]["validation"]["accuracy"]


def test_a_start_that_fails_before_its_first_step_leaves_the_table(tmp_path):
    plan, place = recipe(tmp_path, log_steps=1), tmp_path / "run"
    for step, resume in ((2, False), (0, True)):
        how = {"tokenizer": tokenizer(), "progress": False, "callbacks": [kill_at(step)], "resume": resume}
        with pytest.raises(SystemError, match="killed"):
            pretrain(plan, place, **how)
        assert len(read(place / "history.csv")) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wandb", "report_to names 'wandb', which is not installed: pip install wandb"),
        ("comet_ml", "report_to names 'comet_ml', which is not installed: pip install comet-ml"),
        ("wandbb", "report_to names 'wandbb'; transformers knows .*, wandb"),
        ("all", "report_to names 'all'; transformers knows .* or none alone"),
    ],
)
def test_a_name_whose_package_is_missing_is_refused(monkeypatch, name, message):
    for package in ("wandb", "comet"):
        monkeypatch.setattr(integration_utils, f"is_{package}_available", lambda: False)
    with pytest.raises(ValueError, match=message) as found:
        check_reporters(["tensorboard", name])
    assert "\n" not in str(found.value)


def test_it_is_refused_before_any_text_is_read(tmp_path, monkeypatch, capsys, pretrained):
    monkeypatch.setattr(integration_utils, "is_wandb_available", lambda: False)
    monkeypatch.setattr("mabert.train.pretrain_run.build_cache", None)
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(as_mapping(recipe(tmp_path))))
    out = ["-o", str(tmp_path / "run")]
    for command in (
        ["pretrain", str(tmp_path / "plan.yaml"), "training.report_to=wandb", *out],
        ["finetune", str(pretrained), "--train", "missing.csv", "--report-to", "wandb", *out],
    ):
        assert main(command) == 2
        assert "pip install wandb" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


class Heard(TrainerCallback):
    """A reporter that keeps what it gets."""

    runs: ClassVar[list] = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.runs.append((args.run_name, []))

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.runs[-1][1].append((state.global_step, logs))

    def on_train_end(self, args, state, control, **kwargs):
        self.runs[-1][1].append(None)


def test_a_reporter_gets_a_run_of_each_training_and_nothing_after_its_end(pretrained, tmp_path, monkeypatch):
    monkeypatch.setattr(integration_utils, "is_trackio_available", lambda: True)
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "trackio", Heard)
    monkeypatch.setattr(Heard, "runs", [])
    plan = recipe(tmp_path, steps=3, warmup_steps=1, eval_steps=2, report_to=["trackio"])
    pretrain(plan, tmp_path / "one", tokenizer=tokenizer(), progress=False)
    go(pretrained, tmp_path / "two", sizes=(12, 4), seeds=(0, 1), report_to=["trackio"])
    assert [name for name, _ in Heard.runs] == ["one", "two/seed-0-lr-0.02", "two/seed-1-lr-0.02"]
    assert [step for step, logs in Heard.runs[0][1][:-1] if "eval_loss" in logs] == [2, 3]
    for _, logs in Heard.runs:
        assert logs.index(None) == len(logs) - 1
    assert not list(tmp_path.glob("*/tensorboard"))
    assert (tmp_path / "one/history.csv").is_file()


def test_where_curves_go_is_no_part_of_what_a_run_is(pretrained, tmp_path):
    assert "report_to" not in as_mapping(FinetuneRecipe())
    assert "report_to" not in as_mapping(recipe(tmp_path))["training"]
    assert as_mapping(FinetuneRecipe(report_to=["none"]))["report_to"] == ["none"]
    go(pretrained, tmp_path / "run", sizes=(12, 4), epochs=1)
    assert "report_to" not in yaml.safe_load((tmp_path / "run/request.yaml").read_text())
    again = go(pretrained, tmp_path / "run", sizes=(12, 4), epochs=1, report_to=["none"], resume=True)
    assert again["seeds"] == [0]
