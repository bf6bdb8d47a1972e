"""Runs of studies: nothing is lost, nothing is done twice, and one failure stops nothing else."""

import json
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from unittest.mock import Mock, call
from uuid import uuid4

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from mabert.files.writing import write_text
from mabert.machine import processes
from mabert.machine.environment import processor
from mabert.machine.processes import ended_as_interrupted
from mabert.train.checkpoint import MANIFEST, seal
from mabert_lab.cli import main
from mabert_lab.report.studies import read_study
from mabert_lab.study import runner as running
from mabert_lab.study import work
from mabert_lab.study.cells import CellFiles
from mabert_lab.study.plan import FORMAT
from mabert_lab.study.results import gathered, results_file, started, write_results
from mabert_lab.study.runner import Runner, is_running
from mabert_lab.study.work import BUSY, STOPPED, serve
from tests.lab.study.helpers import FINETUNE, begun, changed, ended, planned, serve_until, world, written
from tests.patience import HANG

LOSS = 4.6039
"""Held-out loss of the pretraining."""

ARMS = {"map": {"paper": "map"}, "cls": {"paper": "cls", "finetune": {"pooling": "cls"}}}

FORKED = pytest.mark.skipif(sys.platform != "linux", reason="processes are begun, limited and killed as Linux does")
pytestmark = [FORKED, pytest.mark.slow]


def run(plan, root):
    runner = Runner(plan, root, finished=partial(write_results, plan, root))
    return {plan.cells[name].title: status for name, status in runner.run().items()}


def run_command(arguments, said, holds=False, disk=None):
    """The command in a process that has done its imports; its cells are forked from it.

    Args:
        arguments: Of the command.
        said: File for its output.
        holds: Whether its cells wait after their first step until they are told to end.
        disk: Bytes that a file may have, if there is a limit.
    """
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)  # several runners with all threads each would mostly wait for one another's
    running.context = processes.context = lambda *_, **__: multiprocessing.get_context("fork")
    running.serve = serve_held if holds else serve
    if disk is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (disk, resource.RLIM_INFINITY))
    sys.exit(main(arguments))


def command(arguments, root, **options):
    """A runner's process, begun, and the file of what it says."""
    root.mkdir(exist_ok=True)
    said = root.parent / f"said-{uuid4().hex}"
    told = (["study", *arguments, "-o", str(root)], said)
    process = multiprocessing.get_context("forkserver").Process(target=run_command, args=told, kwargs=options)
    process.start()
    return process, said


def waits_for(condition):
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A study that ran through: its world, root, plan and states."""
    folder = tmp_path_factory.mktemp("unbroken")
    fields = world(folder)
    plan = planned(folder, folder / "root", ARMS, fields)
    return folder, fields, plan, run(plan, folder / "root")


@pytest.fixture
def copied(unbroken, tmp_path):
    """The same with a copy of its root in place of the states."""
    folder, fields, plan, _ = unbroken
    return folder, fields, plan, shutil.copytree(folder / "root", tmp_path / "root")


@pytest.fixture
def fresh(unbroken, tmp_path):
    """Plans arms in the same world and an empty root; gives the plan, the root and the first cell."""
    folder, fields, _, _ = unbroken
    root = tmp_path / "root"
    (root / "cells").mkdir(parents=True)

    def made(arms=ARMS, **changes):
        plan = planned(folder, root, arms, {**fields, **changes})
        return plan, root, next(iter(plan.cells.values()))

    return made


def commanded(unbroken, tmp_path, arms, fields=None):
    """The arguments of a command that runs arms in the same world."""
    folder, usual, _, _ = unbroken
    (tmp_path / "glue").symlink_to(folder / "glue")
    return written(tmp_path, fields or usual, arms)


def states_of(states):
    return {status.state for status in states.values()}


def accuracies(plan, root):
    """The first row's accuracies on CoLA by seed, as the results have them."""
    return json.loads(results_file(plan, root).read_text())["rows"][0]["scores"]["cola"]["accuracy"]


