"""The operators as torch sees them: one node for compile, export and autocast."""

from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from mabert.ops import library, use_backend
from tests.ops.agreement import opcheck
from tests.ops.cases import PLAIN, Case, plain_scan

MASK = torch.arange(6).repeat(2, 1) < torch.tensor([[6], [4]])


def _small(name: str) -> Case:
    return PLAIN[name](2, 6, 3).with_options(mask=MASK)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("name", "dtype"), [("scan", torch.float32), ("scan", torch.bfloat16), ("convolution", torch.float32)]
)
def test_opcheck_passes(name: str, dtype: torch.dtype, backend: str) -> None:
    opcheck(name, backend, dtype=dtype)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_call_gives_the_same(name: str, dynamic: bool) -> None:
    case = _small(name)
    names = list(case.inputs)

    def run(*tensors: Tensor) -> Tensor:
        return case.function(**dict(zip(names, tensors, strict=True)), **case.options)

    leaves = [tensor.clone().requires_grad_() for tensor in case.inputs.values()]
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    grad = torch.ones_like(case.inputs["u"])
    output = compiled(*leaves)
    gradients = torch.autograd.grad(output, leaves, grad)
    expected = case.run_with_gradients(grad)
    for name_, actual in zip(["output", *names], [output, *gradients], strict=True):
        torch.testing.assert_close(actual, expected[name_], rtol=0, atol=0)


def called(case: Case, u: Tensor) -> Tensor:
    return case.function(**{**case.inputs, "u": u}, **case.options)


@pytest.mark.parametrize("name", PLAIN)
def test_the_backend_of_the_forward_serves_the_backward(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mabert.ops import cpu

    for backward in ("scan_backward", "conv_backward"):
        monkeypatch.setattr(cpu, backward, Mock(side_effect=AssertionError("the compiled backward was called")))
    case = _small(name)
    u = case.inputs["u"].clone().requires_grad_()
    with use_backend("reference"):
        y = called(case, u)
    y.sum().backward()
    with pytest.raises(AssertionError, match="compiled backward"):
        called(case, u).sum().backward()


@pytest.mark.parametrize("name", PLAIN)
def test_the_references_gradient_waits_for_no_thread_of_autograd(name: str, monkeypatch) -> None:
    """On a GPU, autograd's one thread for the device runs the backward of the op, and would be waited for in vain."""
    grad, others = torch.autograd.grad, []

    def spied(*args: object, **options: object) -> object:
        others.append(torch._C._is_multithreading_enabled())
        return grad(*args, **options)

    case = _small(name)
    u = case.inputs["u"].clone().requires_grad_()
    with use_backend("reference"):
        y = called(case, u)
    monkeypatch.setattr(torch.autograd, "grad", spied)
    y.sum().backward()
    assert others == [False]


def test_no_states_are_kept_without_gradients() -> None:
    case = plain_scan(1, 200, 3)
    args = [*case.inputs.values(), None, None, True, False]
    assert library.scan_op(*args, False, "cpu")[1].numel() == 0
    assert library.scan_op(*args, True, "cpu")[1].shape == (3, 5, 64)


class _Call(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    def forward(self, u: Tensor) -> Tensor:
        return called(self.case, u)


@pytest.mark.parametrize("name", PLAIN)
def test_an_exported_call_is_one_node(name: str) -> None:
    case = _small(name)
    u = case.inputs["u"]
    program = torch.export.export(_Call(case), (u,))
    targets = [str(node.target) for node in program.graph.nodes if "mabert" in str(node.target)]
    assert targets == [f"mabert.{case.operator}.default"]
    torch.testing.assert_close(program.module()(u), case.run(), rtol=0, atol=0)


def test_autocast_hands_over_what_it_made() -> None:
    case = plain_scan(2, 6, 4)
    project = nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = called(case, project(case.inputs["u"]))
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert project.weight.grad is not None
    assert project.weight.grad.dtype == torch.float32
