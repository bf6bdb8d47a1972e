"""What a study shows: its cells, progress and the time left."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from mabert.train.run import grid_file
from mabert_lab import cli
from mabert_lab.study import plan as plans
from mabert_lab.study.cells import CellFiles
from mabert_lab.study.progress import StudyProgress, duration, seconds_left, shortened, show_plan
from mabert_lab.study.runner import Status
from tests.lab.study.helpers import changed, planned, world, written

ARMS = {"map": {}, "wide": {"pretrain": {"model.hidden_size": 32}}}


@pytest.fixture
def shown(tmp_path):
    plan = planned(tmp_path, tmp_path / "root", ARMS)
    console = Console(width=200, force_terminal=True, record=True, highlight=False, _environ={})
    (tmp_path / "root/cells").mkdir(parents=True)
    return plan, tmp_path / "root", StudyProgress(plan, tmp_path / "root", console), console


def finish(root, name, seconds):
    files = CellFiles(root, name)
    files.run.mkdir(exist_ok=True)
    (files.run / "result.json").write_text(json.dumps({"seconds": seconds, "seeds": [0, 1]}))


def test_the_running_cell_and_the_time_left_are_shown(shown):
    plan, root, progress, _ = shown
    first, *rest = plan.cells
    states = {name: Status() for name in plan.cells}
    states[first].state = "running"
    unknown = "all: the time left is said here once a cell of each kind is finished"
    assert progress.running(first, states) == f"pretrain map, 100%  {unknown}"
    note = {"step": 6, "steps": 12, "rate": 0.5, "time": 0, "pid": 1}
    CellFiles(root, first).progress.write_text(json.dumps(note))
    assert progress.running(first, states) == f"pretrain map, 100%  6/12  0.50 steps/s  12 s left  {unknown}"
    CellFiles(root, first).progress.write_text("{")
    assert progress.running(first, states) == f"pretrain map, 100%  {unknown}"
    for name in rest:
        finish(root, name, 1.0)
    assert progress.running(first, states).endswith(" left for one runner")


def test_time_left_follows_from_finished_cells_of_the_kind_and_from_their_size(shown):
    plan, root, _, _ = shown
    pretrain, tune, wide, wide_tune = (plan.cells[name] for name in plan.cells)
    left = [wide.name, wide_tune.name]
    assert seconds_left(plan, root, left) is None
    finish(root, pretrain.name, 10.0)
    assert seconds_left(plan, root, left) is None
    assert seconds_left(plan, root, [wide.name]) == pytest.approx(10 * wide.work / pretrain.work)
    finish(root, tune.name, 40.0)
    expected = 10 * wide.work / pretrain.work + 40 * wide_tune.work / tune.work
    assert seconds_left(plan, root, left) == pytest.approx(expected)
    assert wide.work / pretrain.work == pytest.approx(wide.parameters / pretrain.parameters)
    assert seconds_left(plan, root, []) == 0
    (CellFiles(root, wide.name).run / "checkpoint-3").mkdir(parents=True)
    begun = (1 - 3 / wide.steps) * 10 * wide.work / pretrain.work
    assert seconds_left(plan, root, [wide.name]) == pytest.approx(begun)


def test_a_terminal_shows_the_running_cell_only_while_the_study_runs(shown):
    plan, _, progress, console = shown
    name = next(iter(plan.cells))
    with progress:
        progress({name: Status(state="running")}, name)
        assert str(progress.spinner.status).startswith("pretrain map, 100%")
        progress({name: Status(state="done", seconds=3.0)}, None)
    assert f"1/1 done  done in 3 s  pretrain map, 100% ({name})" in console.export_text()
    assert not progress.spinner._live.is_started


def test_without_a_terminal_every_change_is_a_line(tmp_path):
    plan = planned(tmp_path, tmp_path / "root")
    console = Console(width=100, record=True, force_terminal=False)
    states = {name: Status() for name in plan.cells}
    first = next(iter(plan.cells))
    with StudyProgress(plan, tmp_path / "root", console) as progress:
        progress(states, None)
        for state in ("running", "running", "done"):
            states[first].state = state
            progress(states, first)
    lines = console.export_text().splitlines()
    assert lines == [
        f"0/2 done  running  pretrain map, 100% ({first})",
        f"1/2 done  done  pretrain map, 100% ({first})",
    ]


BRACKETS = "[rank0]: [/pytorch/third_party/gloo] Connection closed by peer :warning:"


def test_brackets_of_a_reason_or_a_title_are_shown_as_they_stand(tmp_path):
    plan = planned(tmp_path, tmp_path / "root", {"[b]map[/c]": {}})
    (tmp_path / "root/cells").mkdir(parents=True)
    first = next(iter(plan.cells))
    console = Console(width=200, record=True, force_terminal=False)
    progress = StudyProgress(plan, tmp_path / "root", console)
    progress({first: Status("failed", BRACKETS)}, None)
    assert console.export_text() == f"0/1 done  failed  pretrain [b]map[/c], 100% ({first}): {BRACKETS}\n"
    plan.name = "[/own]"
    show_plan(plan, tmp_path / "root", console)
    out = console.export_text()
    assert "pretrain [b]map[/c], 100%" in out
    assert "[/own] at scale " in out


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (5, "5 s"),
        (80, "80 s"),
        (100, "2 min"),
        (5000, "83 min"),
        (9000, "2.5 h"),
        (4e5, "4.6 days"),
        (4e7, "463.0 days"),
        (1e12, "31,688 years"),
    ],
)
def test_durations_are_said_in_words(seconds, words):
    assert duration(seconds) == words


def test_a_dry_run_on_the_command_line_lists_the_cells_and_begins_nothing(tmp_path, monkeypatch, capsys):
    fields = world(tmp_path)
    plan = planned(tmp_path, tmp_path / "other", ARMS, fields)
    steps, tokens = (sum(getattr(cell, name) for cell in plan.cells.values()) for name in ("steps", "tokens"))
    arguments = ["study", *written(tmp_path, fields, ARMS), "-o", str(tmp_path / "root"), "--dry-run"]
    assert cli.main(arguments) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert (
        f"2 pretrainings and 2 fine-tunings to run, {steps:,} steps, {shortened(tokens)} tokens; the time left is said"
        in out
    )
    for cell in plan.cells.values():
        assert cell.name in out
    assert not (tmp_path / "root/cells").exists()
    monkeypatch.setattr(plans, "fast_dtype", lambda: "float32")
    assert cli.main([*arguments, "pretrain.training.precision=bf16"]) == 0
    assert "mabert: pretrain.training.precision: bf16, for which this machine has no" in capsys.readouterr().err
    assert cli.main([*arguments, "--from-mnli"]) == 2
    assert "from_mnli is set, and mnli is not among the tasks" in capsys.readouterr().err


def test_of_a_begun_cell_what_is_left_counts(tmp_path):
    fields, root = world(tmp_path), tmp_path / "root"
    plan = planned(tmp_path, root, ARMS, fields)
    pretraining, tuning = (
        next(each for each in plan.cells.values() if each.kind == kind) for kind in ("pretraining", "finetuning")
    )
    for cell, folders in ((pretraining, ("checkpoint-2", "checkpoint-3")), (tuning, ("seed-0",))):
        files = CellFiles(root, cell.name)
        assert files.left(cell) == 1
        for folder in folders:
            (files.run / folder).mkdir(parents=True)
            (files.run / folder / "result.json").write_text("{}")
    assert CellFiles(root, pretraining.name).left(pretraining) == pytest.approx(1 - 3 / pretraining.steps)
    assert CellFiles(root, tuning.name).left(tuning) == 1 - 1 / len(tuning.seeds)
    grid = replace(tuning, content=changed(tuning.content, ("recipe", "learning_rates"), [0.02, 0.2]))
    assert CellFiles(root, tuning.name).left(grid) == 3 / 4, "one seed and two rates of two and two"
    grid_file(CellFiles(root, tuning.name).run, 0.2).parent.mkdir()
    grid_file(CellFiles(root, tuning.name).run, 0.2).write_text("{}")
    assert CellFiles(root, tuning.name).left(grid) == 2 / 4
    (CellFiles(root, tuning.name).run / "unfinished/seed-1-lr-0.02/checkpoint-2").mkdir(parents=True)
    assert CellFiles(root, tuning.name).left(tuning) == 1 - 1 / len(tuning.seeds) - 2 / tuning.steps
    finish(root, pretraining.name, 1.0)
    assert CellFiles(root, pretraining.name).left(pretraining) == 0
