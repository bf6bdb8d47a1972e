"""What is run of each family, and by what: the same function in every profile and engine, and rows that tell which."""

import contextlib
from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from mabert import MaBertConfig, MaBertModel
from mabert.baselines.registry import FAMILIES
from mabert.infer.info import peak_at
from mabert.ops import backends
from mabert.ops.cpu import amx, kernel, team
from mabert_lab.bench import profiles, tasks
from mabert_lab.bench.engines import ENGINES, contender, title_of
from mabert_lab.bench.profiles import SMALL, Cell
from mabert_lab.bench.tasks import make
from tests.model.helpers import config

NAMES = list(FAMILIES)
PROFILES = ("paper", "stock", "best")
TEXTS = (5, 30, 12, 7, 22)


def cell(measure="latency", **fields):
    return Cell(measure, **{"profile": "best", "dtype": "bfloat16", "length": 24, "small": True, **fields})


def texts(name, lengths=TEXTS, **fields):
    return make(name, cell("throughput", **{"dtype": "float32", "length": max(lengths), "texts": lengths, **fields}))


def vectors(task):
    with torch.inference_mode():
        return [task.encode(**inputs).last_hidden_state for inputs in task.batches]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "longformer"])  # whose profiles are one
def test_a_training_step_has_the_same_loss_in_every_profile(name, monkeypatch):
    monkeypatch.setattr(tasks, "PAPER_DROPOUT", 0.0)
    losses = [make(name, cell("training", profile=which, dtype="float32")).loss().item() for which in PROFILES]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)


@pytest.mark.parametrize("name", ["mabert", "bert"])
def test_a_training_step_learns_and_counts_every_row(name):
    step = make(name, cell("training", length=128))
    assert (step.batch, step.micro_batch) == (32, 8)
    first = step.loss().item()
    for _ in range(2):
        spent, whole = step.sample()
        assert 0 < spent < whole, "four micro-batches and one update"
        assert all((weight.grad == 0).all() for weight in step.model.parameters()), "the next call adds to these"
    assert step.loss().item() < first
    assert make(name, cell("training", length=5000)).micro_batch == 1
    assert make(name, cell("training", length=128, texts=(128,) * 4)).batch == 4


@pytest.mark.parametrize(("most", "tried"), [(8, [32, 16, 8, 8]), (32, [32, 32]), (0, [32, 16, 8, 4, 2, 1])])
def test_on_a_gpu_a_micro_batch_is_halved_until_two_fit(monkeypatch, most, tried):
    step, seen = make("mabert", cell("training")), []
    run = step.run

    def limited():
        seen.append(step.micro_batch)
        assert len(step.ids) == step.micro_batch
        if step.micro_batch > most:
            raise RuntimeError("CUDA out of memory")
        run()

    monkeypatch.setattr(step, "run", limited)
    with pytest.raises(RuntimeError, match="out of memory") if not most else contextlib.nullcontext():
        assert step.largest(24) == most
    assert seen == tried
    assert not most or all(weight.grad is None for weight in step.model.parameters())


def test_on_a_gpu_the_peak_is_that_of_one_forward_after_another(monkeypatch):
    forward, asked = make("mabert", cell("memory")), []
    run = forward.run
    monkeypatch.setattr(forward, "run", lambda: asked.append("run") or run())
    monkeypatch.setattr(forward, "device", "cuda")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: asked.append("forget"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: asked.append("read") or 7)
    assert forward.peak() == 7
    assert asked == ["run", "forget", "run", "read"]


def test_a_model_has_run_before_it_is_timed(monkeypatch):
    seen = []
    forward = MaBertModel.forward

    def watched(self, input_ids=None, *arguments, **options):
        seen.append(tuple(input_ids.shape))
        return forward(self, input_ids, *arguments, **options)

    monkeypatch.setattr(MaBertModel, "forward", watched)
    make("mabert", cell(length=64))
    assert seen == [(2, tasks.FIRST)], "kernels are compiled where they were not yet"
    seen.clear()
    step = make("mabert", cell("training", length=64))
    assert seen == [(step.micro_batch, tasks.FIRST)]
    assert step.ids.shape[1] == 64
    assert all(weight.grad is None for weight in step.model.parameters())


