"""Does a backend agree with the float64 reference, in the output and in every gradient?"""

import torch

from mabert.ops import library
from tests.ops.cases import PLAIN, Case
from tests.tolerances import assert_close

OVER_STATES = ("output", "u", "delta", "delta_bias", "z")
"""The scan's output and the gradients that are sums over states, as it is."""


def assert_agrees(case: Case, backend: str = "cpu", device: str = "cpu") -> None:
    """Run a case on a backend and device, and where its tensors are on the reference in float64, and compare."""
    u = case.inputs["u"]
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(u.shape, generator=generator).to(u)
    actual = case.on(device).run_with_gradients(grad.to(device), backend)
    expected = case.in_float64().run_with_gradients(grad, "reference")
    others = [expected]
    steps = int(expected["output"].any(dim=-1).sum())  # those that are not masked
    if min(u.shape[2], steps, *(tensor.numel() for tensor in case.inputs.values())) < 16:
        # Where an input has few numbers, those of its gradient, which are sums over steps or channels, may all cancel
        # to nearly nothing, and what rounding leaves of them is then no share of them. So may those of B at few steps:
        # at one, each is the same sum over channels, times C's number. The same sums with other signs tell
        # how large they are when they do not cancel.
        for _ in range(2):
            signs = torch.randint(0, 2, u.shape, generator=generator) * 2 - 1
            others.append(case.in_float64().run_with_gradients(grad * signs.to(u.device), "reference"))
        if "C" in case.inputs:
            # So may what is a sum over states: after one step it is C·B in every channel, times something else. With
            # the signs of B nothing cancels there.
            turned = case.inputs["C"].abs() * case.inputs["B"].sign()
            found = case.with_inputs(C=turned).in_float64().run_with_gradients(grad, "reference")
            others.append({name: found[name] for name in OVER_STATES if name in found})
    for name, tensor in actual.items():
        dtype = u.dtype if name == "output" else case.inputs[name].dtype
        assert tensor.dtype == dtype, f"{name}: {tensor.dtype}, expected {dtype}"
        assert tensor.device.type == torch.device(device).type, f"{name}: {tensor.device}, expected {device}"
        alike = [other[name] for other in others if name in other and tensor.numel()]
        largest = max((expectation.abs().max().item() for expectation in alike), default=0.0)
        assert_close(case.operator, name, tensor.cpu(), expected[name].cpu(), largest)


def assert_same_are_finite(case: Case, backend: str = "cpu", device: str = "cpu") -> None:
    """Require NaN and infinity in the inputs to spoil the same numbers as in the reference, and no others."""
    grad = torch.ones_like(case.inputs["u"])
    actual = case.on(device).run_with_gradients(grad.to(device), backend)
    expected = case.run_with_gradients(grad, "reference")
    for name, tensor in actual.items():
        assert torch.equal(tensor.isfinite().cpu(), expected[name].isfinite()), name
    assert torch.equal(actual["output"].isnan().cpu(), expected["output"].isnan())


def opcheck(name: str, backend: str = "cpu", device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
    """Have torch check one of `PLAIN` as a custom op, forward and backward, under a mask."""
    inputs = PLAIN[name](2, 6, 3).on(device).over_time(lambda tensor: tensor.to(dtype)).inputs.values()
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    mask = (torch.arange(6).repeat(2, 1) < torch.tensor([[6], [4]])).to(device)
    if name == "scan":
        args = (mask, None, True, False)
        torch.library.opcheck(library.scan_op, (*leaves, *args, True, backend))
        y, states = library.scan_op(*inputs, *args, True, backend)
        torch.library.opcheck(library.scan_backward_op, (torch.ones_like(y), states, *inputs, *args, backend))
    else:
        args = (mask, None, "causal", True, False, backend)
        torch.library.opcheck(library.conv_op, (*leaves, *args))
        torch.library.opcheck(library.conv_backward_op, (torch.ones_like(leaves[0]), *inputs, *args))


def assert_masked_is_nothing(case: Case, backend: str = "cpu", device: str = "cpu") -> None:
    """Require masked steps to come out as zero, also in gradients, and NaN at them to change no bit.

    In the reference, torch's own functions may change the last one.
    """
    there = ~case.options["mask"].unsqueeze(-1)
    grad = torch.ones_like(case.inputs["u"])
    spoiled = case.over_time(lambda tensor: tensor.masked_fill(there, float("nan")))
    clean = case.on(device).run_with_gradients(grad.to(device), backend)
    dirty = spoiled.on(device).run_with_gradients(grad.masked_fill(there, float("nan")).to(device), backend)
    bound = 1e-6 if backend == "reference" else 0
    for name, expected in clean.items():
        torch.testing.assert_close(dirty[name], expected, rtol=bound, atol=bound, msg=name)
        if expected.dim() == 3:
            assert not expected[there.squeeze(-1).to(device)].any(), name
