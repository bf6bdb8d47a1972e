"""Answers in the order of the texts; batches hold texts of similar lengths, to keep padding small."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import length_hint
from typing import Any, ClassVar, Generic, TypeVar

import torch

from mabert.data import TOKENS_A_BATCH
from mabert.data.batches import batches_by_length
from mabert.data.collate import Collator
from mabert.data.encode import was_cut
from mabert.infer.loaded import Loaded
from mabert.infer.texts import Chunk, TextRow, chunks
from mabert.machine.memory import naming_memory
from mabert.machine.progress import Bar
from mabert.schema.check import Checked
from mabert.schema.ranges import Tokens

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Batch = dict[str, torch.Tensor]
Encoded = list[dict[str, list[int]]]


@dataclass(frozen=True)
class TextOptions(Checked):
    """How texts are encoded and batched: the options that `TextModel.embed` and `TextModel.predict` explain."""

    max_length: Tokens | None = None
    truncate: bool | None = None
    batch_tokens: Tokens = TOKENS_A_BATCH
    deterministic: bool = False
    progress: bool = True


class Question(Generic[Answer]):
    """A task for a model, asked of a stream of texts. Between `encode` and `finish` it may keep state of one chunk."""

    title: ClassVar[str]  # of the progress bar
    pooled: ClassVar[bool] = False  # whether the answer uses the model's own pooling

    def __init__(self, loaded: Loaded[Any], how: TextOptions) -> None:
        self.loaded, self.how = loaded, how
        self.asked: dict[str, Any] = {"max_length": how.max_length, "truncate": bool(how.truncate)}
        self.cut = self.windowed = 0  # texts that were cut so far, and that were read in several windows

    def encode(self, chunk: Chunk) -> Encoded:
        """Makes the model's inputs from a chunk: here one from each text or pair, elsewhere any number."""
        columns = [self.prepared(texts) for texts in zip(*chunk.rows, strict=True)]
        items = []
        for item, encoding in self.loaded.encodings(*columns, **self.asked, name=chunk.name, before=chunk.before):
            items.append(item)
            self.cut += was_cut(encoding)
        return items

    def prepared(self, texts: Iterable[Any]) -> list[Any]:
        """Returns texts as the tokenizer gets them."""
        return list(texts)

    def answer(self, batch: Batch) -> Iterable[Any]:
        """Maps a batch (`input_ids`, `attention_mask`, `token_type_ids` if the tokenizer makes them, all (batch, time))
        to one raw answer per row."""
        raise NotImplementedError

    def reduce(self, index: int, raw: Any) -> Any:
        """Shrinks a raw answer as soon as it is computed, to save memory; `index` is its place among the chunk's
        inputs."""
        return raw

    def finish(self, chunk: Chunk, found: list[Any]) -> list[Answer]:
        """Makes the final answers from a chunk's raw ones."""
        return found


def on_batch(texts: int, tokens: int) -> str:
    """Says on what memory ran out, and what helps."""
    if texts == 1:
        return f"on one text; ask for fewer tokens a text, now {tokens:,} (--max-length, --truncate, or max_length=)"
    what = f"on a batch of {texts:,} texts of {tokens:,} tokens each, padding included"
    return f"{what}; ask for fewer tokens a batch, now {texts * tokens:,} (--batch-tokens, or batch_tokens=)"


def answer_in_chunks(
    question: Question[Answer], rows: Iterable[TextRow]
) -> Iterator[tuple[list[TextRow], list[Answer]]]:
    """Answers texts chunk by chunk, so that memory does not grow with their number; yields the rows of each chunk and
    their answers, in order."""
    empty = count = 0
    with Bar(question.title, length_hint(rows) or None, show=question.how.progress) as bar:
        for chunk in chunks(rows):
            count = chunk.before + len(chunk.rows)
            if chunk.last:
                bar.add(0, count)
            encoded = question.encode(chunk)
            empty += sum(not any(text.strip() for text in row) for row in chunk.rows)
            yield chunk.rows, answer_chunk(question, chunk, encoded, bar.add)
    counted = ((question.cut, "were cut"), (question.windowed, "were read in windows"), (empty, "are empty"))
    for how_many, what in counted:
        if how_many:
            logger.info("texts that %s: %s of %s", what, f"{how_many:,}", f"{count:,}")


@torch.inference_mode()
def answer_chunk(
    question: Question[Answer], chunk: Chunk, encoded: Encoded, advance: Callable[[float], None]
) -> list[Answer]:
    """Answers a chunk's texts batch by batch, or one by one if the model's answers depend on padding."""
    loaded, how = question.loaded, question.how
    lengths = [len(item["input_ids"]) for item in encoded]
    dependent = loaded.family.depends_on_batch(loaded.model.config, lengths, question.pooled)
    collate = Collator(loaded.tokenizer.pad_token_id)
    found: list[Any] = [None] * len(encoded)
    tokens = sum(lengths)
    with loaded.computing():
        # One token a batch puts every text in a batch of its own.
        for batch in batches_by_length(lengths, 1 if how.deterministic or dependent else how.batch_tokens):
            with naming_memory(partial(on_batch, len(batch), lengths[batch[0]])):
                rows = collate([encoded[index] for index in batch])
                rows = {name: value.to(loaded.model.device) for name, value in rows.items()}
                for index, raw in zip(batch, question.answer(rows), strict=True):
                    found[index] = question.reduce(index, raw)
            # By tokens: the longest texts come first, and texts would count them like short ones.
            advance(sum(lengths[index] for index in batch) * len(chunk.rows) / tokens)
    return question.finish(chunk, found)
