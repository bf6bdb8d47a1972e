"""What a study shows: states, progress, time left; and what it would cost."""

import json
import re
import statistics
from dataclasses import replace

import pytest
from rich.console import Console

from mabert import cli
from mabert.study import estimate
from mabert.study import plan as plans
from mabert.study.cells import CellFiles
from mabert.study.live import LiveView, duration
from mabert.study.runner import Status
from mabert.train.fields import build
from mabert.train.recipe import PretrainRecipe
from mabert.train.run import grid_file
from tests.study.helpers import changed, planned, world, written

ARMS = {"map": {}, "wide": {"pretrain": {"model.hidden_size": 32}}}


@pytest.fixture
def shown(tmp_path):
    plan = planned(tmp_path, tmp_path / "root", ARMS)
    console = Console(width=100, force_terminal=True, record=True, highlight=False, _environ={})
    (tmp_path / "root/cells").mkdir(parents=True)
    return plan, tmp_path / "root", LiveView(plan, tmp_path / "root", console), console


def text(view, console, states, running=None):
    console.print(view.drawn(states, running))
    return console.export_text(clear=True)


def finish(root, name, seconds):
    files = CellFiles(root, name)
    files.run.mkdir(exist_ok=True)
    (files.run / "result.json").write_text(json.dumps({"seconds": seconds, "seeds": [0, 1]}))


def test_counts_the_running_cell_and_failures_are_shown(shown):
    plan, root, view, console = shown
    first, second, *_ = plan.cells
    states = {name: Status() for name in plan.cells}
    assert "4 waiting  time left: unknown yet" in text(view, console, states)
    states[first].state = "running"
    assert "pretrain map, 100% begins" in text(view, console, states, first)
    note = {"step": 6, "steps": 12, "rate": 0.5, "time": 0, "pid": 1}
    CellFiles(root, first).progress.write_text(json.dumps(note))
    drawn = text(view, console, states, first)
    assert "6/12" in drawn
    assert "0.50 steps/s" in drawn
    assert "12 s left" in drawn
    states[first], states[second] = Status("done"), Status("failed", "OSError: no space")
    assert "1 done  2 waiting  1 failed" in (drawn := text(view, console, states))
    assert "failed  CoLA, map: OSError: no space" in drawn


def test_time_left_follows_from_finished_cells_of_the_kind_and_from_their_size(shown):
    plan, root, view, _ = shown
    states = {name: Status() for name in plan.cells}
    pretrain, tune, wide, wide_tune = (plan.cells[name] for name in plan.cells)
    assert view.seconds_left(states, None) is None
    for cell, seconds in ((pretrain, 10.0), (tune, 40.0)):
        finish(root, cell.name, seconds)
        states[cell.name].state = "done"
    expected = 10 * wide.work / pretrain.work + 40 * wide_tune.work / tune.work
    assert view.seconds_left(states, None) == pytest.approx(expected)
    assert wide.work / pretrain.work == pytest.approx(wide.parameters / pretrain.parameters)
    states[wide.name].state = "failed"
    states[wide_tune.name].state = "blocked"
    assert view.seconds_left(states, None) == 0


def test_without_a_terminal_every_change_is_a_line(tmp_path):
    plan = planned(tmp_path, tmp_path / "root")
    console = Console(width=100, record=True, force_terminal=False)
    states = {name: Status() for name in plan.cells}
    first = next(iter(plan.cells))
    with LiveView(plan, tmp_path / "root", console) as view:
        view(states, None)
        for state in ("running", "running", "done"):
            states[first].state = state
            view(states, first)
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
    view = LiveView(plan, tmp_path / "root", console)
    view({first: Status("failed", BRACKETS)}, None)
    expected = f"pretrain [b]map[/c], 100% ({first}): {BRACKETS}"
    assert console.export_text() == f"0/1 done  failed  {expected}\n"
    assert f"pretrain [b]map[/c], 100%: {BRACKETS}" in text(view, console, {first: Status("failed", BRACKETS)})
    states = {first: Status("running")}
    assert "pretrain [b]map[/c], 100%" in text(view, console, states, first)
    CellFiles(tmp_path / "root", first).progress.write_text(json.dumps({"step": 1, "steps": 2, "rate": 1.0}))
    assert "pretrain [b]map[/c], 100%" in text(view, console, states, first)
    costs = [estimate.Estimate(cell, 1.0, 1.0) for cell in plan.cells.values()]
    plan.name = "[/own]"
    estimate.show(plan, costs, console)
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


