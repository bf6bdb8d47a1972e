"""The model card of a student: teacher, method, text, agreement and licence."""

import re
from pathlib import Path
from typing import Any

import yaml

from mabert import __version__
from mabert.conversion.agreement import texts_of
from mabert.files.places import CARD, PACKAGES
from mabert.files.yaml import parse_yaml

ASKED = {
    "encoder": 'vectors = model.embed(["A text.", "Another one."])',
    "masked_lm": 'guesses = model.fill_mask(["A text with a [MASK] in it."])  # or <mask>, as its tokenizer has it',
    "classifier": 'labels = model.predict(["A text.", "Another one."])',
}
"""Example call in the card for each use of a model."""

WITHOUT_TEACHER = " This folder holds the cores alone: whoever opens it needs the teacher too."

FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)


def card(teacher: str | Path, request: dict[str, Any], outcome: dict[str, Any]) -> str:
    """Writes the card of a conversion, of its teacher's folder, its request and its outcome."""
    known = PACKAGES.get(request["teacher"])
    licences = licences_of(teacher) or ([] if known is None else [known.licence])
    front: dict[str, Any] = {"library_name": "mabert", "base_model": request["teacher"]}
    if licences:
        front["license"] = licences if len(licences) > 1 else licences[0]
    if outcome["use"] == "encoder":
        front |= {"pipeline_tag": "sentence-similarity", "tags": ["sentence-transformers", "mabert"]}
    letters = outcome["pattern"]
    learnt = sum(stage["tokens"] for stage in outcome["stages"].values())
    rows = "\n".join(
        f"| {band} | {numbers['texts']} | {cells(numbers['student'])} | {cells(numbers['floor'])} |"
        for band, numbers in outcome["agreement"]["bands"].items()
    )
    return f"""---
{yaml.safe_dump(front, sort_keys=False).strip()}
---

# {request["teacher"]}, converted to a MaBERT

`mabert convert` {__version__} made this model from **{request["teacher"]}**. Of its {len(letters)} attention layers
{letters.count("M")} became Mamba cores ({request["direction"]}): the schedule is `{letters}`. Everything else is the
teacher's. The cores learnt, from {learnt:,} tokens without labels, to say what the teacher says. The text was
{", ".join(f"`{named(text)}`" for text in request["texts"])}.{WITHOUT_TEACHER if request["delta"] else ""}

Licence of the teacher: {", ".join(licences) or "its folder does not say; find out before you pass this model on"}.

## Agreement with the teacher

Held-out texts, grouped by length. `cosine` compares the two models' vectors of a text (mean / tenth percentile);
`neighbour` is the share of texts whose nearest other text is the same. The floor is the teacher with
the attention of the converted layers held at its mean.{longer_texts(request, outcome)}{answers(outcome)}

| tokens | texts | cosine | neighbour | floor: cosine | neighbour |
|---|---|---|---|---|---|
{rows}

## Use

```python
import mabert

model = mabert.load("path/of/this/folder")
{ASKED[outcome["use"]]}
```
"""


def answers(outcome: dict[str, Any]) -> str:
    """Says how often a model with a head answers as its teacher does; empty for an encoder."""
    shares = {band: each["student"].get("answers") for band, each in outcome["agreement"]["bands"].items()}
    if None in shares.values():
        return ""
    bands = ", ".join(f"{share:.3f} of {texts_of(band)}" for band, share in shares.items())
    return f"\n\nThe same answer (of a regression, the correlation; of masks, by token): {bands}."


def named(text: str) -> str:
    """Returns a source of text as a card names it: a card is for others, who need no path of this machine."""
    return text if text.startswith("hub:") else Path(text).name


def longer_texts(request: dict[str, Any], outcome: dict[str, Any]) -> str:
    """Says how texts beyond the teacher's length were compared; empty if there are none."""
    if request["length"] <= outcome["teacher_reads"]:
        return ""
    reads = outcome["teacher_reads"]
    return (
        f" The student reads {request['length']:,} tokens. Texts of more than {reads:,}\n"
        f"are compared with the mean over the teacher's windows of {reads:,} tokens."
    )


def cells(numbers: dict[str, float]) -> str:
    """Formats cosine and neighbours as two cells of a table."""
    return f"{numbers['cosine']:.3f} / {numbers['cosine_p10']:.3f} | {numbers['neighbours']:.3f}"


def licences_of(teacher: str | Path) -> list[str]:
    """Returns the licences in a folder's model card; empty if it names none."""
    file = Path(teacher) / CARD
    front = FRONT.match(file.read_text(encoding="utf-8", errors="replace")) if file.is_file() else None
    if front is None:
        return []
    try:
        said = parse_yaml(front[1], str(file))
    except ValueError:
        return []
    licence = said.get("license") if isinstance(said, dict) else None
    if isinstance(licence, str):
        return [licence]
    return [str(each) for each in licence] if isinstance(licence, list) else []
