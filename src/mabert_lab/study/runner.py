"""Runs the cells of a plan without losing work, and shows each change of one.

Finished cells are skipped and begun ones resumed; a failed cell is recorded and the rest continue. Any number of
runners may share a folder: the process that runs a cell holds its lock, so no cell runs twice at once.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from filelock import Timeout
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mabert.machine.processes import context, ended_as_interrupted
from mabert_lab.study.cells import Cell, CellFiles
from mabert_lab.study.plan import Plan, cells_of
from mabert_lab.study.work import BUSY, STOPPED, record_failure, remove_checkpoints, serve

POLL = 2.0  # seconds between two looks at the cells that other runners have


@dataclass
class Status:
    """The state of a cell."""

    # `blocked` if the cell that it starts from failed; `elsewhere` if another runner has it
    state: Literal["waiting", "running", "elsewhere", "done", "failed", "blocked"] = "waiting"
    reason: str | None = None  # why it failed, or why it failed here if another runner is retrying it
    seconds: float | None = None  # duration, if this runner ran it


Watcher = Callable[[dict[str, Status]], object]  # takes the states of all cells by name


@dataclass
class Runner:
    plan: Plan
    root: Path  # the folder that all studies and runners share
    watch: Watcher = lambda states: None  # called on every change
    finished: Watcher = lambda states: None  # called after every cell, also after an interrupted one
    states: dict[str, Status] = field(default_factory=dict)
    # `failure_mark` of the failures recorded before this run, by cell name; set when the run begins.
    failed_before: dict[str, tuple[int, int] | None] = field(default_factory=dict)

    def run(self) -> dict[str, Status]:
        """Runs until every cell is done, failed or blocked; returns their states. An interrupted cell saves first."""
        (self.root / "cells").mkdir(parents=True, exist_ok=True)
        self.context = context("mabert_lab.study.work")
        for cell, files in cells_of(self.plan, self.root):
            self.failed_before[cell.name] = files.failure_mark()
            if files.finished(cell.seeds):
                remove_checkpoints(files)  # a kill may have prevented it before
        with ended_as_interrupted():
            while (name := self.next()) is not None:
                if self.states[name].state == "elsewhere":
                    self.show()
                    time.sleep(POLL)
                    continue
                try:
                    self.one(self.plan.cells[name])
                finally:  # an interrupted cell may have finished seeds
                    with suppress(OSError):  # a full disk may have room later
                        self.finished(self.states)
        self.show()
        try:
            self.finished(self.states)
        except OSError as error:
            raise OSError(f"cannot write what was found: {error}; the same command tries that again") from error
        return self.states

    def next(self) -> str | None:
        """Returns the first cell that can be run; else one that another runner has; None at the end."""
        self.look()
        states = {name: status.state for name, status in self.states.items()}
        for name, cell in self.plan.cells.items():
            if states[name] == "waiting" and (cell.needs is None or states[cell.needs] == "done"):
                return name
        return next((name for name in self.plan.cells if states[name] == "elsewhere"), None)

    def look(self) -> None:
        """Updates the states from the folder."""
        for cell, files in cells_of(self.plan, self.root):
            status = self.states.setdefault(cell.name, Status())
            failed_here = status.reason if status.state in ("failed", "elsewhere") else None
            if files.finished(cell.seeds):
                status.state, status.reason = "done", None
            elif is_running(files):  # another runner may retry what failed here; this one does not
                status.state, status.reason = "elsewhere", failed_here
            elif cell.needs is not None and self.states[cell.needs].state in ("failed", "blocked"):
                start = self.plan.cells[cell.needs].title
                status.state, status.reason = "blocked", f"{start} ({cell.needs}), which it starts from, failed"
            elif reason := self.why_failed(files) or failed_here:
                status.state, status.reason = "failed", reason
            else:
                status.state, status.reason = "waiting", None

    def why_failed(self, files: CellFiles) -> str | None:
        """Returns why a cell failed since this runner began; earlier failures are retried."""
        return None if files.failure_mark() == self.failed_before.get(files.name) else files.why_failed()

    def show(self) -> None:
        """Calls the watcher; a closed terminal or full disk does not end the run."""
        with suppress(OSError):
            self.watch(self.states)

    def one(self, cell: Cell) -> None:
        status, files = self.states[cell.name], CellFiles(self.root, cell.name)
        status.state, began = "running", time.monotonic()
        work = (str(self.root), cell.name, {**cell.order, "content": cell.content}, cell.seeds)
        process = self.context.Process(target=serve, args=work, name=cell.name)
        process.start()
        try:
            self.show()
            process.join()
        except BaseException:  # the cell's process must not outlive this runner, whatever ends it
            status.state = "waiting"
            stop(process)
            raise
        self.judge(cell, files, process.exitcode)
        if status.state == "done":
            status.seconds = time.monotonic() - began

    def judge(self, cell: Cell, files: CellFiles, code: int | None) -> None:
        """Sets a cell's state from the exit code of its process."""
        status = self.states[cell.name]
        if code == BUSY:
            status.state = "elsewhere"
        elif code == STOPPED:
            status.state = "waiting"
            raise KeyboardInterrupt("the running cell was interrupted")
        elif code == 0 and files.finished(cell.seeds):
            status.state = "done"
        else:
            if code != 1:
                record_failure(files, f"the process ended with exit code {code}; see {files.log.name}")
            nothing = f"it could write nothing into {files.log.parent}; is the disk full?"
            log = f"see {files.log.name}" if files.log.is_file() else nothing
            status.state, status.reason = "failed", self.why_failed(files) or log


