"""Text in, batches out: corpora, tokenizers, the token cache, masked language modelling, GLUE and tables."""

from typing import Literal

GLUE = "hub:nyu-mll/glue"
"""GLUE on the hub."""

LabelKind = Literal["classification", "regression", "several", "tokens", "answers"]
"""Kinds of labels: a class, a number, several classes, a tag for each token, or an answer in the text."""

WindowKind = Literal["packed", "document"]
"""Whether a window may hold several documents or only one."""

TOKENS_A_BATCH = 8192
"""Padded tokens a batch holds at most, unless one text alone is longer."""
