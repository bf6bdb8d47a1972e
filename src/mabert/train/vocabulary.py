"""Which tokenizer a run has, and where it is from."""

import logging
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from mabert.baselines.family import Family
from mabert.data.corpus import Sources
from mabert.data.tokenizer import load_tokenizer
from mabert.data.train_tokenizer import RECIPES
from mabert.data.vocabulary import trained_tokenizer

logger = logging.getLogger(__name__)

TRAINED = "trained"


def find_tokenizer(
    family: Family, asked: str | None, sources: Sources, cache: Path, before: str | None = None
) -> tuple[PreTrainedTokenizerFast, str]:
    """The tokenizer that is asked for; else the family's own from the hub; else one trained in the same way.

    Args:
        family: The model's.
        asked: Folder, file or hub name, or None.
        sources: The run's text, to train on.
        cache: Where trained tokenizers are kept.
        before: What this said when the run began, where it is resumed: the same is found again.

    Returns:
        The tokenizer, and where it is from, in words for the record.

    Raises:
        FileNotFoundError: There is none of the name that is asked for.
        ValueError: It cannot be used, or the text gives none.
    """
    if asked is not None:
        return load_tokenizer(asked), asked
    if before is None or not before.startswith(TRAINED):
        try:
            return load_tokenizer(family.hub), f"hub:{family.hub}"
        except FileNotFoundError as error:
            if before is not None:
                raise
            logger.warning("%s; training one of its kind on the run's text", error)
    recipe = RECIPES[family.tokenizer]
    tokenizer = trained_tokenizer(family.tokenizer, sources, cache)
    return tokenizer, f"{TRAINED} on data.sources: {recipe.algorithm} of {len(tokenizer):,}, as {family.hub}"
