"""How sides are measured beside one another: in turns, a model in its process, one too slow or too large left out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from mabert.machine.rounds import Spread, timed
from mabert_lab.bench.memory import free_memory
from mabert_lab.bench.profiles import Cell
from mabert_lab.bench.tasks import Sample
from mabert_lab.bench.worker import START, CellError, Ready, Worker

LONGEST = 1_000_000
"""Seconds that a wait may be told to last."""

FIRST_CALL = 1.5
"""How many times as long as any other a model's first call may take: it touches its memory for the first time."""

ANCHOR = "mabert"
"""The model that all others are compared with."""


@dataclass(frozen=True)
class Protocol:
    """How sides are timed (Table A2, cut short where a machine is too slow for it).

    Attributes:
        warm: Calls that are not counted; fewer after `warm_seconds`, but one at least of however long a call.
        least: Samples of a side, whatever they cost; of two sides with fewer than four each nothing can be told to
            differ beyond chance at 5 %, and of one among five rivals with fewer than five.
        most: Samples that are never exceeded.
        warm_seconds: Seconds of warm-up at most.
        budget: Seconds of a side's samples, after which only `least` is still filled up.
        limit: Seconds of one call, after which a model is too slow for this length, and for longer ones; a first one
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

    def part(self, taken: Sequence[Sample]) -> float:
        """How much of its samples a side has, of the whole: by their number, or by the seconds that they took."""
        spent = sum(sample.spent for sample in taken)
        return min(max(len(taken) / self.most, spent / self.budget), len(taken) / self.least)

    def place(self, taken: Sequence[Sample]) -> float:
        """Where in the whole the middle of a side's next sample stands, if its calls go on as they went."""
        return self.part(taken) * (len(taken) + 0.5) / len(taken) if taken else 0.0


QUICK = Protocol(warm=0, least=1, most=1)
"""One call each, to see that everything runs."""

Failed = Callable[[str, CellError, list[Sample]], None]
"""Takes a side's name, why it gave no sample, and those that it had given."""


def take_turns(
    sides: Mapping[str, Callable[[], Sample]], protocol: Protocol, failed: Failed
) -> dict[str, list[Sample]]:
    """Sample the sides in turns.

    The next call is always that of the side whose next sample stands first when each side's are spread evenly over the
    whole, so that an hour in which the machine was slower is in the samples of all, few or many.

    Args:
        sides: Name to what gives a sample.
        protocol: How many.
        failed: Called when a side raises CellError, which loses its samples.

    Returns:
        The samples of each other side.
    """
    samples: dict[str, list[Sample]] = {side: [] for side in sides}
    while waiting := {side: protocol.place(taken) for side, taken in samples.items() if protocol.part(taken) < 1}:
        side = min(waiting, key=waiting.__getitem__)
        try:
            samples[side].append(sides[side]())
        except CellError as error:
            failed(side, error, samples.pop(side))
    return samples


def times(calls: Mapping[Any, Callable[[], object]], protocol: Protocol) -> dict[Any, Spread]:
    """Time calls of this process in turns, after one of each that does not count; an error of one ends all."""

    def sampled(call: Callable[[], object]) -> Sample:
        seconds = timed(call)
        return Sample(seconds, seconds)

    def failed(_: str, error: CellError, __: list[Sample]) -> None:
        raise error

    for call in calls.values():
        call()
    samples = take_turns({side: partial(sampled, call) for side, call in calls.items()}, protocol, failed)
    return {side: spread_of(taken) for side, taken in samples.items()}


def spread_of(samples: Sequence[Sample]) -> Spread:
    """Summarise the wholes of samples."""
    return Spread.of([sample.whole for sample in samples])


