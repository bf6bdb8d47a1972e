from __future__ import annotations

import random
from pathlib import Path

import pytest

from mabert.data.train_tokenizer import train_wordpiece

NOUNS = ["river", "castle", "engine", "window", "teacher", "garden", "village", "doctor", "captain", "mountain"]
VERBS = ["carried", "followed", "painted", "opened", "repaired", "visited", "measured", "remembered", "crossed"]
ADJECTIVES = ["quiet", "ancient", "narrow", "bright", "heavy", "forgotten", "careful", "northern", "broken", "golden"]


def sentence(rng: random.Random) -> str:
    return f"The {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} {rng.choice(VERBS)} the {rng.choice(NOUNS)}."


def document(rng: random.Random, paragraphs: int = 3) -> str:
    return "\n".join(" ".join(sentence(rng) for _ in range(rng.randint(1, 6))) for _ in range(paragraphs))


@pytest.fixture(scope="session")
def documents() -> list[str]:
    rng = random.Random(7)
    return [document(rng, rng.randint(1, 5)) for _ in range(60)]


@pytest.fixture(scope="session")
def tokenizer(documents):
    return train_wordpiece(documents, 130)


@pytest.fixture(scope="session")
def text_file(documents, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path