def kernels(name, which):
    forward = make(name, cell(profile=which, dtype="float32", length=64))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        forward.run()
    return {event.key for event in profiler.key_averages()}


@pytest.mark.parametrize("name", ["bert", "albert", "modernbert", "mabert"])
def test_the_papers_profile_runs_no_flash_kernel(name):
    fast, plain = kernels(name, "best"), kernels(name, "paper")
    assert any("flash" in kernel or "mabert::softmax_attention" in kernel for kernel in fast)
    assert not any("flash" in kernel or "mabert::softmax_attention" in kernel for kernel in plain)
    assert any("scaled_dot_product_attention_math" in kernel for kernel in plain)


@pytest.mark.parametrize("name", NAMES)
def test_models_are_made_long_enough(monkeypatch, name):
    make(name, cell(length=600, dtype="float32")).run()
    forward = make(name, cell(length=600))
    forward.run()
    named = dict.fromkeys(("bert", "albert", "modernbert"), "mabert")
    packed = ", prepacked" if any("mkldnn::_linear_pointwise" in kernel for kernel in kernels(name, "best")) else ""
    if name != "mabert":
        assert forward.setting == named.get(name, "eager") + packed
        return
    own = any("mabert::softmax_attention" in kernel for kernel in kernels(name, "best"))
    assert forward.setting == ("mabert::softmax_attention" if own else "sdpa") + packed
    monkeypatch.setattr(backends, "_instructions", lambda: frozenset({"avx512_bf16", "amx_bf16"}))
    monkeypatch.setattr(amx, "may_use_amx", lambda: True)
    settings = [make(name, cell(length=length)).setting for length in (1023, 1024)]
    assert settings == ["sdpa" + packed, "mabert::softmax_attention" + packed]
    assert make(name, cell(length=600, profile="paper")).setting == "sdpa_plain"


@pytest.mark.parametrize("name", NAMES)
def test_a_stock_model_is_transformers_own_and_mabert_is_at_its_best(name):
    forward = make(name, cell(length=600, profile="stock"))
    forward.run()
    if name == "mabert":
        assert forward.setting == make(name, cell(length=600)).setting
        return
    assert forward.setting == ("sdpa" if name in ("bert", "albert", "modernbert") else "eager")
    ran = kernels(name, "stock")
    assert not any("mabert::" in kernel or "mkldnn::_linear_pointwise" in kernel for kernel in ran)


def test_memory_counts_weights_and_what_the_kernels_take():
    forward = make("mabert", cell("memory", length=9000, dtype="float32"))
    above = forward.peak() - forward.weights()
    channels = 2 * SMALL["hidden_size"]
    scan = 4 * channels * 4 * 9000  # ũ, z, Δ and the result
    assert scan < above < 3 * scan


@pytest.mark.parametrize(("pattern", "inner", "units"), [("M", 2, 10.3), ("MMT", 2, 10.3), ("M", 4, 11.1)])
def test_a_forward_holds_no_more_than_its_widest_step_reads_and_writes(pattern, inner, units):
    torch.manual_seed(0)
    width, length = 256, 4096
    sizes = {"hidden_size": width, "num_attention_heads": 4, "intermediate_size": inner * width}
    config = MaBertConfig(**sizes, layer_pattern=pattern, max_position_embeddings=length)
    above = peak_at(MaBertModel(config).eval(), length)
    # A core: the residual stream, Ĥ, the four of ũ, z, Δ and the result at twice its width, a little for B and C. The
    # network: the stream before and after the core, its norm, twice the inner width.
    assert above < units * width * 4 * length


def test_graphs_need_a_gpu_and_rows_of_one_length():
    with pytest.raises(ValueError, match="the engine 'graphs' needs a GPU"):
        texts("bert:graphs", (30,))
    with torch.device("meta"):
        engine = ENGINES["graphs"].__new__(ENGINES["graphs"])
        with pytest.raises(ValueError, match="takes rows of one length; this batch has input_ids, attention_mask"):
            engine(input_ids=torch.ones(1, 2), attention_mask=torch.ones(1, 2))


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
    uneven = {"measure": "throughput", "texts": (1024, 1000)}
    for fields in ({"profile": "paper"}, {"device": "cuda"}, {"small": True}, uneven, {"measure": "training"}):
        assert not profiles.is_compiled(FAMILIES["deberta"], replace(whole, **fields))
    assert profiles.is_compiled(FAMILIES["deberta"], replace(whole, measure="throughput", texts=(1024,) * 3))
    monkeypatch.setattr(profiles.shutil, "which", lambda _: None)
    assert not profiles.is_compiled(FAMILIES["deberta"], whole), "without a compiler it runs as it is, as its row says"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(("name", "layout"), [("deberta", "alone"), ("modernbert", "together")])