def test_a_study_runs_and_says_what_it_found(unbroken):
    folder, _, plan, states = unbroken
    assert states_of(states) == {"done"}
    assert all(status.seconds > 0 for status in states.values())
    result = json.loads(results_file(plan, folder / "root").read_text())
    arm = read_study(result).arm("cls", 1.0)
    assert list(arm.scores) == ["cola"], "by its own metric, Matthews' correlation"
    assert list(arm.further) == [("cola", "accuracy")]
    about = {"kind": "study", "study": "test", "scale": plan.scale_name, "reference": "map"}
    assert result.items() >= about.items()
    assert len(result["environments"]) == 1
    assert result["rows"][0]["rates"] == {"cola": FINETUNE["learning_rates"][0]}
    assert result["settings"]["arms"]["cls"]["finetune"] == ARMS["cls"]["finetune"]
    assert result["settings"]["tasks"]["cola"].items() >= FINETUNE.items()
    request = CellFiles(folder / "root", plan.rows[0].finetunings["cola"]).result()["request"]
    assert request.items() >= (FINETUNE | {"pooling": None}).items(), "the arm says it by the study's own word"
    first, second = result["rows"]
    assert (first["arm"], second["arm"]) == ("map", "cls")
    assert first["pretraining"] == second["pretraining"], "they share it"
    assert (first["pretraining"]["status"], first["pretraining"]["steps"]) == ("done", 12)
    whole = (9 * 12 + 3 * 24) * 8  # but for the text's last window, which is shorter
    assert whole - 24 < first["pretraining"]["tokens"] <= whole
    for row in (first, second):
        scores = row["scores"]["cola"]["matthews_correlation"]
        assert set(scores) == {"0", "1"}
        assert all(-1 <= score <= 1 for score in scores.values())
        assert not row["failed"]
    assert not list((folder / "root/cells").glob("*/checkpoint-*")), "nothing is left to resume"
    assert not list((folder / "root/cells").glob("*/seed-*/model.safetensors")), "nothing starts from these"


def test_every_machine_that_ran_a_seed_is_named(unbroken, copied):
    *_, states = unbroken
    _, _, plan, root = copied
    place = next(CellFiles(root, cell.name).run for cell in plan.cells.values() if cell.kind == "finetuning")
    for seed in (0, 1):
        assert json.loads((place / f"seed-{seed}/result.json").read_text())["environment"]["processor"]
    change(place / "seed-1/result.json", lambda result: result["environment"].update(processor="another"))
    named = [about["processor"] for about in gathered(plan, root, states)["environments"]]
    assert sorted(named) == sorted({"another", processor()})
    change(place / "seed-1/result.json", lambda result: result.pop("environment"))
    change(place / "result.json", lambda result: result["environment"].update(processor="a third"))
    named = [about["processor"] for about in gathered(plan, root, states)["environments"]]
    assert "a third" in named, "seeds of before tell no machine: then it is that of the run"


def change(file, how):
    content = json.loads(file.read_text())
    how(content)
    file.write_text(json.dumps(content))


def test_what_is_finished_is_not_done_again_and_more_seeds_are_added(unbroken):
    folder, fields, plan, _ = unbroken
    before = {path: path.stat().st_mtime_ns for path in (folder / "root/cells").rglob("result.json")}
    assert states_of(run(plan, folder / "root")) == {"done"}
    assert before == {path: path.stat().st_mtime_ns for path in before}
    more = planned(folder, folder / "root", ARMS, fields, seeds=[0, 1, 2])
    assert states_of(run(more, folder / "root")) == {"done"}
    seeds = {path: when for path, when in before.items() if path.parent.name.startswith("seed")}
    assert len(seeds) == 4
    assert seeds == {path: path.stat().st_mtime_ns for path in seeds}
    assert len(list((folder / "root/cells").glob("*/seed-*"))) == 6


