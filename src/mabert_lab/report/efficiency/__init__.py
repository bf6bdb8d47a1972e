"""The paper's efficiency tables and figure, measured here, beside the paper's own."""
