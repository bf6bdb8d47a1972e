"""A run that is stopped anywhere and goes on ends with the bits of one that nothing stopped: runs of two steps."""

import math

import pytest

from mabert import MaBertForMaskedLM
from mabert.data.table import table_task
from mabert.train import trainer
from mabert.train.finetune import finetune
from mabert.train.pretrain import pretrain
from mabert.train.recipe import FinetuneRecipe
from tests.model.helpers import config
from tests.train.helpers import kill_at, recipe, rows, stop_at, tokenizer


@pytest.fixture(scope="module")
def pretraining(tmp_path_factory):
    """A pretraining of two steps, with dropout, to be run in any folder; and the weights it ends with."""
    folder = tmp_path_factory.mktemp("pretraining")
    plan = recipe(folder, steps=2, warmup_steps=1, save_steps=1, eval_steps=2, log_steps=1)

    def go(place, **options):
        pretrain(plan, place, tokenizer=tokenizer(), progress=False, **options)
        return (place / "model.safetensors").read_bytes()

    return go, go(folder / "whole")


@pytest.fixture(scope="module")
def finetuning(tmp_path_factory):
    """Likewise a fine-tuning."""
    folder, words = tmp_path_factory.mktemp("finetuning"), tokenizer()
    MaBertForMaskedLM(config(vocab_size=len(words), hidden_size=16)).save_pretrained(folder / "model")
    words.save_pretrained(folder / "model")
    how = FinetuneRecipe(learning_rates=[1e-2], epochs=1, batch_size=8, dropout=0.1, precision="fp32")
    splits = {"train": rows(16, 0), "validation": rows(8, 1)}

    def go(place, **options):
        task = table_task("birds", ("no", "yes"))
        finetune(folder / "model", task, splits, place, how, progress=False, **options)
        return (place / "seed-0/model.safetensors").read_bytes()

    return go, go(folder / "whole")


@pytest.fixture
def kind(request):
    """What a kind's fixture gives; made before the test, so that no test is timed by it."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("kind", ["pretraining", "finetuning"], indirect=True)
@pytest.mark.parametrize(("stop", "error"), [(stop_at, KeyboardInterrupt), (kill_at, SystemError)])
@pytest.mark.parametrize("step", [0, 1])
def test_a_stop_at_any_step_changes_no_bit(tmp_path, monkeypatch, kind, stop, error, step):
    go, whole = kind
    monkeypatch.setattr(trainer, "SAVE_SECONDS", 0.0 if stop is kill_at else math.inf)
    with pytest.raises(error):
        go(tmp_path / "run", callbacks=[stop(step)])
    assert go(tmp_path / "run", resume=True) == whole
