"""A run that is stopped anywhere and goes on ends with the bits of one that nothing stopped: runs of three steps."""

import math

import pytest

from mabert.train import trainer
from mabert.train.pretrain import pretrain
from tests.train.helpers import check_claimed, claim, kill_at, recipe, stop_at, tokenizer
from tests.train.tasks import go


@pytest.fixture(scope="module")
def pretraining(tmp_path_factory):
    """A pretraining with dropout, to be run in any folder; and the weights it ends with."""
    folder = tmp_path_factory.mktemp("pretraining")
    plan = recipe(folder, steps=3, warmup_steps=1, save_steps=1, eval_steps=3, log_steps=1)

    def run(place, **options):
        pretrain(plan, place, tokenizer=tokenizer(), progress=False, **options)
        return (place / "model.safetensors").read_bytes()

    return run, run(folder / "whole")


@pytest.fixture(scope="module")
def finetuning(tmp_path_factory, pretrained):
    """Likewise a fine-tuning."""

    def run(place, **options):
        go(pretrained, place, sizes=(12, 4), batch_size=4, dropout=0.1, **options)
        return (place / "seed-0/model.safetensors").read_bytes()

    return run, run(tmp_path_factory.mktemp("finetuning") / "whole")


@pytest.fixture
def kind(request):
    """What a kind's fixture gives; made before the test, so that no test is timed by it."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("kind", ["pretraining", "finetuning"], indirect=True)
@pytest.mark.parametrize(("stop", "error"), [(stop_at, KeyboardInterrupt), (kill_at, SystemError)])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_stop_at_any_step_changes_no_bit(tmp_path, monkeypatch, kind, stop, error, step):
    run, whole = kind
    monkeypatch.setattr(trainer.MaBertTrainer, "save_seconds", 0.0 if stop is kill_at else math.inf)
    with pytest.raises(error):
        run(tmp_path / "run", callbacks=[stop(step)])
    assert run(tmp_path / "run", resume=True) == whole


@pytest.mark.parametrize("kind", ["pretraining", "finetuning"], indirect=True)
def test_a_folder_is_claimed_until_its_run_ends(tmp_path, monkeypatch, kind):
    check_claimed(monkeypatch)
    kind[0](tmp_path / "run")
    claim(tmp_path / "run")
