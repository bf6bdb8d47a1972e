"""The objective: the mean over what is scored, and nothing where nothing is; what weight decay touches."""

from types import SimpleNamespace

import pytest
import torch

from mabert import MaBertForMaskedLM
from mabert.train.objective import SCORED, decay_parameter_names, mean_over_scored, with_places
from tests.model.helpers import config


@pytest.mark.parametrize("scored_in_the_step", [None, 0, torch.tensor(0)])
def test_where_nothing_is_scored_the_loss_is_nothing_and_so_is_its_gradient(scored_in_the_step):
    logits = torch.randn(0, 7, requires_grad=True)
    loss = mean_over_scored(SimpleNamespace(logits=logits), torch.empty(0, dtype=torch.int64), scored_in_the_step)
    assert loss.item() == 0
    loss.backward()
    assert logits.grad.shape == (0, 7)


def test_parts_of_a_step_add_up_to_its_mean():
    labels = torch.tensor([1, 2, 3, 0])
    logits = torch.randn(4, 7, dtype=torch.float64)
    whole = mean_over_scored(SimpleNamespace(logits=logits), labels)
    parts = [
        mean_over_scored(SimpleNamespace(logits=part), row, num_items_in_batch=count)
        for part, row, count in zip(logits.split(2), labels.split(2), (4, torch.tensor(4)), strict=True)
    ]
    assert sum(parts).item() == pytest.approx(whole.item())


def test_a_batch_gets_the_places_of_its_labels():
    batch = {"input_ids": torch.arange(6).view(2, 3), "labels": torch.tensor([[-100, 4, 0], [-100, -100, 9]])}
    made = with_places(lambda examples: examples, batch)
    assert made.pop(SCORED).tolist() == [1, 2, 5]
    assert made == batch


def test_biases_norms_and_the_recurrence_are_exempt():
    model = MaBertForMaskedLM(config(ssm_direction="bidirectional"))
    decayed = set(decay_parameter_names(model))
    everything = {name for name, _ in model.named_parameters()}
    spared = {name.split(".")[-1] if "norm" not in name else "norm" for name in everything - decayed}
    assert spared == {"bias", "norm", "A_log", "D", "delta_bias"}
    assert {name for name in decayed if "norm" in name or name.endswith("bias")} == set()
    assert "mabert.embeddings.word_embeddings.weight" in decayed
    assert "mabert.layers.0.mixer.cores.0.dt_proj.weight" in decayed
    assert set(decay_parameter_names(model, "nothing")) == everything
    with pytest.raises(ValueError, match="decay_exempt is 'norms'"):
        decay_parameter_names(model, "norms")
