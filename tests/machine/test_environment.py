"""What results say of their machine, and in what it is said to be fast."""

import subprocess
from pathlib import Path

import pytest
import torch

from mabert.conversion.convert import convert
from mabert.data.glue import glue_task
from mabert.machine import environment as machines
from mabert.machine.environment import commit, environment, fast_dtype, instructions, processor
from mabert.train.finetune import finetune
from mabert.train.pretrain import pretrain
from mabert.train.recipe import DataRecipe, FinetuneRecipe, PretrainRecipe, TrainingRecipe

TEXT = DataRecipe(sources=[str(Path(__file__).parents[1] / "clients.txt")])


@pytest.mark.parametrize(
    ("capabilities", "dtype", "named"),
    [
        ({"avx2": True}, "float32", "KIND"),
        ({"avx512_bf16": True}, "bfloat16", "KIND BF16"),
        ({"amx_bf16": True, "avx512_bf16": False}, "bfloat16", "KIND BF16 AMX"),
        ({"bf16": True}, "bfloat16", "KIND BF16"),
        ({}, "float32", "KIND"),
    ],
)
def test_a_processor_is_fast_in_what_it_has_instructions_for(monkeypatch, capabilities, dtype, named):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "KIND")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert fast_dtype("cpu") == fast_dtype() == dtype
    assert instructions() == environment()["instructions"] == named


@pytest.mark.parametrize(
    ("told", "dtype"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512_bf16 sse\n", "bfloat16"),
        ("Features\t: fp asimd bf16\n", "bfloat16"),
        ("flags\t\t: fpu avx512f\nbugs\t\t: bf16\n", "float32"),
        (None, "float32"),
    ],
)
def test_where_torch_does_not_tell_the_system_does(monkeypatch, tmp_path, told, dtype):
    file = tmp_path / "cpuinfo"
    if told is not None:
        file.write_text(told)
    monkeypatch.setattr("mabert.machine.environment.CPUINFO", file)
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert fast_dtype("cpu") == dtype


X86 = "processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n"


@pytest.mark.parametrize(
    ("told", "name"),
    [
        (X86 + "\nprocessor\t: 1\ncpu family\t: 25\n", "AMD EPYC, family 26 model 2"),
        ("processor\t: 0\nmodel name\t: ARMv8 Processor rev 1 (v8l)\n", "ARMv8 Processor rev 1 (v8l)"),
        ("processor\t: 0\nBogoMIPS\t: 243\n", "aarch64"),
        (None, "aarch64"),
    ],
)
def test_a_processor_is_told_from_others_of_its_name(monkeypatch, tmp_path, told, name):
    file = tmp_path / "cpuinfo"
    if told is not None:
        file.write_text(told)
    monkeypatch.setattr("mabert.machine.environment.CPUINFO", file)
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert processor() == environment()["processor"] == name


@pytest.mark.parametrize(("supported", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_a_gpu_is_asked_for_instructions_too(monkeypatch, supported, dtype):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported or including_emulation)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert fast_dtype("cuda") == fast_dtype() == dtype
    assert fast_dtype("cpu") == "float32"


@pytest.mark.parametrize(
    "begin",
    [
        lambda asked, run: pretrain(
            PretrainRecipe(data=TEXT, start_from="nosuch", training=TrainingRecipe(**asked)), run
        ),
        lambda asked, run: finetune("nosuch", glue_task("cola"), {}, run, FinetuneRecipe(**asked)),
        lambda asked, run: convert("nosuch", TEXT.sources, run, **asked),
    ],
    ids=["pretraining", "fine-tuning", "conversion"],
)
def test_who_trains_in_bf16_where_it_is_emulated_is_told(begin, tmp_path, monkeypatch, caplog):
    def told(fast, precision):
        monkeypatch.setattr(machines, "fast_dtype", lambda device=None: fast)
        caplog.clear()
        with pytest.raises(FileNotFoundError, match="nosuch"):
            begin({"precision": precision}, tmp_path / "run")
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    assert told("float32", "bf16") == [
        "precision is bf16, for which this CPU has no instructions: fp32 is several times as fast here"
    ]
    assert told("float32", "auto") == told("bfloat16", "bf16") == told("float32", "fp32") == []


def test_a_copy_without_its_history_is_told_its_commit(tmp_path, monkeypatch):
    monkeypatch.setattr("mabert.machine.environment.__file__", str(tmp_path / "environment.py"))
    monkeypatch.delenv("MABERT_COMMIT", raising=False)
    assert commit() is None
    monkeypatch.setenv("MABERT_COMMIT", "0123abc")
    assert commit() == "0123abc"


def test_a_checkout_of_something_else_does_not_lend_its_commit(tmp_path, monkeypatch):
    """As where the package is installed into the virtual environment of somebody's own project."""
    installed = tmp_path / ".venv/mabert"
    installed.mkdir(parents=True)
    (installed / "environment.py").touch()
    (tmp_path / "own.py").touch()
    as_somebody = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.example"]
    for command in (["init", "-q"], ["add", "own.py"], ["commit", "-q", "-m", "own"]):
        subprocess.run([*as_somebody, *command], check=True)
    monkeypatch.setattr("mabert.machine.environment.__file__", str(installed / "environment.py"))
    assert commit() is None
    for command in (["add", ".venv"], ["commit", "-q", "-m", "the package"]):
        subprocess.run([*as_somebody, *command], check=True)
    name = commit()
    assert name is not None
    assert not name.endswith("+")
    (installed / "environment.py").write_text("changed")
    assert commit() == f"{name}+"
