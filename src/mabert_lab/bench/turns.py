"""How models are measured beside one another: in turns, each in its process, one too slow or too large left out."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from mabert.rounds import Spread
from mabert_lab.bench.memory import free_memory
from mabert_lab.bench.profiles import Cell
from mabert_lab.bench.worker import CellError, Ready, Worker

LONGEST = 1_000_000
"""Seconds that a wait may be told to last."""

FIRST_CALL = 1.5
"""How many times as long as any other a model's first call may take: it touches its memory for the first time."""

ANCHOR = "mabert"
"""The model that all others are compared with."""


@dataclass(frozen=True)
class Protocol:
    """How a cell is timed (Table A2, cut short where a machine is too slow for it).

    Attributes:
        warm: Calls that are not counted; fewer after `warm_seconds`, but one at least of however long a call.
        least: Samples of a model, whatever they cost; of two models with fewer than four each nothing can be told to
            differ beyond chance at 5 %, and of one among five rivals with fewer than five.
        most: Samples that are never exceeded.
        warm_seconds: Seconds of warm-up at most.
        budget: Seconds of a model's samples, after which only `least` is still filled up.
        limit: Seconds of one call, after which the model is too slow for this length, and for longer ones; a first one
            may take `FIRST_CALL` times as long.

    Raises:
        ValueError: A budget or limit is not above 0, or longer than anybody waits.
    """

    warm: int = 20
    least: int = 5
    most: int = 100
    warm_seconds: float = 2.0
    budget: float = 20.0
    limit: float = 150.0

    def __post_init__(self) -> None:
        for name in ("budget", "limit"):
            if not 0 < getattr(self, name) <= LONGEST:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0 and at most {LONGEST:,} seconds")


@dataclass(frozen=True)
class Row:
    """One model in one cell.

    Attributes:
        measure: See `Cell`, as the four that follow.
        profile: Likewise.
        dtype: Likewise.
        device: Likewise.
        length: Likewise.
        model: Name of the family.
        batch: Rows of an input; of a training step those of the whole step.
        micro_batch: Rows at once.
        status: ``measured``, ``out of memory``, ``too slow`` or ``failed``.
        reason: Why there is no number, in a line.
        setting: The attention it ran with.
        median_ms: See `mabert.rounds.Spread`, as the three that follow; of a whole step.
        at_least_ms: What the whole is known to take longer than, of a model that was too slow: as many calls as it has,
            each of the limit, or of its fastest sample where that was faster.
        anchor_ms: MaBERT's median in the turns that a rival's training was timed in; MaBERT's own row may be of more.
        anchor_samples: MaBERT's samples in those turns.
        peak_mib: MiB held at the height of a forward, weights included.
        weights_mib: MiB of the weights.
        resident_mib: MiB by which the process grew during that forward, as the system sees it; None where it does not
            tell.
    """

    measure: str
    profile: str
    dtype: str
    device: str
    length: int
    model: str
    batch: int = 1
    micro_batch: int = 1
    status: str = "measured"
    reason: str | None = None
    setting: str | None = None
    median_ms: float | None = None
    fastest_ms: float | None = None
    slowest_ms: float | None = None
    samples: int | None = None
    at_least_ms: float | None = None
    anchor_ms: float | None = None
    anchor_samples: int | None = None
    peak_mib: float | None = None
    weights_mib: float | None = None
    resident_mib: float | None = None


class Sample(NamedTuple):
    """Seconds of a call, and of what comes once beside all of them."""

    call: float
    rest: float


