"""Resolves a recipe into one value, which everything after it asks, before a pretraining begins."""

import dataclasses
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast, TrainingArguments, set_seed

from mabert.baselines.family import Family
from mabert.data.cache import IDS, build_cache
from mabert.data.corpus import Source, Sources
from mabert.data.mlm import MlmMasking, PretrainingStream, ValidationSet, Windows
from mabert.data.tokenizer import fingerprint, load_tokenizer, trained_tokenizer
from mabert.files.reading import digest
from mabert.machine.environment import check_reporters, resolve_precision, warn_of_emulation
from mabert.machine.memory import TRAINING_BYTES, check_fits, parameters_of, step_bytes
from mabert.opening.opened import Opened, open_model
from mabert.opening.uses import build, class_for, compile_layers
from mabert.schema import IGNORED
from mabert.train.checkpoint import checkpoint_to_resume, drop_damaged
from mabert.train.folder import RunFolder
from mabert.train.recipe import PretrainRecipe, as_mapping
from mabert.train.trainer import training_arguments

logger = logging.getLogger(__name__)

FREE = (
    "training.micro_batch_size",
    "training.workers",
    "training.log_steps",
    "training.eval_steps",
    "training.eval_windows",
    "training.save_steps",
    "training.keep_checkpoints",
    "training.gradient_checkpointing",
    "training.packing",
    "training.compile",
    "training.report_to",
    "data.cache",
    "resolved.processes",
)
"""Fields that a resumed run may change: they split the work and do not change what is learnt (except dropout draws)."""

TRAINED = "trained"
"""First word of the origin of a tokenizer that was trained on a run's text."""

FEW_SCORED = 300
"""Held-out tokens to be guessed below which an accuracy may be off by five points and more."""


Stages = list[tuple[int, int]]
"""Tokens of a window and number of steps, by stage."""


class PretrainData(NamedTuple):
    """What a run learns from, and what is held out."""

    stream: PretrainingStream  # all samples in order
    validation: ValidationSet  # windows with fixed masks, at the length of the first stage
    counts: dict[str, int]  # of tokens, for the record
    corpus: str  # a digest of the tokens, by which a resumed run checks its text
    vocabulary: str  # the tokenizer's fingerprint


@dataclass(frozen=True)
class PretrainRun:
    """A pretraining that may begin: its folder is claimed, and nothing about it is decided later."""

    recipe: PretrainRecipe
    folder: RunFolder
    arguments: TrainingArguments
    stages: Stages
    family: Family
    tokenizer: PreTrainedTokenizerFast
    model: PreTrainedModel
    data: PretrainData
    checkpoint: Path | None  # where the run goes on from
    result: dict[str, Any] | None  # if the run was finished before


def resolve(
    recipe: PretrainRecipe,
    folder: RunFolder,
    *,
    resume_from: str | None,
    tokenizer: PreTrainedTokenizerFast | None,
    progress: bool,
) -> PretrainRun:
    """Resolves a recipe and claims its folder; errors and the other arguments are those of `pretrain`."""
    training, family, request = recipe.training, recipe.family, as_mapping(recipe)
    stages, sources = recipe.steps_by_length(), recipe.data.readable()
    check_reporters(training.report_to)
    warn_of_emulation(training.precision)
    bf16 = resolve_precision(training.precision) == "bf16"
    arguments = arguments_of(recipe, folder.path, bf16)
    if arguments.should_save:
        folder.check(request)
    result = folder.result()
    checkpoint = checkpoint_to_resume(folder.path, resume_from) if folder.resume and result is None else None
    opened = None if recipe.start_from is None else open_model(recipe.start_from)
    origin = "given by the caller"
    if tokenizer is None and recipe.tokenizer is None and opened is not None:
        tokenizer, origin = opened.tokenizer, str(opened.place)
    elif tokenizer is None:
        before = folder.resolved().get("tokenizer")
        size = recipe.model.get("vocab_size")
        tokenizer, origin = find_tokenizer(family, recipe.tokenizer, sources, recipe.data.folder, before, size)
    if opened is not None and fingerprint(tokenizer) != fingerprint(opened.tokenizer):
        raise ValueError(f"the tokenizer is not the one in {opened.place}, whose ids the weights there are trained for")
    config = model_config(recipe, tokenizer, opened)
    # Windows of single documents count as one token, since they may be of any length.
    tokens = training.micro_batch_size * max(length if recipe.data.windows == "packed" else 1 for length, _ in stages)
    batch = step_bytes(config, tokens, 2 if bf16 else 4, training.gradient_checkpointing)
    parameters = parameters_of(class_for("masked_lm", config), config)
    check_fits("the model", parameters, TRAINING_BYTES[training.optimizer], batch, arguments.device)
    if (longest := family.longest(config)) is not None:
        # Saved with the model, so that `truncation=True` cuts at the model's limit.
        tokenizer.model_max_length = longest
    if opened is not None:  # loaded first, so that missing weights fail before hours of tokenising
        model = opened.with_config(config).model("masked_lm", torch.float32)
        if not hasattr(model, family.head):
            raise ValueError(f"{opened.place} has another head than {family.title}'s here (no {family.head!r} in it)")
    else:
        set_seed(training.seed)
        model = build("masked_lm", config)
    if training.compile:
        compile_layers(model)
    data = prepare_data(recipe, stages, sources, tokenizer, progress)  # the process that tokenises shows it
    request["resolved"] = {
        "corpus": data.corpus,
        "tokenizer": origin,
        "vocabulary": data.vocabulary,
        "precision": "bf16" if bf16 else "fp32",
        "processes": arguments.world_size,
        **({} if opened is None else {"weights": opened.place.digest()}),
    }
    if arguments.should_save:
        folder.claim(request)
        if resume_from is not None and checkpoint is not None:
            drop_damaged(folder.path, checkpoint)
    return PretrainRun(recipe, folder, arguments, stages, family, tokenizer, model, data, checkpoint, result)


