"""Teachers: opening them, and making MaBERT copies that give the same output."""

import contextlib
import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import normalizers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from mabert.conversion.families import COPIED, TEACHERS, Names, TeacherFamily
from mabert.conversion.windows import lengthened
from mabert.files.places import Place, find, head_of
from mabert.model import MaBertConfig
from mabert.model.config import make_config
from mabert.opening.opened import Model, Opened, open_model
from mabert.opening.uses import HEADS, Use, class_for

USES: tuple[Use, ...] = ("encoder", "masked_lm", "classifier")
"""Uses of models that can be converted."""

POSITIONS = "embeddings.position_embeddings.weight"
"""MaBERT's table of learned positions."""

DTYPES = ("F64", "F32", "F16", "BF16")
"""Types of a teacher's weights, by safetensors' names."""

SAME = 1e-5
"""Largest difference of teacher and copy, relative to the teacher's largest output, that counts as rounding."""


def open_teacher(model: Model) -> Opened:
    """Opens a model that can be converted.

    Raises FileNotFoundError if there is no model, and ValueError if its family has no entry in `TEACHERS`, which lists
    those that have, a field has a wrong value, or it has a head that a conversion would lose.
    """
    place = model.place if isinstance(model, Opened) else find(model)
    kind = place.fields.get("model_type")
    if kind not in TEACHERS:
        raise ValueError(
            f"{place} holds a model of type {kind!r}; those of types {', '.join(TEACHERS)} can be converted"
        )
    if (positions := place.fields.get("position_embedding_type", "absolute")) != "absolute":
        raise ValueError(f"{place} has position_embedding_type {positions!r}; only absolute ones can be converted")
    opened = model if isinstance(model, Opened) else open_model(place, TEACHERS)
    opened.refuse_quantized()
    use_of(opened)
    return opened


def use_of(opened: Opened) -> Use:
    """Returns the use of a teacher, from the class it was saved as; ValueError if it has a head that a conversion would
    lose."""
    # BERT's pretraining model has a masked language model's head; ELECTRA's has one that its users drop.
    pretraining: Use = "encoder" if opened.config.model_type == "electra" else "masked_lm"
    uses = {**HEADS, "PreTraining": pretraining}
    for head in map(head_of, opened.config.architectures or ("",)):
        if uses.get(head) in USES:
            return uses[head]
    raise ValueError(
        f"{opened.place} was saved as {', '.join(opened.config.architectures)}; encoders, masked language models and "
        "classifiers of sequences can be converted"
    )


def load_teacher(opened: Opened) -> PreTrainedModel:
    """Loads a teacher that `open_teacher` returned in float32 and evaluation mode, with the head it was saved with.
    Raises FileNotFoundError if there are no weights, and ValueError if they are damaged, incomplete or quantized."""
    check_dtypes(opened.place)
    return opened.plain(use_of(opened), torch.float32)


def check_dtypes(place: Place) -> None:
    """Refuses weights in integers or 8-bit numbers, which mean nothing without the scales that belong to them, by a
    ValueError that names the weight."""
    for file in sorted(place.path.glob("model*.safetensors")):
        with contextlib.suppress(SafetensorError), safe_open(file, framework="pt") as opened:  # told on loading
            for name in opened.keys():  # noqa: SIM118
                dtype = opened.get_slice(name).get_dtype()
                if dtype not in DTYPES and not name.endswith("_ids"):
                    raise ValueError(f"{file}: {name} is of {dtype}; weights must be one of {', '.join(DTYPES)}")


def student_config(teacher: PreTrainedConfig, use: Use, **changes: Any) -> MaBertConfig:
    """Makes the MaBERT configuration of a teacher's kind, with attention in every layer unless the changes differ;
    ValueError if it is not a valid one."""
    family = TEACHERS[teacher.model_type]
    fields: dict[str, Any] = {"layer_pattern": "T", "ssm_bias": True}
    fields |= {name: getattr(teacher, name) for name in COPIED if getattr(teacher, name, None) is not None}
    fields |= family.fields(teacher)
    fields["pooling"] = getattr(teacher, "classifier_pooling", "cls") if use == "classifier" else "mean"
    if use == "classifier":
        fields["pooler_act"] = family.pooler_act(teacher)
    else:
        fields["pooler_norm"] = False
    return make_config(**{**fields, **changes})