def kill_and_mark(cell, root, checkpoint, loss):
    """Kills a cell after a checkpoint; marks its checkpoints, and a training that goes on carries the mark along."""
    files, process = CellFiles(root, cell.name), begun(cell, root)
    waits_for((files.run / checkpoint).is_dir)
    process.kill()
    process.join()
    assert not files.finished(cell.seeds)
    for state in files.run.glob("checkpoint-*/trainer_state.json"):
        change(state, lambda content: content["log_history"].insert(0, {"step": 0, "loss": loss}))
        (state.parent / MANIFEST).unlink()
        seal(state.parent)


def marks(files):
    """The marks that a finished pretraining carries."""
    return [entry["loss"] for entry in files.result()["outcome"]["history"] if entry["step"] == 0]


def test_a_pretraining_killed_at_any_point_ends_with_the_same_weights(unbroken, fresh):
    folder, _, plan, _ = unbroken
    broken, root, cell = fresh({"map": ARMS["map"]})
    files = CellFiles(root, cell.name)
    for checkpoint, loss in (("checkpoint-4", 77.0), ("checkpoint-8", 88.0)):
        kill_and_mark(cell, root, checkpoint, loss)
    assert states_of(run(broken, root)) == {"done"}
    assert marks(files) == [88.0, 77.0], "each attempt went on where the one before had saved"
    ours, theirs = (load_file(CellFiles(at, cell.name).run / "model.safetensors") for at in (root, folder / "root"))
    assert ours.keys() == theirs.keys()
    assert all((ours[name] == theirs[name]).all() for name in ours)
    ours, theirs = (accuracies(of, at) for of, at in ((broken, root), (plan, folder / "root")))
    assert all(ours[seed] == theirs[seed] for seed in ("0", "1"))


def test_a_begun_study_may_be_moved_and_cut_otherwise(unbroken, fresh, tmp_path):
    folder, fields, plan, _ = unbroken
    _, root, cell = fresh()
    kill_and_mark(cell, root, "checkpoint-4", 77.0)
    moved = tmp_path / "elsewhere"
    root.rename(moved)
    (tmp_path / "texts").mkdir()
    copy = str(shutil.copy(fields["pretrain"]["data"]["sources"][0], tmp_path / "texts"))
    own = changed(fields, ("pretrain", "data", "sources"), [copy])
    own["pretrain"]["training"]["micro_batch_size"] = 8
    own["pretrain"]["model"]["ssm_direction"] = "forward"  # the default, spelt out
    again = planned(folder, moved, ARMS, own)
    assert list(again.cells) == list(plan.cells)
    assert ended(again.cells[cell.name], moved) == 0
    order = json.loads(CellFiles(moved, cell.name).order.read_text())
    assert order["recipe"]["training"]["micro_batch_size"] == 8
    assert marks(CellFiles(moved, cell.name)) == [77.0], "it began anew"


def test_a_begun_fine_tuning_goes_on_however_it_is_spelt_and_wherever_its_examples_lie(copied, tmp_path):
    folder, fields, plan, root = copied
    glue = shutil.copytree(folder / "glue", tmp_path / "g")
    own = changed(fields, ("finetune", "padding_safe_masking"), "exact")  # the model's own, spelt out
    more = planned(folder, root, ARMS, own, glue=glue, seeds=[0, 1, 2])
    assert list(more.cells) == list(plan.cells)
    assert states_of(run(more, root)) == {"done"}
    assert set(accuracies(more, root)) == {"0", "1", "2"}
    files = CellFiles(root, more.rows[0].finetunings["cola"])
    assert files.result()["seconds"] == pytest.approx(sum(files.result(seed)["seconds"] for seed in (0, 1, 2)))
    fewer = planned(folder, root, ARMS, fields, seeds=[1])
    assert results_file(fewer, root) == results_file(more, root)
    write_results(fewer, root, {})
    assert set(accuracies(fewer, root)) == {"0", "1", "2"}, "what is there is not lost"


