"""What the documents show as code runs, and shows what they say."""

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_smallest_example_of_the_leak():
    (program,) = re.findall(r"```python\n(.*?)```", (DOCS / "padding.md").read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    moved = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    none, papers, exact, unpadded = moved
    assert none > 1e-2 > papers > 1e-5 > exact
    assert unpadded < 1e-5
