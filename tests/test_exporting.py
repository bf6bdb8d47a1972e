"""An exported model gives what PyTorch gives, wherever padding stands, on runtimes that know neither torch nor us."""

import json
import subprocess
import sys
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import softplus

import mabert
from mabert import exporting
from mabert.cli import main
from mabert.files.sentences import MODULES, SETTINGS, is_cross_encoder
from mabert.ops import depthwise_conv1d, explain, portable, selective_scan, use_backend
from tests.conversion.helpers import saved_teacher
from tests.model import helpers
from tests.model.helpers import MAKINGS
from tests.tolerances import OUTPUTS
from tests.train.helpers import of_family, tokenizer

KINDS = {
    "encoder": (mabert.MaBertModel, {"ssm_direction": "bidirectional", "max_position_embeddings": 150}),
    "fills masks": (mabert.MaBertForMaskedLM, {"ssm_conv_mode": "centered", "ssm_direction": "backward"}),
    "classifies": (mabert.MaBertForSequenceClassification, {"pooling": "map"}),
    "tags": (mabert.MaBertForTokenClassification, MAKINGS["a mixture"]),
    "answers": (mabert.MaBertForQuestionAnswering, MAKINGS["BERT's"]),
}


def saved(folder, kind):
    make, changes = KINDS[kind]
    return helpers.saved(make, folder, tokenizer(), **changes)


def texts(rows, time, side):
    """Ids and a mask with a text of each length, padded on one side."""
    ids = torch.randint(5, 40, (rows, time), generator=torch.Generator().manual_seed(time))
    mask = (torch.arange(time) < torch.linspace(1, time, rows).long()[:, None]).long()
    return ids, mask.flip(1) if side == "left" else mask


def compare(model, ids, mask, outputs, types=None):
    with torch.no_grad():
        wanted = model(ids, mask, types).to_tuple()
    for one, other in zip(wanted, outputs, strict=True):
        assert exporting._difference(one.numpy(), other) < 1e-5


def tensors(inputs):
    """The same inputs as tensors."""
    return {name: torch.from_numpy(array) for name, array in inputs.items()}


