"""Text in, batches out: corpora, tokenizers, the token cache, masked language modelling, GLUE and tables."""

TOKENS_A_BATCH = 8192
"""Padded tokens a batch holds at most, unless one text alone is longer."""