def test_each_plan_has_results_of_its_own(unbroken):
    folder, fields, plan, _ = unbroken
    root, other = folder / "root", changed(fields, ("pretrain", "data", "held_out"), 0.2)
    plans = [plan, planned(folder, root, ARMS, other), planned(folder, root, ARMS, fields, budgets=("50%", "100%"))]
    assert len({results_file(each, root) for each in plans}) == 3


def test_a_cell_whose_record_is_missing_writes_it(copied):
    folder, fields, plan, root = copied
    name = plan.rows[0].finetunings["cola"]
    files = CellFiles(root, name)
    (files.run / "result.json").unlink()
    finished = sorted(int(file.parent.name.removeprefix("seed-")) for file in files.run.glob("seed-*/result.json"))
    assert not files.finished(plan.cells[name].seeds)
    assert states_of(run(planned(folder, root, ARMS, fields), root)) == {"done"}
    assert files.result()["seeds"] == finished
    assert {0, 1} <= set(finished), "and those that another plan asked for"


def test_a_cell_that_another_has_finished_meanwhile_is_left_alone(copied):
    _, _, plan, root = copied
    for cell in (plan.cells[plan.rows[0].pretraining], plan.cells[plan.rows[0].finetunings["cola"]]):
        files = CellFiles(root, cell.name)
        files.order.write_text("{}")
        assert ended(cell, root) == BUSY
        assert files.order.read_text() == "{}"


def test_the_tokenizer_is_known_where_the_folder_has_another_path(copied):
    _, _, plan, root = copied
    name = plan.rows[0].pretraining
    file = CellFiles(root, name).run / "result.json"
    used = Path(json.loads(file.read_text())["request"]["tokenizer"])
    moved = str(Path("/elsewhere", *used.parts[-2:]))
    change(file, lambda result: result["request"].update(tokenizer=moved))
    expected = json.loads((root / "tokenizers" / used.name / "origin.json").read_text())["tokenizer"]
    assert expected
    assert started(plan, root, name, {})["tokenizer"] == expected


def test_a_runner_that_is_told_twice_to_end_lets_its_cell_save():
    def told():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)

    for _ in range(2):  # anew each time
        with ended_as_interrupted():
            with pytest.raises(KeyboardInterrupt):
                told()
            told()


class First(TrainerCallback):
    """Writes the number of the first step that is done, and then waits for a signal, if it is to."""

    def __init__(self, file, holds):
        self.file, self.holds = file, holds

    def on_step_end(self, args, state, control, **kwargs):
        if self.file.exists():
            return
        hears, tells = socket.socketpair()
        hears.settimeout(HANG)
        tells.setblocking(False)
        before = signal.set_wakeup_fd(tells.fileno())  # before anybody can know of the step
        write_text(self.file, str(state.global_step))
        if self.holds:
            hears.recv(1)
        signal.set_wakeup_fd(before)


def serve_counting(root, name, *arguments, holds=False):
    """A cell's process that writes the number of its first step into a file `step`."""
    watched = {"callbacks": [First(Path(root) / "step", holds)]}
    work.pretrain, work.finetune = partial(work.pretrain, **watched), partial(work.finetune, **watched)
    serve(root, name, *arguments)


def serve_held(root, name, *arguments):
    """The same, which waits after that step until it is told to end."""
    serve_counting(root, name, *arguments, holds=True)


def tell_to_end(cell, root, times=1):
    """Begins a cell, and tells it to end after its first step."""
    process = begun(cell, root, target=serve_held)
    waits_for((root / "step").is_file)
    for _ in range(times):
        process.terminate()
    process.join()
    assert process.exitcode == STOPPED


@pytest.mark.parametrize("times", [1, 3])
def test_a_cell_that_is_told_to_end_saves_whoever_tells_it_and_how_often(fresh, times):
    _, root, cell = fresh()
    files = CellFiles(root, cell.name)
    tell_to_end(cell, root, times)
    assert list(files.run.glob("checkpoint-*"))
    assert files.why_failed() is None


