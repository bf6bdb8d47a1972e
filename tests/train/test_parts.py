"""A fine-tuning's step that is run in parts has the loss and the gradients of the whole, whatever is scored."""

import pytest
import torch
from accelerate import PartialState
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.opening.opened import open_model
from mabert.train import finetune_once
from mabert.train.finetune_run import FinetuneRun
from mabert.train.folder import RunFolder
from mabert.train.kinds import kind_of
from mabert.train.recipe import FinetuneRecipe
from tests.train.helpers import of_family
from tests.train.tasks import TASKS, splits

RECIPE = {"batch_size": 12, "dropout": 0.0, "precision": "fp32"}
MOST_CHARACTERS = 24
"""Tokens of the longest text."""


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder with a model whose batches run with their padding."""
    return of_family("bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module", params=[("classes", "length"), ("several", "random"), ("tokens", "random")])
def training(request, bert, tmp_path_factory):
    """What is trained by, and the batch of its first step."""
    name, batches = request.param
    recipe = FinetuneRecipe(batches=batches, epochs=3, **RECIPE)
    kind, folder = kind_of(TASKS[name][0]), tmp_path_factory.mktemp("run")
    where = "fp32", MOST_CHARACTERS, RunFolder(folder), PartialState(), 0, {}, {}
    how = {"progress": False, "callbacks": ()}
    run = FinetuneRun(open_model(bert), kind, splits(name, (12, 2)), recipe, *where, **how)
    trainer = finetune_once.FinetuneTrainer(run.new_model(), run, 1e-3, 0)
    trainer.current_gradient_accumulation_steps = 1  # which `train` sets
    return trainer, next(iter(trainer.get_train_dataloader()))


def stepped(training, at_once):
    """A step's loss and gradients, and how many tokens were run at once."""
    trainer, batch = training
    ran = []
    hook = trainer.model.register_forward_pre_hook(
        lambda module, arguments, given: ran.append(given["input_ids"].numel()), with_kwargs=True
    )
    trainer.model.zero_grad()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finetune_once, "AT_ONCE", at_once)
        loss = trainer.training_step(trainer.model, batch)
    hook.remove()
    gradients = {name: weight.grad for name, weight in trainer.model.named_parameters() if weight.grad is not None}
    return loss, gradients, ran


@settings(max_examples=8)
@given(at_once=st.integers(1, 200))
def test_parts_add_up(training, at_once):
    whole, expected, ran = stepped(training, 4096)
    assert len(ran) == 1
    loss, gradients, ran = stepped(training, at_once)
    assert max(ran) <= max(at_once, MOST_CHARACTERS)
    torch.testing.assert_close(loss, whole)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_a_step_that_was_asked_for_in_tokens_is_run_at_once(training, monkeypatch):
    monkeypatch.setattr(training[0].run.recipe, "batch_tokens", 4096)
    assert len(stepped(training, 1)[2]) == 1
