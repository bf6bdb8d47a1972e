"""A tiny corpus, tokenizer and recipe for the training tests."""

import atexit
import os
import random
import signal
import socket

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset
from safetensors.torch import load_file
from torch import multiprocessing
from transformers import TrainerCallback

from mabert.baselines.registry import family_named
from mabert.data.tokenizer import train_wordpiece
from mabert.files.writing import write_text
from mabert.machine.processes import context
from mabert.opening.uses import build
from mabert.train.folder import RunFolder
from mabert.train.recipe import DataRecipe, PretrainRecipe, Stage, TrainingRecipe, as_mapping
from tests.data.conftest import write_table

TEXT = (
    "the a river house bird stone light wind paper road green small old bright cold sings "
    "falls opens moves holds under over near beside through never often slowly again"
)
WORDS = TEXT.split()


def corpus(path, documents=60, seed=0):
    """Writes documents of a few sentences each, in which every word tells its neighbours; returns the path."""
    draw = random.Random(seed)
    starts = [draw.randrange(len(WORDS)) for _ in range(documents * 3)]
    sentences = [" ".join((WORDS * 2)[start : start + 9]) + "." for start in starts]
    text = "\n\n".join("\n".join(sentences[i : i + 3]) for i in range(0, len(sentences), 3))
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)  # whole, since another process may be reading it
    return path


def tokenizer():
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


def of_family(name, folder, seed=7, **changes):
    """A model of another family with random weights and its tokenizer, in a folder."""
    torch.manual_seed(seed)
    sizes = {name: value for name, value in MODEL.items() if name != "ssm_state_size"} | changes
    words, family = tokenizer(), family_named(name)
    special = family.special_ids(words.pad_token_id, words.cls_token_id, words.sep_token_id)
    build("masked_lm", family.config_of(sizes, vocab_size=len(words), **special)).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def rows(count, seed, labelled=True):
    """Texts that hold the word `bird` or not."""
    draw = np.random.default_rng(seed)
    plain = [word for word in WORDS if word != "bird"]
    texts, labels = [], []
    for number in range(count):
        words = list(draw.choice(plain, size=draw.integers(3, 9)))
        if number % 2:
            words[draw.integers(len(words))] = "bird"
        texts.append(" ".join(words))
        labels.append(number % 2)
    columns = {"text_a": texts, "index": list(range(count))}
    return Dataset.from_dict(columns | ({"label": labels} if labelled else {}))


def weights(folder):
    return load_file(folder / "model.safetensors")


def same_weights(a, b):
    a, b = weights(a), weights(b)
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert torch.equal(value, b[name]), name


def in_two(function, *arguments):
    """Runs a function in two processes with torchrun's variables, forked from one that has done the imports."""
    context("mabert_lab.study.work")
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    multiprocessing.start_processes(one_of_two, (port, function, arguments), 2, start_method="forkserver")


def one_of_two(rank, port, function, arguments):
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in told.items()})
    torch.set_num_threads(1)
    function(*arguments)


def on(event, do):
    """A callback that does something at each event of a name, with what Trainer knows then by name."""

    def called(self, args, state, control, **known):
        do(args=args, state=state, **known)

    return type("On", (TrainerCallback,), {event: called})()


class At(TrainerCallback):
    """Does something to the model as a step begins, once; steps count from 0."""

    def __init__(self, step, what):
        self.step, self.what = step, what

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.step:
            self.step = None
            with torch.no_grad():
                self.what(model)


def interrupt(model=None):
    """Sends what Ctrl-C sends."""
    os.kill(os.getpid(), signal.SIGINT)


def kill(model=None):
    """Ends a run as a kill does."""
    raise SystemError("killed")


def stop_at(step):
    """Ctrl-C during one step."""
    return At(step, interrupt)


def kill_at(step):
    """A kill during one step."""
    return At(step, kill)


def too_much(*given, **more):
    """A forward that needs more memory than there is."""
    raise torch.OutOfMemoryError("CUDA out of memory")


def must_part() -> None:
    """Has a process fail that is still connected with others when the interpreter ends."""
    atexit.register(lambda: torch.distributed.is_initialized() and os._exit(3))


def claim(place):
    """Claims the folder of a run, as a process does that resumes it, and gives it up again."""
    with RunFolder(place, resume=True) as another:
        another.claim({})


def check_claimed(monkeypatch):
    """Has every run check that no other may claim its folder, before it writes its result."""
    write = RunFolder.write_result

    def checked(run, *given, **about):
        with pytest.raises(ValueError, match="another process is running there"):
            claim(run.path)
        return write(run, *given, **about)

    monkeypatch.setattr(RunFolder, "write_result", checked)


def training_commands(folder):
    """The words of `mabert pretrain` and `mabert finetune` on what they write to a folder first."""
    plan = as_mapping(recipe(folder)) | {"tokenizer": str(folder / "model")}
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    of_family("mabert", folder / "model")
    write_table(folder / "table.csv", [{"text": f"the {word} sings", "label": word} for word in ("bird", "wind") * 20])
    output = ["-o", str(folder / "run")]
    return {
        "pretrain": ["pretrain", str(folder / "plan.yaml"), *output],
        "finetune": ["finetune", str(folder / "model"), "--train", str(folder / "table.csv"), *output],
    }
