"""Whole models under torch's function transforms: gradients by `torch.func`, a sample each, and in forward mode."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap

from mabert import MaBertForSequenceClassification, MaBertModel, prepack
from mabert.model.prepack import can_prepack
from tests.model.helpers import LABELS, MAKINGS, MASK, TOKENS, build, config

pytestmark = [
    pytest.mark.filterwarnings("ignore::mabert.ops.SlowBackendWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),  # torch's jvp calls it
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),  # torch's SDPA under vmap
]


def classifier(**fields):
    model = build(MaBertForSequenceClassification, config(**fields))
    return model, {name: parameter.detach() for name, parameter in model.named_parameters()}


def loss_of(model):
    def loss(parameters, tokens, mask, labels):
        return functional_call(model, parameters, (tokens, mask), {"labels": labels}).loss

    return loss


def by_backward(model, tokens, mask, labels):
    model.zero_grad()
    model(tokens, mask, labels=labels).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("unpad", ["auto", "never"])
def test_the_gradient_is_that_of_backward(unpad):
    model, parameters = classifier(unpad=unpad)
    found = grad(loss_of(model))(parameters, TOKENS, MASK, LABELS)
    torch.testing.assert_close(found, by_backward(model, TOKENS, MASK, LABELS))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("task", [{"ssm_direction": "bidirectional"}, *MAKINGS.values()])
def test_a_gradient_a_sample_is_that_of_the_sample_without_padding(implementation, task):
    model, parameters = classifier(attn_implementation=implementation, **task)

    def loss(parameters, tokens, mask, label):
        return loss_of(model)(parameters, tokens[None], mask[None], label[None])

    found = vmap(grad(loss), (None, 0, 0, 0))(parameters, TOKENS, MASK, LABELS)
    for row, length in enumerate(MASK.sum(dim=1)):
        alone = by_backward(model, TOKENS[row : row + 1, :length], None, LABELS[row : row + 1])
        torch.testing.assert_close({name: x[row] for name, x in found.items()}, alone)


def test_vmap_runs_several_inputs_and_several_models():
    model, parameters = classifier()
    expected = model(TOKENS, MASK).logits
    inputs = vmap(lambda tokens, mask: model(tokens[None], mask[None]).logits)(TOKENS, MASK)
    torch.testing.assert_close(inputs.squeeze(1), expected)
    stacked = {name: torch.stack([x, 1.1 * x]) for name, x in parameters.items()}
    models = vmap(lambda parameters: functional_call(model, parameters, (TOKENS, MASK)).logits)(stacked)
    torch.testing.assert_close(models[0], expected)


@pytest.mark.parametrize("gradients", [True, False])
def test_forward_mode_gives_the_derivative_along_a_direction(gradients):
    model, parameters = classifier(attn_implementation="eager")  # torch's SDPA has no forward mode
    loss = loss_of(model)
    direction = {name: x.cos() for name, x in parameters.items()}
    gradient = grad(loss)(parameters, TOKENS, MASK, LABELS)
    with torch.set_grad_enabled(gradients):
        _, tangent = jvp(lambda parameters: loss(parameters, TOKENS, MASK, LABELS), (parameters,), (direction,))
    torch.testing.assert_close(tangent, sum((gradient[name] * x).sum() for name, x in direction.items()))


@pytest.mark.skipif(
    not can_prepack(torch.device("cpu"), torch.float32), reason="oneDNN's layouts are for x86 processors"
)
def test_a_prepacked_model_refuses_transforms_in_one_line():
    model = prepack(build(MaBertModel, config(), dtype=torch.float32))
    inputs = torch.randn(2, 4, 8)

    def run(inputs):
        return model(inputs_embeds=inputs).last_hidden_state

    refused = "a prepacked model is in no graph .* and under no transform of torch.func; load it again"
    with torch.no_grad(), pytest.raises(RuntimeError, match=refused):
        jvp(run, (inputs,), (inputs,))
    with torch.no_grad(), forward_ad.dual_level(), pytest.raises(RuntimeError, match=refused):
        run(forward_ad.make_dual(inputs, inputs))
    with pytest.raises(RuntimeError, match=refused):
        grad(lambda inputs: run(inputs).sum())(inputs)
