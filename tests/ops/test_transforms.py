"""Derivatives of the operators as people ask torch for them: `torch.func`, forward mode, second derivatives."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from mabert.ops import softmax_attention, use_backend
from tests.ops.cases import PLAIN
from tests.tolerances import OUTPUTS, assert_close

MASK = torch.arange(5).repeat(2, 1) < torch.tensor([[5], [3]])
HOLE = {"cu_seqlens": torch.tensor([0, 3, 3, 5], dtype=torch.int32), "mask": torch.tensor([[1, 0, 1, 1, 1]]).bool()}

pytestmark = [
    pytest.mark.filterwarnings("ignore::mabert.ops.SlowBackendWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),  # torch's jvp calls it
]


def call(name, rows=2, **options):
    """An operator as a function of its floating inputs alone, and such inputs."""
    case = PLAIN[name](rows, 5, 2)
    options = options or {"mask": MASK}
    return lambda *inputs: case.function(**dict(zip(case.inputs, inputs, strict=True)), **options), case.inputs.values()


def scalar(function):
    return lambda *inputs: function(*inputs).square().sum()


def all_of(inputs):
    return tuple(range(len(inputs)))


def batched(inputs):
    """Three times the first input, each time another; the rest is shared."""
    return torch.stack([factor * inputs[0] for factor in (1.0, -0.5, 2.0)]), *inputs[1:]


def in_dims(inputs):
    return (0, *[None] * (len(inputs) - 1))


def in_forward_mode(function, inputs):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(*(forward_ad.make_dual(x, x.cos()) for x in inputs))).tangent


def twice(function, inputs):
    leaves = [x.clone().requires_grad_() for x in inputs]
    gradients = torch.autograd.grad(function(*leaves), leaves, create_graph=True)
    return torch.autograd.grad(sum(x.square().sum() for x in gradients), leaves)


def derivative_of_first(function, inputs, times):
    """d/du of the squared d/du of it, and so on."""
    for _ in range(times):
        function = scalar(grad(function))
    return function(*inputs)


WAYS = {
    "grad": lambda f, x: grad(scalar(f), all_of(x))(*x),
    "grad of vmap": lambda f, x: grad(scalar(vmap(f, in_dims(x))), all_of(x))(*batched(x)),
    "vmap": lambda f, x: vmap(f, in_dims(x))(*batched(x)),
    "vmap, last dimension": lambda f, x: vmap(f, (-1, *in_dims(x)[1:]))(batched(x)[0].movedim(0, -1), *x[1:]),
    "vmap twice": lambda f, x: vmap(vmap(f, in_dims(x)), (None, 0, *in_dims(x)[2:]))(
        batched(x)[0], batched(x[1:])[0], *x[2:]
    ),
    "vmap of grad": lambda f, x: vmap(grad(scalar(f), all_of(x)), in_dims(x))(*batched(x)),
    "vjp": lambda f, x: vjp(f, *x)[1](x[0].cos()),
    "jvp": lambda f, x: jvp(f, tuple(x), tuple(y.cos() for y in x)),
    "jacrev": lambda f, x: jacrev(f, all_of(x))(*x),
    "jacfwd": lambda f, x: jacfwd(f, all_of(x))(*x),
    "hessian": lambda f, x: hessian(scalar(f), all_of(x))(*x),
    "jacrev twice": lambda f, x: jacrev(jacrev(scalar(f), all_of(x)), all_of(x))(*x),
    "third": lambda f, x: derivative_of_first(scalar(f), x, 2),
    "forward_ad": in_forward_mode,
    "double backward": lambda f, x: twice(scalar(f), x),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PLAIN)
def test_it_gives_what_the_reference_gives_in_float64(name, way):
    function, inputs = call(name)
    with use_backend("reference"):
        expected = WAYS[way](function, [x.double() for x in inputs])
    actual = WAYS[way](function, [x.clone() for x in inputs])
    flat = torch.utils._pytree.tree_leaves
    assert len(flat(actual)) == len(flat(expected))
    largest = max(x.abs().max().item() for x in flat(expected))
    for x, wanted in zip(flat(actual), flat(expected), strict=True):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x.double(), wanted, rtol=1e-5, atol=1e-6 * largest)


@pytest.mark.parametrize("options", [{"mask": MASK}, *({**HOLE, "reverse": reverse} for reverse in (False, True))])
@pytest.mark.parametrize("name", PLAIN)
def test_finite_differences_agree(name, options):
    function, inputs = call(name, len(options["mask"]), **options)
    leaves = [x.double().requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradcheck(function, leaves, fast_mode=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


@pytest.mark.parametrize("way", ["jvp", "vmap", "hessian", "double backward"])
@pytest.mark.parametrize("name", PLAIN)
def test_kernels_that_were_asked_for_refuse_what_only_the_reference_can(name, way):
    function, inputs = call(name)
    told = r"^backend 'cpu' was asked for, but it serves no transform of torch.func"
    with use_backend("cpu"), pytest.raises(ValueError, match=told):
        WAYS[way](function, list(inputs))


@pytest.mark.parametrize("way", ["grad", "vmap"])
def test_a_transform_may_be_compiled(way):
    function, inputs = call("convolution")
    compiled = torch.compile(lambda *inputs: WAYS[way](function, inputs), backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), WAYS[way](function, list(inputs)), **OUTPUTS)


def test_attention_is_right_under_transforms_or_says_what_is_missing():
    torch.manual_seed(0)
    inputs, tangents = torch.randn(2, 3, 2, 5, 64, dtype=torch.float64).unbind(0)

    def attend(*inputs: Tensor) -> Tensor:
        return softmax_attention(*inputs, 2, mask=MASK)

    step = 1e-6
    differences = (attend(*(inputs + step * tangents)) - attend(*(inputs - step * tangents))) / (2 * step)
    with torch.no_grad():
        output, tangent = jvp(attend, tuple(inputs), tuple(tangents))
    assert_close("reference", "output", output, attend(*inputs))
    torch.testing.assert_close(tangent, differences, rtol=1e-7, atol=1e-7)
    with pytest.raises(ValueError, match="softmax_attention has no gradient"):
        grad(scalar(attend))(*inputs)
    several = vmap(attend, (0, None, None))(torch.stack([inputs[0], inputs[1]]), *inputs[1:])
    assert_close("reference", "vmap", several[1], attend(inputs[1], *inputs[1:]))
    with use_backend("cpu"), pytest.raises(ValueError, match="it serves no transform"):
        vmap(attend)(*inputs.float().unsqueeze(1))