def test_a_fine_tuning_that_is_told_to_end_goes_on_where_it_was(copied):
    folder, fields, _, root = copied
    longer = {**fields, "tasks": {"cola": {"finetune": {"epochs": 2}}}, "seeds": [0]}
    plan = planned(folder, root, {"map": ARMS["map"]}, longer)
    cell = plan.cells[plan.rows[0].finetunings["cola"]]
    files = CellFiles(root, cell.name)
    tell_to_end(cell, root)
    (saved,) = files.run.glob("unfinished/*/checkpoint-*")
    (root / "step").unlink()
    assert ended(cell, root, target=serve_counting) == 0
    assert int((root / "step").read_text()) == int(saved.name.removeprefix("checkpoint-")) + 1
    assert files.finished(cell.seeds)
    assert not (files.run / "unfinished").exists()


def test_a_fine_tuning_killed_at_any_point_ends_with_the_same_scores(copied):
    folder, _, plan, root = copied
    name = plan.rows[0].finetunings["cola"]
    cell, files = plan.cells[name], CellFiles(root, name)
    shutil.rmtree(files.run)
    for last in ("seed-0-lr-0.02/checkpoint-2", "seed-1-lr-0.02/checkpoint-1"):
        (root / "last").write_text(last)
        assert ended(cell, root, serve_until) == -signal.SIGKILL
        assert (files.run / "unfinished" / last).is_dir()
    assert ended(cell, root) == 0
    assert files.finished(cell.seeds)
    for seed in (0, 1):
        assert files.result(seed)["metrics"] == CellFiles(folder / "root", name).result(seed)["metrics"]
    assert not (files.run / "unfinished").exists()


def steps_saved(root):
    """The steps of all checkpoints."""
    return [int(path.name.split("-")[1]) for path in root.glob("cells/*/checkpoint-*")]


def test_when_a_runner_is_ended_its_cell_saves_and_stops_and_the_next_runner_goes_on(unbroken, tmp_path):
    own = changed(unbroken[1], ("pretrain", "training", "save_steps"), 100)
    arguments, root, saved = commanded(unbroken, tmp_path, ARMS, own), tmp_path / "root", 0
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 130), (signal.SIGINT, 130)):
        process, said = command(arguments, root, holds=True)
        waits_for((root / "step").is_file)
        assert int((root / "step").read_text()) == saved + 1, "it went on where the one before was stopped"
        os.kill(process.pid, number)
        process.join(HANG)
        assert process.exitcode == code
        (cell,) = (path.name for path in root.glob("cells/*") if path.is_dir())
        waits_for(lambda cell=cell: not is_running(CellFiles(root, cell)))
        assert max(steps_saved(root)) > saved, "a checkpoint at the step it was stopped at"
        saved = max(steps_saved(root))
        assert not list(root.glob("cells/*/result.json"))
        (root / "step").unlink()
    assert "interrupted; what is finished is kept; the same command goes on" in said.read_text()
    (result,) = root.glob("test-*-small-*.json")
    (row, _) = json.loads(result.read_text())["rows"]
    assert row["pretraining"]["status"] == "missing", "what there is of it is told"


def test_a_cell_that_fails_is_recorded_the_rest_goes_on_and_the_next_run_tries_it_again(copied):
    torn, odd = {"pretrain": {"training.learning_rate": 1e9}}, {"finetune": {"max_length": 2}}
    arms = {"good": {}, "torn": torn, "odd": odd}
    folder, fields, _, root = copied
    plan = planned(folder, root, arms, fields)
    states = run(plan, root)
    found = {title: status.state for title, status in states.items()}
    assert found["pretrain torn, 100%"] == found["CoLA, odd"] == "failed"
    assert (found["CoLA, torn"], found["CoLA, good"]) == ("blocked", "done")
    assert "TrainingDivergedError: the loss is" in states["pretrain torn, 100%"].reason
    assert "max_length is 2" in states["CoLA, odd"].reason
    good, torn, odd = json.loads(results_file(plan, root).read_text())["rows"]
    assert good["scores"]["cola"]["accuracy"]
    assert torn["pretraining"]["status"] == "failed"
    assert (torn["scores"], torn["failed"][0]["column"]) == ({}, "cola")
    assert "max_length is 2" in odd["failed"][0]["reason"]
    (failed,) = [name for name, cell in plan.cells.items() if cell.title == "CoLA, odd"]
    files = CellFiles(root, failed)
    plan.cells[failed].order["recipe"]["max_length"] = None
    assert run(plan, root)["CoLA, odd"].state == "done"
    assert not files.failure.exists()


