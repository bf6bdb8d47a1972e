"""MaBERT and the encoders it is compared with, as families that every command takes."""