def test_a_dry_run_probes_each_model_once_and_counts_what_is_left(tmp_path, monkeypatch):
    fields = world(tmp_path)
    probed = []

    def probe(recipe, rows, length, dropout):
        probed.append((recipe.model["hidden_size"], rows, length, dropout))
        return estimate.Times(0.5 + (1e-3 if dropout is None else 8e-4) * rows * length, 0.25)

    monkeypatch.setattr(estimate, "probe", probe)
    arms = {**ARMS, "again": {"finetune": {"pooling": "cls"}}}
    plan = planned(tmp_path, tmp_path / "root", arms, fields, budgets=("50%", "100%"))
    costs = {cost.cell.title: cost for cost in estimate.estimates(plan, tmp_path / "root")}
    windows = [(8, 4, None), (4, 12, None), (4, 24, None), (8, 4, 0.0), (4, 12, 0.0)]
    assert sorted(probed, key=str) == sorted(((width, *each) for width in (16, 32) for each in windows), key=str)
    micro_batches = 8 / 4
    expected = 9 * (micro_batches * 0.5 + 0.096 + 0.25) + 3 * (micro_batches * 0.5 + 0.192 + 0.25)
    assert costs["pretrain map, 100%"].seconds == pytest.approx(expected)
    tuning = costs["CoLA, map, 100%"]
    assert "CoLA, map, 50%" in costs
    assert tuning.seconds == pytest.approx(tuning.cell.steps * (0.5 + 0.25) + tuning.cell.tokens * 8e-4)
    assert {cost.left for cost in costs.values()} == {1.0}
    (tmp_path / "root/cells").mkdir()
    finish(tmp_path / "root", costs["pretrain map, 100%"].cell.name, 1.0)
    console = Console(width=120, record=True)
    estimate.show(plan, estimate.estimates(plan, tmp_path / "root"), console)
    out = console.export_text()
    assert "3 pretrainings and 6 fine-tunings to run" in out
    assert out.count(" done") == 1


def test_models_whose_layers_only_come_in_another_order_are_timed_once(tmp_path, monkeypatch):
    told, probed = [], []

    def probe(recipe, rows, length, dropout):
        probed.append((recipe.model["layer_pattern"], rows, length, dropout))
        return estimate.Times(0.5, 0.25)

    monkeypatch.setattr(estimate, "probe", probe)
    arms = {pattern: {"pretrain": {"model.layer_pattern": pattern}} for pattern in ("MMT", "TMM", "MTT")}
    plan = planned(tmp_path, tmp_path / "root", arms, world(tmp_path))
    estimate.estimates(plan, tmp_path / "root", told.append)
    assert {pattern for pattern, *_ in probed} == {"MMT", "MTT"}
    assert len(told) == len(probed) == len(set(probed))
    assert told[0] == "pretraining MMT, 100%: 8 x 4 tokens"
    assert "fine-tuning MTT, 100%: 4 x 12 tokens" in told


def test_fine_tuning_is_timed_with_its_own_precision_and_dropout(tmp_path, monkeypatch):
    probed = set()

    def probe(recipe, rows, length, dropout):
        slow = 3.0 if recipe.training.precision == "bf16" else 1.0
        probed.add((recipe.training.precision, recipe.training.gradient_checkpointing, dropout))
        return estimate.Times(slow * 1e-3 * rows * length, 0.25)

    monkeypatch.setattr(estimate, "probe", probe)
    fields = changed(world(tmp_path), ("pretrain", "training", "precision"), "bf16")
    fields = changed(fields, ("pretrain", "training", "gradient_checkpointing"), True)
    fields = changed(fields, ("finetune", "dropout"), 0.3)
    assert fields["finetune"]["precision"] == "fp32"
    plan = planned(tmp_path, tmp_path / "root", {"MMT": {}}, fields)
    costs = {cost.cell.kind: cost for cost in estimate.estimates(plan, tmp_path / "root")}
    assert probed == {("bf16", True, None), ("fp32", False, 0.3)}
    tuning = costs["finetuning"]
    assert tuning.seconds == pytest.approx(tuning.cell.steps * 0.25 + tuning.cell.tokens * 1e-3)


def test_a_model_that_is_slow_over_few_tokens_is_not_timed_over_more(tmp_path, monkeypatch):
    probed = []

    def probe(recipe, rows, length, dropout):
        probed.append((rows, length, dropout))
        return estimate.Times(estimate.PATIENCE * 1.6, 0.25)

    monkeypatch.setattr(estimate, "probe", probe)
    plan = planned(tmp_path, tmp_path / "root", {"MMT": {}}, world(tmp_path))
    costs = {cost.cell.kind: cost for cost in estimate.estimates(plan, tmp_path / "root")}
    assert probed == [(8, 4, None), (8, 4, 0.0)]
    assert all(cost.at_most for cost in costs.values())
    console = Console(width=120, record=True)
    estimate.show(plan, costs.values(), console)
    assert " tokens, at most " in console.export_text()
    a_token = estimate.PATIENCE * 1.6 / 32
    cell = costs["pretraining"].cell
    assert costs["pretraining"].seconds == pytest.approx(cell.tokens * a_token + cell.steps * 0.25)


