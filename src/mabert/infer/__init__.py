"""Using a model: vectors, labels and filled masks for texts; what a model folder holds."""