def test_a_compiled_model_says_the_same_and_is_compiled_before_it_is_timed(name, layout):
    limits = {"fail_on_recompile_limit_hit": False, "recompile_limit": 8}
    with torch._dynamo.config.patch(limits):  # which the engine sets, and back when this is over
        eager, compiled = (texts(f"{name}:{how}", (30, 30), layout=layout) for how in ("eager", "compiled"))
        assert compiled.setting == f"{eager.setting}, compiled"
        with torch._dynamo.config.patch(error_on_recompile=True), torch.compiler.set_stance("fail_on_recompile"):
            assert compiled.sample().whole > 0
            assert compiled.peak() > compiled.weights() == eager.weights()
        torch.testing.assert_close(vectors(compiled), vectors(eager), rtol=1e-4, atol=1e-5)


def test_the_working_memory_of_threads_is_counted(monkeypatch):
    sizes = {"hidden_size": 64, "num_attention_heads": 1, "intermediate_size": 64, "layer_pattern": "T"}
    model = MaBertModel(MaBertConfig(**sizes, max_position_embeddings=8192)).bfloat16().eval()
    scratch = []
    monkeypatch.setattr(kernel, "Call", lambda jobs, size: scratch.append(size) or team.Call(jobs, size))
    counted = peak_at(model, 8192)
    if not scratch:
        pytest.skip("this processor has no attention kernel of ours")
    assert counted > max(scratch) > 8192 * 64 * 2, "the packed keys and values of a row"


def test_a_tanh_gelu_is_one_kernel_and_the_same_function():
    best, plain = (make("albert", cell(profile=which, dtype="float32")) for which in ("best", "paper"))
    assert best.model.config.hidden_act == "gelu_pytorch_tanh"
    torch.testing.assert_close(vectors(best), vectors(plain), rtol=1e-4, atol=1e-5)
    assert any("gelu" in kernel for kernel in kernels("albert", "best"))


@pytest.mark.parametrize(("layout", "sizes"), [("alone", [1] * 5), ("together", [5])])
def test_every_text_comes_once_in_its_order(layout, sizes):
    many = texts("bert", layout=layout)
    masks = [inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])) for inputs in many.batches]
    assert [int(length) for mask in masks for length in mask.sum(1)] == list(TEXTS)
    assert [len(mask) for mask in masks] == sizes
    assert many.batch == sizes[0]
    for inputs, mask in zip(many.batches, masks, strict=True):
        assert ("attention_mask" in inputs) == (not mask.all()), "a mask only of padding"
        assert mask.shape[1] == mask.sum(1).max()
        assert (inputs["input_ids"][mask == 0] == many.model.config.pad_token_id).all()
        assert (inputs["input_ids"][mask == 1] >= 1000).all()


def test_layouts_are_what_they_are_called():
    unpadded, masked, alone, even = (texts("mabert", layout=it) for it in ("together", "masked", "alone", "even"))
    assert [each.model.config.unpad for each in (unpadded, masked)] == ["auto", "never"]
    torch.testing.assert_close(vectors(unpadded), vectors(masked), rtol=1e-4, atol=1e-4)
    assert [inputs["input_ids"].shape[1] for inputs in alone.batches] == list(TEXTS)
    assert [list(inputs) for inputs in (*alone.batches, *even.batches)] == [["input_ids"]] * 6, "nothing is padded"
    assert even.batches[0]["input_ids"].shape == (5, round(sum(TEXTS) / 5))


