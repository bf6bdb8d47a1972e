"""A whole model through torch.compile, torch.export and autocast: one graph, and one node for each operator."""

import pytest
import torch

from mabert import MaBertForMaskedLM, MaBertModel
from mabert.model.config import make_config
from mabert.model.mamba import SelectiveCore
from tests.model.helpers import MAKINGS
from tests.tolerances import OUTPUTS

SIZES = {"vocab_size": 90, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96, "layer_pattern": "MT"}
OPTIONS = {
    "plain": {},
    "bidirectional, centred": {"ssm_direction": "bidirectional", "ssm_conv_mode": "centered"},
    **{name: fields for name, fields in MAKINGS.items() if fields and name != "BERT's"},  # ELECTRA's has all of it
}


def model_and_batch(cls=MaBertModel, **options):
    torch.manual_seed(0)
    model = cls(make_config(**SIZES | options)).eval()
    ids = torch.randint(5, 90, (2, 19))
    mask = torch.ones(2, 19, dtype=torch.long)
    mask[1, :6] = 0
    return model, {"input_ids": ids, "attention_mask": mask}


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_compiled_model_is_one_graph_and_says_the_same(options):
    model, batch = model_and_batch(MaBertForMaskedLM, **options)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    results = []
    for call in (model, compiled):
        model.zero_grad()
        output = call(**batch, labels=labels)
        output.loss.backward()
        results.append((output.logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}))
    (logits, gradients), (compiled_logits, compiled_gradients) = results
    torch.testing.assert_close(compiled_logits, logits, **OUTPUTS)
    torch.testing.assert_close(compiled_gradients, gradients, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_an_exported_model_takes_other_lengths_and_has_one_node_for_each_operator(options):
    model, batch = model_and_batch(**options)
    rows, time = torch.export.Dim("rows", min=1, max=16), torch.export.Dim("time", min=2, max=500)
    shapes = {name: {0: rows, 1: time} for name in batch}
    program = torch.export.export(model, (), batch, dynamic_shapes=shapes)
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    cores = sum(isinstance(module, SelectiveCore) for module in model.modules())
    for operator in ("selective_scan", "depthwise_conv1d"):
        assert called.count(f"mabert.{operator}.default") == cores
    other = {"input_ids": torch.randint(5, 90, (3, 31)), "attention_mask": torch.ones(3, 31, dtype=torch.long)}
    other["attention_mask"][2, 20:] = 0
    with torch.no_grad():
        for inputs in (batch, other):
            exported, expected = program.module()(**inputs), model(**inputs)
            torch.testing.assert_close(exported.last_hidden_state, expected.last_hidden_state, **OUTPUTS)


def test_autocast_runs_the_operators_in_bfloat16_and_leaves_float32_gradients():
    model, batch = model_and_batch()
    seen = []
    model.layers[0].mixer.out_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0].dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(**batch).last_hidden_state
    output.square().mean().backward()
    assert seen == [torch.bfloat16]
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
    expected = model(**batch).last_hidden_state
    # bfloat16 keeps 8 bits; LayerNorm brings the vectors to a length of about 1 a channel.
    assert (output - expected).abs().max() < 0.1


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    ("options", "gradients"),
    [*((options, True) for options in OPTIONS.values()), ({}, False), (MAKINGS["a mixture"], False)],
)
def test_a_traced_model_passes_torchs_own_check_and_says_the_same_of_other_batches(options, gradients):
    model, batch = model_and_batch(MaBertForMaskedLM, **options, return_dict=False)
    other = torch.randint(5, 90, (3, 31)), (torch.arange(31) < torch.tensor([[31], [20], [4]])).long()
    with torch.set_grad_enabled(gradients):
        traced = torch.jit.trace(model, tuple(batch.values()), strict=False)
        (found,), (expected,) = traced(*other), model(*other)
        shown = other[1].bool()
        torch.testing.assert_close(found[shown], expected[shown], **OUTPUTS)
        if gradients:
            of_traced, of_model = (
                torch.autograd.grad(logits[shown].square().mean(), model.mabert.layers.parameters())
                for logits in (found, expected)
            )
            torch.testing.assert_close(of_traced, of_model, rtol=1e-4, atol=1e-6)
