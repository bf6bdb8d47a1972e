"""Models sharded by FSDP2: padded batches, mixed precision with the recurrence in float32, models in bfloat16."""

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from mabert import MaBertForSequenceClassification
from mabert.model import mamba, packing
from mabert.model.mamba import Recurrence
from tests.model.helpers import LABELS, MASK, TOKENS, build, config
from tests.train.helpers import in_two

SHORT = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def model_of(dtype):
    return build(MaBertForSequenceClassification, config(layer_pattern="MTT"), dtype=torch.float32).to(dtype)


def shard(model, policy, apart=True):
    """As docs/many-machines.md says; every process has its share of each parameter."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for module in model.modules():
        if apart and isinstance(module, Recurrence):
            fully_shard(module, mesh=mesh)
    for layer in model.mabert.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def gradients_of(model, rows=slice(None)):
    model(TOKENS[rows], MASK[rows], labels=LABELS[rows]).loss.backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    whole = {name: grad.full_tensor() if hasattr(grad, "full_tensor") else grad for name, grad in grads.items()}
    return {name: grad.float() for name, grad in whole.items()}


def check(dtype, policy, rows=slice(None)):
    """Compares gradients of the sharded model, of which each process has some rows, with those of the whole model."""
    expected = gradients_of(model_of(dtype if policy is None else torch.bfloat16))
    model, seen = model_of(dtype), set()
    shard(model, policy or MixedPrecisionPolicy())
    for module in model.modules():
        if isinstance(module, Recurrence):
            module.register_forward_pre_hook(lambda module, _: seen.update(held.dtype for held in module.parameters()))
    found = gradients_of(model, rows)
    assert seen == {torch.float32}
    close = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 and policy is None else {"rtol": 0.05, "atol": 0.01}
    torch.testing.assert_close(found, expected, **close)


CASES = [(torch.float32, None), (torch.float32, SHORT), (torch.bfloat16, None), (torch.bfloat16, SHORT)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    store = tmp_path_factory.mktemp("group") / "store"
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize(("dtype", "policy"), CASES)
def test_a_padded_batch_trains_with_the_recurrence_in_float32(alone, dtype, policy):
    check(dtype, policy)


def test_a_recurrence_in_a_short_float_is_warned_of(alone, caplog):
    model = model_of(torch.float32)
    shard(model, SHORT, apart=False)
    mamba.logger.warning_once.cache_clear()
    model(TOKENS, MASK)
    assert "the recurrence's parameters are torch.bfloat16; the scan needs float32" in caplog.text


def test_batches_of_a_packed_row_are_planned_once(alone, monkeypatch):
    planned, plan = [], packing.Batches.of
    monkeypatch.setattr(packing.Batches, "of", lambda *given: planned.append(given) or plan(*given))
    model = model_of(torch.float32)
    shard(model, SHORT)
    model(TOKENS, MASK)
    assert len(planned) == 1


def one_of_two():
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    for dtype, policy in CASES:
        check(dtype, policy, slice(rank, rank + 1))
    distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_find_the_gradients_of_one():
    in_two(one_of_two)