def check(model, run, shortest=1):
    for rows, time in ((1, shortest), (2, 7), (3, 20), (2, model.config.max_position_embeddings)):
        for side in ("left", "right"):
            ids, mask = texts(rows, time, side)
            given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}
            compare(model, ids, mask, run({name: x.numpy() for name, x in given.items()}), ids % 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_onnx_runtime_gives_what_pytorch_gives(tmp_path, kind):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = saved(tmp_path / "model", kind)
    written = mabert.export(tmp_path / "model", tmp_path / "out")
    assert written.file == tmp_path / "out" / "model.onnx"
    assert written.difference < 1e-5
    session = onnxruntime.InferenceSession(written.file)
    check(model, lambda inputs: session.run(None, inputs))
    assert {"config.json", "tokenizer.json"} <= {file.name for file in (tmp_path / "out").iterdir()}


@pytest.mark.slow
def test_openvino_gives_what_pytorch_gives(tmp_path):
    openvino = pytest.importorskip("openvino")
    model = saved(tmp_path / "model", "encoder")
    assert main(["export", str(tmp_path / "model"), "--to", "openvino", "-o", str(tmp_path / "out")]) == 0
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.compile_model(tmp_path / "out/openvino_model.xml", "CPU", exact)
    check(model, lambda inputs: list(compiled(inputs).to_tuple()), shortest=2)  # its loops go twice or more


@given(st.floats(-80, 80, width=32))
def test_small_step_sizes_keep_their_digits(value):
    x = torch.tensor([value])
    exact = softplus(x.double())
    assert (portable._softplus(x).double() - exact).abs() <= 4e-7 * exact


def test_a_graph_is_compared_at_the_longest_text_too(tmp_path):
    lengths = []

    def running(inputs):
        lengths.append(inputs["input_ids"].shape[1])
        return [x.numpy() for x in plain(**tensors(inputs)).values()]

    plain = exporting.Plain(saved(tmp_path, "encoder"), typed=False)
    assert max(exporting._differences(plain, running)) < 1e-6
    assert max(lengths) == plain.longest == 150


class PyTorch:
    """PyTorch itself as a runtime."""

    FILE, PACKAGES, title = "graph", (), "PyTorch"

    def __init__(self, file):
        assert file.is_file()

    @classmethod
    def write(cls, plain, file):
        cls.plain = plain
        file.touch()

    def __call__(self, inputs):
        return [x.numpy() for x in self.plain(**tensors(inputs)).values()]


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_one_output_that_is_no_number_is_enough_to_write_nothing(tmp_path, monkeypatch, rows):
    class Broken(PyTorch):
        def __call__(self, inputs):
            return [x * (np.nan if len(x) == rows else 1) for x in super().__call__(inputs)]

    saved(tmp_path / "model", "encoder")
    monkeypatch.setitem(exporting.FORMS, "torch", PyTorch)
    assert mabert.export(tmp_path / "model", tmp_path / "out", to="torch").difference == 0
    assert not list((tmp_path / "out").glob("*.py"))
    assert "auto_map" not in json.loads((tmp_path / "out/config.json").read_text())
    monkeypatch.setitem(exporting.FORMS, "torch", Broken)
    with pytest.raises(ValueError, match="gives outputs nan from PyTorch's; nothing is written"):
        mabert.export(tmp_path / "model", tmp_path / "other", to="torch")


@pytest.mark.parametrize("settings", [{"model_type": "CrossEncoder"}, {}])
@pytest.mark.parametrize("use", ["encoder", "classifier"])
def test_an_export_has_the_files_that_its_graph_can_answer(tmp_path, monkeypatch, use, settings):
    model = saved_teacher(tmp_path / "model", use=use, sentences="mean")
    (model / SETTINGS[1]).write_text(json.dumps(settings))
    monkeypatch.setitem(exporting.FORMS, "torch", PyTorch)
    mabert.export(model, tmp_path / "out", to="torch")
    assert is_cross_encoder(tmp_path / "out") == bool(settings)
    assert (tmp_path / "out" / MODULES).is_file() == (use == "encoder" or bool(settings))


@pytest.mark.parametrize("name", ["encoding.json", MODULES])
def test_a_damaged_file_beside_the_weights_is_refused_before_the_work(tmp_path, monkeypatch, name):
    model = saved_teacher(tmp_path / "model", sentences="mean")
    (model / name).write_text("{")
    monkeypatch.setitem(exporting.FORMS, "torch", PyTorch)
    with pytest.raises(ValueError, match=rf"{name}: not JSON"):
        mabert.export(model, tmp_path / "out", to="torch")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_rival_is_exported_too_and_outputs_that_differ_are_not_written(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    model = of_family("bert", tmp_path / "b")
    assert mabert.export(model, tmp_path / "out").difference < 1e-5
    run = exporting.OnnxRuntime.__call__
    monkeypatch.setattr(exporting.OnnxRuntime, "__call__", lambda self, inputs: [x + 0.1 for x in run(self, inputs)])
    assert main(["export", str(model), "-o", str(tmp_path / "other")]) == 2
    assert "from PyTorch's; nothing is written" in capsys.readouterr().err
    assert not list((tmp_path / "other").glob("*"))


@pytest.mark.slow
def test_a_program_of_torch_needs_nothing_of_this_package(tmp_path):
    kinds = ("encoder", "answers")
    models = {kind: saved(tmp_path / kind, kind) for kind in kinds}
    for kind in kinds:
        assert main(["export", str(tmp_path / kind), "--to", "torch", "-o", str(tmp_path / kind / "out")]) == 0
    ids, mask = texts(3, 12, "left")
    # A tokenizer gives types before the mask.
    np.savez(tmp_path / "texts", input_ids=ids, token_type_ids=torch.zeros_like(ids), attention_mask=mask)
    alone = """import sys, numpy, torch
given, *folders = sys.argv[1:]
inputs = {name: torch.from_numpy(array) for name, array in numpy.load(given).items()}
with torch.no_grad():
    for folder in folders:
        numpy.savez(folder + "/given", **torch.export.load(folder + "/model.pt2").module()(**inputs))
assert not [name for name in sys.modules if name.startswith(("mabert", "transformers"))]
"""
    places = [tmp_path / kind / "out" for kind in kinds]
    subprocess.run([sys.executable, "-c", alone, str(tmp_path / "texts.npz"), *map(str, places)], check=True)
    for model, place in zip(models.values(), places, strict=True):
        program = torch.export.load(place / "model.pt2").module()
        check(model, lambda inputs, it=program: [x.numpy() for x in it(**tensors(inputs)).values()], 2)
        given = np.load(place / "given.npz")
        compare(model, ids, mask, given.values())
        assert [*given] == [*model(ids, mask)]
        with pytest.raises(ValueError, match="expected \\['input_ids', 'attention_mask', 'token_type_ids'\\]"):
            program(ids, mask)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "torch"])
