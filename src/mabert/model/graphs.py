"""CUDA graphs of a model's layers, for inference: one launch in place of some 150.

A graph holds shapes and addresses, so it serves rows of up to its number of tokens and of sequences. A batch becomes
one packed row, copied to where the graph reads; what is left of the row is a sequence that nobody reads.
"""

import contextlib
import itertools
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mabert.machine.memory import is_out_of_memory
from mabert.model.attention import has_variable_length
from mabert.model.config import MaBertConfig
from mabert.model.kept import holding, in_inference
from mabert.model.masking import PaddingMask
from mabert.model.packing import Packing, is_tracing
from mabert.schema import Masking

LONGEST_ROW = 8192
"""Most tokens of a graph's row: a GPU takes longer for more than Python takes to start their kernels."""

MOST_GRAPHS = 32
"""At most this many graphs are kept. A new shape replaces the least recently used one once it has come up more often
than that."""

SEEN = 2
"""Rows of a shape after which it gets a graph, since a capture costs as much as some forwards. The same kernels run on
the same shape before, so no vector changes then."""

Stack = Callable[[Tensor, Tensor, PaddingMask], Tensor]
"""Maps vectors (1, tokens, D) and position ids (1, tokens) of a packed row to the last hidden state, (1, tokens, D)."""


_CAPTURING = threading.Lock()
"""Held while any model's graph is captured: the start of a capture waits for the GPU, which another one forbids."""


