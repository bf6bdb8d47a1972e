"""A tiny corpus, tokenizer and recipe for the training tests."""

import atexit
import os
import random
import signal

import torch
from transformers import TrainerCallback

from mabert.data.train_tokenizer import train_wordpiece
from mabert.train.recipe import DataRecipe, PretrainRecipe, Stage, TrainingRecipe

WORDS = [
    "the",
    "a",
    "river",
    "house",
    "bird",
    "stone",
    "light",
    "wind",
    "paper",
    "road",
    "green",
    "small",
    "old",
    "bright",
    "cold",
    "sings",
    "falls",
    "opens",
    "moves",
    "holds",
    "under",
    "over",
    "near",
    "beside",
    "through",
    "never",
    "often",
    "slowly",
    "again",
]


def corpus(path, documents=60, seed=0):
    """Writes documents of a few sentences each, in which every word tells its neighbours; returns the path."""
    draw = random.Random(seed)
    starts = [draw.randrange(len(WORDS)) for _ in range(documents * 3)]
    sentences = [" ".join((WORDS * 2)[start : start + 9]) + "." for start in starts]
    text = "\n\n".join("\n".join(sentences[i : i + 3]) for i in range(0, len(sentences), 3))
    path.write_text(text, encoding="utf-8")
    return path


def tokenizer():
    """A WordPiece tokenizer for those words."""
    return train_wordpiece([" ".join(WORDS) + "."] * 5, 120)


MODEL = {
    "layer_pattern": "MT",
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "ssm_state_size": 4,
    "max_position_embeddings": 24,
}

TRAINING = {
    "steps": 12,
    "batch_size": 8,
    "micro_batch_size": 4,
    "learning_rate": 1e-2,
    "warmup_steps": 2,
    "eval_windows": 4,
    "save_steps": 4,
    "precision": "fp32",
}


def recipe(folder, **training):
    """Twelve steps through two lengths, with dropout, so that the state of the generators matters."""
    return PretrainRecipe(
        model=dict(MODEL),
        data=DataRecipe(sources=[str(corpus(folder / "text.txt"))], cache=str(folder / "cache"), held_out=0.1),
        stages=[Stage(12, 0.75), Stage(24, 0.25)],
        training=TrainingRecipe(**{**TRAINING, "log_steps": 2, "eval_steps": 6, **training}),
    )


def must_part() -> None:
    """Has a process fail that is still connected with others when the interpreter ends."""
    atexit.register(lambda: torch.distributed.is_initialized() and os._exit(3))


class StopAt(TrainerCallback):
    """Sends what Ctrl-C sends, during one step."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


class KillAt(TrainerCallback):
    """Ends a run as a kill does, during one step."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise SystemError("killed")
