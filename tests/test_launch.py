"""The launcher: what torch reads when it is loaded is set before, unless the person says otherwise."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("name", "given", "seen"),
    [
        ("OMP_WAIT_POLICY", None, "PASSIVE"),
        ("OMP_WAIT_POLICY", "ACTIVE", "ACTIVE"),
        ("KINETO_LOG_LEVEL", None, "6"),
        ("KINETO_LOG_LEVEL", "1", "1"),
    ],
)
def test_what_torch_reads_when_it_is_loaded_is_set_before(name, given, seen):
    program = (
        "import sys, os, mabert_launch\n"
        "assert 'torch' not in sys.modules\n"
        "sys.argv = ['mabert', '--help']\n"
        "try:\n"
        "    mabert_launch.main()\n"
        "except SystemExit as stop:\n"
        f"    print(os.environ[{name!r}], stop.code)\n"
    )
    environment = {other: value for other, value in os.environ.items() if other != name}
    if given is not None:
        environment[name] = given
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == f"{seen} 0"


def test_help_loads_next_to_no_library():
    program = (
        "import sys, mabert_launch\n"
        "sys.argv = ['mabert', '--help']\n"
        "try:\n"
        "    mabert_launch.main()\n"
        "except SystemExit:\n"
        "    print(*{name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.splitlines()[-1].split() if not name.startswith("_")}
    assert loaded - {"mabert", "mabert_launch"} <= {"filelock", "safetensors"}


def test_the_command_is_the_launcher():
    from importlib.metadata import entry_points

    (command,) = entry_points(group="console_scripts", name="mabert")
    assert command.value == "mabert_launch:main"
