"""Times sides in turns, each model in its own process; leaves out models that are too slow or too large."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any

from mabert.machine.rounds import Spread
from mabert.schema.check import Checked
from mabert.schema.ranges import Count, Range, Seconds
from mabert_lab.bench.profiles import Cell
from mabert_lab.bench.tables import bounds_of
from mabert_lab.bench.tasks import Sample
from mabert_lab.bench.worker import START, CellError, Worker, free_memory

FIRST_CALL = 1.5  # factor on the time limit for a model's first call, which touches its memory for the first time
ANCHOR = "mabert"  # the model that all others are compared with


@dataclass(frozen=True)
class Protocol(Checked):
    """How sides are timed (Table A2, shortened on slow machines)."""

    warm: Annotated[int, Range(0, 10**9)] = 20  # calls that are not counted; fewer after `warm_seconds`, at least one
    # Samples of a side, at least and at most; the least whatever they cost. Two sides with fewer than four samples each
    # cannot differ significantly at 5 %; one side among five rivals needs five.
    least: Count = 5
    most: Count = 100
    warm_seconds: Annotated[float, Range(0, 10**6)] = 2.0
    budget: Seconds = 20.0  # for a side's samples; after them it gets only those missing from `least`
    # Most seconds of one call; a slower model is too slow for this length and longer ones. The first call may take
    # `FIRST_CALL` times as long.
    limit: Seconds = 150.0

    def part(self, taken: Sequence[Sample]) -> float:
        """Returns the share of its samples that a side has, by number or by seconds."""
        spent = sum(sample.spent for sample in taken)
        return min(max(len(taken) / self.most, spent / self.budget), len(taken) / self.least)

    def place(self, taken: Sequence[Sample]) -> float:
        """Returns the relative position of the middle of a side's next sample, at its speed so far."""
        return self.part(taken) * (len(taken) + 0.5) / len(taken) if taken else 0.0


QUICK = Protocol(warm=0, least=1, most=1)  # one call each, to test that everything runs
PAPER = Protocol(least=100, warm_seconds=10**6)  # Table A2's: 20 calls of warm-up, the median of 100, at any cost


def take_turns(
    sides: Mapping[str, Callable[[], Sample]],
    protocol: Protocol,
    failed: Callable[[str, CellError, list[Sample]], None],
) -> dict[str, list[Sample]]:
    """Samples the sides in turns: their samples are spread evenly over the whole, and the side whose next is due first
    runs next. So a time in which the machine is slower affects the samples of all sides, few or many. `failed` gets
    name, error and samples of a side that raises CellError; returned are the samples of the others."""
    samples: dict[str, list[Sample]] = {side: [] for side in sides}
    while waiting := {side: protocol.place(taken) for side, taken in samples.items() if protocol.part(taken) < 1}:
        side = min(waiting, key=waiting.__getitem__)
        try:
            samples[side].append(sides[side]())
        except CellError as error:
            failed(side, error, samples.pop(side))
    return samples


@dataclass(frozen=True)
class Bounded(Spread):
    """Times of one side, in milliseconds, with their lower and upper bound, see `mabert_lab.bench.tables`."""

    low_ms: float
    high_ms: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Bounded":
        low, high = bounds_of(seconds)
        return cls(**asdict(Spread.of(seconds)), low_ms=1e3 * low, high_ms=1e3 * high)


@dataclass(frozen=True)
class Measurement:
    """One model in one cell, and its numbers as far as there are any."""

    measure: str  # as in `Cell`, like the next four
    profile: str
    dtype: str
    device: str
    length: int
    model: str  # the contender's name
    batch: int = 1  # rows of an input, or of a whole training step
    micro_batch: int = 1
    status: str = "measured"  # or `out of memory`, `too slow`, `failed`
    reason: str | None = None  # why there is no number, in one line
    setting: str | None = None  # attention and engine in use
    median_ms: float | None = None  # of a whole step; see `Bounded`, like the next five
    fastest_ms: float | None = None
    slowest_ms: float | None = None
    samples: int | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    # Lower bound of a whole step that was too slow: its calls times the limit, or its fastest sample if that was less.
    at_least_ms: float | None = None
    anchor_ms: float | None = None  # MaBERT's median in the turns with a rival's training; its own row may have more
    anchor_samples: int | None = None  # MaBERT's samples in those turns
    peak_mib: float | None = None  # of a forward pass, weights included; of whatever was timed on a GPU, too
    weights_mib: float | None = None
    resident_mib: float | None = None  # the process's growth in that pass, as the system counts it; None if unknown


