"""Studies: questions about the model, answered by many runs and recorded as JSON for the report."""
