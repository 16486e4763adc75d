"""Plain values with which no training can work; a resume asks again, of what was stored."""

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from omegaconf import DictConfig, OmegaConf

from transfer_cli.budget import Budget
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.decided import base_lr
from transfer_cli.config.schema import LoopConfig
from transfer_cli.config.variables import MOST_THREADS
from transfer_cli.errors import (
    ConfigError,
    at_least,
    between,
    count_or_auto,
    pip_install,
    raised_as,
)
from transfer_cli.lengths import MAX_COUNT, Length

LENGTHS = ("steps", "tokens", "flops")
"""What of `loop` says how long a run is, before its epochs do."""

_COUNTS = {
    "loop.steps": 1, "loop.batch": 1, "loop.log_every": 1, "loop.patience": 1,
    "loop.max_bad_steps": 1, "forgetting.blocks": 1, "plan.steps": 0, "checkpoint.keep": 0,
}  # fmt: skip
"""Whole numbers -> the least that each may be."""

_AMOUNTS = (
    "loop.epochs", "loop.minutes", "loop.tokens", "loop.flops", "loop.clip", "checkpoint.minutes",
)  # fmt: skip
"""Numbers above 0."""


def check_training(config: DictConfig) -> None:
    """Refuse such values; needs no torch."""
    loop = config.loop
    for key, least in _COUNTS.items():
        if (count := OmegaConf.select(config, key)) is not None:
            between(f"{key}:", count, least, MAX_COUNT, ConfigError)
    count_or_auto("loop.micro_batch", 1 if loop.micro_batch is None else loop.micro_batch)
    for key in _AMOUNTS:
        if (amount := OmegaConf.select(config, key)) is not None and not amount > 0:
            raise ConfigError(f"{key}: must be above 0, got {amount}")
    _check_length(loop)
    _check_average(loop.average, decay=loop.average_decay, last=loop.average_last)
    if config.threads is not None:
        between("threads:", config.threads, 1, MOST_THREADS, ConfigError)
    interval = config.checkpoint.every
    for key, text in {
        "loop.evaluate_every": loop.evaluate_every,
        "checkpoint.every": "1 epoch" if interval == "auto" else interval,
    }.items():
        with raised_as(ConfigError, f"{key}: "):
            Length.parse_interval(text)
    at_least("cost.pue:", config.cost.pue, 1, ConfigError)
    if config.cost.kg_per_kwh is not None:
        at_least("cost.kg_per_kwh:", config.cost.kg_per_kwh, 0, ConfigError)
    if (target := (config.get("ladder") or {}).get("target")) and not target.isdecimal():
        with raised_as(ConfigError, "ladder.target: a depth, or a ", ConfigError):
            Budget.parse(target)
    _check_optimizer(config.optimizer)
    _check_loggers(logger_names(config.logger))


def _check_length(loop: Mapping[str, Any]) -> None:
    """Refuse two lengths of one run; epochs are a preset's, unless they are typed."""
    lengths = [f"loop.{name}" for name in LENGTHS if loop[name] is not None]
    epochs = (word.partition("=")[2] for word in CommandLine.current().overrides
              if word.lstrip("+").startswith("loop.epochs="))  # fmt: skip
    if lengths not in ([], ["loop.steps"]) and any(value != "null" for value in epochs):
        lengths.append("loop.epochs")
    if len(lengths) > 1:
        raise ConfigError(
            f"{' and '.join(lengths)}: a run has one length; give one of them, and "
            f"{lengths[1]}=null where a preset has it (loop.minutes may end any run early)"
        )


def _check_optimizer(options: Mapping[str, Any]) -> None:
    if "lr" in options:
        base_lr(options["lr"], width=1)
    for name in ("weight_decay", "eps", "momentum"):
        value = options.get(name)
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            raise ConfigError(f"optimizer.{name}: must be 0 or more, got {value}")
    betas = options.get("betas", ())
    numbers = betas if isinstance(betas, Sequence) else [None]
    if not all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in numbers):
        raise ConfigError(f"optimizer.betas: must be numbers of 0 or more and below 1, got {betas}")


def _check_average(average: str | None, *, decay: float, last: int) -> None:
    if not 0 < decay < 1:
        raise ConfigError(f"loop.average_decay: must be between 0 and 1, got {decay}")
    between("loop.average_last:", last, 2, MAX_COUNT, ConfigError)
    unread = {
        ("average_decay", "ema"): decay != LoopConfig.average_decay,
        ("average_last", "last_k"): last != LoopConfig.average_last,
    }
    for (key, kind), is_given in unread.items():
        if is_given and average != kind:
            raise ConfigError(f"loop.{key}: is for loop.average={kind} alone; give that, too")


def _check_loggers(names: Iterable[str]) -> None:
    """Refuse those whose packages are not installed."""
    for name in names:
        package = find_spec(name)
        if package is None or package.origin is None:  # or it is a folder that happens to be here
            raise ConfigError(f"logger: {name} needs its package: {pip_install(name)}")


def logger_names(logger: Any) -> tuple[str, ...]:
    """Return the names that `logger` has: of one, of several, or of none."""
    names = [] if logger is None else [logger] if isinstance(logger, str) else logger
    return tuple(dict.fromkeys(names))
