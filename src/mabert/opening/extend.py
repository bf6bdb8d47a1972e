"""Copies a saved model for longer inputs."""

from pathlib import Path

from mabert.files.sentences import copy_settings, is_cross_encoder
from mabert.files.writing import check_new, filling
from mabert.opening.opened import Model, open_model


def extend(model: Model, length: int, output: str | Path) -> int:
    """Saves a copy of a model for longer inputs, with its tokenizer, by its family's method in Table A3.

    A fine-tuned model's `mabert.data.encode.Encoding` is copied unchanged, so `predict` keeps any maximum length that
    fine-tuning set. sentence-transformers cuts texts at the new length.

    Args:
        model: Model folder or hub name, of any family.
        length: New maximum input length in tokens.
        output: A new folder.

    Returns:
        The old maximum input length.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: If the model already takes that length, the folder is not empty, the model's `encoding.json` is
            damaged, its vectors are made in a way that is not known here, or its weights are quantized.
    """
    check_new(output)
    opened = open_model(model)
    opened.refuse_quantized()
    tokenizer, encoding, sentences = opened.tokenizer, opened.encoding, opened.sentences
    longer = opened.family.extend(opened.model(), length)
    tokenizer.model_max_length = length
    with filling(output) as staging:
        longer.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
        if encoding is not None:
            encoding.save(staging)
        if sentences is not None:
            sentences.copy_to(staging, length)
        elif is_cross_encoder(opened.place.path):
            copy_settings(opened.place.path, staging)
    return opened.family.reach(opened.config)