def find_tokenizer(
    family: Family, asked: str | None, sources: Sources, cache: Path, before: str | None = None, size: int | None = None
) -> tuple[PreTrainedTokenizerFast, str]:
    """Returns the requested tokenizer (folder, file or hub name), else the family's own from the hub, else a WordPiece
    of `size` tokens trained on the run's text and kept in `cache`; and a description of its origin for the record.

    `before` is the origin recorded when a resumed run began, to find the same tokenizer again. Raises FileNotFoundError
    if there is no tokenizer of the requested name, and ValueError if it cannot be used, or none can be trained on the
    text.
    """
    published = family.base_config()
    if asked is not None:
        return load_tokenizer(asked), asked
    if before is None or not before.startswith(TRAINED):
        try:
            return load_tokenizer(family.hub), f"hub:{family.hub}"
        except FileNotFoundError as error:
            if before is not None:
                raise
            message = "%s; training a WordPiece of %d tokens on the run's text"
            logger.warning(message, error, size or published.vocab_size)
    segments = (getattr(published, "type_vocab_size", None) or 0) > 1
    tokenizer = trained_tokenizer(sources, cache, size or published.vocab_size, segments)
    return tokenizer, f"{TRAINED} on data.sources: WordPiece of {len(tokenizer):,}"


SCHEDULERS = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup", "wsd": "warmup_stable_decay"}
"""transformers' names of a recipe's schedules."""