def test_what_changed_since_it_was_planned_is_not_taken_for_what_was(tmp_path):
    fields, root = world(tmp_path), tmp_path / "root"
    plan = planned(tmp_path, root, {"map": {}}, fields)
    dev = tmp_path / "glue/CoLA/dev.tsv"
    dev.write_text(dev.read_text().replace("bird", "river", 1))
    states = run(plan, root)
    assert states["pretrain map, 100%"].state == "done"
    assert states["CoLA, map"].state == "failed"
    assert states["CoLA, map"].reason.startswith("ValueError: the data of CoLA changed since this start of the study")
    other = planned(tmp_path, root, {"map": {"pretrain": {"training.seed": 1}}}, fields)
    text = Path(fields["pretrain"]["data"]["sources"][0])
    before = text.read_text()
    text.write_text(before + "the river\n")
    (reason,) = (status.reason for title, status in run(other, root).items() if "pretrain" in title)
    assert reason.startswith("ValueError: the text changed since this start of the study")
    text.write_text(before)
    again = planned(tmp_path, root, {"map": {}}, fields)
    assert states_of(run(again, root)) == {"done"}


def test_a_failure_before_the_work_begins_is_recorded(fresh):
    plan, root, first = fresh({"map": {}})
    CellFiles(root, first.name).order.mkdir()
    states = run(plan, root)
    assert states["pretrain map, 100%"].state == "failed"
    assert "IsADirectoryError" in states["pretrain map, 100%"].reason
    assert states["CoLA, map"].state == "blocked"


def test_two_runners_never_run_the_same_cell(unbroken, tmp_path):
    arms = {f"arm {seed}": {"pretrain": {"training.seed": seed}} for seed in range(2)}
    arguments = commanded(unbroken, tmp_path, arms, {**unbroken[1], "seeds": [0]})
    root, line = tmp_path / "root", [sys.executable, "-m", "mabert", "study", *arguments]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    one = subprocess.Popen([*line, "-o", str(root)], text=True, **quiet)  # by the command itself
    waits_for(lambda: list(root.glob("cells/*.lock")))
    other, said = command(arguments, root)
    told = [one.communicate(timeout=HANG)[0]]
    other.join(HANG)
    told.append(said.read_text())
    assert [one.returncode, other.exitcode] == [0, 0], told
    finished = [line.split("(")[-1].split(")")[0] for out in told for line in out.splitlines() if "done in" in line]
    assert len(finished) == len(set(finished)) == 4
    assert all("4 of 4 cells" in out for out in told), "each waits for the other's last cell"
    assert not any("leaked" in out for out in told)


def test_a_process_leaves_a_cell_that_is_locked(fresh):
    plan, root, cell = fresh()
    runner, files = Runner(plan, root), CellFiles(root, cell.name)
    with files.claim():
        assert ended(cell, root) == BUSY
        assert not files.run.exists()
        runner.look()
        assert runner.states[cell.name].state == "elsewhere"
        assert gathered(plan, root, runner.states)["rows"][0]["pretraining"]["status"] == "running"


