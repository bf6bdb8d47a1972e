"""What a page would fetch, and the cells of its tables."""

import re

NAMESPACES = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink")
FETCHED = re.compile(r"""(?:src|href)\s*=\s*["'](?!#)|url\((?!#)|@import|<link|<iframe|http""")


def fetched(page):
    """Every link and import of a page that leads out of it; empty for a page that is whole by itself."""
    for name in NAMESPACES:
        page = page.replace(name, "")
    return FETCHED.findall(page)


def cells(page, kind="td"):
    """The contents of all cells of a page's tables, or of their heads (th)."""
    return re.findall(rf"<{kind}[^>]*>(.*?)</{kind}>", page)
