"""What people do with any encoder of transformers works with this one: pipelines, offloading, short floats, gradients
of hidden states."""

import pytest
import torch
from accelerate.utils import send_to_device
from transformers import pipeline

from mabert import (
    MaBertForMaskedLM,
    MaBertForQuestionAnswering,
    MaBertForSequenceClassification,
    MaBertForTokenClassification,
    MaBertModel,
)
from mabert.model import embeddings
from mabert.model.masking import PaddingMask, tokens_of
from mabert.model.packing import Packing
from mabert.model.pooling import first_token, mean_of_tokens
from tests.model.helpers import MASK, TOKENS, build, config, saved
from tests.train.helpers import tokenizer


@pytest.mark.parametrize(
    ("task", "kind", "extra"),
    [
        ("fill-mask", MaBertForMaskedLM, {}),
        ("feature-extraction", MaBertModel, {}),
        ("text-classification", MaBertForSequenceClassification, {}),
        ("token-classification", MaBertForTokenClassification, {}),
        ("zero-shot-classification", MaBertForSequenceClassification, {"candidate_labels": ["bird", "wind"]}),
    ],
)
def test_pipelines_say_of_a_batch_what_they_say_of_a_text_alone(tmp_path, task, kind, extra):
    labels = {"id2label": {0: "entailment", 1: "contradiction"}, "label2id": {"entailment": 0, "contradiction": 1}}
    saved(kind, tmp_path, words := tokenizer(), **labels)
    ask = pipeline(task, model=str(tmp_path), device="cpu")
    mask = f" {words.mask_token}" if task == "fill-mask" else ""
    texts = [f"the bird{mask} sings in the tree", f"the wind{mask}"]
    together, alone = ask(texts, batch_size=2, **extra), [ask(text, **extra) for text in texts]
    assert len(together) == 2
    for here, there in zip(together, alone, strict=True):
        found, expected = numbers(here), numbers(there)
        assert expected
        torch.testing.assert_close(found[: len(expected)], expected, rtol=1e-4, atol=1e-6)
        assert not any(found[len(expected) :]), "vectors of padding are zero"


def numbers(answer):
    """All numbers of a pipeline's answer, in their order."""
    if isinstance(answer, dict):
        return [number for key in sorted(answer) for number in numbers(answer[key])]
    if isinstance(answer, list | tuple):
        return [number for each in answer for number in numbers(each)]
    return [float(answer)] if isinstance(answer, float) or hasattr(answer, "dtype") else []


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_weights_that_wait_on_the_disk_give_the_same_vectors(tmp_path, direction):
    model = build(MaBertModel, config(ssm_direction=direction), dtype=torch.float32)
    model.save_pretrained(tmp_path / "model")
    places = {"embeddings": "disk", "layers": "disk", "norm": "cpu"}
    away = MaBertModel.from_pretrained(tmp_path / "model", device_map=places, offload_folder=tmp_path / "away")
    assert next(away.layers.parameters()).is_meta
    with torch.no_grad():
        torch.testing.assert_close(away(TOKENS, MASK).last_hidden_state, model(TOKENS, MASK).last_hidden_state)


def test_a_batchs_padding_and_boundaries_follow_its_vectors_to_another_device():
    mask = send_to_device(PaddingMask(torch.ones(1, 2, dtype=torch.bool)), "meta")
    assert mask.valid.is_meta
    packed = PaddingMask(None, "exact", Packing.of_lengths(torch.tensor([1, 2])))
    assert send_to_device(packed, "cpu") is packed, "what was computed of it once stays with it"
    moved = send_to_device(packed, "meta")
    assert moved.cu_seqlens.is_meta
    assert moved.packing.lengths == (1, 2)
    assert tokens_of(torch.ones(1, 2), torch.device("meta")).is_meta
    hidden = torch.ones(1, 2, 3, device="meta")
    assert PaddingMask(torch.ones(1, 2, dtype=torch.bool)).zero(hidden).is_meta


def test_gradients_reach_hidden_states_of_a_padded_batch():
    model = build(MaBertForSequenceClassification, config(), dtype=torch.float32)
    out = model(TOKENS, MASK, labels=torch.tensor([0, 1]), output_hidden_states=True)
    for gradient in torch.autograd.grad(out.loss, out.hidden_states[:-1]):
        assert gradient[0, :3].abs().sum() > 0
        assert gradient[0, 3:].abs().sum() == 0


def test_an_answer_at_padding_is_not_scored():
    model = build(MaBertForQuestionAnswering, config(), dtype=torch.float32)
    start, end = torch.tensor([4, 1]), torch.tensor([1, 3])
    loss = model(TOKENS, MASK, start_positions=start, end_positions=end).loss
    out = model(TOKENS, MASK)
    entropy = torch.nn.functional.cross_entropy
    expected = (entropy(out.start_logits[1:], start[1:]) + entropy(out.end_logits, end)) / 2
    torch.testing.assert_close(loss, expected)
    wide = model(TOKENS, MASK, start_positions=start.unsqueeze(1), end_positions=end.unsqueeze(1)).loss
    assert torch.equal(wide, loss)
    for nowhere in (-1, TOKENS.shape[1], 10**6):
        elsewhere = torch.tensor([nowhere, 1])
        assert torch.equal(model(TOKENS, MASK, start_positions=elsewhere, end_positions=end).loss, loss)
        alone = model(TOKENS[1:], start_positions=elsewhere[:1], end_positions=end[1:]).loss
        out = model(TOKENS[1:])
        assert out.start_logits.isfinite().all()
        assert alone.isnan(), "the mean over no start"


def test_the_mean_of_many_tokens_does_not_overflow():
    hidden, valid = torch.full((1, 8192, 1), 10.0, dtype=torch.float16), torch.ones(1, 8192, dtype=torch.bool)
    for told in (None, valid):
        assert mean_of_tokens(hidden, told).tolist() == [[10.0]]
    hidden = torch.ones(1, 259, 1, dtype=torch.bfloat16)
    assert mean_of_tokens(hidden, valid[:, :259]).tolist() == [[1.0]]


@pytest.mark.parametrize("pool", [mean_of_tokens, first_token])
@pytest.mark.parametrize("told", [True, False])
def test_rows_of_no_tokens_are_pooled_to_zero(pool, told):
    valid = torch.ones(2, 0, dtype=torch.bool) if told else None
    assert pool(torch.ones(2, 0, 3), valid).tolist() == [[0.0] * 3] * 2


def test_padding_without_a_mask_is_warned_of(monkeypatch):
    said = []
    monkeypatch.setattr(embeddings.logger, "warning_once", said.append)
    model = build(MaBertModel, config(), dtype=torch.float32)
    for given in ((TOKENS, MASK), (TOKENS[1:],)):
        model(*given)
    model(TOKENS[:1, :3], cu_seq_lens_q=torch.tensor([0, 1, 3], dtype=torch.int32))
    assert not said
    for padded in (TOKENS, TOKENS.flip(1)):
        model(padded)
        (told,) = said
        assert told.startswith("input_ids begin or end with pad_token_id (0) and there is no attention_mask")
        said.clear()
