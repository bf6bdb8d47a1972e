"""What MkDocs does beside its configuration."""


def on_page_markdown(markdown: str, **_: object) -> str:
    """Has Markdown read inside of a fold, as GitHub reads it; `md_in_html` wants to be asked."""
    return markdown.replace("<details>", "<details markdown>\n")
