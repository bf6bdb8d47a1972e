"""Measures how far padding moves a text's vector under every masking: the paper's two cosine-distance figures.

A text is run alone and again with P positions of padding; the distance of the two vectors is the effect of padding. The
figures are labelled cola_cosdist_padlen and cola_cosdist_decomp in the paper. It measures "the final-layer [CLS]
embedding" and "the mean of non-padding token embeddings"; it does not say on which side the padding is, or whether
attention sees it, so we measure all cases.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mabert.conversion.teacher import weights_hash
from mabert.files.reading import key_of, read_json_if_there
from mabert.files.writing import write_json
from mabert.machine.environment import environment
from mabert.machine.progress import Bar
from mabert.model import MaBertConfig, MaBertModel
from mabert.model.mamba import DIRECTIONS
from mabert.model.pooling import first_token, mean_of_tokens
from mabert.schema import Masking
from mabert_lab.bench.results import measured_on

MASKINGS = (*get_args(Masking), "unpadded")
SIDES = ("right", "left")
ATTENTIONS = ("masked", "unmasked")
CONV_MODES = ("causal", "centered")
LENGTHS = (0, 8, 32, 128, 512, 1024)
VECTORS = {"cls": first_token, "mean": mean_of_tokens}

_OPEN = "sdpa_without_mask"


@dataclass(frozen=True)
class Regime:
    """One way to run a padded text."""

    weights: str  # `trained`, the model's own; or `random`, initialised
    direction: str  # of the scan
    conv: str  # `causal` or `centered`
    side: str  # of the padding
    attention: str  # `masked`, or `unmasked`: attention sees padding too
    masking: str  # one of `MASKINGS`


def drift(
    model: MaBertModel,
    texts: Sequence[Sequence[int]],
    pad_id: int,
    lengths: Sequence[int] = LENGTHS,
    random: bool = True,
    unfinished: Path | None = None,
) -> dict[str, Any]:
    """Measures the drift of texts, the token ids of each with [CLS] and [SEP], under padding to so many positions, in
    every regime, on the model's device. The trained weights run in their own direction and convolution mode; random
    weights of the same sizes run in all, if asked for, which takes six times as long. The file `unfinished`, see
    `unfinished_file`, keeps each row once it is measured, and gives those of a call that was stopped. The ``rows`` of
    the result have the fields of `Regime`, and under ``cls`` and ``mean`` the mean cosine distance at each length."""
    if not texts:
        raise ValueError("there are no texts to pad")
    if unfinished:
        unfinished.parent.mkdir(parents=True, exist_ok=True)
    # Batches of texts of the same length have no padding but the one under study.
    same = itertools.groupby(sorted(texts, key=len), key=len)
    groups = [torch.tensor(list(group), device=model.device) for _, group in same]
    kept = (read_json_if_there(unfinished) or {"rows": []})["rows"] if unfinished else []
    measured = {Regime(*(row[name] for name in Regime.__annotations__)): row for row in kept}
    rows = []
    builds = 1 + random * len(DIRECTIONS) * len(CONV_MODES)
    with Bar("regimes", builds * len(MASKINGS) * len(SIDES) * len(ATTENTIONS)) as bar:
        for weights, built in _builds(model, random):
            with torch.inference_mode():
                alone = [_vectors(built, ids, None) for ids in groups]
                for case in itertools.product(SIDES, ATTENTIONS, MASKINGS):
                    regime = Regime(weights, built.config.ssm_direction, built.config.ssm_conv_mode, *case)
                    if regime in measured:
                        rows.append(measured[regime])
                    else:
                        rows.append(asdict(regime) | _curves(built, regime, groups, alone, pad_id, lengths))
                        if unfinished:
                            write_json(unfinished, {"rows": rows})
                    bar.add(1)
    return {
        "kind": "drift",
        "environment": measured_on(),
        "config": model.config.to_diff_dict(),
        "texts": len(texts),
        "lengths": list(lengths),
        "rows": rows,
    }


def unfinished_file(
    folder: Path, model: MaBertModel, texts: Sequence[Sequence[int]], pad_id: int, lengths: Sequence[int], random: bool
) -> Path:
    """Returns the file that keeps the rows of `drift` with these arguments, on this machine with these versions."""
    here = {name: value for name, value in environment().items() if name != "load_average"}
    about = [model.config.to_dict(), weights_hash(model), texts, pad_id, lengths, random, here]
    name = key_of(about, 12, default=str)
    return folder / f"unfinished-drift-{name}.json"


def _builds(model: MaBertModel, random: bool) -> Iterator[tuple[str, MaBertModel]]:
    """Yields the trained model, then, if asked, one with random weights for each direction and convolution mode."""
    cases: list[tuple[str, ...]] = [("trained", model.config.ssm_direction, model.config.ssm_conv_mode)]
    if random:
        cases += itertools.product(["random"], DIRECTIONS, CONV_MODES)
    for weights, direction, conv in cases:
        fields = model.config.to_dict() | {"ssm_direction": direction, "ssm_conv_mode": conv}
        torch.manual_seed(0)
        built = MaBertModel(MaBertConfig(**fields)).eval()
        if weights == "trained":
            built.load_state_dict(model.state_dict())
        yield weights, built.to(model.device)


def _curves(
    model: MaBertModel, regime: Regime, groups: list[Tensor], alone: list[dict[str, Tensor]], pad_id: int, lengths: Any
) -> dict[str, list[float]]:
    unpadded = regime.masking == "unpadded"
    model.config.padding_safe_masking = "exact" if unpadded else regime.masking  # type: ignore[assignment]
    model.config.unpad = "auto" if unpadded else "never"
    model.config._attn_implementation = "sdpa" if regime.attention == "masked" else _OPEN
    curves: dict[str, list[float]] = {name: [] for name in VECTORS}
    for length in lengths:
        padded = [_vectors(model, *_pad(ids, length, regime.side, pad_id)) for ids in groups]
        for name, curve in curves.items():
            far = [cosine_distance(one[name], other[name]) for one, other in zip(padded, alone, strict=True)]
            curve.append(torch.cat(far).mean().item())
    return curves


def _pad(ids: Tensor, length: int, side: str, pad_id: int) -> tuple[Tensor, Tensor]:
    padding = ids.new_full((len(ids), length), pad_id)
    parts, marks = [ids, padding], [torch.ones_like(ids), torch.zeros_like(padding)]
    order = slice(None) if side == "right" else slice(None, None, -1)
    return torch.cat(parts[order], dim=1), torch.cat(marks[order], dim=1)


def _vectors(model: MaBertModel, ids: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """Runs texts of one length; returns each kind of vector, (texts, D)."""
    at_once = max(1, 16384 // ids.shape[1])  # tokens of a batch, padding included
    found: dict[str, list[Tensor]] = {name: [] for name in VECTORS}
    for first in range(0, len(ids), at_once):
        valid = None if mask is None else mask[first : first + at_once]
        hidden = model(ids[first : first + at_once], valid).last_hidden_state
        for name, pool in VECTORS.items():
            found[name].append(pool(hidden, None if valid is None else valid != 0))
    return {name: torch.cat(parts) for name, parts in found.items()}


def cosine_distance(a: Tensor, b: Tensor) -> Tensor:
    """Returns 1 - cos of each pair of rows, float64 ``(rows,)``, as half the squared distance of the unit vectors:
    computed directly it loses everything below 1e-16, which shows as noise between equal vectors."""
    units = [nn.functional.normalize(x.double(), dim=-1) for x in (a, b)]
    return (units[0] - units[1]).square().sum(dim=-1) / 2


def _attend_without_mask(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _: Any, **options: Any) -> Any:
    return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, None, **options)


ALL_ATTENTION_FUNCTIONS.register(_OPEN, _attend_without_mask)
AttentionMaskInterface.register(_OPEN, lambda *_, **__: None)