@dataclass(frozen=True)
class Row:
    """One model in one cell.

    Attributes:
        measure: See `Cell`, as the four that follow.
        profile: Likewise.
        dtype: Likewise.
        device: Likewise.
        length: Likewise.
        model: Name of the contender.
        batch: Rows of an input; of a training step those of the whole step.
        micro_batch: Rows at once.
        status: ``measured``, ``out of memory``, ``too slow`` or ``failed``.
        reason: Why there is no number, in a line.
        setting: The attention it ran with, and the engine.
        median_ms: See `mabert.machine.rounds.Spread`, as the three that follow; of a whole step.
        at_least_ms: What the whole is known to take longer than, of a model that was too slow: as many calls as it has,
            each of the limit, or its fastest sample where that was faster.
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


class Bench:
    """Measures cells, and remembers which models are too slow or too large for longer inputs.

    Args:
        protocol: How.
        workers: Name of a side to its worker.

    Attributes:
        samples: Of each side in the cell that was timed last.
    """

    def __init__(self, protocol: Protocol, workers: Mapping[str, Worker]) -> None:
        self.protocol, self.workers = protocol, workers
        self.given_up: dict[tuple[str, ...], CellError] = {}
        self.samples: dict[str, list[Sample]] = {}

    def measure(self, cell: Cell, layouts: Mapping[str, str] | None = None) -> list[Row]:
        """Measure all sides in one cell.

        Args:
            cell: What is asked of them.
            layouts: Side to the layout of its texts; default, the cell's.

        Returns:
            A row for each, in their order.
        """
        self.cells = {side: replace(cell, layout=(layouts or {}).get(side, cell.layout)) for side in self.workers}
        self.rows = {
            side: Row(cell.measure, cell.profile, cell.dtype, cell.device, cell.length, worker.name)
            for side, worker in self.workers.items()
        }
        self.samples = {side: [] for side in self.workers}
        if cell.measure == "memory":
            self._still(list(self.workers), self._memory)
        else:
            for group in self.groups(cell):
                self._times(group, cell)
        return list(self.rows.values())

    def groups(self, cell: Cell) -> list[list[str]]:
        """Sides that are in memory together.

        On a CPU all of them; but in training, where a model holds sixteen bytes a parameter and gigabytes of freed
        activations, each rival with MaBERT, whose samples are those of all pairs. On a GPU, which is steady, and where
        one model lacks what another holds, one after the other.
        """
        sides = list(self.workers)
        if cell.device == "cuda":
            return [[side] for side in sides]
        if cell.measure != "training" or cell.small:
            return [sides]
        rivals = [side for side in sides if side != ANCHOR] or [ANCHOR]
        return [[side for side in sides if side in (ANCHOR, rival)] for rival in rivals]

    def warm(self, side: str) -> None:
        """Let a model run uncounted."""
        spent = 0.0
        for call in range(self.protocol.warm):
            spent += self.sample(side, 1 if call else FIRST_CALL).spent
            if spent > self.protocol.warm_seconds:
                break

    def sample(self, side: str, limits: float = 1) -> Sample:
        """One call within some times the limit."""
        return self.workers[side].ask("call", limit=limits * self.protocol.limit)

    def prepare(self, side: str) -> None:
        """Build a side's model, whose first call may take the limit."""
        cell, row = self.cells[side], self.rows[side]
        error = self.given_up.get(_kind(side, row))
        if error is not None:  # a shorter input was too much already
            raise error
        ready: Ready = self.workers[side].ask("prepare", cell, limit=START + self.protocol.limit)
        self.rows[side] = replace(row, setting=ready.setting, batch=ready.batch, micro_batch=ready.micro_batch)

    def _memory(self, side: str) -> None:
        self.prepare(side)
        held: dict[str, int | None] = self.workers[side].ask("memory", limit=2 * self.protocol.limit)  # two calls
        sizes: dict[str, Any] = {f"{what}_mib": n if n is None else n / 2**20 for what, n in held.items()}
        self.rows[side] = replace(self.rows[side], **sizes)
        self.workers[side].release()

    def _times(self, group: Sequence[str], cell: Cell) -> None:
        # A side that was given up at this very length in another group stays so.
        ready = self._still([side for side in group if self.rows[side].status == "measured"], self.prepare)
        if cell.device == "cpu":  # all to the same: what is left when each holds its weights
            allowed = free_memory()
            ready = self._still(ready, lambda side: self.workers[side].ask("bound", allowed))
        ready = self._still(ready, self.warm)
        taken = take_turns({side: partial(self.sample, side) for side in ready}, self.protocol, self._failed)
        for side, samples in taken.items():
            self.samples[side] += samples
            self.rows[side] = replace(self.rows[side], **asdict(spread_of(self.samples[side])))
            if cell.measure == "training" and side != ANCHOR and ANCHOR in taken:
                beside = spread_of(taken[ANCHOR])
                self.rows[side] = replace(self.rows[side], anchor_ms=beside.median_ms, anchor_samples=beside.samples)
        self.after(group)
        for side in group:
            self.workers[side].release()

    def after(self, group: Sequence[str]) -> None:
        """What else is asked of models before they are dropped: nothing."""

    def _still(self, sides: Sequence[str], step: Callable[[str], object]) -> list[str]:
        """Take a step with each side; return those that did not fail."""
        for side in sides:
            try:
                step(side)
            except CellError as error:
                self._failed(side, error, [])
        return [side for side in sides if self.rows[side].status == "measured"]

    def _failed(self, side: str, error: CellError, taken: Sequence[Sample]) -> None:
        """Turn a side's row into one without a number; longer inputs are not tried."""
        row, cell, seconds = self.rows[side], self.cells[side], error.seconds
        kind = _kind(side, row)
        if seconds is not None and kind not in self.given_up:
            # Of one call; a row that is refused for a shorter input is known to exceed the whole of that already.
            whole = min(seconds, self.protocol.limit) * row.batch / row.micro_batch
            seconds = min([whole, *(sample.whole for sample in (*self.samples[side], *taken))])
        if error.status != "failed" and kind not in self.given_up:
            self.given_up[kind] = CellError(error.status, f"{error.reason} at {cell.length:,} tokens", seconds)
        self.samples[side] = []
        numbers: Any = dict.fromkeys(
            ("median_ms", "fastest_ms", "slowest_ms", "samples", "anchor_ms", "anchor_samples")
        )
        at_least = None if seconds is None else 1000 * seconds
        self.rows[side] = replace(row, status=error.status, reason=error.reason, at_least_ms=at_least, **numbers)


def _kind(side: str, row: Row) -> tuple[str, ...]:
    return (side, row.measure, row.profile, row.dtype, row.device)
