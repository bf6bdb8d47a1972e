"""The launcher: OpenMP's threads sleep unless the person says otherwise, and it is set before torch is loaded."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("given", "seen"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_the_wait_policy_is_set_before_torch_is_loaded(given, seen):
    program = (
        "import sys, os, mabert_launch\n"
        "assert 'torch' not in sys.modules\n"
        "sys.argv = ['mabert', '--help']\n"
        "try:\n"
        "    mabert_launch.main()\n"
        "except SystemExit as stop:\n"
        "    print(os.environ['OMP_WAIT_POLICY'], stop.code)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if given is not None:
        environment["OMP_WAIT_POLICY"] = given
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == f"{seen} 0"


def test_the_command_is_the_launcher():
    from importlib.metadata import entry_points

    (command,) = entry_points(group="console_scripts", name="mabert")
    assert command.value == "mabert_launch:main"