class Bench:
    """Measures cells, and remembers which models are too slow or too large for longer inputs.

    Args:
        protocol: How.
    """

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.given_up: dict[tuple[str, ...], CellError] = {}

    def measure(self, cell: Cell, workers: dict[str, Worker]) -> list[Row]:
        """All models in one cell."""
        if cell.measure == "memory":
            done = {name: self.memory(cell, worker) for name, worker in workers.items()}
        else:
            done = self.times(cell, workers)
        return [done[name] for name in workers]

    def blank(self, cell: Cell, model: str) -> Row:
        """A row without numbers."""
        return Row(cell.measure, cell.profile, cell.dtype, cell.device, cell.length, model)

    def memory(self, cell: Cell, worker: Worker) -> Row:
        """Peak memory of one model."""
        row = self.blank(cell, worker.name)
        try:
            self.refuse(cell, worker.name)
            ready = worker.prepare(cell, self.protocol.limit)
            held = worker.memory(2 * self.protocol.limit)  # two calls
            sizes: dict[str, Any] = {
                f"{what}_mib": None if size is None else size / 2**20 for what, size in held.items()
            }
            row = replace(row, setting=ready.setting, **sizes)
        except CellError as error:
            row = self.without_number(cell, row, error)
        worker.release()
        return row

    def times(self, cell: Cell, workers: dict[str, Worker]) -> dict[str, Row]:
        """Times; the models of a group in turns."""
        rows = {name: self.blank(cell, name) for name in workers}
        samples: dict[str, list[Sample]] = {name: [] for name in workers}
        calls: dict[str, float] = {}
        anchors: dict[str, list[Sample]] = {}
        groups = self.groups(cell, workers)
        for group in groups:
            ready = self.prepared(cell, group, rows)
            taken: dict[str, list[Sample]] = {}
            for name in ready:
                try:
                    self.warm(cell, group[name])
                    taken[name] = []
                except CellError as error:
                    rows[name] = self.without_number(cell, rows[name], error)
            self.take_turns(cell, group, taken, rows, samples)
            for name, more in taken.items():
                samples[name] += more
                calls[name] = ready[name].calls
                anchors[name] = taken.get(ANCHOR, [])
            for worker in group.values():
                worker.release()
        for name, row in rows.items():
            if row.status == "measured":
                rows[name] = replace(row, **asdict(Spread.of(_steps(samples[name], calls[name]))))
            if row.status == "measured" and cell.measure == "training" and name != ANCHOR and anchors[name]:
                beside = Spread.of(_steps(anchors[name], calls[ANCHOR]))
                rows[name] = replace(rows[name], anchor_ms=beside.median_ms, anchor_samples=beside.samples)
        return rows

    def groups(self, cell: Cell, workers: dict[str, Worker]) -> list[dict[str, Worker]]:
        """Models that are in memory together.

        On a CPU all of them; but in training, where a model holds sixteen bytes a parameter and gigabytes of freed
        activations, each rival with MaBERT, whose samples are those of all pairs. On a GPU, which is steady, and where
        one model lacks what another holds, one after the other.
        """
        if cell.device == "cuda":
            return [{name: worker} for name, worker in workers.items()]
        if cell.measure != "training" or cell.small:
            return [workers]
        rivals = [name for name in workers if name != ANCHOR] or [ANCHOR]
        return [{name: workers[name] for name in workers if name in (ANCHOR, rival)} for rival in rivals]

    def prepared(self, cell: Cell, workers: dict[str, Worker], rows: dict[str, Row]) -> dict[str, Ready]:
        """Build all models, then bound all to the same memory: what is left when each holds its weights."""
        ready = {}
        for name, worker in workers.items():
            try:
                self.refuse(cell, name)
                ready[name] = it = worker.prepare(cell, self.protocol.limit)
                rows[name] = replace(rows[name], setting=it.setting, batch=it.batch, micro_batch=it.micro_batch)
            except CellError as error:
                if rows[name].status == "measured":  # or it was given up at this very length, in another group
                    rows[name] = self.without_number(cell, rows[name], error)
        if cell.device == "cpu":
            allowed = free_memory()
            for name in list(ready):
                try:
                    workers[name].bound(allowed)
                except CellError as error:  # ended while others were built
                    rows[name] = self.without_number(cell, rows[name], error)
                    del ready[name]
        return ready

    def warm(self, cell: Cell, worker: Worker) -> None:
        """Let a model run uncounted."""
        spent = 0.0
        for call in range(self.protocol.warm):
            spent += self.sample(worker, 1 if call else FIRST_CALL).call
            if spent > self.protocol.warm_seconds:
                break

    def sample(self, worker: Worker, times: float = 1) -> "Sample":
        """One call within some times the limit, and what comes once beside all of them."""
        return Sample(worker.call(times * self.protocol.limit), worker.rest())

    def take_turns(
        self,
        cell: Cell,
        workers: dict[str, Worker],
        samples: dict[str, list["Sample"]],
        rows: dict[str, Row],
        before: dict[str, list["Sample"]],
    ) -> None:
        """Fill up the samples; a model that fails on the way loses its own, also those of turns before.

        The next call is always that of the model whose next sample stands first when each model's are spread evenly
        over the whole, so that an hour in which the machine was slower is in the samples of all, few or many.
        """
        while waiting := {name: self.place(taken) for name, taken in samples.items() if self.part(taken) < 1}:
            name = min(waiting, key=waiting.__getitem__)
            try:
                samples[name].append(self.sample(workers[name]))
            except CellError as error:
                rows[name] = self.without_number(cell, rows[name], error, [*before[name], *samples[name]])
                del samples[name]

    def part(self, taken: list["Sample"]) -> float:
        """How much of its samples a model has, of the whole: by their number, or by the seconds that they took."""
        protocol = self.protocol
        spent = sum(sum(sample) for sample in taken)
        return min(max(len(taken) / protocol.most, spent / protocol.budget), len(taken) / protocol.least)

    def place(self, taken: list["Sample"]) -> float:
        """Where in the whole the middle of a model's next sample stands, if its calls go on as they went."""
        return self.part(taken) * (len(taken) + 0.5) / len(taken) if taken else 0.0

    def refuse(self, cell: Cell, name: str) -> None:
        """Raises CellError where a shorter input of this kind was too much already."""
        error = self.given_up.get(_kind(cell, name))
        if error is not None:
            raise error

    def without_number(self, cell: Cell, row: Row, error: CellError, taken: Sequence["Sample"] = ()) -> Row:
        """The row of a model that gave none, after the samples that it had given; longer inputs are not tried."""
        seconds = error.seconds
        if seconds is not None and _kind(cell, row.model) not in self.given_up:
            # Of one call; a row that is refused for a shorter input is known to exceed the whole of that already.
            least = min(seconds, self.protocol.limit, *(sample.call for sample in taken))
            seconds = least * row.batch / row.micro_batch
        if error.status != "failed" and _kind(cell, row.model) not in self.given_up:
            reason = f"{error.reason} at {cell.length:,} tokens"
            self.given_up[_kind(cell, row.model)] = CellError(error.status, reason, seconds)
        at_least = None if seconds is None else 1000 * seconds
        return replace(row, status=error.status, reason=error.reason, at_least_ms=at_least)


def _steps(samples: list[Sample], calls: float) -> list[float]:
    """Seconds of whole steps."""
    return [calls * sample.call + sample.rest for sample in samples]


def _kind(cell: Cell, name: str) -> tuple[str, ...]:
    return (cell.measure, cell.profile, cell.dtype, cell.device, name)