def arguments_of(recipe: PretrainRecipe, folder: Path, bf16: bool) -> TrainingArguments:
    """Converts the recipe to TrainingArguments; warns if the learning rate never reaches its peak.

    Raises ValueError if whole micro-batches over all processes do not add up to the batch.
    """
    training = recipe.training
    if training.warmup_steps >= training.steps:
        message = "training.warmup_steps is %d, training.steps %d: the learning rate never reaches its peak"
        logger.warning(message, training.warmup_steps, training.steps)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    accumulation, rest = divmod(training.batch_size, training.micro_batch_size * processes)
    if rest or not accumulation:
        raise ValueError(
            f"training.batch_size {training.batch_size} is not a multiple of training.micro_batch_size "
            f"{training.micro_batch_size} times {processes} process(es); set training.micro_batch_size, the windows "
            "of a forward, to a divisor of it"
        )
    twentieth = max(1, training.steps // 20)
    same = ("learning_rate", "warmup_steps", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "seed")
    own: dict[str, Any] = {"optim": "adafactor"} if training.optimizer == "adafactor" else {}
    if training.schedule == "wsd":
        own |= {"lr_scheduler_kwargs": {"num_decay_steps": max(1, training.steps // 10), "decay_type": "linear"}}
    return training_arguments(
        folder,
        bf16,
        **own,
        lr_scheduler_type=SCHEDULERS[training.schedule],
        **{name: getattr(training, name) for name in (*same, "max_grad_norm")},
        max_steps=training.steps,
        train_sampling_strategy="sequential",
        per_device_train_batch_size=training.micro_batch_size,
        per_device_eval_batch_size=training.micro_batch_size,
        gradient_accumulation_steps=accumulation,
        activation_checkpointing=training.gradient_checkpointing,
        logging_steps=training.log_steps or min(50, twentieth),
        logging_first_step=True,
        eval_strategy="steps",
        eval_steps=training.eval_steps or twentieth,
        save_strategy="steps",
        save_steps=training.save_steps or twentieth,
        save_total_limit=training.keep_checkpoints,
        dataloader_num_workers=training.workers,
        report_to=training.report_to,
        run_name=folder.resolve().name,
        ddp_find_unused_parameters=False,
        include_num_input_tokens_seen="non_padding",
    )


def model_config(
    recipe: PretrainRecipe, tokenizer: PreTrainedTokenizerFast, start: Opened | None = None
) -> PreTrainedConfig:
    """Returns the configuration of the recipe's new model, or of the model that it starts from.

    Raises ValueError if a stage is longer than the positions, the vocabulary does not fit the tokenizer, the model to
    start from is of another family, or the fields make no valid model.
    """
    config = new_config(recipe, tokenizer) if start is None else started_config(recipe, start)
    recipe.family.set_packing(config, recipe.training.packing)
    longest, limit = max(stage.length for stage in recipe.stages), recipe.family.longest(config)
    if limit is not None and longest > limit:
        more = f"; `mabert extend {start.place}` gives it more" if start is not None else ""
        raise ValueError(f"a stage has windows of {longest} tokens, model.max_position_embeddings is {limit}{more}")
    return config


def new_config(recipe: PretrainRecipe, tokenizer: PreTrainedTokenizerFast) -> PreTrainedConfig:
    """Returns the configuration of a new model; errors are those of `model_config`."""
    asked, family = dict(recipe.model), recipe.family
    size = asked.pop("vocab_size", len(tokenizer))
    if size < len(tokenizer):
        raise ValueError(
            f"model.vocab_size is {size}, the tokenizer has {len(tokenizer)} entries; leave it out, or train a "
            "tokenizer of that size (mabert tokenizer) and name it (tokenizer=FOLDER)"
        )
    if "unpad" in asked:
        raise ValueError("model.unpad is set by the run; training.packing says how padding is dealt with")
    of_run: dict[str, Any] = family.special_ids(tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id)
    for name, value in of_run.items():
        if asked.get(name, value) != value:
            raise ValueError(f"model.{name} is {asked[name]}; it must be the tokenizer's, {value}")
    config = family.config_of(asked, vocab_size=size, **of_run)
    with torch.device("meta"):
        # Building the model finds errors that a configuration cannot, before hours of tokenising.
        try:
            getattr(build("masked_lm", config), family.head)
        except (AssertionError, AttributeError) as error:
            raise ValueError(f"model: these fields make no {family.title}: {error}") from error
    return config


def started_config(recipe: PretrainRecipe, start: Opened) -> PreTrainedConfig:
    """Returns the configuration of the starting model with the recipe's changes; raises what `model_config` does."""
    place, family = start.place, recipe.family
    if start.family is not family:
        raise ValueError(f"architecture is {family.name!r}, and {place} is a {start.family.name}")
    try:
        config = start.changed(**family.own_dropout(recipe.model)).config
    except ValueError as error:
        raise ValueError(f"the recipe's model fields do not go with {place}: {error}") from error
    start.refuse_quantized()
    return config


def prepare_data(
    recipe: PretrainRecipe,
    stages: Stages,
    sources: list[Source],
    tokenizer: PreTrainedTokenizerFast,
    progress: bool,
) -> PretrainData:
    """Tokenises the text (or reuses the cache) and lays out the stages; ValueError if the recipe does not fit the text,
    or the held-out part has no token to mask."""
    about, training = recipe.data, recipe.training
    masking = MlmMasking(tokenizer, **dataclasses.asdict(recipe.masking))  # may refuse, so before tokenising
    cache = build_cache(sources, tokenizer, about.folder, max_tokens=about.max_tokens, progress=progress)
    learnt, held_out = cache.split(about.held_out)
    windows = [(Windows(learnt, length, about.windows), steps * training.batch_size) for length, steps in stages]
    validation = ValidationSet(Windows(held_out, stages[0][0], about.windows), masking, limit=training.eval_windows)
    scored = sum(int((validation[index]["labels"] != IGNORED).sum()) for index in range(len(validation)))
    if not scored:
        raise ValueError("nothing in the held-out text can be hidden: the tokenizer knows none of its words")
    if scored < FEW_SCORED:
        message = "the held-out loss is of %d tokens alone, which says little; a larger data.held_out (now %g) helps"
        logger.warning(message, scored, about.held_out)
    return PretrainData(
        PretrainingStream(windows, masking, training.seed),
        validation,
        {"corpus_tokens": learnt.tokens, "held_out_tokens": held_out.tokens},
        digest(cache.folder / IDS)[:16],
        cache.manifest["tokenizer"],
    )