def is_running(files: CellFiles) -> bool:
    """Checks whether a process runs the cell."""
    if not files.lock.exists():
        return False
    try:
        with files.claim().acquire(timeout=0):
            return False
    except Timeout:
        return True


def stop(process: Any) -> None:
    """Lets a cell's process save and exit; a second Ctrl-C ends it at once."""
    process.terminate()
    try:
        process.join()
    except KeyboardInterrupt:
        process.kill()
        raise


def progress(plan: Plan, root: Path, console: Console | None = None) -> Watcher:
    """Returns what prints a line for every change of a cell, to standard error if no console is given."""
    output, printed = console or Console(stderr=True), dict[str, str]()

    def show(states: Mapping[str, Status]) -> None:
        done = sum(each.state == "done" for each in states.values())
        for name, status in states.items():
            if status.state not in (printed.get(name), "waiting", "elsewhere"):
                printed[name] = status.state
                took = "" if status.seconds is None else f" in {timedelta(seconds=round(status.seconds))}"
                about = CellFiles(root, name).log if status.state == "running" else status.reason
                line = f"{done}/{len(states)} done  {status.state}{took}  {plan.cells[name].title} ({name})"
                output.print(Text(f"{line}: {about}" if about else line), soft_wrap=True)

    return show


def show_plan(plan: Plan, root: Path, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("cell", "what"):
        table.add_column(name, overflow="fold")
    for name in ("steps", "parameters", "state"):
        table.add_column(name, justify="right", no_wrap=True)
    left = []
    for cell, files in cells_of(plan, root):
        done = files.finished(cell.seeds)
        if not done:
            left.append(cell.kind)
        steps = "" if cell.steps is None else f"{cell.steps:,}"
        table.add_row(cell.name, Text(cell.title), steps, f"{cell.parameters:,}", "done" if done else "")
    console.print(table)
    first = "conversion" if plan.study.converts else "pretraining"
    console.print(
        f"{plan.name} at scale {plan.scale_name}: {left.count(first)} {first}s and {left.count('finetuning')} "
        "fine-tunings to run",
        soft_wrap=True,
        markup=False,
        emoji=False,
    )
