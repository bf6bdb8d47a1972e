"""Conversion: the encoder that a person has becomes a MaBERT."""
