"""Layers that are compiled one by one: the same training, and no new compilation for new lengths."""

from functools import partialmethod

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch._dynamo.utils import counters

from mabert import MaBertForMaskedLM
from mabert.model import attention
from mabert.opening.uses import compile_layers
from mabert.train.pretrain import pretrain
from mabert.train.recipe import Stage
from tests.model.helpers import build, config
from tests.train.helpers import recipe, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo looks

KINDS_OF_LAYERS = 2


@pytest.fixture(autouse=True)
def anew():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def quick(monkeypatch):
    """Captures and differentiates as the default compiler does, and leaves out its code."""
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="aot_eager"))


def trained(folder, **training):
    """Returns losses after each step, and the names of the weights."""
    folder.mkdir()
    plan = recipe(folder, steps=3, warmup_steps=1, log_steps=1, **training)
    plan.stages = [Stage(12, 1.0)]
    result = pretrain(plan, folder / "run", tokenizer=tokenizer(), progress=False)
    losses = [entry["loss"] for entry in result["outcome"]["history"] if "loss" in entry]
    return torch.tensor(losses), set(load_file(folder / "run/model.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["none", "pack"])
def test_compiled_layers_learn_the_same(tmp_path, quick, packing):
    plain = trained(tmp_path / "plain", packing=packing)
    assert not counters["stats"]
    compiled = trained(tmp_path / "compiled", packing=packing, compile=True)
    assert counters["stats"]["unique_graphs"] >= KINDS_OF_LAYERS
    torch.testing.assert_close(compiled[0], plain[0], rtol=1e-4, atol=0)
    assert compiled[1] == plain[1]


@torch.library.custom_op("mabert_tests::attended", mutates_args=())
def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor, longest: int) -> torch.Tensor:
    """Stands in for torch's variable-length attention, which a CPU lacks."""
    return q + k + v


attended.register_fake(lambda q, *_: torch.empty_like(q))
attended.register_autograd(lambda ctx, grad: (grad, grad, grad, None, None))


@pytest.mark.slow
def test_packed_rows_of_new_lengths_compile_nothing(monkeypatch, quick):
    from torch.nn.attention import varlen

    monkeypatch.setattr(attention, "has_variable_length", lambda *_: True)
    monkeypatch.setattr(varlen, "varlen_attn", lambda q, k, v, start, _, longest, __: attended(q, k, v, start, longest))
    settings = config(layer_pattern="MMTMT", hidden_dropout_prob=0.1, max_position_embeddings=256)
    model = build(MaBertForMaskedLM, settings, dtype=torch.float32).train()
    compile_layers(model)

    def step(*lengths):
        starts = torch.tensor([0, *lengths]).cumsum(0).int()
        ids = torch.randint(5, 60, (1, sum(lengths)))
        model(ids, cu_seq_lens_q=starts).logits.sum().backward()

    for lengths in ((60, 50, 40), (80, 60), (50, 49, 48, 47)):
        step(*lengths)
    before = counters["stats"]["unique_graphs"]
    for lengths in ((20, 130, 3, 3), (70, 70), (150,), (200, 20, 2)):
        step(*lengths)
    assert counters["stats"]["unique_graphs"] == before
    assert not counters["graph_break"]
