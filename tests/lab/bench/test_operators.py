"""The operators' benchmark: no number where the operators are wrong, and a file that says where it comes from."""

import json
import sys

import pytest
import torch

from mabert_lab import cli
from mabert_lab.bench import operators


class Off(torch.autograd.Function):
    """Multiplies by 1, or by 1.02 in the output or in the gradient."""

    @staticmethod
    def forward(context, x, where):
        context.where = where
        return x * (1.02 if where == "output" else 1)

    @staticmethod
    def backward(context, grad):
        return grad * (1.02 if context.where == "gradient" else 1), None


@pytest.mark.parametrize(
    ("operator", "where", "rows", "dtype"),
    [  # each value of each beside each of the others
        ("selective_scan", "output", 1, torch.float32),
        ("selective_scan", "output", 1, torch.bfloat16),
        ("selective_scan", "gradient", 2, torch.bfloat16),
        ("depthwise_conv1d", "output", 2, torch.bfloat16),
        ("depthwise_conv1d", "gradient", 1, torch.float32),
        ("depthwise_conv1d", "gradient", 2, torch.float32),
    ],
)
def test_it_refuses_to_time_an_operator_that_is_wrong_in_one_way(monkeypatch, operator, where, rows, dtype):
    right = getattr(operators, operator)

    def slightly_wrong(u, **others):
        y = right(u, **others)
        return Off.apply(y, where) if u.dtype == dtype and len(u) == rows else y

    slightly_wrong.__name__ = operator
    monkeypatch.setattr(operators, operator, slightly_wrong)
    with pytest.raises(RuntimeError, match=rf"{operator}: .* is off by .* in {str(dtype)[6:]} at {rows} x "):
        operators.refuse_unless_correct()


def test_a_missing_rival_is_told_before_anything_is_timed(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "mambapy", None)
    monkeypatch.setattr(operators, "interleave", lambda *_, **__: pytest.fail("something was timed"))
    assert cli.main(["bench", "ops", "-o", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("mabert: mambapy is not installed; the extra lab brings it")


def test_rows_on_a_gpu_have_shapes_and_memory(monkeypatch, tmp_path):
    """On a processor that is taken for a GPU, beside a rival whose inputs lie as mamba-ssm takes them."""
    laid_out = operators._laid_out
    seen = []

    def rival(**inputs):
        seen.append({inputs[name].stride()[-1] for name in ("u", "delta", "B", "C", "z")})
        return operators.selective_scan(**inputs)

    monkeypatch.setattr(operators, "_laid_out", lambda inputs, batch, device: laid_out(inputs, batch, "cpu"))
    monkeypatch.setattr(operators, "_peak", lambda call: 2**20)
    monkeypatch.setattr(operators, "explain", lambda tensor: "triton")
    monkeypatch.setattr(operators, "refuse_unless_correct", lambda device: None)
    monkeypatch.setattr(operators, "synchronise", lambda device: None)
    monkeypatch.setattr(operators, "find_spec", lambda name: name == "selective_scan_cuda")
    monkeypatch.setattr(operators, "_mamba_ssm_scan", rival)
    monkeypatch.setattr(operators, "GPU_SHAPES", ((2, 8), (1, 20)))
    monkeypatch.setattr(operators, "SAMPLE", 1e-4)
    monkeypatch.setattr(operators, "GPU_BUDGET", 1e-3)
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, device, **options: zeros(*size, **options))
    result = operators.run(output=tmp_path, device="cuda", resume=True)
    assert {(row["batch"], row["time"]) for row in result["rows"]} == {(2, 8), (1, 20)}
    assert {row["side"] for row in result["rows"]} == {"mabert", "torch", "mamba-ssm"}
    assert {row["peak_mib"] for row in result["rows"]} == {1}
    assert len(result["rows"]) == 2 * 2 * 2 * (2 + 2)
    assert any(1 not in strides for strides in seen), "time is innermost"


@pytest.mark.slow
def test_a_quick_run_writes_what_it_measured_and_where(tmp_path):
    result = operators.run(quick=True, output=tmp_path)
    (path,) = tmp_path.glob("*-operators.json")
    assert json.loads(path.read_text()) == result
    assert {row["side"] for row in result["rows"]} == {"mabert", "transformers", "mamba.py", "torch"}
    assert all(difference < 1e-5 for difference in result["agreement"].values())
    assert result["environment"]["packages"]["torch"] == torch.__version__
