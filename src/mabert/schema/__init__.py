"""What recipes, configurations, options and benchmarks take: each range is declared once, and pydantic checks it.

Importing this package does not import pydantic, so that `--help` stays fast; the first check does.
"""

from typing import Literal

Masking = Literal["none", "pre", "post", "pre+post", "exact"]
"""Which inputs of a Mamba layer padding is masked in, see `mabert.model.masking`."""

Pooling = Literal["map", "attention", "cls", "mean"]
"""How a head makes one vector of a text's token vectors, see `mabert.model.pooling`."""

IGNORED = -100
"""Label of positions that are not scored."""

SCORED = "scored_positions"
"""The places of a batch's labels in the flattened batch, int64 (scored positions,)."""

ON_HOST = "cu_seq_lens_host"
"""The offsets of a packed row as a tuple of numbers, which `FlatteningCollator` adds to the batch. On a GPU the model
reads it in place of the tensors, so that it need not wait for the GPU."""

SEVERAL = "multi_label_classification"
"""`problem_type` of a classifier whose texts may have several labels."""
