"""Weights that are no numbers, or no weights: one line that names the file, before anything is computed."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.bad_input.conftest import hashes

COMMANDS = ["embed", "predict", "fill-mask", "finetune", "info", "extend", "pretrain"]


@pytest.fixture
def command(request, made, tmp_path):
    """A command on a copy of a model that serves it: the folder, and the words."""
    tuned = request.param in ("predict", "embed")
    model = shutil.copytree(made / ("tuned/seed-0" if tuned else "run"), tmp_path / "model")
    new, texts = ["-o", tmp_path / "new"], made / "classes.csv"
    return model, {
        "finetune": ["finetune", model, "--train", texts, *new],
        "info": ["info", model],
        "extend": ["extend", model, "--length", "99", *new],
        "pretrain": ["pretrain", made / "plan.yaml", "--start-from", model, *new],
    }.get(request.param, [request.param, model, texts])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("command", COMMANDS, indirect=True)
def test_a_weight_that_is_no_number_is_refused(command, refused, tmp_path, value):
    model, words = command
    file = model / "model.safetensors"
    weights = load_file(file)
    name = next(name for name in weights if name.endswith("x_proj.weight"))
    weights[name].view(-1)[3] = value
    save_file(weights, file, {"format": "pt"})
    before = hashes(tmp_path)
    told = refused(*words)
    assert f"{file}: the weight " in told
    assert name.removeprefix("model.").removeprefix("mabert.") in told
    assert "holds NaN or infinity" in told
    assert hashes(tmp_path) == before


@pytest.mark.parametrize("command", COMMANDS, indirect=True)
def test_a_file_of_weights_that_is_cut_short_is_refused(command, refused):
    model, words = command
    file = model / "model.safetensors"
    for size in (0, 7, file.stat().st_size // 2):
        file.write_bytes(file.read_bytes()[:size] if size else b"")
        assert f"the weights in {file} are damaged or cut short" in refused(*words)


@pytest.mark.parametrize("command", COMMANDS, indirect=True)
def test_an_index_that_names_a_pickle_is_refused(command, refused):
    model, words = command
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, "model.bin")}))
    torch.save(weights, model / "model.bin")
    assert f"{index} names model.bin; weights are read from .safetensors alone" in refused(*words)


def test_large_weights_whose_sum_overflows_are_numbers(made, tmp_path):
    from mabert import load

    shutil.copytree(made / "run", tmp_path / "model")
    weights = load_file(tmp_path / "model/model.safetensors")
    name = next(name for name in weights if name.endswith("word_embeddings.weight"))
    weights[name][:] = torch.finfo(torch.float32).max
    save_file(weights, tmp_path / "model/model.safetensors", {"format": "pt"})
    assert load(tmp_path / "model").embed(["a bird"]).shape == (1, 16)
