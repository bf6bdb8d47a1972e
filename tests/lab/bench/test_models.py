"""MaBERT beside its rivals: what is run, in which turns, and what is said where there is no number."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from mabert import MaBertConfig, MaBertModel
from mabert.baselines.registry import FAMILIES
from mabert.infer.info import peak_at
from mabert.ops import backends
from mabert.ops.cpu import amx, pool
from mabert.rounds import interleave
from mabert_lab.bench import memory, models, profiles, tasks
from mabert_lab.bench import worker as worker_module
from mabert_lab.bench.models import Plan
from mabert_lab.bench.profiles import SMALL, Cell
from mabert_lab.bench.tasks import Forward, TrainingStep
from mabert_lab.bench.turns import Bench, Protocol
from mabert_lab.bench.worker import CellError, Ready, Worker, status_of

NAMES = list(FAMILIES)


def cell(measure="latency", **fields):
    return Cell(measure, **{"profile": "best", "dtype": "bfloat16", "length": 24, "small": True, **fields})


def test_sides_take_turns_after_a_call_that_does_not_count():
    calls = []
    sides = {name: lambda name=name: calls.append(name) for name in ("ours", "theirs")}
    spreads = interleave(sides, least=2, most=5, budget=0.0)
    assert calls == ["ours", "theirs"] * 3
    assert {spread.samples for spread in spreads.values()} == {2}
    assert interleave(sides, least=1, most=4, budget=60.0)["ours"].samples == 4
    calls.clear()
    interleave(sides, least=1, most=1, budget=0.0, warm=False)
    assert calls == ["ours", "theirs"]


class Scripted:
    """A worker that answers from a list: seconds, or an error to raise."""

    def __init__(self, name, answers, log):
        self.name, self.answers, self.log = name, list(answers), log

    def prepare(self, asked, limit):
        return Ready("sdpa", 32, 8)

    def call(self, limit):
        self.log.append(self.name)
        answer = self.answers.pop(0) if self.answers else 1.0
        if isinstance(answer, CellError):
            raise answer
        if answer > limit:
            raise CellError("too slow", f"one call took more than {limit:g} s", limit)
        return answer

    def rest(self):
        return 0.5

    def parameters(self):
        return 10**6

    def bound(self, allowed):
        self.log.append(f"bound {self.name} {allowed}")
        if self.answers and self.answers[0] == "killed":
            raise CellError("out of memory", "the process ended with exit code -9")

    def memory(self, limit):
        return {"peak": 3 << 20, "weights": 2 << 20, "resident": None}

    def release(self):
        pass


def measure(protocol, asked=None, **scripts):
    log = []
    workers = {name: Scripted(name, answers, log) for name, answers in scripts.items()}
    bench = Bench(protocol)
    with patch("mabert_lab.bench.turns.free_memory", side_effect=itertools.count(1)):  # it is another number each time
        rows = {row.model: row for row in bench.measure(asked or cell(), workers)}
    for bound, entries in itertools.groupby(log, key=lambda entry: entry.startswith("bound")):
        if bound:
            assert len({entry.split()[-1] for entry in entries}) == 1, "those in memory together are bound to the same"
    return bench, workers, rows, [entry for entry in log if not entry.startswith("bound")]


def test_models_take_turns_after_their_warm_up():
    protocol = Protocol(warm=2, least=2, most=3, warm_seconds=100.0, budget=100.0)
    _, _, rows, log = measure(protocol, a=[9, 9, 1, 2, 3], b=[9, 9, 4, 4, 4])
    assert log == ["a", "a", "b", "b", "a", "b", "a", "b", "a", "b"]
    # A whole is four calls, since 8 rows of 32 are run at once, and what comes once.
    assert (rows["a"].median_ms, rows["a"].fastest_ms, rows["a"].slowest_ms) == (8500, 4500, 12500)
    assert (rows["b"].samples, rows["b"].status, rows["b"].setting) == (3, "measured", "sdpa")
    assert (rows["a"].batch, rows["a"].micro_batch) == (32, 8)


def test_a_slow_model_takes_part_in_fewer_turns_and_its_first_call_does_not_count():
    protocol = Protocol(warm=5, least=2, most=50, warm_seconds=1.0, budget=8.0)
    _, _, rows, log = measure(protocol, slow=[90, 20, 21], quick=[1] * 99)
    assert log.count("slow") == 3
    assert rows["slow"].median_ms == 4 * 20_500 + 500
    assert rows["quick"].samples == 6, "1.5 s at a time until 8 s are used up"
    assert log.count("quick") == 2 + 6, "warmed up until its calls have taken more than a second"


def test_a_model_that_is_killed_while_others_are_built_ends_alone():
    *_, rows, log = measure(Protocol(warm=0, least=2, most=2), a=["killed"], b=[1, 3])
    assert log == ["b", "b"]
    assert (rows["a"].status, rows["a"].median_ms) == ("out of memory", None)
    assert (rows["b"].status, rows["b"].samples) == ("measured", 2)


def test_memory_that_a_group_of_processes_may_take_bounds_a_model(tmp_path, monkeypatch):
    def write(group, content):
        group.mkdir(parents=True, exist_ok=True)
        for name, text in content.items():
            (group / name).write_text(text)

    groups, root = tmp_path / "cgroup", tmp_path / "fs"
    assert memory.group_memory(groups, root) == []
    groups.write_text("0::/outer/inner\n")
    write(
        root / "outer", {"memory.max": "1000\n", "memory.current": "700\n", "memory.stat": "anon 5\ninactive_file 50\n"}
    )
    write(root / "outer/inner", {"memory.max": "max\n", "memory.current": "600\n", "memory.stat": ""})
    write(root, {"memory.stat": ""})
    assert memory.group_memory(groups, root) == [350]
    with monkeypatch.context() as patched:
        patched.setattr(memory, "group_memory", lambda: [350])
        assert memory.free_memory() == int(memory.SHARE * 350)
    groups.write_text("12:cpu,cpuacct:/job\n9:memory:/job\n")
    write(
        root / "memory/job",
        {"memory.limit_in_bytes": "900\n", "memory.usage_in_bytes": "950\n", "memory.stat": "total_inactive_file 20\n"},
    )
    assert memory.group_memory(groups, root) == [0]


def test_a_field_that_linux_does_not_tell_is_zero(tmp_path):
    file = tmp_path / "status"
    file.write_text("VmRSS:\t 3 kB\n")
    assert [memory.field_of(str(file), name) for name in ("VmRSS", "VmHWM")] == [3 << 10, 0]
    assert memory.field_of(str(tmp_path / "none"), "VmRSS") == 0


def test_models_of_unlike_speed_come_to_their_end_together():
    protocol = Protocol(warm=0, least=3, most=12, budget=8.0)
    *_, rows, log = measure(protocol, slow=[2.5] * 9, quick=[0.5] * 99, quickest=[0.1] * 99)
    assert {name: row.samples for name, row in rows.items()} == {"slow": 3, "quick": 8, "quickest": 12}
    slow = [place for place, name in enumerate(log) if name == "slow"]
    assert slow[0] == 0
    assert 8 <= slow[1] <= 14
    assert 17 <= slow[2] <= 21, "before the others' last samples, not before the last third of them"
    for name in ("quick", "quickest"):
        half = log[: len(log) // 2].count(name) / log.count(name)
        assert 0.4 <= half <= 0.6


def test_in_training_each_rival_takes_turns_with_mabert():
    protocol = Protocol(warm=0, least=2, most=2)
    training = cell("training", small=False)
    _, workers, rows, log = measure(protocol, training, a=[], b=[], mabert=[1, 2, 5, 7])
    assert log == ["a", "mabert"] * 2 + ["b", "mabert"] * 2
    assert (rows["mabert"].samples, rows["mabert"].median_ms) == (4, 1000 * (4 * (2 + 5) / 2 + 0.5))
    assert {row.samples for name, row in rows.items() if name != "mabert"} == {2}
    anchors = {"a": 1000 * (4 * (1 + 2) / 2 + 0.5), "b": 1000 * (4 * (5 + 7) / 2 + 0.5), "mabert": None}
    assert {name: row.anchor_ms for name, row in rows.items()} == anchors
    assert {name: row.anchor_samples for name, row in rows.items()} == {"a": 2, "b": 2, "mabert": None}
    assert list(rows) == list(workers), "rows come in the order of the models"
    alone = measure(protocol, training, a=[], mabert=[1, 2])[2]
    assert alone["a"].anchor_ms == alone["mabert"].median_ms, "another file may have MaBERT's own row"
    assert measure(protocol, cell(small=False), a=[], mabert=[])[2]["a"].anchor_ms is None
    assert measure(protocol, cell(small=False), a=[], b=[], mabert=[])[3] == ["a", "b", "mabert"] * 2
    assert measure(protocol, training, a=[], b=[])[3] == ["a", "a", "b", "b"]
    assert measure(protocol, training, mabert=[])[3] == ["mabert"] * 2


def test_a_model_that_fails_in_one_group_has_no_number():
    too_slow = CellError("too slow", "one call took more than 5 s")
    *_, rows, log = measure(
        Protocol(warm=0, least=1, most=1), cell("training", small=False), a=[], mabert=[1, too_slow], b=[]
    )
    assert log == ["a", "mabert", "mabert", "b"]
    assert (rows["mabert"].status, rows["mabert"].median_ms) == ("too slow", None)
    assert {rows["a"].status, rows["b"].status} == {"measured"}
    assert (rows["a"].anchor_ms, rows["b"].anchor_ms) == (4500, None)


@pytest.mark.parametrize("status", ["too slow", "out of memory"])
def test_what_is_too_much_for_a_model_is_not_tried_again_at_longer_inputs(status):
    failing = CellError(status, "one call took more than 5 s", 5.0 if status == "too slow" else None)
    whole = 1000 * 5 * 32 / 8 if status == "too slow" else None
    bench, workers, rows, _ = measure(Protocol(warm=1, least=1, most=1), a=[failing], b=[])
    assert (rows["a"].status, rows["a"].reason, rows["a"].median_ms) == (status, "one call took more than 5 s", None)
    assert (rows["a"].at_least_ms, rows["b"].at_least_ms) == (whole, None)
    assert rows["b"].status == "measured"
    workers["a"].log.clear()
    longer = {row.model: row for row in bench.measure(cell(length=48), workers)}
    assert (longer["a"].status, longer["a"].reason) == (status, "one call took more than 5 s at 24 tokens")
    assert longer["a"].at_least_ms == whole
    assert "a" not in workers["a"].log
    other = {row.model: row for row in bench.measure(cell(length=48, dtype="float32"), workers)}
    assert other["a"].status == "measured"


def test_a_first_call_may_take_longer_and_bounds_nothing_by_that():
    protocol = Protocol(warm=5, least=2, most=2, warm_seconds=1.0, limit=20.0)
    *_, rows, log = measure(protocol, a=[29, 19, 18], b=[29, 21], c=[31], d=[19, 15, 21])
    assert {name: row.status for name, row in rows.items()} == {"a": "measured"} | dict.fromkeys("bcd", "too slow")
    assert log.count("c") == 1
    bounds = {name: row.at_least_ms for name, row in rows.items()}
    assert bounds == {"a": None, "b": 4 * 20_000, "c": 4 * 20_000, "d": 4 * 15_000}, "d's sample was faster"


def test_samples_of_an_earlier_group_bound_what_fails_in_the_next():
    protocol, training = Protocol(warm=0, least=1, most=1, limit=5.0), cell("training", small=False)
    *_, rows, _ = measure(protocol, training, a=[], mabert=[2, 9], b=[])
    assert (rows["mabert"].status, rows["mabert"].at_least_ms) == ("too slow", 4 * 2000)


def test_what_a_model_given_up_in_one_group_exceeds_is_reckoned_once():
    protocol, training = Protocol(warm=0, least=1, most=1, limit=5.0), cell("training", small=False)
    bench, workers, rows, _ = measure(protocol, training, a=[], mabert=[6], b=[], c=[])
    assert (rows["mabert"].at_least_ms, rows["mabert"].reason) == (4 * 5000, "one call took more than 5 s")
    longer = {row.model: row for row in bench.measure(replace(training, length=48), workers)}
    assert (longer["mabert"].at_least_ms, longer["mabert"].reason[-12:]) == (4 * 5000, "at 24 tokens")


def test_a_failure_of_another_kind_is_tried_again():
    bench, workers, rows, _ = measure(Protocol(warm=1, least=1, most=1), a=[CellError("failed", "ValueError: odd")])
    assert (rows["a"].status, rows["a"].reason) == ("failed", "ValueError: odd")
    assert bench.measure(cell(length=48), workers)[0].status == "measured"


def test_a_model_that_fails_on_the_way_has_no_number():
    protocol = Protocol(warm=1, least=3, most=3)
    _, _, rows, log = measure(protocol, a=[1, 1, CellError("too slow", "one call took more than 5 s")], b=[])
    assert (rows["a"].status, rows["a"].samples) == ("too slow", None)
    assert rows["b"].samples == 3
    assert log.count("a") == 3


def test_memory_is_in_mebibytes():
    _, _, rows, log = measure(Protocol(), cell("memory"), a=[])
    assert (rows["a"].peak_mib, rows["a"].weights_mib, rows["a"].resident_mib) == (3, 2, None)
    assert not log


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"models": ["roberta"]}, "there is no model 'roberta'"),
        ({"measures": ["speed"]}, "measures is 'speed'; there are memory, latency, training"),
        ({"profiles": ["fast"]}, "profiles is 'fast'; there are paper, stock, best"),
        ({"dtypes": ["float16"]}, "dtypes is 'float16'"),
        ({"lengths": [0]}, "a length is 0; it must be at least 1"),
        ({"device": "tpu"}, "device is 'tpu'; there are cpu, cuda"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Plan(**fields)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_default_dtype_is_the_fast_one(monkeypatch, dtype):
    monkeypatch.setattr(models, "fast_dtype", lambda device: {"cpu": dtype}[device])
    assert Plan().dtypes == (dtype,)
    assert {each.dtype for each in Plan().quick().cells()} == {dtype}
    assert Plan(dtypes=["bfloat16", "float32"]).dtypes == ["bfloat16", "float32"]


def test_a_plan_has_every_combination_once():
    plan = Plan(measures=("latency", "memory"), profiles=("paper", "best"), dtypes=("float32",), lengths=(9, 3))
    cells = list(plan.cells())
    assert len(set(cells)) == len(cells) == 8
    assert [each.length for each in cells] == [3, 9] * 4
    assert all(each.small for each in plan.quick().cells())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_both_profiles_of_a_training_step_have_the_same_loss(name, monkeypatch):
    monkeypatch.setattr(tasks, "PAPER_DROPOUT", 0.0)
    losses = [
        TrainingStep(FAMILIES[name], cell("training", profile=which, dtype="float32")).loss() for which in PROFILES
    ]
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5)


PROFILES = ("paper", "stock", "best")


@pytest.mark.parametrize("name", ["mabert", "bert"])
def test_a_training_step_learns_and_counts_every_row(name):
    step = TrainingStep(FAMILIES[name], cell("training", length=128))
    assert (step.batch, step.micro_batch) == (32, 8)
    first = step.loss().item()
    for _ in range(4):
        assert step() > 0
        step.rest()
        assert all((weight.grad == 0).all() for weight in step.model.parameters()), "the next call adds to these"
    assert step.loss().item() < first
    assert TrainingStep(FAMILIES[name], cell("training", length=5000)).micro_batch == 1


@pytest.mark.parametrize(("most", "tried"), [(8, [32, 16, 8, 8]), (32, [32, 32]), (0, [32, 16, 8, 4, 2, 1])])
def test_on_a_gpu_a_micro_batch_is_halved_until_two_fit(monkeypatch, most, tried):
    step, seen = TrainingStep(FAMILIES["mabert"], cell("training")), []
    run = step._run

    def limited():
        seen.append(step.micro_batch)
        assert len(step.ids) == step.micro_batch
        if step.micro_batch > most:
            raise RuntimeError("CUDA out of memory")
        run()

    monkeypatch.setattr(step, "_run", limited)
    with pytest.raises(RuntimeError, match="out of memory") if not most else contextlib.nullcontext():
        assert step._largest(24) == most
    assert seen == tried
    assert not most or all(weight.grad is None for weight in step.model.parameters())


def test_on_a_gpu_the_peak_is_that_of_one_forward_after_another(monkeypatch):
    forward, asked = Forward(FAMILIES["mabert"], cell("memory")), []
    run = forward._run
    monkeypatch.setattr(forward, "_run", lambda: asked.append("run") or run())
    monkeypatch.setattr(forward, "device", "cuda")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: asked.append("forget"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: asked.append("read") or 7)
    assert forward.peak() == 7
    assert asked == ["run", "forget", "run", "read"]


def test_on_a_gpu_models_are_not_in_memory_together():
    workers = {name: Scripted(name, [], []) for name in ("a", "mabert", "b")}
    for measured in ("latency", "training"):
        groups = Bench(Protocol()).groups(cell(measured, device="cuda"), workers)
        assert [list(group) for group in groups] == [["a"], ["mabert"], ["b"]]


def test_a_model_has_run_before_it_is_timed(monkeypatch):
    seen = []
    forward = MaBertModel.forward

    def watched(self, input_ids=None, *arguments, **options):
        seen.append(tuple(input_ids.shape))
        return forward(self, input_ids, *arguments, **options)

    monkeypatch.setattr(MaBertModel, "forward", watched)
    Forward(FAMILIES["mabert"], cell(length=64))
    assert seen == [(2, tasks.FIRST)], "kernels are compiled where they were not yet"
    seen.clear()
    step = TrainingStep(FAMILIES["mabert"], cell("training", length=64))
    assert seen == [(step.micro_batch, tasks.FIRST)]
    assert step.ids.shape[1] == 64
    assert all(weight.grad is None for weight in step.model.parameters())


def kernels(name, which):
    forward = Forward(FAMILIES[name], cell(profile=which, dtype="float32", length=64))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        forward()
    return {event.key for event in profiler.key_averages()}


@pytest.mark.parametrize("name", ["bert", "albert", "modernbert", "mabert"])
def test_the_papers_profile_runs_no_flash_kernel(name):
    fast, plain = kernels(name, "best"), kernels(name, "paper")
    assert any("flash" in kernel or "mabert::softmax_attention" in kernel for kernel in fast)
    assert not any("flash" in kernel or "mabert::softmax_attention" in kernel for kernel in plain)
    assert any("scaled_dot_product_attention_math" in kernel for kernel in plain)


@pytest.mark.parametrize("name", NAMES)
def test_models_are_made_long_enough(monkeypatch, name):
    forward = Forward(FAMILIES[name], cell(length=600))
    assert forward() > 0
    named = dict.fromkeys(("bert", "albert", "modernbert"), "mabert")
    packed = ", prepacked" if any("mkldnn::_linear_pointwise" in kernel for kernel in kernels(name, "best")) else ""
    if name != "mabert":
        assert forward.setting == named.get(name, "eager") + packed
        return
    own = any("mabert::softmax_attention" in kernel for kernel in kernels(name, "best"))
    assert forward.setting == ("mabert::softmax_attention" if own else "sdpa") + packed
    monkeypatch.setattr(backends, "_instructions", lambda: frozenset({"avx512_bf16", "amx_bf16"}))
    monkeypatch.setattr(amx, "may_use_amx", lambda: True)
    settings = [Forward(FAMILIES[name], cell(length=length)).setting for length in (1023, 1024)]
    assert settings == ["sdpa" + packed, "mabert::softmax_attention" + packed]
    assert Forward(FAMILIES[name], cell(length=600, profile="paper")).setting == "sdpa_plain"


@pytest.mark.parametrize("name", NAMES)
def test_a_stock_model_is_transformers_own_and_mabert_is_at_its_best(name):
    forward = Forward(FAMILIES[name], cell(length=600, profile="stock"))
    assert forward() > 0
    if name == "mabert":
        assert forward.setting == Forward(FAMILIES[name], cell(length=600)).setting
        return
    assert forward.setting == ("sdpa" if name in ("bert", "albert", "modernbert") else "eager")
    ran = kernels(name, "stock")
    assert not any("mabert::" in kernel or "mkldnn::_linear_pointwise" in kernel for kernel in ran)


def test_memory_counts_weights_and_what_the_kernels_take():
    forward = Forward(FAMILIES["mabert"], cell("memory", length=9000, dtype="float32"))
    above = forward.peak() - forward.weights()
    channels = 2 * SMALL["hidden_size"]
    scan = 4 * channels * 4 * 9000  # ũ, z, Δ and the result
    assert scan < above < 3 * scan


@pytest.mark.parametrize("pattern", ["M", "MMT"])
def test_a_forward_holds_no_more_than_the_scan_reads_and_writes(pattern):
    torch.manual_seed(0)
    width, length = 256, 4096
    config = MaBertConfig(hidden_size=width, num_attention_heads=4, intermediate_size=4 * width, layer_pattern=pattern)
    config.max_position_embeddings = length
    above = peak_at(MaBertModel(config).eval(), length)
    unit = width * 4 * length
    # The residual stream, and ũ, z, Δ and the result at twice its width; half a width more for B, C and the rest.
    assert above < 9.5 * unit


def test_who_gains_by_it_is_compiled_and_only_at_its_best_on_a_cpu(monkeypatch):
    whole = cell(small=False, length=1024)
    lengths = (255, 256, 1023, 1024)
    for setting, expected in {
        "best": [["modernbert"], [], [], ["deberta"]],
        "stock": [["modernbert"], ["modernbert"], ["modernbert"], ["deberta"]],
        "paper": [[], [], [], []],
    }.items():
        asked = [replace(whole, length=length, profile=setting) for length in lengths]
        assert [[name for name in NAMES if profiles.is_compiled(FAMILIES[name], each)] for each in asked] == expected
    for dtype in ("bfloat16", "float32"):
        asked = replace(whole, dtype=dtype)
        assert [name for name in NAMES if profiles.is_compiled(FAMILIES[name], asked)] == ["deberta"]
    for fields in (
        {"profile": "paper"},
        {"device": "cuda"},
        {"small": True},
        {"measure": "throughput", "texts": (1024, 1000)},
        {"measure": "training"},
    ):
        assert not profiles.is_compiled(FAMILIES["deberta"], replace(whole, **fields))
    assert profiles.is_compiled(FAMILIES["deberta"], replace(whole, measure="throughput", texts=(1024,) * 3))
    monkeypatch.setattr(profiles.shutil, "which", lambda _: None)
    assert not profiles.is_compiled(FAMILIES["deberta"], whole), "without a compiler it runs as it is, as its row says"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ["deberta", "modernbert"])
def test_a_compiled_model_says_the_same_and_its_row_tells(monkeypatch, name):
    family = FAMILIES[name]
    as_it_is = Forward(family, cell(dtype="float32"))
    monkeypatch.setattr(tasks, "is_compiled", lambda *_: True)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=False):  # and back when this is over
        compiled = Forward(family, cell(dtype="float32"))
        assert compiled.setting == as_it_is.setting.removesuffix(tasks.PREPACKED) + tasks.COMPILED
        with torch.inference_mode():
            ours, theirs = (side.model(input_ids=side.ids).last_hidden_state for side in (compiled, as_it_is))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        with torch._dynamo.config.patch(error_on_recompile=True):  # in the time of what is measured, say
            assert compiled.peak() > compiled.weights() == as_it_is.weights()


def test_the_working_memory_of_threads_is_counted(monkeypatch):
    sizes = {"hidden_size": 64, "num_attention_heads": 1, "intermediate_size": 64, "layer_pattern": "T"}
    model = MaBertModel(MaBertConfig(**sizes, max_position_embeddings=8192)).bfloat16().eval()
    counted = peak_at(model, 8192)
    kept = []
    monkeypatch.setattr(pool, "count_scratch", kept.append)
    without = peak_at(model, 8192)
    if not kept:
        pytest.skip("this processor has no attention kernel of ours")
    assert counted - without > 0.9 * max(kept) > 8192 * 64 * 2, "the packed keys and values of a row"


@pytest.mark.parametrize(
    ("library", "size"), [(("glibc", "2.36"), 1 << 30), (("glibc", "2.9"), 32 << 20), (("", ""), 32 << 20)]
)
def test_an_older_c_library_is_asked_for_what_it_takes(monkeypatch, library, size):
    monkeypatch.setattr(worker_module.platform, "libc_ver", lambda: library)
    assert worker_module.kept() == size


@pytest.mark.slow
def test_a_worker_measures_and_says_why_it_cannot():
    worker = Worker("bert")
    try:
        assert worker.parameters() == 109_483_778
        assert worker.prepare(cell(profile="paper"), 60.0) == Ready("sdpa_plain", 1, 1)
        assert 0 < worker.call(60.0) < 60
        held = worker.memory(60.0)
        assert held["peak"] > held["weights"] > 0
        process = worker._process
        os.kill(process.pid, signal.SIGSTOP)  # or it may answer before it is asked whether it has
        with pytest.raises(CellError, match="too slow: one call took more than 0 s") as slow:
            worker.call(0.0)
        assert slow.value.seconds == 0
        assert not process.is_alive()
        assert worker.prepare(cell("training"), 60.0).micro_batch == 32, "a new process begins"
        with pytest.raises(CellError, match="failed: AttributeError"):
            worker._ask("nothing_of_the_kind", limit=60.0)
        with pytest.raises(CellError, match="failed: AssertionError"):
            worker.call(60.0)
        worker.prepare(cell(), 60.0)
        worker._process.kill()
        with pytest.raises(CellError, match="out of memory: the process ended with exit code -9"):
            worker.call(60.0)
    finally:
        worker.close()


@pytest.mark.slow
def test_a_worker_that_is_asked_nothing_more_leaves_by_itself():
    worker = Worker("bert")
    assert worker.variables()
    process = worker._process
    worker.close()
    assert process.exitcode == 0
    assert worker._process is None
    worker.close()


@pytest.mark.slow
def test_a_worker_that_hears_nothing_is_ended(monkeypatch):
    monkeypatch.setattr(worker_module, "ENDING", 0.1)
    worker = Worker("bert")
    assert worker.variables()
    process = worker._process
    os.kill(process.pid, signal.SIGSTOP)
    worker.close()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.slow
def test_a_worker_whose_answer_nobody_waits_for_ends_without_a_word(capfd):
    worker = Worker("bert")
    assert worker.variables()
    process, pipe = worker._process, worker._pipe
    os.kill(process.pid, signal.SIGSTOP)
    pipe.send(("variables", ()))
    pipe.close()
    os.kill(process.pid, signal.SIGCONT)
    process.join(60)
    assert process.exitcode == 0
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_process_is_bounded_in_its_memory():
    program = (
        "import torch; from mabert_lab.bench import memory, worker; memory.limit_memory(0)\n"
        "try:\n    torch.ones(1 << 30)\nexcept Exception as error:\n    print(worker.status_of(error))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "out of memory", done.stderr


def test_a_tanh_gelu_is_one_kernel_and_the_same_function():
    best, plain = (Forward(FAMILIES["albert"], cell(profile=which, dtype="float32")) for which in ("best", "paper"))
    assert best.model.config.hidden_act == "gelu_pytorch_tanh"
    with torch.no_grad():
        ours, theirs = (side.model(input_ids=best.ids).last_hidden_state for side in (best, plain))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert any("gelu" in kernel for kernel in kernels("albert", "best"))


def test_errors_are_told_apart():
    assert status_of(MemoryError()) == "out of memory"
    assert status_of(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")) == "out of memory"
    assert status_of(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried")) == "out of memory"
    assert status_of(RuntimeError("std::bad_alloc")) == "out of memory"
    assert status_of(ValueError("odd")) == "failed"


@pytest.mark.parametrize("name", NAMES)
def test_models_of_a_recipes_sizes_run_at_any_length(name):
    family, small = FAMILIES[name], replace(cell(length=600, dtype="float32"), small=False, recipe="mini")
    config = profiles.configured(family, small)
    assert (config.hidden_size, config.intermediate_size % 288) == (192, 192 if name != "modernbert" else 0)
    assert config.vocab_size == family.base_config().vocab_size
    assert Forward(family, small)() > 0


@pytest.mark.slow
def test_what_is_of_a_recipes_sizes_is_not_set_beside_the_papers(tmp_path, monkeypatch):
    from mabert_lab.report.efficiency import load_results

    plan = Plan(models=("bert", "mabert"), measures=("latency",), lengths=(16,), recipe="demo", protocol=models.QUICK)
    result = models.run(plan, output=tmp_path)
    assert {row["status"] for row in result["rows"]} == {"measured"}
    assert result["recipe"] == "demo"
    assert result["parameters"]["bert"] < 10_000_000
    (path,) = tmp_path.glob("*-models.json")
    with pytest.raises(ValueError, match="kind"):
        load_results([path])
    with pytest.raises(FileNotFoundError, match="no recipe 'nano'"):
        Plan(recipe="nano")
    monkeypatch.setattr("mabert.train.recipe.load_recipe", lambda _: SimpleNamespace(start_from="runs/mini"))
    with pytest.raises(ValueError, match=r"recipe is 'further', whose sizes are those of its start_from"):
        Plan(recipe="further")


@pytest.mark.slow
def test_a_run_writes_what_the_report_reads(tmp_path):
    from mabert_lab.report.efficiency import load_results
    from mabert_lab.report.efficiency_section import efficiency_parts

    plan = replace(Plan(models=("bert", "mabert"), lengths=(16, 32, 64), profiles=PROFILES), device="cpu")
    result = models.run(plan, quick=True, output=tmp_path)
    (path,) = tmp_path.glob("*-models.json")
    assert json.loads(path.read_text()) == result
    assert {row["length"] for row in result["rows"]} == {16, 32}
    assert {row["status"] for row in result["rows"]} == {"measured"}
    assert len(result["rows"]) == 2 * 2 * 3 * len(PROFILES)
    with pytest.raises(ValueError, match="a quick trial run, whose numbers say nothing"):
        load_results([path])
    path.write_text(json.dumps({**result, "quick": False}))
    results = load_results([path])
    assert len(results.rows) == len(result["rows"])
    assert len(efficiency_parts(results)) > 2
