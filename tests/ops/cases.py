"""Random calls of both operators, as data: the same call can then be run by any backend, in any dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from mabert.ops import depthwise_conv1d, selective_scan, use_backend


@dataclass(frozen=True)
class Case:
    """One call: the operator's name, its floating inputs by name (absent ones left out), and its options."""

    operator: str
    inputs: dict[str, Tensor]
    options: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        inputs = {name: (tuple(tensor.shape), str(tensor.dtype)) for name, tensor in self.inputs.items()}
        return f"Case({self.operator!r}, {inputs}, {self.options})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    @property
    def function(self) -> Callable[..., Tensor]:
        return {"selective_scan": selective_scan, "depthwise_conv1d": depthwise_conv1d}[self.operator]

    def with_options(self, **options: Any) -> Case:
        return replace(self, options={**self.options, **options})

    def with_inputs(self, **inputs: Tensor) -> Case:
        return replace(self, inputs={**self.inputs, **inputs})

    def spoiled(self, name: str, value: float) -> Case:
        """Put a value, such as NaN, into one place of an input."""
        spoiled = self.inputs[name].clone()
        spoiled.view(-1)[spoiled.numel() // 3] = value
        return self.with_inputs(**{name: spoiled})

    def over_time(self, change: Callable[[Tensor], Tensor]) -> Case:
        """Change every input that has a time dimension."""
        changed = {name: change(tensor) if tensor.dim() == 3 else tensor for name, tensor in self.inputs.items()}
        return replace(self, inputs=changed)

    def run(self, backend: str = "cpu") -> Tensor:
        with use_backend(backend):
            return self.function(**self.inputs, **self.options)

    def run_with_gradients(self, grad: Tensor, backend: str = "cpu") -> dict[str, Tensor]:
        """Return the output as ``output`` and the gradient of every input by its name."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in self.inputs.items()}
        output = replace(self, inputs=leaves).run(backend)
        gradients = torch.autograd.grad(output, list(leaves.values()), grad.to(output.dtype))
        return {"output": output.detach(), **dict(zip(leaves, gradients, strict=True))}

    def on(self, device: str) -> Case:
        """Move every tensor, with its strides."""

        def move(tensor: Tensor) -> Tensor:
            if tensor.device.type == torch.device(device).type:
                return tensor
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device).copy_(tensor)

        options = {name: move(value) if isinstance(value, Tensor) else value for name, value in self.options.items()}
        return replace(self, inputs={name: move(tensor) for name, tensor in self.inputs.items()}, options=options)

    def in_float64(self) -> Case:
        return replace(self, inputs={name: tensor.double() for name, tensor in self.inputs.items()})


def _lay_out(tensor: Tensor, layout: str) -> Tensor:
    """Give a (batch, time, channel) tensor the strides of a slice of a projection, or of a transpose."""
    if layout == "slice":
        wide = torch.full((*tensor.shape[:2], 2 * tensor.shape[2] + 3), float("nan"), dtype=tensor.dtype)
        wide[..., 3 : 3 + tensor.shape[2]] = tensor
        return wide[..., 3 : 3 + tensor.shape[2]]
    if layout == "transposed":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    return tensor


@st.composite
def _laid_out(draw: Any, case: Case) -> Case:
    """Give a case's inputs strides; those of parameters, of every second number of a longer one with NaN between."""
    layout = draw(st.sampled_from(LAYOUTS))
    if draw(st.booleans()):
        parameters = {name: tensor for name, tensor in case.inputs.items() if tensor.dim() < 3}
        wide = {name: torch.stack([x, torch.full_like(x, float("nan"))], dim=-1) for name, x in parameters.items()}
        case = case.with_inputs(**{name: both[..., 0] for name, both in wide.items()})
    return case.over_time(lambda tensor: _lay_out(tensor, layout))


TIMES = (1, 2, 15, 16, 17, 33, 64, 65, 97, 130)
CHANNELS = (1, 3, 16, 37, 64, 65, 130)
STATES = (1, 2, 5, 16, 17)
WIDTHS = (1, 2, 3, 4, 7, 40)
LAYOUTS = ("contiguous", "slice", "transposed")


@st.composite
def masks(draw: Any, batch: int, time: int) -> Tensor | None:
    """None, all valid, padding on either side, holes, or a row that is all padding."""
    kind = draw(st.sampled_from(("none", "valid", "right", "left", "holes", "one empty row")))
    if kind == "none":
        return None
    mask = torch.ones(batch, time, dtype=torch.bool)
    for row in range(batch):
        cut = draw(st.integers(0, time))
        if kind == "right":
            mask[row, cut:] = False
        elif kind == "left":
            mask[row, :cut] = False
        elif kind == "holes":
            mask[row] = torch.rand(time, generator=torch.Generator().manual_seed(cut)) < 0.6
    if kind == "one empty row":
        mask[0] = False
    return mask


@st.composite
def offsets(draw: Any, time: int) -> Tensor:
    """Boundaries of packed sequences, some of zero length."""
    inner = draw(st.lists(st.integers(0, time), max_size=6))
    return torch.tensor([0, *sorted(inner), time], dtype=torch.int32)


@st.composite
def _shapes_and_steps(
    draw: Any, times: tuple[int, ...], channels: tuple[int, ...]
) -> tuple[int, int, int, dict[str, Any]]:
    batch, time = draw(st.sampled_from((1, 2, 3))), draw(st.sampled_from(times))
    options: dict[str, Any] = {"reverse": draw(st.booleans())}
    if draw(st.integers(0, 2)) == 0:
        batch = 1
        options["cu_seqlens"] = draw(offsets(time))
    options["mask"] = draw(masks(batch, time))
    return batch, time, draw(st.sampled_from(channels)), options


@st.composite
def scans(
    draw: Any,
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16),
    times: tuple[int, ...] = TIMES,
    channels: tuple[int, ...] = CHANNELS,
    states: tuple[int, ...] = STATES,
) -> Case:
    """Any call of the scan, from the tiny to a few chunks and blocks."""
    batch, time, channel, options = draw(_shapes_and_steps(times, channels))
    state = draw(st.sampled_from(states))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    dtype, parameter_dtype = draw(st.sampled_from(dtypes)), draw(st.sampled_from(dtypes))
    options["delta_softplus"] = draw(st.booleans())
    spread = draw(st.sampled_from((1.0, 1.0, 30.0)))  # 30 reaches both ends: no decay at all, and decay to nothing
    shape = (batch, time, channel)
    delta = spread * torch.randn(shape)
    inputs = {
        "u": torch.randn(shape).to(dtype),
        "delta": (delta - 1 if options["delta_softplus"] else delta.abs() / 4).to(draw(st.sampled_from(dtypes))),
        "A": -(torch.arange(1, state + 1) + torch.rand(channel, state)).to(parameter_dtype),
        "B": torch.randn(batch, time, state).to(dtype),
        "C": torch.randn(batch, time, state).to(dtype),
    }
    if draw(st.booleans()):
        inputs["D"] = torch.randn(channel).to(parameter_dtype)
    if draw(st.booleans()):
        inputs["z"] = torch.randn(shape).to(dtype)
    if options["delta_softplus"] and draw(st.booleans()):
        inputs["delta_bias"] = torch.randn(channel).to(parameter_dtype)
    return draw(_laid_out(Case("selective_scan", inputs, options)))


