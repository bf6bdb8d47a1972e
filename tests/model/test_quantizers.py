"""What quantizers leave out, what they save, and LoRA over what they quantize; each where it is installed."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import BitsAndBytesConfig, QuantoConfig, TorchAoConfig

import mabert
from mabert import MaBertForSequenceClassification
from mabert.model.encoder import NARROW, UNQUANTIZED, sparing
from tests.model.helpers import LABELS, MASK, TOKENS, build, config
from tests.train.helpers import tokenizer


def bitsandbytes(**bits):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    return BitsAndBytesConfig(**bits, bnb_4bit_compute_dtype=torch.float32)


def quanto():
    pytest.importorskip("optimum.quanto", reason="quanto is not installed")
    return QuantoConfig(weights="int8")


def torchao(kind="Int8WeightOnlyConfig"):
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    return TorchAoConfig(getattr(quantization, kind)())


QUANTIZERS = {
    "8 bits": lambda: bitsandbytes(load_in_8bit=True),
    "4 bits": lambda: bitsandbytes(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "quanto": quanto,
    "torchao": torchao,
}
SAVED = {
    **{name: QUANTIZERS[name] for name in ("8 bits", "4 bits", "torchao")},
    "torchao, activations": lambda: torchao("Int8DynamicActivationInt8WeightConfig"),
}


def quantized(folder, name, **fields):
    """A model that one of these quantizes while it is loaded."""
    asked = {**QUANTIZERS, **SAVED}[name]()
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
    whole = build(MaBertForSequenceClassification, config(**sizes, **fields), dtype=torch.float32)
    whole.save_pretrained(folder)
    return MaBertForSequenceClassification.from_pretrained(folder, quantization_config=asked, device_map="cpu")


def test_modules_are_left_out_unless_the_configuration_names_some():
    asked, named = QuantoConfig(weights="int8"), QuantoConfig(weights="int8", modules_to_not_convert=["up"])
    assert sparing(asked).modules_to_not_convert == [*UNQUANTIZED, *NARROW]
    assert asked.modules_to_not_convert is None, "the caller's own stays as it is"
    assert sparing(named).modules_to_not_convert == ["up"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the quantizers
@pytest.mark.parametrize("name", QUANTIZERS)
def test_lora_learns_over_quantized_weights(tmp_path, name):
    model = quantized(tmp_path, name)
    for module, part in model.named_modules():
        if isinstance(part, torch.nn.Linear):
            left_out = module.startswith(UNQUANTIZED) or (name != "torchao" and module.endswith(NARROW))
            assert (type(part.weight.data) is torch.Tensor and part.weight.dtype == torch.float32) == left_out, module
    projections = ["query", "value", "in_proj", "out_proj"]
    model = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", target_modules=projections))
    model(TOKENS, attention_mask=MASK, labels=LABELS).loss.backward()
    learning = [weight for weight in model.parameters() if weight.requires_grad]
    assert learning
    assert all(weight.grad.isfinite().all() for weight in learning)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the quantizers
@pytest.mark.parametrize("name", SAVED)
def test_a_saved_folder_says_what_its_model_says(tmp_path, name, caplog):
    words = tokenizer()
    model = quantized(tmp_path / "whole", name, vocab_size=len(words), num_labels=1).eval()
    model.save_pretrained(tmp_path / "saved")
    words.save_pretrained(tmp_path / "saved")
    texts = ["the bird sings", "wind"]
    with torch.no_grad():
        expected = [float(model(**words(text, return_tensors="pt")).logits) for text in texts]
    caplog.clear()
    ours = mabert.load(tmp_path / "saved")
    assert not caplog.messages, "a quantizer's own tensors count as weights without a place"
    found = [ours.predict([text], progress=False)[0]["score"] for text in texts]  # 8 bits: not the same in a batch
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert abs(found[0] - found[1]) > 1e-2