@pytest.mark.parametrize(("seconds", "calls"), [(0.0, 3), (2.0, 3), (4.0, 2), (9.0, 1)])
def test_a_probe_calls_no_more_when_its_time_is_over(tmp_path, monkeypatch, seconds, calls):
    fields = world(tmp_path)
    plan = planned(tmp_path, tmp_path / "root", {"MMT": {}}, fields)
    recipe = build(PretrainRecipe, next(iter(plan.cells.values())).order["recipe"], "")
    clock = [0.0]
    passes = []

    def timed(function):
        function()
        if function.__name__ == "forward_backward":
            passes.append(function)
            clock[0] += seconds + len(passes) / 1000
            return seconds + len(passes) / 1000
        return 0.001

    monkeypatch.setattr(estimate, "timed", timed)
    monkeypatch.setattr(estimate.time, "monotonic", lambda: clock[0])
    every, loss = [], estimate.mean_over_scored
    monkeypatch.setattr(estimate, "mean_over_scored", lambda *given: every.append(given) or loss(*given))
    taken = estimate.probe(recipe, 2, 4)
    assert len(passes) == calls
    assert len(every) == 1 + calls, "the first is not timed, which may compile kernels"
    kept = [seconds + number / 1000 for number in range(1, calls + 1)]
    assert taken.forward_backward == pytest.approx(statistics.median(kept))


def test_a_probe_is_of_the_model_that_is_trained(tmp_path, monkeypatch):
    built = []
    new = estimate.new_model
    monkeypatch.setattr(estimate, "new_model", lambda config: built.append(new(config)) or built[-1])
    fields = changed(world(tmp_path), ("pretrain", "training", "gradient_checkpointing"), True)
    plan = planned(tmp_path, tmp_path / "root", {"MMT": {}}, changed(fields, ("finetune", "dropout"), 0.3))
    estimate.estimates(plan, tmp_path / "root")
    seen = {(model.is_activation_checkpointing, model.config.hidden_dropout_prob) for model in built}
    assert seen == {(True, 0.1), (False, 0.3)}


def test_a_micro_batch_above_the_batch_is_the_batch(tmp_path, monkeypatch):
    probed = []

    def probe(recipe, rows, length, dropout):
        probed.append(rows)
        return estimate.Times(0.5 + 1e-3 * rows * length, 0.25)

    monkeypatch.setattr(estimate, "probe", probe)
    fields = changed(world(tmp_path), ("pretrain", "training", "micro_batch_size"), 64)
    assert fields["pretrain"]["training"]["batch_size"] == 8
    plan = planned(tmp_path, tmp_path / "root", {"MMT": {}}, fields)
    costs = estimate.estimates(plan, tmp_path / "root")
    assert set(probed) == {8}
    assert costs[0].seconds == pytest.approx(9 * (0.5 + 0.096 + 0.25) + 3 * (0.5 + 0.192 + 0.25))


def test_a_terminal_is_drawn_on_while_the_study_runs(shown):
    plan, _, view, console = shown
    name = next(iter(plan.cells))
    with view:
        view({name: Status(state="running")}, name)
        view({name: Status(state="done", seconds=3.0)}, None)
    out = console.export_text()
    assert plan.cells[name].title in out
    assert "1 running" in out
    assert "1 done" in out
    assert not view.live.is_started


def test_a_dry_run_on_the_command_line_says_what_it_would_cost_and_begins_nothing(tmp_path, monkeypatch, capsys):
    fields = world(tmp_path)
    plan = planned(tmp_path, tmp_path / "other", ARMS, fields)
    steps, tokens = (sum(getattr(cell, name) for cell in plan.cells.values()) for name in ("steps", "tokens"))
    arguments = ["study", *written(tmp_path, fields, ARMS), "-o", str(tmp_path / "root"), "--dry-run"]
    assert cli.main(arguments) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"2 pretrainings and 2 fine-tunings to run, {steps:,} steps, {estimate.shown(tokens)} tokens, about " in out
    assert re.search(r"about \d+ (s|min|h)\b.* on this machine", out)
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


def test_the_line_through_two_passes_never_falls():
    assert estimate.Line.through((10, 1.0), (110, 3.0)) == pytest.approx((0.8, 0.02))
    assert estimate.Line.through((10, 1.0), (110, 0.5)) == (1.0, 0.0)
    assert estimate.Line.through((10, 0.1), (110, 3.0)) == pytest.approx((0.0, 0.029))
    assert estimate.Line.through((10, 1.0), (10, 1.0)) == pytest.approx((0.0, 0.1))


@pytest.mark.parametrize("architecture", ["mabert", "bert"])
def test_a_probe_times_a_step_of_the_recipe(tmp_path, architecture):
    fields = world(tmp_path)
    del fields["pretrain"]["model"]["ssm_state_size"]
    arms = {architecture: {"pretrain": {"architecture": architecture}}}
    plan = planned(tmp_path, tmp_path / "root", arms, fields)
    costs = estimate.estimates(plan, tmp_path / "root")
    assert all(0 < cost.seconds < 300 for cost in costs)
