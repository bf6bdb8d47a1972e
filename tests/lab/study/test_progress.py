"""What a study shows: its cells, each change of one, and why it cannot begin."""

import pytest
from rich.console import Console

from mabert_lab import cli
from mabert_lab.study import plan as plans
from mabert_lab.study.cells import CellFiles
from mabert_lab.study.runner import Status, progress, show_plan
from tests.lab.study.helpers import planned, world, written
from tests.refusal import refusal

ARMS = {"map": {}, "wide": {"pretrain": {"model.hidden_size": 32}}}


def test_every_change_is_a_line(tmp_path):
    plan, root = planned(tmp_path, tmp_path / "root"), tmp_path / "root"
    console = Console(width=100, record=True, force_terminal=False)
    states = {name: Status() for name in plan.cells}
    first = next(iter(plan.cells))
    show = progress(plan, root, console)
    show(states)
    for state, seconds in (("running", None), ("running", None), ("done", 3723.4)):
        states[first].state, states[first].seconds = state, seconds
        show(states)
    lines = console.export_text().splitlines()
    assert lines == [
        f"0/2 done  running  pretrain map, 100% ({first}): {root}/cells/{first}.log",
        f"1/2 done  done in 1:02:03  pretrain map, 100% ({first})",
    ]


BRACKETS = "[rank0]: [/pytorch/third_party/gloo] Connection closed by peer :warning:"


def test_brackets_of_a_reason_or_a_title_are_shown_as_they_stand(tmp_path):
    plan = planned(tmp_path, tmp_path / "root", {"[b]map[/c]": {}})
    first = next(iter(plan.cells))
    console = Console(width=200, record=True, force_terminal=False)
    progress(plan, tmp_path / "root", console)({first: Status("failed", BRACKETS)})
    assert console.export_text() == f"0/1 done  failed  pretrain [b]map[/c], 100% ({first}): {BRACKETS}\n"
    plan.name = "[/own]"
    show_plan(plan, tmp_path / "root", console)
    out = console.export_text()
    assert "pretrain [b]map[/c], 100%" in out
    assert "[/own] at scale " in out


def test_a_dry_run_on_the_command_line_lists_the_cells_says_which_are_done_and_begins_nothing(
    tmp_path, monkeypatch, capsys
):
    fields = world(tmp_path)
    plan = planned(tmp_path, tmp_path / "other", ARMS, fields)
    arguments = ["study", *written(tmp_path, fields, ARMS), "-o", str(tmp_path / "root"), "--dry-run"]
    assert cli.main(arguments) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.endswith(": 2 pretrainings and 2 fine-tunings to run")
    assert " done" not in out
    for cell in plan.cells.values():
        assert f"{cell.name} {cell.title} {cell.steps:,} {cell.parameters:,}" in out
    assert not (tmp_path / "root/cells").exists()
    monkeypatch.setattr(plans, "fast_dtype", lambda: "float32")
    assert cli.main([*arguments, "pretrain.training.precision=bf16"]) == 0
    assert "mabert: pretrain.training.precision: bf16, for which this machine has no" in capsys.readouterr().err
    first = next(iter(plan.cells.values()))
    files = CellFiles(tmp_path / "root", first.name)
    assert files.why_failed() is None
    files.run.mkdir(parents=True)
    (files.run / "result.json").write_text("{}")
    assert cli.main(arguments) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"{first.name} {first.title} {first.steps:,} {first.parameters:,} done" in out
    assert out.count(" done") == 1
    assert out.endswith(": 1 pretrainings and 2 fine-tunings to run")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("finetune.pooling=mean", "finetune.pooling would change nothing: every arm of the study has its own"),
        ("finetune.max_length=99", "the fine-tuning of map on CoLA: max_length is 99, the model has positions for 24"),
    ],
)
def test_what_cannot_be_run_is_told_before_anything_is(capsys, tmp_path, given, message):
    arguments = written(tmp_path, world(tmp_path), {"map": {"paper": "map", "finetune": {"pooling": "map"}}})
    told = refusal(capsys, ["study", *arguments, "-o", tmp_path / "root", given])
    assert told.startswith(f"mabert: {message}")
    assert not (tmp_path / "root/cells").exists()
