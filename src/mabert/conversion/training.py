"""Losses of both stages, and their training: transformers' Trainer over packed rows of pieces."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from mabert.conversion.pieces import Pieces
from mabert.conversion.resolve import ConversionRun
from mabert.conversion.watch import attention_of, hidden_states_of, packing_of, pooled, unexplained
from mabert.conversion.windows import windows_of
from mabert.data import LabelKind
from mabert.data.batches import TokenBudgetSampler
from mabert.model.masking import PaddingMask
from mabert.opening.uses import Use, kind_of_labels
from mabert.train.checkpoint import checkpoint_to_resume
from mabert.train.folder import UNFINISHED
from mabert.train.trainer import MaBertTrainer, training_arguments


class Alignment(nn.Module):
    """The cores of a student as one module, whose forward returns their distance from the attention of its teacher, an
    encoder that keeps all its layers and reads texts beyond its positions in windows.

    Layers are independent here: no gradient goes through the stack, which makes a step cheap.
    """

    def __init__(self, teacher: Any, student: Any) -> None:
        super().__init__()
        self.mixers = nn.ModuleDict(
            {str(layer): block.mixer for layer, block in enumerate(student.layers) if hasattr(block, "mixer")}
        )
        self._teacher = [teacher.eval()]  # the list keeps it from being a submodule, which is trained and saved

    def forward(self, **row: Any) -> Tensor:
        """Returns the unexplained variance of the attention's output for each converted layer, (cores,); takes a
        `PackedRow`, of which labels are ignored."""
        (teacher,) = self._teacher
        row.pop("labels", None)
        windows = windows_of(row, teacher.config.max_position_embeddings)
        seen = attention_of(teacher, windows.row, [int(layer) for layer in self.mixers])
        mask = PaddingMask(None, "exact", packing_of(row))
        losses = []
        for layer, mixer in self.mixers.items():
            read, wanted = map(windows.of_tokens, seen[int(layer)])
            losses.append(unexplained(mixer(read, mask)[0], wanted))
        return torch.stack(losses)


VECTOR, RELATIONS, ANSWERS = 10.0, 10.0, 1.0
"""Weights of the losses of vectors, their products, and a head's answers, relative to that of hidden states."""


class Distillation(nn.Module):
    """A student as a module whose forward returns its distance from its teacher, the copy that keeps all layers and
    reads texts beyond its positions in windows. Both have a head of the same kind.

    Besides hidden states, the losses compare an embedder's vectors, a classifier's logits or a masked language model's
    logits at masked tokens.
    """

    def __init__(self, teacher: Any, student: Any, use: Use) -> None:
        super().__init__()
        self.student, self.use = student, use
        self._teacher = [teacher.eval()]  # the list keeps it from being a submodule, which is trained and saved
        for model in (teacher, student):
            model.config.sparse_prediction = True

    def train(self, mode: bool = True) -> "Distillation":
        """Keeps dropout off: with dropout that the teacher lacks, a student cannot match it."""
        return super().train(False)

    def forward(self, **row: Any) -> Tensor:
        """Returns the losses on a `PackedRow`: unexplained variance of hidden states, mean over layers, then those of
        the use."""
        (teacher,) = self._teacher
        windows = windows_of(row, teacher.config.max_position_embeddings)
        with torch.no_grad(), hidden_states_of(teacher.base_model) as seen:
            wanted = teacher(**windows.row)
        theirs = [windows.of_tokens(hidden) for hidden in seen]
        with hidden_states_of(self.student.base_model) as ours:
            given = self.student(**row)
        losses = [torch.stack([unexplained(*pair) for pair in zip(ours, theirs, strict=True)]).mean()]
        if self.use == "encoder":
            packing, pooling = packing_of(row), self.student.config.pooling
            ends = (pooled(last.float(), packing, pooling) for last in (ours[-1], theirs[-1]))
            mine, end = (functional.normalize(vectors, dim=-1) for vectors in ends)
            losses.append(VECTOR * (1 - (mine * end).sum(1)).mean())
            losses.append(RELATIONS * (mine @ mine.T - end @ end.T).square().mean())
        else:
            # A masked language model's rows are the tokens with labels, which are in the same order for both.
            end = windows.of_texts(wanted.logits) if self.use == "classifier" else wanted.logits
            kind = kind_of_labels(teacher.config) if self.use == "classifier" else "classification"
            losses.append(ANSWERS * divergence(given.logits.float(), end.float(), kind))
        return torch.stack(losses)


