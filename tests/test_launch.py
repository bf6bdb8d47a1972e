"""The launcher sets what torch reads when it is loaded, unless the person says otherwise; importing the package does
nothing but define and register, and names that are not there are errors."""

import ast
import os
import subprocess
import sys

import pytest

import mabert

USUAL = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000", "KINETO_LOG_LEVEL": "6"}
OTHERWISE = {"OMP_WAIT_POLICY": "ACTIVE", "KINETO_LOG_LEVEL": "1"}


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({}, USUAL),
        (OTHERWISE, OTHERWISE),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7", "KINETO_LOG_LEVEL": "6"}),
    ],
)
def test_what_torch_reads_when_it_is_loaded_is_set_before(given, seen):
    program = (
        "import sys, os, mabert_launch\n"
        "assert 'torch' not in sys.modules\n"
        "sys.argv = ['mabert', '--help']\n"
        "try:\n"
        "    mabert_launch.main()\n"
        "except SystemExit as stop:\n"
        f"    print(*[os.environ[name] for name in {list(seen)}], stop.code)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in USUAL} | given
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == " ".join([*seen.values(), "0"])


def run(*arguments):
    """What a command says, its exit code, and the packages that were loaded."""
    program = (
        "import atexit, sys, mabert_launch\n"
        f"sys.argv = ['mabert', *{arguments!r}]\n"
        "tell = lambda: print({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))\n"
        "atexit.register(tell)\n"
        "sys.exit(mabert_launch.main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return done.stderr, done.returncode, ast.literal_eval(done.stdout.splitlines()[-1])


def test_help_loads_next_to_no_library():
    _, code, loaded = run("--help")
    assert code == 0
    known = {"mabert", "mabert_lab", "mabert_launch", "filelock", "safetensors"}
    assert {name for name in loaded if name[0] != "_"} <= known


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("embed nowhere", "no model folder nowhere"),
        ("predict MODEL none.txt", "none.txt: no such file"),
        ("pretrain nothing -o run", "no recipe 'nothing'"),
        ("pretrain mini -o run training.step=3", "did you mean 'training.steps'?"),
        ("finetune MODEL --train none.csv -o run", "none.csv: no such file"),
        ("finetune MODEL --train none.csv --seeds 0,0 -o run", "seeds is [0, 0]"),
        ("study pattern --scale huge", "no file 'huge'"),
        ("bench models --texts a=b", "--texts goes with bench lengths"),
    ],
)
def test_what_needs_no_model_is_refused_without_torch(tmp_path, monkeypatch, command, told):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    error, code, loaded = run(*command.replace("MODEL", "model").split())
    assert code == 2
    assert told in error
    assert len(error.splitlines()) == 1
    assert not loaded & {"torch", "transformers", "datasets"}


def test_the_command_is_the_launcher():
    from importlib.metadata import entry_points

    (command,) = entry_points(group="console_scripts", name="mabert")
    assert command.value == "mabert_launch:main"


@pytest.mark.slow
def test_importing_is_quiet_and_light(tmp_path):
    program = (
        "import sys, torch\n"
        "from transformers import PreTrainedModel\n"
        "theirs = set(sys.modules)\n"
        "state, threads = torch.get_rng_state(), torch.get_num_threads()\n"
        "import mabert\n"
        "assert torch.equal(state, torch.get_rng_state()) and threads == torch.get_num_threads()\n"
        "ours = set(sys.modules) - theirs\n"
        "heavy = {'numba', 'triton', 'datasets', 'matplotlib', 'rich.progress', 'sklearn', 'mabert.infer'} & ours\n"
        "print(sorted(heavy))\n"
    )
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment, cwd=tmp_path
    )
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_load_opens_a_model_for_texts_and_other_names_are_no_attributes():
    from mabert.infer.model import load

    assert mabert.load is load
    with pytest.raises(AttributeError, match="module 'mabert' has no attribute 'lode'"):
        mabert.lode  # noqa: B018 -- the attribute is looked up
