"""Folders and files: finding models, reading what people give, writing so that nothing on the disk is lost."""
