"""Folders of quantized weights: they are used as any other, and what cannot be done with them gets one line."""

import dataclasses
import json
import shutil
import sys

import pytest
import torch
from transformers import PreTrainedModel

import mabert
from mabert.data.tokenizer import load_tokenizer
from mabert.exporting import export
from mabert.opening.opened import extend, open_model
from mabert.opening.weights import check_finite, parts_of
from mabert.train.pretrain_run import model_config
from tests.train.helpers import recipe


class Quantized(torch.Tensor):
    """int8 numbers and a scale, as torchao has them; it knows no operation."""

    @staticmethod
    def __new__(cls, numbers, scale):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scale.dtype)

    def __init__(self, numbers, scale):
        self.numbers, self.scale = numbers, scale

    def __tensor_flatten__(self):
        return ["numbers", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, *_):
        return cls(**inner)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(f"{cls.__name__} cannot {function}")


def test_weights_are_checked_by_what_they_are_made_of(tmp_path):
    layer = torch.nn.Linear(3, 2)
    scale = torch.ones(2, 1)
    layer.weight = torch.nn.Parameter(Quantized(torch.ones(2, 3, dtype=torch.int8), scale), requires_grad=False)
    assert [part.dtype for part in parts_of(layer.weight)] == [torch.int8, torch.float32]
    check_finite(layer, tmp_path)
    scale[1] = float("nan")
    with pytest.raises(ValueError, match="the weight weight holds NaN or infinity"):
        check_finite(layer, tmp_path)


@pytest.fixture
def quantized(masked_lm, tmp_path):
    folder = shutil.copytree(masked_lm, tmp_path / "quantized")
    fields = json.loads((folder / "config.json").read_text())
    fields["quantization_config"] = {"quant_method": "torchao", "quant_type": {"default": {}}}
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def test_a_missing_package_is_named(quantized, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.core.config", None)
    monkeypatch.setitem(sys.modules, "torchao", None)
    told = rf"^the weights in {quantized} need a package that is not installed here: .*torchao"
    with pytest.raises(ValueError, match=told):
        mabert.load(quantized).embed(["a bird"])


def test_quantized_weights_that_lack_a_head_are_named(quantized, monkeypatch):
    def fails(*given, **named):
        raise RuntimeError("We encountered some issues during automatic conversion of the weights.")

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", fails)
    with pytest.raises(ValueError, match=f"^the quantized weights in {quantized} lack what MaBertForMaskedLM needs$"):
        mabert.load(quantized).fill_mask(["a [MASK]"])


@pytest.mark.parametrize("change", ["train", "extend", "start", "export"])
def test_what_needs_plain_weights_is_refused(quantized, tmp_path, change):
    plan = dataclasses.replace(recipe(tmp_path), model={}, start_from=str(quantized))
    changes = {
        "train": lambda: open_model(quantized).with_new_head(),
        "extend": lambda: extend(quantized, 512, tmp_path / "longer"),
        "start": lambda: model_config(plan, load_tokenizer(str(quantized)), open_model(quantized)),
        "export": lambda: export(quantized, tmp_path / "graph", "torch"),
    }
    with pytest.raises(ValueError, match=f"^{quantized} holds quantized weights, which can be neither trained, ext"):
        changes[change]()
