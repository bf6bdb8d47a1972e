"""What quantizers leave out, and LoRA over what they quantize; each where it is installed."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import BitsAndBytesConfig, QuantoConfig, TorchAoConfig

from mabert import MaBertForSequenceClassification
from mabert.model.encoder import HEADS, NARROW, sparing
from tests.model.helpers import build, config

IDS, MASK = torch.arange(1, 13).view(2, 6), torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6])


def bitsandbytes(**bits):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    return BitsAndBytesConfig(**bits, bnb_4bit_compute_dtype=torch.float32)


def quanto():
    pytest.importorskip("optimum.quanto", reason="quanto is not installed")
    return QuantoConfig(weights="int8")


def torchao():
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    return TorchAoConfig(quantization.Int8WeightOnlyConfig())


QUANTIZERS = {
    "8 bits": lambda: bitsandbytes(load_in_8bit=True),
    "4 bits": lambda: bitsandbytes(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "quanto": quanto,
    "torchao": torchao,
}


def test_modules_are_left_out_unless_the_configuration_names_some():
    asked, named = QuantoConfig(weights="int8"), QuantoConfig(weights="int8", modules_to_not_convert=["up"])
    assert sparing(asked).modules_to_not_convert == [*HEADS, *NARROW]
    assert asked.modules_to_not_convert is None, "the caller's own stays as it is"
    assert sparing(named).modules_to_not_convert == ["up"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the quantizers
@pytest.mark.parametrize("name", QUANTIZERS)
def test_lora_learns_over_quantized_weights(tmp_path, name):
    asked = QUANTIZERS[name]()
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
    whole = build(MaBertForSequenceClassification, config(**sizes), dtype=torch.float32)
    whole.save_pretrained(tmp_path)
    model = MaBertForSequenceClassification.from_pretrained(tmp_path, quantization_config=asked, device_map="cpu")
    for module, part in model.named_modules():
        if isinstance(part, torch.nn.Linear):
            left_out = module.startswith(HEADS) or (name != "torchao" and module.endswith(NARROW))
            assert (type(part.weight.data) is torch.Tensor and part.weight.dtype == torch.float32) == left_out, module
    model = get_peft_model(model, LoraConfig(task_type="SEQ_CLS"))
    model(IDS, attention_mask=MASK, labels=torch.tensor([0, 1])).loss.backward()
    learning = [weight for weight in model.parameters() if weight.requires_grad]
    assert learning
    assert all(weight.grad.isfinite().all() for weight in learning)
