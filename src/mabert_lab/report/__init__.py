"""Figures and pages of results, without torch.

Importing any part of `mabert` registers its models, which loads torch unless the command line started the process. So
modules here import from `mabert` only inside functions that read or write files.
"""
