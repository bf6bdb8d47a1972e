"""Folders and files: finds models, reads users' files, writes so that nothing on the disk is lost."""
