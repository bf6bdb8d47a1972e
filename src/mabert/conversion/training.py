"""Training of both stages: transformers' Trainer over packed rows of pieces."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mabert.conversion.pieces import Pieces
from mabert.conversion.resolve import ConversionRun
from mabert.data.batches import TokenBudgetSampler
from mabert.train.checkpoint import checkpoint_to_resume
from mabert.train.folder import UNFINISHED
from mabert.train.trainer import MaBertTrainer, training_arguments

WEIGHTS = "model.safetensors"


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
            save_file({name: weight.detach().contiguous() for name, weight in trained.items()}, folder / WEIGHTS)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        # Trainer's own method would report the frozen weights, which are not saved, as missing.
        self.model.load_state_dict(load_file(Path(resume_from_checkpoint) / WEIGHTS), strict=False)


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
