"""Folders with an adapter of PEFT beside the weights: the adapter is a part of the model, whatever uses it."""

import shutil

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModel, AutoModelForSequenceClassification

import mabert
from mabert.files.places import ADAPTER, ADAPTER_WEIGHTS, find
from mabert.opening import weights
from mabert.opening.opened import extend, open_model

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # PEFT asks for it

TEXTS = ["a bird", "snow on the hill"]


def adapted(auto, folder, place):
    """A copy of a model's folder with an adapter of random numbers beside the weights, and the adapted model."""
    shutil.copytree(folder, place)
    torch.manual_seed(0)
    model = get_peft_model(
        auto.from_pretrained(folder), LoraConfig(target_modules=["query", "in_proj"], init_lora_weights=False)
    )
    model.save_pretrained(place)
    return model.eval()


@pytest.fixture
def encoder(masked_lm, tmp_path):
    """An encoder alone, with an adapter: its folder and the adapted model."""
    plain = tmp_path / "plain"
    shutil.copytree(masked_lm, plain)
    AutoModel.from_pretrained(masked_lm).save_pretrained(plain)
    return tmp_path / "adapted", adapted(AutoModel, plain, tmp_path / "adapted")


@torch.no_grad()
@pytest.mark.parametrize("use", ["classifier", "encoder"])
def test_a_classifier_with_an_adapter_says_what_peft_says_in_each_use(classifier, tmp_path, use):
    model = adapted(AutoModelForSequenceClassification, classifier, tmp_path / "adapted")
    ours, plain = (open_model(folder).model(use) for folder in (tmp_path / "adapted", classifier))
    ids = torch.arange(6, 12)[None]
    theirs = model.base_model.model if use == "classifier" else model.base_model.model.mabert
    torch.testing.assert_close(ours(ids)[0], theirs(ids)[0], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(ours(ids)[0], plain(ids)[0], rtol=1e-2, atol=1e-3)
    assert not any("lora" in name for name in ours.state_dict())
    assert find(tmp_path / "adapted").digest() != find(classifier).digest()


def test_an_adapter_stays_a_part_of_a_model_that_is_extended_or_trained(encoder, tmp_path):
    folder, _ = encoder
    extend(folder, 512, tmp_path / "longer")
    joined, longer, begun = (
        model.base_model.state_dict()
        for model in (
            open_model(folder).plain(),
            open_model(tmp_path / "longer").plain(),
            open_model(folder).with_new_head(),
        )
    )
    same = [name for name in joined if "position" not in name]
    assert len(same) > 20
    for name in same:
        assert torch.equal(longer[name], joined[name])
        assert torch.equal(begun[name], joined[name])


def test_weights_that_a_use_lacks_are_named_beside_an_adapter_too(encoder):
    with pytest.raises(ValueError, match="for MaBertForMaskedLM it lacks predictions"):
        open_model(encoder[0]).model("masked_lm")


def test_an_adapter_that_cannot_be_applied_is_refused(encoder, classifier, tmp_path, monkeypatch):
    folder, _ = encoder
    other = shutil.copytree(classifier, tmp_path / "other")
    for file in folder.glob("adapter_*"):
        shutil.copy(file, other)
    refused = [(other, ValueError, "the adapter in .*other is not of MaBertForSequenceClassification")]
    cut = shutil.copytree(folder, tmp_path / "cut")
    (cut / ADAPTER_WEIGHTS).write_bytes((folder / ADAPTER_WEIGHTS).read_bytes()[:100])
    refused.append((cut, ValueError, "the adapter in .*cut cannot be read, or is of another model: "))
    empty = shutil.copytree(folder, tmp_path / "empty")
    (empty / ADAPTER).write_text("{}")
    refused.append((empty, ValueError, "adapter_config.json has no peft_type"))
    none = shutil.copytree(folder, tmp_path / "none")
    (none / ADAPTER_WEIGHTS).unlink()
    refused.append((none, FileNotFoundError, r"none holds adapter_config\.json without its weights"))
    for place, error, message in refused:
        with pytest.raises(error, match=message):
            mabert.load(place).embed(TEXTS)
    monkeypatch.setattr(weights, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"adapted holds an adapter .*, which needs PEFT: pip install peft$"):
        mabert.load(folder).embed(TEXTS)
