"""The operators' benchmark: no number where the operators are wrong, and a file that says where it comes from."""

import json
import sys
from pathlib import Path

import pytest
import torch

from mabert_lab import cli
from mabert_lab.bench import native, operators


def test_it_refuses_to_time_a_wrong_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    right = operators.depthwise_conv1d

    def slightly_wrong(u: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return right(u, weight, bias) * (1 if u.dtype == torch.float64 else 1.001)

    slightly_wrong.__name__ = "depthwise_conv1d"
    monkeypatch.setattr(operators, "depthwise_conv1d", slightly_wrong)
    with pytest.raises(RuntimeError, match="depthwise_conv1d: output is off by"):
        operators.run(quick=True)


def test_a_missing_rival_is_told_before_anything_is_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "mambapy", None)
    monkeypatch.setattr(operators, "interleave", lambda *_, **__: pytest.fail("something was timed"))
    assert cli.main(["bench", "ops", "-o", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("mabert: mambapy is not installed; the extra lab brings it")


@pytest.mark.slow
def test_a_quick_run_writes_what_it_measured_and_where(tmp_path: Path) -> None:
    result = operators.run(quick=True, output=tmp_path)
    (path,) = tmp_path.glob("*-operators.json")
    assert json.loads(path.read_text()) == result
    sides = {"mabert", "transformers", "mamba.py", "torch"} | (set() if native.missing() else {"C++"})
    assert {row["side"] for row in result["rows"]} == sides
    assert all(difference < 1e-5 for difference in result["agreement"].values())
    assert result["memory"][0]["share"] < 1 / 20
    assert result["environment"]["packages"]["torch"] == torch.__version__