def student_of(teacher: PreTrainedModel, use: Use, **changes: Any) -> PreTrainedModel:
    """Makes a MaBERT in evaluation mode with the weights of a teacher in float32; Mamba cores, if the changes of the
    configuration ask for such layers, are initialized as in `MaBertModel`. More positions lengthen the table, see
    `lengthened`.

    Raises ValueError if the teacher lacks a weight that its kind should have.
    """
    config = student_config(teacher.config, use, **changes)
    student = class_for(use, config)(config).eval()
    there = translated(teacher, TEACHERS[teacher.config.model_type], use)
    weights = student.state_dict()
    for name in (name for name in there if name.endswith(POSITIONS)):
        there[name] = lengthened(there[name], len(weights[name]))
    for name, weight in weights.items():
        if name in there:
            weight.copy_(there[name])
        elif name.endswith((".bias", "token_type_embeddings.weight")) and ".mixer." not in name:
            weight.zero_()  # has no effect, as in the teacher, which has no such weight
        elif ".mixer." not in name:
            raise ValueError(f"{type(teacher).__name__} has no weight for {name}")
    student.load_state_dict(weights)
    return student


def translated(teacher: PreTrainedModel, family: TeacherFamily, use: Use) -> dict[str, Tensor]:
    """Returns a teacher's weights under MaBERT's names."""
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
    """Prefixes names of the encoder's modules, as they are in the whole model."""
    return tuple(within + name for name in ((ours,) if isinstance(ours, str) else ours))


@torch.no_grad()
def difference(teacher: PreTrainedModel, copy: PreTrainedModel) -> float:
    """Returns the largest difference at any token of a padded random batch between a teacher and its copy that keeps
    all layers, relative to the teacher's largest output."""
    config: Any = copy.config
    windows = [window for window in config.attention_window or () if window is not None]
    longest = min(max([24, *(3 * window for window in windows)]), config.max_position_embeddings)
    lengths = torch.tensor([longest, max(1, longest // 2), 1])
    draws = torch.Generator().manual_seed(0)
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
    """Returns the copy of a teacher that keeps all its layers, after checking that their outputs agree.

    Raises:
        ValueError: If the outputs differ: the teacher has a setting that MaBERT does not know.
    """
    copy = student_of(teacher, use)
    off = difference(teacher, copy)
    if not off <= SAME:
        raise ValueError(
            f"this {teacher.config.model_type} has a setting that cannot be converted: with every layer kept the copy "
            f"differs from it by {off:.1e} of its largest output, where rounding is below {SAME:g}"
        )
    return copy


@dataclass(frozen=True)
class Teacher:
    """A teacher that was loaded, and its copy."""

    opened: Opened
    use: Use
    reader: PreTrainedTokenizerFast  # for texts as in use: its tokenizer, after lower-casing where the folder asks so
    model: PreTrainedModel  # the teacher as transformers loads it
    copy: Any  # the MaBERT that keeps all the teacher's layers

    @classmethod
    def of(cls, named: Model) -> "Teacher":
        """Opens a teacher and checks that its copy gives the same output. Raises FileNotFoundError if there is no
        model, or it has no weights, and ValueError if it cannot be converted, or a file is damaged."""
        opened = open_teacher(named)
        use, sentences, tokenizer = use_of(opened), opened.sentences, opened.tokenizer
        reader = lowering(tokenizer) if sentences is not None and sentences.lower else tokenizer
        model = load_teacher(opened)
        return cls(opened, use, reader, model, check_copy(model, use))

    @property
    def longest(self) -> int:
        """Tokens that the teacher has positions for."""
        return self.copy.config.max_position_embeddings


def lowering(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Returns a copy of a tokenizer that puts texts in lower case first."""
    lower = copy.deepcopy(tokenizer)
    before = [own] if (own := lower.backend_tokenizer.normalizer) is not None else []
    lower.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *before])
    return lower


def weights_hash(model: PreTrainedModel) -> str:
    """Returns the SHA-256 of a model's weights: their names, shapes and numbers, whatever file they came from."""
    sha = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        sha.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        sha.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
