"""A copy of a saved model that takes longer inputs."""

from pathlib import Path

from mabert.baselines.load import load_as_saved, refuse_quantized
from mabert.baselines.registry import family_of
from mabert.data.encode import Encoding
from mabert.data.tokenizer import load_tokenizer
from mabert.files.writing import filling


def extend(path: str | Path, length: int, output: str | Path) -> int:
    """Saves a model for longer inputs, in the way that Table A3 has it for its family, with its tokenizer.

    Beside a fine-tuned model stands how its texts were encoded (`mabert.data.encode.Encoding`), which stays as it is: a
    length that was asked for in fine-tuning is still the one that `predict` keeps to.

    Args:
        path: Model folder or hub name, of any family.
        length: Tokens of the longest input from now on.
        output: A new folder.

    Returns:
        Tokens that the model took before.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: If it takes that length already, the folder holds something, or the model's `encoding.json` is
            damaged, or its weights are quantized.
    """
    folder = Path(output)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} already holds files; name another folder")
    refuse_quantized(path)
    model, tokenizer = load_as_saved(path), load_tokenizer(str(path))
    encoding = Encoding.beside(path)
    family = family_of(model.config)
    longer = family.extend(model, length)
    tokenizer.model_max_length = length
    with filling(folder) as staging:
        longer.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
        if encoding is not None:
            encoding.save(staging)
    return family.longest(model.config) or model.config.max_position_embeddings
