"""Measures whether padding moves a token's vector."""

from pathlib import Path
from typing import Any

import torch

from mabert.opening.opened import open_model

PADDINGS = (0, 1, 8, 32, 128)
UNPADDED = "unpadded"
REGIMES = (UNPADDED, "exact", "pre+post", "none")


@torch.inference_mode()
def padding_drift(folder: Path, text: str) -> list[dict[str, Any]]:
    """Returns the largest change of any token vector when a text is padded, by masking and side.

    The model runs in float32: `unpadded`, its default, and with padding under three maskings; most state-space encoders
    use `none`.
    """
    opened = open_model(folder)
    tokenizer = opened.tokenizer
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    rows = []
    for regime in REGIMES:
        masking = {"unpad": "auto"} if regime == UNPADDED else {"unpad": "never", "padding_safe_masking": regime}
        model = opened.changed(**masking).plain("encoder")
        alone = model(ids).last_hidden_state
        for side in ("left", "right"):
            for padding in PADDINGS:
                empty = torch.full((1, padding), tokenizer.pad_token_id)
                parts = (empty, ids) if side == "left" else (ids, empty)
                mask = torch.cat([torch.ones_like(part) * (part is ids) for part in parts], dim=1)
                out = model(torch.cat(parts, dim=1), mask).last_hidden_state
                start = padding if side == "left" else 0
                moved = (out[:, start : start + ids.shape[1]] - alone).abs().max().item()
                rows.append({"masking": regime, "side": side, "padding": padding, "moved": moved})
    return rows
