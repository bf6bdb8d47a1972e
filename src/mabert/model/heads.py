"""The encoder with a head for each use: mask filling, classification, tagging, question answering, multiple choice."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_outputs import (
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from mabert.model.boundaries import BOUNDARIES, read_boundaries
from mabert.model.config import MaBertConfig
from mabert.model.embeddings import layer_norm
from mabert.model.encoder import MaBertModel, MaBertPreTrainedModel
from mabert.model.masking import tokens_of
from mabert.model.pooling import Pooler
from mabert.schema import IGNORED


class PredictionTransform(nn.Module):
    """BERT's transform before the decoder: dense, activation, LayerNorm."""

    def __init__(self, config: MaBertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_width)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = layer_norm(config, config.embedding_width)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., D) to (..., `embedding_size`)."""
        return self.norm(self.activation(self.dense(hidden)))


class Predictions(nn.Module):
    """Scores of the vocabulary's entries: transform and decoder."""

    def __init__(self, config: MaBertConfig) -> None:
        super().__init__()
        self.transform = PredictionTransform(config)
        self.decoder = nn.Linear(config.embedding_width, config.vocab_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., D) to (..., vocab_size)."""
        return self.decoder(self.transform(hidden))


class MaBertForMaskedLM(MaBertPreTrainedModel):
    """Masked language modelling, with a decoder tied to the token embedding."""

    # Of tied weights accelerate keeps the one whose name comes first in the alphabet, and files hold the embedding.
    _tied_weights_keys: ClassVar = {"predictions.decoder.weight": "mabert.embeddings.word_embeddings.weight"}

    def __init__(self, config: MaBertConfig) -> None:
        super().__init__(config)
        self.mabert = MaBertModel(config)
        self.predictions = Predictions(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.predictions.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.predictions.decoder = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        scored_positions: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """Predicts tokens. The inputs and `kwargs` are those of `MaBertModel.forward`.

        Args:
            labels: int64 (batch, time), the true token at scored positions, -100 elsewhere.
            scored_positions: int64 (scored positions,), the places of scored tokens in the flattened labels, as
                `FlatteningCollator` makes them. Only read on a GPU, so that the host need not wait to find them.

        Returns:
            `loss`, the mean cross-entropy over scored positions, and `logits` (batch, time, vocab_size); with
            `config.sparse_prediction` and labels, (scored positions, vocab_size) in row order.
        """
        outputs = self.mabert(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        hidden = outputs.last_hidden_state
        if labels is not None and self.config.sparse_prediction:
            labels = labels.to(hidden.device)
            if scored_positions is None or hidden.device.type == "cpu":
                scored = labels != IGNORED
                hidden, labels = hidden[scored], labels[scored]
            else:
                hidden, labels = (x.flatten(0, 1).index_select(0, scored_positions) for x in (hidden, labels))
        logits = self.predictions(hidden)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        return MaskedLMOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class Classifier(MaBertPreTrainedModel):
    """The common part of heads that score texts (`pools`) or tokens: dropout and one linear layer of so many outputs
    (Eq. 14)."""

    def __init__(self, config: MaBertConfig, outputs: int, pools: bool = True) -> None:
        super().__init__(config)
        self.num_labels = outputs
        self.mabert = MaBertModel(config)
        if pools:
            self.pooler = Pooler(config)
        rate = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = nn.Dropout(rate)
        self.classifier = nn.Linear(config.hidden_size, outputs)
        self.post_init()

    def scored(self, inputs: Sequence[Tensor | None], labels: Tensor | None, kwargs: Any) -> tuple[Any, ...]:
        """Returns the loss (None without labels), logits, hidden states and attentions; takes what `forward` does."""
        outputs = self.mabert(*inputs, return_dict=True, **kwargs)
        hidden, attention_mask = outputs.last_hidden_state, inputs[1]
        pools = hasattr(self, "pooler")
        if pools:
            packing = read_boundaries(kwargs, hidden, attention_mask, None)
            hidden = self.pooler(hidden, tokens_of(attention_mask, hidden.device), packing)
        logits = self.classifier(self.dropout(hidden))
        loss = None
        if labels is not None:
            also = {"pooled_logits": logits} if pools else {}  # as transformers' own models call their losses
            loss = self.loss_function(labels=labels, logits=logits, config=self.config, **also, **kwargs)
        return loss, logits, outputs.hidden_states, outputs.attentions


class MaBertForSequenceClassification(Classifier):
    """A label (or a number) per text: pooling (Eqs. 11-13), dropout, one linear layer (Eq. 14)."""

    # Not every label type's loss counts items, so Trainer must average over accumulated batches itself.
    accepts_loss_kwargs = False

    def __init__(self, config: MaBertConfig) -> None:
        super().__init__(config, config.num_labels)

    def pools_by(self) -> str:
        """Returns how `mabert.load` makes a text's vector: `mean`, `cls`, or `map` with the pooling learned here."""
        return "map" if self.config.pooling == "map" else super().pools_by()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """Classifies texts. The inputs and `kwargs` are those of `MaBertModel.forward`.

        Args:
            labels: (batch,), classes, or numbers if `config.num_labels` is 1; (batch, labels) for several per text.

        Returns:
            `loss` if labels are given, and `logits` ŷ (batch, labels); for a packed row, one row per sequence.
        """
        given = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        return SequenceClassifierOutput(*self.scored(given, labels, kwargs))