def test_a_row_names_the_attention_of_its_batches(monkeypatch):
    monkeypatch.setattr(backends, "_instructions", lambda: frozenset({"avx512_bf16", "amx_bf16"}))
    monkeypatch.setattr(amx, "may_use_amx", lambda: True)

    def attention(layout):
        return texts("mabert", dtype="bfloat16", layout=layout).setting.split(",")[0]

    assert [attention(layout) for layout in ("alone", "together")] == ["sdpa", "mabert::softmax_attention"]
    monkeypatch.setattr(backends, "AMX_PAYS_FROM", 20)
    assert attention("alone") == "sdpa and mabert::softmax_attention", "the longer texts have the kernel"


def test_an_engine_is_a_line_in_the_table(monkeypatch):
    def doubled(model):
        return lambda **inputs: 2 * model(**inputs).last_hidden_state

    monkeypatch.setitem(ENGINES, "doubled", doubled)
    usual, other = (make(name, cell(dtype="float32")) for name in ("bert:eager", "bert:doubled"))
    assert (usual.setting, other.setting) == ("mabert", "mabert, doubled")
    assert title_of("bert:doubled") == "BERT, doubled"
    with torch.inference_mode():
        torch.testing.assert_close(other.encode(**other.batches[0]), 2 * vectors(usual)[0])
    with pytest.raises(ValueError, match="the engine 'doubled' runs forwards alone"):
        make("bert:doubled", cell("training"))
    with pytest.raises(ValueError, match="no engine 'onnx' for 'bert:onnx'; there are eager, compiled, graphs, "):
        contender("bert:onnx")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "engine"), [("mabert", "onnxruntime"), ("bert", "openvino")])
def test_a_runtime_gives_what_pytorch_gives(name, engine):
    pytest.importorskip(engine)
    cell = Cell("latency", "stock", "float32", 9, small=True, texts=(9, 5), layout="together")
    wanted, given = (make(f"{name}:{each}", cell) for each in ("eager", engine))
    valid = wanted.batches[0]["attention_mask"].bool()
    found = torch.from_numpy(given.encode(**given.batches[0])[0])
    torch.testing.assert_close(found[valid], vectors(wanted)[0][valid], rtol=1e-4, atol=1e-4)
    assert given.setting == engine


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["int8", "onnxruntime-int8", "openvino-int8"])
def test_an_engine_in_8_bits_gives_nearly_what_pytorch_gives(engine, monkeypatch):
    for package in ("onnxruntime", "openvino", "nncf"):
        pytest.importorskip(package)
    monkeypatch.setattr("mabert.model.prepack.SMALLEST", 0)
    cell = Cell("latency", "stock", "float32", 9, small=True, texts=(9,))
    wanted, given = (make(f"bert:{each}", cell) for each in ("eager", engine))
    with torch.no_grad():
        found = torch.as_tensor(given.encode(**given.batches[0])[0])
    (expected,) = vectors(wanted)
    assert torch.nn.functional.cosine_similarity(expected, found, dim=-1).min() > 0.99
    assert not torch.equal(expected, found)


def test_a_runtime_refuses_a_dtype_that_it_does_not_compute_in():
    pytest.importorskip("onnxruntime")
    with pytest.raises(ValueError, match=r"OnnxRuntime computes in torch\.float32, the model in torch\.bfloat16"):
        make("bert:onnxruntime", Cell("latency", "stock", "bfloat16", 8, small=True))


def test_a_runtime_that_is_not_installed_is_one_line(monkeypatch):
    monkeypatch.setattr("mabert.machine.environment.find_spec", lambda package: None)
    with pytest.raises(ValueError, match="onnx is not installed; the extra export brings it"):
        contender("bert:openvino")


def test_a_preset_is_a_contender():
    family, engine, config = contender("mabert-fast:int8")
    assert (family.name, engine, config.ssm_expand) == ("mabert", "int8", 1)


def test_a_folder_is_a_contender_with_sizes_of_its_own(tmp_path):
    config(layer_pattern="MT", vocab_size=30_000).save_pretrained(tmp_path)
    found = contender(f"{tmp_path}:eager")
    assert (found.family.name, found.engine, found.config.layer_pattern) == ("mabert", "eager", "MT")
    built = make(str(tmp_path), Cell("latency", "best", "float32", 100))
    assert built.model.config.max_position_embeddings == 100
    with pytest.raises(ValueError, match="nowhere"):
        contender("nowhere")