def test_a_model_that_cannot_be_captured_is_one_line_with_the_cause_kept(tmp_path, to):
    pytest.importorskip("onnxscript")
    model = of_family("longformer", tmp_path / "model")
    said = r"^torch cannot capture Longformer\w+: Could not guard on data-dependent .*; another of .* may do$"
    with pytest.raises(ValueError, match=said) as refused:
        mabert.export(model, tmp_path / "out", to=to)
    assert isinstance(refused.value.__cause__, RuntimeError)
    assert "\n" not in str(refused.value)


def test_memory_that_runs_out_in_a_capture_is_said_as_such(tmp_path, monkeypatch):
    saved(tmp_path / "model", "encoder")
    full = RuntimeError("DefaultCPUAllocator: not enough memory")
    monkeypatch.setattr(torch.export, "export", Mock(side_effect=full))
    with pytest.raises(RuntimeError, match="not enough memory"):
        mabert.export(tmp_path / "model", tmp_path / "out", to="torch")


class Operators(torch.nn.Module):
    def __init__(self, mode, reverse):
        super().__init__()
        self.mode, self.reverse = mode, reverse

    def forward(self, u, delta, A, B, C, D, z, bias, weight, mask):
        how = {"mask": mask, "reverse": self.reverse}
        mixed = depthwise_conv1d(u, weight, bias, mode=self.mode, **how)
        return selective_scan(mixed, delta, A, B, C, D, z, delta_bias=bias, **how)


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("mode", ["causal", "centered"])
def test_the_portable_operators_keep_the_contract_with_holes_too(mode, reverse):
    draw = torch.Generator().manual_seed(0)
    random = lambda *shape: torch.randn(*shape, generator=draw)  # noqa: E731
    u, delta, z, B, C = random(2, 9, 4), random(2, 9, 4), random(2, 9, 4), random(2, 9, 3), random(2, 9, 3)
    mask = random(2, 9) > -0.3
    given = (u, delta, -random(4, 3).exp(), B, C, random(4), z, random(4), random(4, 3), mask)
    assert not mask.all()
    assert (mask[:, 1:] > mask[:, :-1]).any(), "there are holes"
    module = Operators(mode, reverse)
    with use_backend("portable"):
        program = torch.export.export(module, given)
    torch.testing.assert_close(program.module()(*given), module(*given), **OUTPUTS)


@pytest.mark.parametrize("name", ["onnx", "onnxscript", "onnxruntime", "openvino"])
def test_a_missing_package_is_one_line(tmp_path, monkeypatch, capsys, name):
    monkeypatch.setattr("mabert.machine.environment.find_spec", lambda package: None if package == name else object())
    to = "openvino" if name == "openvino" else "onnx"
    assert main(["export", "minilm", "--to", to, "-o", str(tmp_path / "out")]) == 2
    told = f"mabert: {name} is not installed; the extra export brings it: pip install 'mabert[export]'\n"
    assert capsys.readouterr().err == told
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("mabert.machine.environment.find_spec", lambda package: object())
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds other files; give a folder that is new, or one of an earlier export"):
        mabert.export("minilm", tmp_path)
    with pytest.raises(ValueError, match=r"to is 'tflite'; a model can be exported to onnx or openvino"):
        mabert.export("minilm", tmp_path / "new", to="tflite")
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_difference_is_one_of_values_and_not_of_the_lowest_number():
    lowest = np.finfo(np.float32).min
    assert exporting._difference(np.array([2.0, lowest]), np.array([2.1, lowest])) == pytest.approx(0.05)
    assert exporting._difference(np.array([2.0, lowest]), np.array([2.0, 1.0])) == float("inf")


def test_the_portable_form_is_for_captured_graphs():
    u, A, B = torch.randn(1, 4, 2), -torch.rand(2, 3), torch.randn(1, 4, 3)
    with use_backend("portable"):
        assert str(explain(u)) == "portable: asked for by use_backend"
        for call in (lambda: selective_scan(u, u, A, B, B), lambda: depthwise_conv1d(u, A)):
            with pytest.raises(ValueError, match=r"is for graphs that torch\.export captures"):
                call()
