"""How many kernels a forward starts on a GPU, and how often the host waits for it: counted on a stand-in."""

import copy
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from mabert import MaBertConfig, MaBertForMaskedLM, MaBertModel
from mabert.data.collate import FlatteningCollator
from mabert.data.mlm import MlmMasking
from mabert.model import kept as keeping
from mabert.model.kept import _kept, kept
from mabert.model.mamba import decay_rates
from mabert.train.objective import SCORED, at_places, mean_over_scored, with_places
from tests.model.launches import GPU, move, stand_in
from tests.train.helpers import tokenizer

FIELDS = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 100}
UNSPLIT = 64
"""Tokens of a row that no kernel splits in time."""


def base(kind=MaBertModel, **fields):
    torch.manual_seed(0)
    config = MaBertConfig(**{**FIELDS, "layer_pattern": "MMTMMTMMTMMT", "max_position_embeddings": 128, **fields})
    return kind(config).to(torch.bfloat16).eval()


def test_a_forward_starts_few_kernels_and_waits_once():
    model = base()
    ids = torch.randint(5, 90, (1, UNSPLIT))
    with stand_in(model) as gpu:
        given = ids.to(GPU)
        move(model)
        for _ in range(2):  # the first run makes what is kept
            gpu.launches.clear()
            gpu.waits.clear()
            with torch.inference_mode():
                model(given)
    blocks = Counter(block for block, _ in gpu.launches)
    for layer, letter in enumerate(model.config.layer_pattern):
        assert blocks[f"layers.{layer}"] <= {"M": 13, "T": 10}[letter], gpu.launches
    assert blocks.total() <= 158, gpu.launches
    assert len(gpu.waits) == 1, gpu.waits


def packed():
    examples = [{"input_ids": torch.arange(5, 5 + length)} for length in (3, 9, 20)]
    return FlatteningCollator(MlmMasking(tokenizer(), probability=0.5))(examples)


def waits_of(model, row, step):
    """The waits of a training step's forward, which is given the row on the stand-in."""
    with stand_in(model) as gpu:
        given = {name: x.to(GPU) if isinstance(x, torch.Tensor) else x for name, x in row.items()}
        move(model).train()
        gpu.waits.clear()
        step(**given)
    return gpu.waits


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_forward_of_a_packed_training_step_waits_at_most_once(dropout):
    model = base(MaBertForMaskedLM, layer_pattern="MT", sparse_prediction=True, attention_probs_dropout_prob=dropout)
    assert len(waits_of(model, packed(), model)) == 1


def test_the_loss_of_a_packed_pretraining_step_waits_for_nothing_more():
    model = base(MaBertForMaskedLM, layer_pattern="MT")
    labels = torch.tensor([7, -100])
    masked = [{"input_ids": torch.arange(5, 5 + 2 * pairs), "labels": labels.repeat(pairs)} for pairs in (2, 15)]

    def step(labels, **given):
        places = given.pop(SCORED)
        with at_places(model.predictions, places):
            outputs = model(**given)
        mean_over_scored(outputs, labels.flatten().index_select(0, places), (labels != -100).sum())

    assert len(waits_of(model, with_places(FlatteningCollator(), masked), step)) == 1


def test_places_of_labels_and_offsets_on_the_host_change_nothing():
    model = base(MaBertForMaskedLM, layer_pattern="MT", sparse_prediction=True)
    row = packed()
    bare = {name: x for name, x in row.items() if name not in ("scored_positions", "cu_seq_lens_host")}
    torch.testing.assert_close(model(**row).loss, model(**bare).loss, rtol=0, atol=0)


def test_what_is_kept_is_made_anew_when_the_weight_changes(monkeypatch):
    monkeypatch.setattr(keeping, "_may_keep", lambda *_: True)
    made = Counter()

    def function(weight):
        made["calls"] += 1
        return -weight.exp()

    class Layer(keeping.KeepsValues):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4))

        @torch.inference_mode()
        def forward(self):
            return kept(self, function, self.weight)

    for change in (
        lambda layer: layer.weight.mul_(2),
        lambda layer: setattr(layer.weight, "data", layer.weight * 2),
        lambda layer: layer.double(),
        lambda layer: (layer.weight.data.mul_(2), layer.train()),
        lambda layer: layer.load_state_dict({"weight": torch.randn(4)}),
        lambda layer: setattr(layer, "weight", torch.nn.Parameter(torch.randn(4))),
    ):
        layer = Layer()
        layer()
        before = made["calls"]
        layer()
        assert made["calls"] == before
        with torch.no_grad():
            change(layer)
        torch.testing.assert_close(layer(), -layer.weight.exp(), rtol=0, atol=0)
    assert list(layer.state_dict()) == ["weight"]
    assert layer in _kept
    assert copy.deepcopy(layer) not in _kept


def test_streams_keep_values_of_their_own_and_a_graph_takes_those_there(monkeypatch):
    monkeypatch.setattr(keeping, "_may_keep", lambda *_: True)
    layer, weight, made = keeping.KeepsValues(), torch.ones(2), []

    def function(weight):
        made.append(-weight)
        return made[-1]

    with stand_in(), pytest.MonkeyPatch.context() as patch:
        moved = weight.to(GPU)

        @torch.inference_mode()
        def on(stream):
            patch.setattr(torch.cuda, "current_stream", lambda *_: SimpleNamespace(cuda_stream=stream))
            return kept(layer, function, moved)

        for stream in (1, 2, 1, 2):
            assert on(stream) is made[stream - 1]
        with keeping.holding() as held:
            assert on(2) is made[1]
            on(3)
        assert held == [made[1]]
        assert len(made) == 3


def test_nothing_is_kept_on_a_cpu():
    model = base(layer_pattern="MT")
    with torch.inference_mode():
        model(torch.randint(5, 90, (1, 8)))
    assert not any(module in _kept for module in model.modules())
    assert decay_rates(torch.zeros(1, 1)).item() == -1