def divergence(given: Tensor, wanted: Tensor, kind: LabelKind = "classification") -> Tensor:
    """Returns the KL divergence of student's and teacher's logits (rows, classes), mean over rows. If a text may have
    `several` labels, each class is a question of its own; for a `regression`, it is the squared error."""
    if kind == "several":
        likely = wanted.sigmoid()
        mine, least = (
            functional.binary_cross_entropy_with_logits(x, likely, reduction="none") for x in (given, wanted)
        )
        return (mine - least).sum(-1).mean()
    if kind == "regression":
        return (given - wanted).square().mean()
    return functional.kl_div(given.log_softmax(-1), wanted.log_softmax(-1), reduction="batchmean", log_target=True)


CHECKPOINT = "model.safetensors"


class ConversionTrainer(MaBertTrainer):
    """Trains a module whose forward returns losses, which it sums."""

    smaller = "a smaller --batch-tokens or --length helps"
    save_seconds = 120.0

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.parts: list[Tensor] = []

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        losses = model(**inputs)
        self.parts.append(losses.detach())
        return losses.sum()

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        if "loss" in logs and self.parts:
            logs["parts"] = " ".join(f"{part:.3f}" for part in torch.stack(self.parts).mean(0).tolist())
            self.parts.clear()
        super().log(logs, start_time)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            trained = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
            save_file({name: weight.detach().contiguous() for name, weight in trained.items()}, folder / CHECKPOINT)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        # Trainer's own method would report the frozen weights, which are not saved, as missing.
        self.model.load_state_dict(load_file(Path(resume_from_checkpoint) / CHECKPOINT), strict=False)


def train(
    run: ConversionRun, stage: str, title: str, module: nn.Module, pieces: Pieces, collate: Any, rate: float
) -> dict[str, Any]:
    """Trains one stage to its end, from the start or a checkpoint; errors are those of `MaBertTrainer.train`.

    `stage` names the folder for its checkpoints, and `title` its bar. The module's parameters that require gradients
    are trained at the peak learning rate `rate`; each piece is read once, in rows that `collate` packs. Returns
    `steps`, `tokens`, `seconds` and the `history` of losses.
    """
    asked, processes, folder = run.recipe, run.processes.num_processes, run.folder.path / UNFINISHED / stage
    lengths, each = pieces.lengths, max(1, asked.batch_tokens // processes)
    sampler = TokenBudgetSampler(lengths, each, seed=asked.seed, processes=processes)
    taken = [sum(lengths[index] for index in batch) for batch in sampler]
    steps = len(taken) // processes
    arguments = training_arguments(
        folder,
        run.precision == "bf16",
        max_steps=steps,
        learning_rate=rate,
        warmup_steps=steps // 20,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.1},
        adam_beta2=0.98,
        weight_decay=0.01,
        seed=asked.seed,
        logging_steps=25,
        ddp_find_unused_parameters=False,
    )
    trainer = ConversionTrainer(
        model=module,
        args=arguments,
        data_collator=collate,
        train_dataset=pieces,
        title=title if run.progress else None,
        step_tokens=[sum(taken[step * processes : (step + 1) * processes]) for step in range(steps)],
        batches=sampler,
    )
    trainer.train(checkpoint_to_resume(folder) if run.folder.resume else None)
    seconds = round(trainer.stopwatch.seconds, 1)
    return {"steps": steps, "tokens": sum(taken), "seconds": seconds, "history": trainer.history}
