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


def counted(run, gpu):
    """Runs twice, since the first run makes what is kept, and returns launches and waits of the second."""
    run()
    gpu.launches.clear()
    gpu.waits.clear()
    run()
    by_block = {}
    for block, what in gpu.launches:
        by_block.setdefault(block, []).append(what)
    return by_block


def test_a_forward_starts_few_kernels_and_waits_once():
    model = base()
    ids = torch.randint(5, 90, (1, UNSPLIT))
    with stand_in(model) as gpu:
        given = ids.to(GPU)
        move(model)
        with torch.inference_mode():
            blocks = counted(lambda: model(given), gpu)
    for layer, letter in enumerate(model.config.layer_pattern):
        assert len(blocks[f"layers.{layer}"]) <= {"M": 13, "T": 10}[letter], blocks[f"layers.{layer}"]
    assert sum(map(len, blocks.values())) <= 158, blocks
    assert len(gpu.waits) == 1, gpu.waits


MASKED = [
    {"input_ids": torch.arange(5, 5 + length), "labels": torch.tensor([7, -100] * (length // 2))} for length in (4, 30)
]


def packed():
    examples = [{"input_ids": torch.arange(5, 5 + length)} for length in (3, 9, 20)]
    return FlatteningCollator(MlmMasking(tokenizer(), probability=0.5))(examples)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_forward_of_a_packed_training_step_waits_at_most_once(dropout):
    model = base(MaBertForMaskedLM, layer_pattern="MT", sparse_prediction=True, attention_probs_dropout_prob=dropout)
    row = packed()
    with stand_in(model) as gpu:
        given = {name: x.to(GPU) if isinstance(x, torch.Tensor) else x for name, x in row.items()}
        move(model).train()
        gpu.waits.clear()
        model(**given)
    assert len(gpu.waits) == 1, gpu.waits


def test_the_loss_of_a_packed_pretraining_step_waits_for_nothing_more():
    model = base(MaBertForMaskedLM, layer_pattern="MT")
    row = with_places(FlatteningCollator(), [MASKED[0], MASKED[1]])
    with stand_in(model) as gpu:
        given = {name: x.to(GPU) if isinstance(x, torch.Tensor) else x for name, x in row.items()}
        count = (given["labels"] != -100).sum()
        move(model).train()
        gpu.waits.clear()
        places = given.pop(SCORED)
        truth = given.pop("labels").flatten().index_select(0, places)
        with at_places(model.predictions, places):
            outputs = model(**given)
        mean_over_scored(outputs, truth, count)
    assert len(gpu.waits) == 1, gpu.waits


def test_places_of_labels_and_offsets_on_the_host_change_nothing():
    model = base(MaBertForMaskedLM, layer_pattern="MT", sparse_prediction=True)
    row = packed()
    bare = {name: x for name, x in row.items() if name not in ("scored_positions", "cu_seq_lens_host")}
    torch.testing.assert_close(model(**row).loss, model(**bare).loss, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ((0, 3, 31), "cu_seq_lens_host covers 0 to 31"),
        ((0, 4, 12, 32), "disagree about where"),
        ((0, 9, 3, 32), "falls"),
    ],
)
def test_wrong_offsets_on_the_host_are_errors(offsets, message):
    with pytest.raises(ValueError, match=message):
        base(MaBertForMaskedLM, layer_pattern="T")(**{**packed(), "cu_seq_lens_host": offsets})


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
