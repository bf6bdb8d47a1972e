"""Teachers: opening one, and the MaBERT of its kind that says the same."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from mabert.baselines.load import POOLER, Use, check_vocabulary, class_for, refuse_quantized
from mabert.bounds import check_fields
from mabert.conversion.families import TEACHERS, Names, TeacherFamily
from mabert.conversion.windows import lengthened
from mabert.data.tokenizer import load_tokenizer
from mabert.files.folders import CONFIG, config_fields
from mabert.files.sentences import SentenceFolder
from mabert.model import MaBertConfig, MaBertForMaskedLM, MaBertForSequenceClassification, MaBertModel
from mabert.model.config import in_words, make_config
from mabert.model.load import load_model

STUDENTS: dict[Use, type[PreTrainedModel]] = {
    "encoder": MaBertModel,
    "masked_lm": MaBertForMaskedLM,
    "classifier": MaBertForSequenceClassification,
}

HEADS: dict[str, Use] = {
    "Model": "encoder",
    "ForMaskedLM": "masked_lm",
    "ForSequenceClassification": "classifier",
}
"""How names of classes end, and what such a model is for."""

KEPT = ("pad_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings", "problem_type", "id2label", "label2id")
"""Fields that a MaBERT has by the same name and meaning whatever its teacher is."""

POSITIONS = "embeddings.position_embeddings.weight"
"""MaBERT's table of learned positions."""

SAME = 1e-5
"""Largest difference between teacher and copy, relative to the teacher's largest output, that is rounding."""


class NotATeacherError(ValueError):
    """A model that cannot be converted."""


def teacher_config(path: str | Path) -> PreTrainedConfig:
    """The configuration of a model that can be converted.

    Raises:
        FileNotFoundError: If there is no model.
        NotATeacherError: If it is of a family that has no entry in `TEACHERS`; lists those that have.
        ValueError: If a field has a wrong value.
    """
    fields = config_fields(path)
    kind = fields.pop("model_type", None)
    if kind not in TEACHERS:
        raise NotATeacherError(
            f"{path} holds a model of type {kind!r}; those of types {', '.join(TEACHERS)} can be converted"
        )
    refuse_quantized(path)
    try:
        check_fields(fields)
        return AutoConfig.for_model(kind, **fields)
    except (StrictDataclassError, TypeError, ValueError) as error:
        raise ValueError(f"{Path(path) / CONFIG}: {in_words(error)}") from error


def use_of(path: str | Path, config: PreTrainedConfig) -> Use:
    """What a teacher is for, by the class that it was saved as.

    Raises:
        NotATeacherError: If it has a head that a conversion would lose.
    """
    for name in config.architectures or ("Model",):
        # BERT's pretraining model has the head of a masked language model; ELECTRA's has one that its users drop.
        pretraining: Use = "encoder" if config.model_type == "electra" else "masked_lm"
        for end, use in {**HEADS, "ForPreTraining": pretraining}.items():
            if name.endswith(end):
                return use
    raise NotATeacherError(
        f"{path} was saved as {', '.join(config.architectures)}; encoders, masked language models and classifiers of "
        "sequences can be converted"
    )


def load_teacher(path: str | Path) -> PreTrainedModel:
    """A teacher in float32 and evaluation mode, with the head it was saved with.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: As `teacher_config` and `use_of`, or if its weights are damaged or incomplete.
    """
    config = teacher_config(path)
    use = use_of(path, config)
    drawn = (POOLER,) if use == "encoder" else ()
    return load_model(class_for(use, config), path, config=config, dtype=torch.float32, drawn=drawn)


def student_config(teacher: PreTrainedConfig, use: Use, **changes: Any) -> MaBertConfig:
    """The configuration of a MaBERT of a teacher's kind, every layer attention unless the changes say otherwise.

    Args:
        teacher: The teacher's.
        use: What it is for.
        changes: Fields in place of those that follow from the teacher's.

    Raises:
        ValueError: If they make no model.
    """
    family = TEACHERS[teacher.model_type]
    fields = {"layer_pattern": "T", **family.fields(teacher)}
    fields |= {name: getattr(teacher, name) for name in KEPT if getattr(teacher, name, None) is not None}
    fields["pooling"] = getattr(teacher, "classifier_pooling", "cls") if use == "classifier" else "mean"
    if use == "classifier":
        fields["pooler_act"] = family.pooler_act(teacher)
    else:
        fields["pooler_norm"] = False
    return make_config(**{**fields, **changes})


def student_of(teacher: PreTrainedModel, use: Use, **changes: Any) -> PreTrainedModel:
    """A MaBERT with a teacher's weights: all but the Mamba cores, where the changes ask for such layers.

    Args:
        teacher: In float32.
        use: What it is for.
        changes: Fields of the configuration, see `student_config`; with more positions its table is made longer, see
            `lengthened`.

    Returns:
        A model in evaluation mode. Cores are drawn as `MaBertModel` draws them.

    Raises:
        ValueError: If the teacher lacks a weight that its kind has.
    """
    student = STUDENTS[use](student_config(teacher.config, use, **changes)).eval()
    there = translated(teacher, TEACHERS[teacher.config.model_type], use)
    weights = student.state_dict()
    for name in (name for name in there if name.endswith(POSITIONS)):
        there[name] = lengthened(there[name], len(weights[name]))
    for name, weight in weights.items():
        if name in there:
            weight.copy_(there[name])
        elif name.endswith((".bias", "token_type_embeddings.weight")) and ".mixer." not in name:
            weight.zero_()  # which says nothing, as the teacher that has none
        elif ".mixer." not in name:
            raise ValueError(f"{type(teacher).__name__} has no weight for {name}")
    student.load_state_dict(weights)
    return student


