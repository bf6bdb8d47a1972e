"""What recipes, configurations, options and benchmarks take: each range is declared once, and pydantic checks it.

Importing this package does not import pydantic, so that `--help` stays fast; the first check does.
"""