class MaBertForTokenClassification(Classifier):
    """A label per token: dropout and one linear layer."""

    def __init__(self, config: MaBertConfig) -> None:
        super().__init__(config, config.num_labels, pools=False)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        """Labels tokens. The inputs and `kwargs` are those of `MaBertModel.forward`.

        Args:
            labels: int64 (batch, time), -100 at positions that are not scored.

        Returns:
            `loss` if labels are given, and `logits` (batch, time, labels).
        """
        given = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        return TokenClassifierOutput(*self.scored(given, labels, kwargs))


class MaBertForQuestionAnswering(MaBertPreTrainedModel):
    """Start and end of an answer: one linear layer that gives each token two scores."""

    accepts_loss_kwargs = False

    def __init__(self, config: MaBertConfig) -> None:
        super().__init__(config)
        self.mabert = MaBertModel(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        """Scores spans. The inputs and `kwargs` are those of `MaBertModel.forward`.

        Args:
            start_positions: int64 (batch,), the answer's first token; not scored if outside the row or at padding.
            end_positions: int64 (batch,), its last token.

        Returns:
            `loss` if both positions are given, `start_logits` and `end_logits` (batch, time), the dtype's lowest number
            at padding; for a packed row, one row per sequence.
        """
        outputs = self.mabert(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        hidden = outputs.last_hidden_state
        logits, valid = self.qa_outputs(hidden), tokens_of(attention_mask, hidden.device)
        packing = read_boundaries(kwargs, hidden, attention_mask, None)
        if packing is not None:
            logits, valid = packing.rows.restore(logits), packing.rows.valid
        if valid is not None:
            # An answer cannot lie in padding; unmasked, padding would take part in the softmax over positions.
            logits = logits.masked_fill(~valid.unsqueeze(-1), torch.finfo(logits.dtype).min)
        start_logits, end_logits = logits.unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            end = logits.shape[1]
            targets = (at_tokens(positions, valid, end) for positions in (start_positions, end_positions))
            loss = self.loss_function(start_logits, end_logits, *targets, **kwargs)
        ends = start_logits.contiguous(), end_logits.contiguous()
        return QuestionAnsweringModelOutput(loss, *ends, outputs.hidden_states, outputs.attentions)


class MaBertForMultipleChoice(Classifier):
    """A choice among several texts, each pooled and scored by itself."""

    accepts_loss_kwargs = False

    def __init__(self, config: MaBertConfig) -> None:
        super().__init__(config, 1)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultipleChoiceModelOutput:
        """Scores choices.

        Args:
            input_ids: int64 (batch, choices, time).
            attention_mask: (batch, choices, time), as for the next two.
            token_type_ids: Likewise.
            position_ids: Likewise.
            inputs_embeds: (batch, choices, time, `embedding_size`), in place of `input_ids`.
            labels: int64 (batch,), the right choice.
            kwargs: See `MaBertModel.forward`.

        Returns:
            `loss` if labels are given, and `logits` (batch, choices).

        Raises:
            ValueError: As in the encoder, or if boundaries of a packed row are given, which cannot hold choices.
        """
        names = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        for name, each in zip(names, inputs, strict=True):
            wanted = "(batch, choices, time, embedding_size)" if name == "inputs_embeds" else "(batch, choices, time)"
            if each is not None and each.dim() != wanted.count(",") + 1:
                raise ValueError(f"{name} has shape {tuple(each.shape)}; it must be {wanted}")
        given = input_ids if inputs_embeds is None else inputs_embeds
        if given is None:
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        for name in BOUNDARIES:
            if kwargs.get(name) is not None:
                raise ValueError(f"{name} is given; choices come as a padded batch, (batch, choices, time), not packed")
        rows = [None if each is None else each.flatten(0, 1) for each in inputs]
        _, logits, *recorded = self.scored(rows, None, kwargs)
        logits = logits.view(-1, given.shape[1])
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return MultipleChoiceModelOutput(loss, logits, *recorded)


def at_tokens(positions: Tensor, valid: Tensor | None, end: int) -> Tensor:
    """Moves positions (batch,) outside the row or at padding to the row's end, where the loss ignores them."""
    positions = positions.reshape(-1)
    unscored = (positions < 0) | (positions >= end)
    if valid is not None and end:
        positions, unscored = positions.to(valid.device), unscored.to(valid.device)
        unscored |= ~valid.gather(1, positions.clamp(0, end - 1).unsqueeze(1)).squeeze(1)
    return positions.masked_fill(unscored, end)