def translated(teacher: PreTrainedModel, family: TeacherFamily, use: Use) -> dict[str, Tensor]:
    """A teacher's weights by MaBERT's names."""
    weights = teacher.state_dict()
    inside, within = ("", "") if use == "encoder" else (teacher.base_model_prefix + ".", "mabert.")
    depth = teacher.config.num_hidden_layers
    names = {inside + theirs: placed(ours, within) for theirs, ours in family.encoder.items()}
    heads: Mapping[Use, Names] = {"encoder": {}, "masked_lm": family.masked_lm, "classifier": family.classifier}
    names |= {theirs: placed(ours, "") for theirs, ours in heads[use].items()}
    found: dict[str, Tensor] = {}
    for theirs, ours in names.items():
        for layer in map(str, range(depth if "*" in theirs else 1)):
            for kind in ("weight", "bias"):
                weight = weights.get(f"{theirs.replace('*', layer)}.{kind}")
                if weight is not None:
                    parts = zip(ours, weight.chunk(len(ours)), strict=True)
                    found |= {f"{name.replace('*', layer)}.{kind}": part for name, part in parts}
    table = within + POSITIONS
    if table in found:
        found[table] = found[table][family.skipped_positions(teacher.config) :]
    return found


def placed(ours: str | tuple[str, ...], within: str) -> tuple[str, ...]:
    """Names of modules of the encoder as those of the whole model."""
    return tuple(within + name for name in ((ours,) if isinstance(ours, str) else ours))


@torch.no_grad()
def difference(teacher: PreTrainedModel, copy: PreTrainedModel, seed: int = 0) -> float:
    """How far a copy is from its teacher on a padded batch of random tokens.

    Args:
        teacher: In evaluation mode.
        copy: A MaBERT that keeps all its layers.
        seed: Of the tokens.

    Returns:
        The largest difference of an output at a token, relative to the teacher's largest.
    """
    config: Any = copy.config
    windows = [window for window in config.attention_window or () if window is not None]
    longest = min(max([24, *(3 * window for window in windows)]), config.max_position_embeddings)
    lengths = torch.tensor([longest, max(1, longest // 2), 1])
    draws = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, config.vocab_size, (len(lengths), longest), generator=draws)
    pad = config.pad_token_id
    valid = torch.arange(longest) < lengths[:, None]
    if pad is not None:
        ids = torch.where(ids == pad, (pad + 1) % config.vocab_size, ids).masked_fill(~valid, pad)
    given = {"input_ids": ids.to(teacher.device), "attention_mask": valid.long().to(teacher.device)}
    theirs, ours = teacher(**given)[0], copy(**given)[0]
    if theirs.dim() == 3:
        theirs, ours = theirs[valid], ours[valid]
    return float((theirs - ours).abs().max() / theirs.abs().max())


def check_copy(teacher: PreTrainedModel, use: Use) -> PreTrainedModel:
    """The copy of a teacher that keeps all its layers, once it is seen to say what the teacher says.

    Raises:
        NotATeacherError: If it says something else: the teacher has a setting that MaBERT does not know.
    """
    copy = student_of(teacher, use)
    off = difference(teacher, copy)
    if not off <= SAME:
        raise NotATeacherError(
            f"this {teacher.config.model_type} has a setting that cannot be converted: with every layer kept the copy "
            f"differs from it by {off:.1e} of its largest output, where rounding is below {SAME:g}"
        )
    return copy


@dataclass(frozen=True)
class Teacher:
    """A teacher and what lies beside it.

    Attributes:
        place: Its folder.
        use: What it is for.
        sentences: How it makes vectors, where its folder says so.
        tokenizer: Its own.
        model: As transformers loads it.
        copy: The MaBERT that keeps all its layers.
    """

    place: str | Path
    use: Use
    sentences: SentenceFolder | None
    tokenizer: PreTrainedTokenizerFast
    model: PreTrainedModel
    copy: Any

    @classmethod
    def at(cls, place: str | Path) -> "Teacher":
        """Opens a teacher and checks that its copy says what it says.

        Raises:
            FileNotFoundError: If there is none.
            ValueError: If it cannot be converted, or a file is damaged.
        """
        config = teacher_config(place)
        use, sentences = use_of(place, config), SentenceFolder.at(place)
        tokenizer = load_tokenizer(str(place))
        check_vocabulary(place, tokenizer, config)
        model = load_teacher(place)
        return cls(place, use, sentences, tokenizer, model, check_copy(model, use))

    @property
    def longest(self) -> int:
        """Tokens that it has positions for."""
        return self.copy.config.max_position_embeddings


def weights_hash(model: PreTrainedModel) -> str:
    """SHA-256 of a model's weights: their names, shapes and numbers, whatever file they came from."""
    sha = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        sha.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        sha.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
