"""Does a backend agree with the float64 reference, in the output and in every gradient?"""

import torch

from tests.ops.cases import Case
from tests.tolerances import assert_close

OVER_STATES = ("output", "u", "delta", "delta_bias", "z")
"""The scan's output and the gradients that are sums over states, as it is."""


def assert_agrees(case: Case, backend: str = "cpu", device: str = "cpu") -> None:
    """Run a case on a backend and device, and on the reference in float64, and compare what comes out.

    Args:
        case: The call; the reference runs where its tensors are.
        backend: What is tested.
        device: Where it runs.
    """
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
