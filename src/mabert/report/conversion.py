"""What came out of a conversion: lines for a terminal, and one page."""

from collections.abc import Iterator
from typing import Any

from mabert.report.page import page, table


def lines(result: dict[str, Any]) -> Iterator[str]:
    """The agreement with the teacher, a line a band of lengths."""
    for band, told in result["outcome"]["agreement"]["bands"].items():
        student, floor = told["student"], told["floor"]
        yield (
            f"texts of {band} tokens: cosine to the teacher {student['cosine']:.3f} (floor {floor['cosine']:.3f}), "
            f"nearest neighbour found {student['neighbours']:.0%} (floor {floor['neighbours']:.0%})"
        )


def render(result: dict[str, Any]) -> str:
    """The result as one self-contained page."""
    return page(f"{result['request']['teacher']}, converted", [table(("",), [[line] for line in lines(result)])])