@st.composite
def convolutions(
    draw: Any,
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16),
    times: tuple[int, ...] = TIMES,
    channels: tuple[int, ...] = CHANNELS,
    widths: tuple[int, ...] = WIDTHS,
) -> Case:
    batch, time, channel, options = draw(_shapes_and_steps(times, channels))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    dtype, parameter_dtype = draw(st.sampled_from(dtypes)), draw(st.sampled_from(dtypes))
    options["mode"] = draw(st.sampled_from(("causal", "centered")))
    options["activation"] = draw(st.sampled_from(("silu", None)))
    inputs = {
        "u": torch.randn(batch, time, channel).to(dtype),
        "weight": torch.randn(channel, draw(st.sampled_from(widths))).to(parameter_dtype),
    }
    if draw(st.booleans()):
        inputs["bias"] = torch.randn(channel).to(parameter_dtype)
    return draw(_laid_out(Case("depthwise_conv1d", inputs, options)))


def any_case(**kwargs: Any) -> st.SearchStrategy[Case]:
    return st.one_of(scans(**kwargs), convolutions(**kwargs))


def plain_scan(batch: int = 1, time: int = 130, channel: int = 100, state: int = 5) -> Case:
    """One scan with every input and no options, the same each time."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch, time, channel)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    inputs = {
        "u": normal(*shape),
        "delta": normal(*shape) - 1,
        "A": -(torch.arange(1, state + 1) + torch.rand(channel, state, generator=generator)),
        "B": normal(batch, time, state),
        "C": normal(batch, time, state),
        "D": normal(channel),
        "z": normal(*shape),
        "delta_bias": normal(channel),
    }
    return Case("selective_scan", inputs)


def plain_convolution(batch: int = 1, time: int = 130, channel: int = 100, width: int = 4) -> Case:
    """One convolution with every input and no options, the same each time."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"u": (batch, time, channel), "weight": (channel, width), "bias": (channel,)}
    inputs = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return Case("depthwise_conv1d", inputs)


PLAIN = {"scan": plain_scan, "convolution": plain_convolution}
