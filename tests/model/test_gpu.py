"""On a GPU: a text is the same alone and in any batch, by the attention that serves packed rows there."""

import pytest
import torch

from mabert import MaBertForMaskedLM, MaBertModel
from tests.model.helpers import VOCAB, build, config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
SIZES = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 256, "max_position_embeddings": 600}
FIELDS = {"layer_pattern": "MMT", "ssm_state_size": 16, "initializer_range": 0.02, "ssm_direction": "bidirectional"}
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def batch():
    lengths = torch.tensor([1, 17, 300, 512])
    mask = (torch.arange(512) < lengths.unsqueeze(1)).cuda()
    mask[1] = mask[1].flip(0)
    ids = torch.randint(1, VOCAB, mask.shape, generator=torch.Generator().manual_seed(0)).cuda()
    return ids, mask


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("position", ["learned", "rotary"])
@pytest.mark.parametrize("unpad", ["auto", "never"])
def test_a_text_is_the_same_alone_and_in_a_batch(dtype, position, unpad):
    model = build(MaBertModel, config(**SIZES, **FIELDS, position_embedding=position, unpad=unpad), dtype=dtype).cuda()
    ids, mask = batch()
    with torch.no_grad():
        together = model(ids, mask.long()).last_hidden_state
        for row, text, valid in zip(together, ids, mask, strict=True):
            alone = model(text[valid].unsqueeze(0)).last_hidden_state[0]
            assert (row[valid] - alone).float().norm() <= BOUNDS[dtype] * alone.float().norm()
            assert not row[~valid].any()


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_training_without_padding_has_the_gradients_of_masked_training(dropout):
    ids, mask = batch()
    labels = ids.masked_fill(~mask, -100)
    gradients = []
    for unpad in ("auto", "never"):
        fields = {"unpad": unpad, "attention_probs_dropout_prob": dropout}
        model = build(MaBertForMaskedLM, config(**SIZES, **FIELDS, **fields), dtype=torch.float32).cuda().train()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(ids, mask.long(), labels=labels).loss
        loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert gradients[0].isfinite().all()
    if not dropout:
        assert (gradients[0] - gradients[1]).norm() <= 0.05 * gradients[1].norm()


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_graphs_give_the_vectors_of_the_layers(position):
    """To the last bit those of the same row without a graph, and to rounding those of the layers alone."""
    settings = config(**SIZES, **FIELDS, position_embedding=position)
    plain, by_graphs = (build(MaBertModel, settings, dtype=torch.bfloat16).cuda() for _ in range(2))
    by_graphs.use_graphs()
    ids, mask = batch()
    with torch.inference_mode():
        for rows in (slice(0, 4), slice(2, 3), slice(0, 4), slice(1, 4), slice(2, 3), slice(1, 4), slice(0, 4)):
            expected = plain(ids[rows], mask[rows].long()).last_hidden_state
            first = by_graphs(ids[rows], mask[rows].long()).last_hidden_state
            again = by_graphs(ids[rows], mask[rows].long()).last_hidden_state
            assert torch.equal(first, again)
            assert (first - expected).float().norm() <= BOUNDS[torch.bfloat16] * expected.float().norm()
    assert len(by_graphs.graphs.graphs) == 3


def test_many_shapes_take_the_memory_of_the_largest():
    model = build(MaBertModel, config(**SIZES, **FIELDS, position_embedding="rotary"), dtype=torch.bfloat16).cuda()
    model.use_graphs()
    taken = []
    with torch.inference_mode():
        for length in (4096, *range(64, 4096, 64)):
            ids = torch.randint(1, VOCAB, (1, length), device="cuda")
            for _ in range(2):
                model(ids)
            torch.cuda.synchronize()
            taken.append(torch.cuda.memory_reserved())
    assert taken[-1] <= 1.5 * taken[0]
