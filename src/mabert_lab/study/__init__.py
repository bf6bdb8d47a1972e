"""Studies: questions about the model, answered by many runs of it, left as JSON for the report."""
