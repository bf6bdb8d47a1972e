"""torchao's int8 weights, in a MaBERT as in a BERT. torchao is no package that the tests ask for."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification, TorchAoConfig

from mabert import MaBertForSequenceClassification
from mabert.model.load import check_finite
from mabert.model.prepack import PackedLinear, prepack
from tests.model.helpers import MASK, TOKENS, VOCAB, build, config

quantization = pytest.importorskip("torchao.quantization")

SIZES = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
KINDS = {
    "mabert": (MaBertForSequenceClassification, config(**SIZES)),
    "bert": (BertForSequenceClassification, BertConfig(vocab_size=VOCAB, num_hidden_layers=2, **SIZES)),
}
WAYS = [quantization.Int8WeightOnlyConfig, quantization.Int8DynamicActivationInt8WeightConfig]

pytestmark = [pytest.mark.parametrize("way", WAYS), pytest.mark.filterwarnings("ignore")]


def near(found, expected):
    assert 0 < (found - expected).norm() < 0.1 * expected.norm()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("how", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", KINDS)
def test_they_serve_inference(kind, how, packed, way):
    model = build(*KINDS[kind], dtype=torch.float32)
    expected = model(TOKENS, MASK).logits.detach()
    quantization.quantize_(model, way())
    if packed:
        prepack(model)
        assert not any(isinstance(module, PackedLinear) for module in model.modules())
    with how():
        near(model(TOKENS, MASK).logits, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_beside_them_trains_as_in_bert(kind, way):
    model = build(*KINDS[kind], dtype=torch.float32)
    quantization.quantize_(
        model, way(), filter_fn=lambda module, _: type(module) is nn.Linear and module.out_features > 2
    )
    model(TOKENS, MASK, labels=torch.tensor([0, 1])).loss.backward()
    assert model.classifier.weight.grad.norm() > 0


def test_they_are_saved_and_loaded(tmp_path, way):
    model = build(*KINDS["mabert"], dtype=torch.float32)
    model.save_pretrained(tmp_path / "whole")
    made = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "whole", quantization_config=TorchAoConfig(way())
    ).eval()
    near(made(TOKENS, MASK).logits, model(TOKENS, MASK).logits)
    made.save_pretrained(tmp_path / "short")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "short").eval()
    assert torch.equal(again(TOKENS, MASK).logits, made(TOKENS, MASK).logits)
    check_finite(again, tmp_path)