class Shape(NamedTuple):
    """What a graph is captured for."""

    tokens: int  # of the row
    sequences: int  # sequences, the last for the tokens that are left; some may be empty
    longest: int  # most tokens of a sequence

    @classmethod
    def for_row(cls, lengths: tuple[int, ...]) -> "Shape":
        """Returns the shape that serves sequences of these lengths: at most an eighth, or 63 tokens, are left over."""
        total, count = sum(lengths), len(lengths) + 1
        step = max(64, (1 << (total - 1).bit_length()) // 16)
        tokens = -(-total // step) * step
        if count <= 2:
            return cls(tokens, 2, tokens)
        slots = 1 << -(-(count - 1).bit_length() // 2) * 2
        longest = max(*lengths, tokens - total)
        return cls(tokens, slots, min(tokens, 1 << (longest - 1).bit_length()))


class Captured:
    """A function captured as a CUDA graph; it reads and writes tensors that stay where they are. Without a `place` to
    share it gets its own. Raises RuntimeError if it cannot be captured."""

    def __init__(self, function: Callable[[], None], place: "GraphMemory | None" = None) -> None:
        pool, stream = place or GraphMemory.new()
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        # Compiles kernels, chooses those of products, and makes what layers keep, none of which a capture allows.
        with torch.cuda.stream(stream):
            for _ in range(2):
                function()
        current.wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.stream(current),  # restored even where the capture fails
            holding() as self.held,
            torch.cuda.graph(self.graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        ):
            function()

    def replay(self) -> None:
        """Runs the function again, on what its tensors hold now."""
        self.graph.replay()


class GraphMemory(NamedTuple):
    """What graphs share that do not run at once."""

    pool: Any  # memory for what they compute in between
    stream: torch.cuda.Stream  # the stream that captures them, for which layers keep what they keep once

    @classmethod
    def new(cls) -> "GraphMemory":
        """Makes a place on the current GPU."""
        return cls(torch.cuda.graph_pool_handle(), torch.cuda.Stream())


class Graphs:
    """The graphs of one model's layers, captured as shapes come up. Threads take turns, all on one stream.

    The weights must not change any more: graphs read what layers keep of them. The masking is the model's
    `padding_safe_masking`.
    """

    def __init__(self, stack: Stack, masking: Masking) -> None:
        self.stack, self.masking = stack, masking
        self.seen: Counter[Shape] = Counter()
        self.graphs: OrderedDict[Shape, tuple[Captured, Tensor]] = OrderedDict()
        self.lock = threading.Lock()
        self.place: GraphMemory | None = None
        self.row: GraphRow | None = None
        self.full = False

    def __call__(self, hidden: Tensor, position_ids: Tensor, lengths: tuple[int, ...]) -> Tensor | None:
        """Runs the layers by a graph, on a packed row of sequences of these lengths: vectors (1, total, D) and
        positions, int64 (1, total).

        Returns:
            The last hidden state, (1, total, D); None for a row that is too long, or of other dtypes than the first.
        """
        total = hidden.shape[1]
        if not 0 < total <= LONGEST_ROW:
            return None
        shape, autocast = Shape.for_row(lengths), _autocast_dtype(hidden.device.type)
        ends = [0, *itertools.accumulate(lengths)]
        offsets = torch.tensor(ends + [shape.tokens] * (shape.sequences + 1 - len(ends)), dtype=torch.int32)
        with self.lock, torch.cuda.device(hidden.device) if hidden.is_cuda else contextlib.nullcontext():
            if self.row is None:
                self.row = GraphRow(hidden, autocast)
            if (hidden.dtype, autocast) != (self.row.hidden.dtype, self.row.autocast):
                return None
            self.row.fill(hidden, position_ids, shape.tokens)
            self._compute(shape, offsets, self.row)
            assert self.row.output is not None
            return self.row.output[:, :total].clone()

    def _compute(self, shape: Shape, offsets: Tensor, row: "GraphRow") -> None:
        """Runs the layers on the row, by a graph from the second time on."""
        self.seen[shape] += 1
        if shape not in self.graphs:
            with torch.inference_mode(False):
                read = offsets.to(row.hidden.device, non_blocking=True)
            run = partial(self._run, shape, read, row)
            graph = self._captured(run) if self._makes_room(shape) else None
            if graph is None:
                run()
                return
            self.graphs[shape] = graph, read
        self.graphs.move_to_end(shape)
        graph, read = self.graphs[shape]
        read.copy_(offsets, non_blocking=True)
        graph.replay()

    def _makes_room(self, shape: Shape) -> bool:
        """Makes room for a shape's graph if it came up often enough, and returns whether it did."""
        if self.full or self.seen[shape] < SEEN:
            return False
        if len(self.graphs) >= MOST_GRAPHS:
            oldest = next(iter(self.graphs))
            if self.seen[shape] <= self.seen[oldest]:
                return False
            del self.graphs[oldest]
        return True

    def _captured(self, function: Callable[[], None]) -> Captured | None:
        """Captures a function; None where memory is full, after which no more graphs are made."""
        try:
            if self.place is None:
                self.place = GraphMemory.new()
            with _CAPTURING:
                return Captured(function, self.place)
        except RuntimeError as error:
            if is_out_of_memory(error):
                self.full = True
                return None
            raise RuntimeError(
                f"the layers cannot be captured as a CUDA graph ({str(error).splitlines()[0]}); turn graphs off: "
                "graphs=False or --no-graphs"
            ) from error

    def _run(self, shape: Shape, offsets: Tensor, row: "GraphRow") -> None:
        """Runs the layers on the row."""
        from mabert.ops.triton.launch import trusting

        mask = PaddingMask(None, self.masking, Packing(offsets, (shape.longest,)))
        # Weights that autocast has cast are not kept beyond the forward, and a graph would go on to read them.
        casting = torch.autocast(row.hidden.device.type, row.autocast, row.autocast is not None, cache_enabled=False)
        with trusting(offsets, shape.tokens), casting:
            made = self.stack(row.hidden[:, : shape.tokens], row.positions[:, : shape.tokens], mask)
        if row.output is None:
            with torch.inference_mode(False):
                row.output = torch.zeros(1, LONGEST_ROW, made.shape[2], dtype=made.dtype, device=made.device)
        row.output[:, : shape.tokens].copy_(made)


class GraphRow:
    """Where graphs read and write, each for `LONGEST_ROW` tokens: vectors like `hidden`, (1, ..., D), and positions."""

    def __init__(self, hidden: Tensor, autocast: torch.dtype | None) -> None:
        shape, device = (1, LONGEST_ROW), hidden.device
        with torch.inference_mode(False):
            self.positions = torch.zeros(shape, dtype=torch.int64, device=device)
            self.hidden = torch.zeros(*shape, hidden.shape[2], dtype=hidden.dtype, device=device)
        self.autocast = autocast
        self.output: Tensor | None = None  # the last hidden state, in the dtype that the layers give it

    def fill(self, hidden: Tensor, position_ids: Tensor, tokens: int) -> None:
        """Writes a row's inputs, and zeros up to the graph's number of tokens."""
        total = hidden.shape[1]
        self.hidden[:, :total].copy_(hidden)
        self.hidden[:, total:tokens].zero_()
        self.positions[:, :total].copy_(position_ids)


def serves(config: MaBertConfig, hidden: Tensor, options: Mapping[str, Any]) -> bool:
    """Returns whether a graph can take the place of the layers in a forward with these options, not in training."""
    recorded = options["output_attentions"] or options.get("output_hidden_states") or config.output_hidden_states
    if recorded or is_tracing() or not in_inference() or config._attn_implementation != "sdpa":
        return False
    dtype = _autocast_dtype(hidden.device.type) or hidden.dtype
    return has_variable_length(hidden.device, dtype, config.head_size)


def _autocast_dtype(device: str) -> torch.dtype | None:
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
