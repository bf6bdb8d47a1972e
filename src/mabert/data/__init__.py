"""Text in, batches out: corpora, tokenizers, the token cache, masked language modelling, GLUE and tables."""