def test_what_failed_here_is_taken_up_again_where_another_runner_mended_it(copied):
    folder, fields, _, root = copied
    plan = planned(folder, root, ARMS, {**fields, "seeds": [5]})
    start = next(iter(plan.cells))
    hidden, result = root / "result.json", CellFiles(root, start).run / "result.json"
    result.rename(hidden)
    runner = Runner(plan, root)
    work.record_failure(CellFiles(root, start), "out of memory")

    def states():
        runner.look()
        return [(runner.states[name].state, runner.states[name].reason) for name in plan.cells]

    blocked = ("blocked", f"pretrain map, 100% ({start}), which it starts from, failed")
    assert states() == [("failed", "out of memory"), blocked, blocked]
    with CellFiles(root, start).claim():
        assert states() == [("elsewhere", "out of memory"), ("waiting", None), ("waiting", None)]
    CellFiles(root, start).failure.unlink()
    assert states() == [("failed", "out of memory"), blocked, blocked], "not tried again, though nothing was recorded"
    hidden.rename(result)
    assert states() == [("done", None), ("waiting", None), ("waiting", None)]


def test_a_failure_is_told_from_one_before_this_runner_whatever_the_clocks_say(fresh):
    plan, root, cell = fresh()
    name, files = cell.name, CellFiles(root, cell.name)
    work.record_failure(files, "before")
    os.utime(files.failure, (2**32, 2**32))
    runner = Runner(plan, root, failed_before={name: files.failure_mark()})
    runner.look()
    assert runner.states[name].state == "waiting"
    work.record_failure(files, "now")
    os.utime(files.failure, (1, 1))
    runner.look()
    assert (runner.states[name].state, runner.states[name].reason) == ("failed", "now")


def test_a_view_that_cannot_be_shown_ends_no_run(unbroken):
    folder, _, plan, _ = unbroken
    watch = Mock(side_effect=OSError(28, "No space left on device"))
    assert states_of(Runner(plan, folder / "root", watch=watch).run()) == {"done"}
    assert watch.called


@pytest.mark.parametrize("ends", [RuntimeError("the view broke"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_ends_a_runner_ends_its_cells_process_first(tmp_path, monkeypatch, ends):
    watch = Mock(side_effect=ends)
    process, runner = Mock(), Runner(planned(tmp_path, tmp_path / "root"), tmp_path / "root", watch=watch)
    monkeypatch.setattr("mabert_lab.study.runner.context", lambda *_: Mock(Process=lambda **_: process))
    with pytest.raises(type(ends)):
        runner.run()
    assert process.method_calls == [call.start(), call.terminate(), call.join()]
    assert runner.states[next(iter(runner.plan.cells))].state == "waiting"


def test_what_a_cell_gives_is_what_its_format_stands_for(unbroken):
    folder, _, plan, _ = unbroken
    losses = [CellFiles(folder / "root", row.pretraining).result()["outcome"]["held_out_loss"] for row in plan.rows]
    # Where this fails, finished cells would be taken for what the code no longer gives: raise FORMAT with the number.
    assert (FORMAT, losses) == (3, [pytest.approx(LOSS, abs=1e-3)] * 2)


def test_checkpoints_that_a_kill_left_beside_a_finished_pretraining_are_removed(copied):
    folder, fields, _, root = copied
    plan = planned(folder, root, ARMS, fields)
    run_of = CellFiles(root, next(iter(plan.cells))).run
    (run_of / "checkpoint-5").mkdir()
    assert states_of(run(plan, root)) == {"done"}
    assert (run_of / "model.safetensors").is_file()
    assert not (run_of / "checkpoint-5").exists()


def test_a_full_disk_is_a_failure_that_the_next_run_mends(unbroken, tmp_path):
    arguments = commanded(unbroken, tmp_path, {"map": {}})
    first, said = command(arguments, tmp_path / "root", disk=12_000)
    first.join(HANG)
    assert first.exitcode == 2, said.read_text()
    assert "cannot save" in said.read_text()
    assert "2 cells gave no result; the same command tries them again" in said.read_text()
    again, said = command(arguments, tmp_path / "root")
    again.join(HANG)
    assert again.exitcode == 0, said.read_text()
    assert "2 of 2 cells" in said.read_text()
