"""One door: a model that a person names becomes one value that everything else asks."""
