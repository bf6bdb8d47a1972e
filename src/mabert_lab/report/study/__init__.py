"""Studies of many runs beside the paper's tables."""