class Bench:
    """Measures cells with workers by side, and remembers models that are too slow or too large for longer inputs."""

    def __init__(self, protocol: Protocol, workers: Mapping[str, Worker]) -> None:
        self.protocol, self.workers = protocol, workers
        self.given_up: dict[tuple[str, ...], CellError] = {}

    def measure(self, cell: Cell, layouts: Mapping[str, str] | None = None) -> list[Measurement]:
        """Measures all sides in one cell; returns a row per side. `layouts` are of the texts, if not the cell's."""
        self.cells = {side: replace(cell, layout=(layouts or {}).get(side, cell.layout)) for side in self.workers}
        self.rows = {
            side: Measurement(cell.measure, cell.profile, cell.dtype, cell.device, cell.length, worker.name)
            for side, worker in self.workers.items()
        }
        self.samples: dict[str, list[Sample]] = {side: [] for side in self.workers}
        if cell.measure == "memory":
            self._still(list(self.workers), self._memory)
        else:
            for group in self.groups(cell):
                self._times(group, cell)
        return list(self.rows.values())

    def groups(self, cell: Cell) -> list[list[str]]:
        """Returns the groups of sides in memory together: all, but in training, where a model takes gigabytes, each
        rival with MaBERT, whose samples come from all pairs."""
        sides = list(self.workers)
        if cell.measure != "training" or cell.small:
            return [sides]
        rivals = [side for side in sides if side != ANCHOR] or [ANCHOR]
        return [[side for side in sides if side in (ANCHOR, rival)] for rival in rivals]

    def warm(self, side: str) -> None:
        spent = 0.0
        for call in range(self.protocol.warm):
            spent += self.sample(side, 1 if call else FIRST_CALL).spent
            if spent > self.protocol.warm_seconds:
                break

    def sample(self, side: str, limits: float = 1) -> Sample:
        """Runs one call within `limits` times the time limit."""
        return self.workers[side].ask("call", limit=limits * self.protocol.limit)

    def prepare(self, side: str) -> None:
        """Builds a side's model; allows one more limit for its first call."""
        if error := self.given_up.get(self._kind(side)):  # failed at a shorter input
            raise error
        limit = START + self.protocol.limit
        ready: dict[str, Any] = self.workers[side].ask("prepare", self.cells[side], limit=limit)
        self.rows[side] = replace(self.rows[side], **ready)

    def _memory(self, side: str) -> None:
        self.prepare(side)
        held: dict[str, int | None] = self.workers[side].ask("memory", limit=2 * self.protocol.limit)  # two calls
        sizes: dict[str, Any] = {f"{what}_mib": n if n is None else n / 2**20 for what, n in held.items()}
        self.rows[side] = replace(self.rows[side], **sizes)
        self.workers[side].release()

    def _times(self, group: Sequence[str], cell: Cell) -> None:
        # A side that was given up at this length in another group stays given up.
        ready = self._still([side for side in group if self.rows[side].status == "measured"], self.prepare)
        if cell.device == "cpu":
            allowed = free_memory()  # all to the same: the memory left once each holds its weights
            ready = self._still(ready, lambda side: self.workers[side].ask("bound", allowed))
        ready = self._still(ready, self.warm)
        taken = take_turns({side: partial(self.sample, side) for side in ready}, self.protocol, self._failed)
        for side, samples in taken.items():
            self.samples[side] += samples
            numbers = asdict(Bounded.of([each.whole for each in self.samples[side]]))
            if cell.measure == "training" and side != ANCHOR and ANCHOR in taken:
                beside = Spread.of([each.whole for each in taken[ANCHOR]])
                numbers |= {"anchor_ms": beside.median_ms, "anchor_samples": beside.samples}
            if cell.device == "cuda":
                numbers["peak_mib"] = self.workers[side].ask("peak") / 2**20
            self.rows[side] = replace(self.rows[side], **numbers)
        for side in group:
            self.workers[side].release()

    def _still(self, sides: Sequence[str], step: Callable[[str], object]) -> list[str]:
        """Runs a step for each side; returns the sides that did not fail."""
        for side in sides:
            try:
                step(side)
            except CellError as error:
                self._failed(side, error, [])
        return [side for side in sides if self.rows[side].status == "measured"]

    def _failed(self, side: str, error: CellError, taken: Sequence[Sample]) -> None:
        """Removes the numbers from a side's row; longer inputs are not tried."""
        row, seconds, kind = self.rows[side], error.seconds, self._kind(side)
        if kind not in self.given_up:
            if seconds is not None:  # of one call; those of a failure at a shorter input are of the whole already
                whole = min(seconds, self.protocol.limit) * row.batch / row.micro_batch
                seconds = min([whole, *(sample.whole for sample in (*self.samples[side], *taken))])
            if error.status != "failed":
                self.given_up[kind] = CellError(error.status, f"{error.reason} at {row.length:,} tokens", seconds)
        self.samples[side] = []
        numbers: Any = dict.fromkeys((*Bounded.__dataclass_fields__, "anchor_ms", "anchor_samples"))
        at_least = None if seconds is None else 1000 * seconds
        self.rows[side] = replace(row, status=error.status, reason=error.reason, at_least_ms=at_least, **numbers)

    def _kind(self, side: str) -> tuple[str, ...]:
        """What is given up as a whole: a side at every longer input."""
        row = self.rows[side]
        return side, row.measure, row.profile, row.dtype
