"""Which key is meant by a name that a command does not know.

People type the last part of a key, or what other libraries call it. Nothing is said rather than a
wrong guess.
"""

import difflib
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from transfer_cli.config import schema
from transfer_cli.config.describe import options
from transfer_cli.config.flat import flat

OTHER_NAMES = {
    "learning_rate": "optimizer.lr", "num_train_epochs": "loop.epochs", "max_steps": "loop.steps",
    "num_steps": "loop.steps", "batch_size": "loop.batch", "train_batch_size": "loop.batch",
    "per_device_train_batch_size": "loop.micro_batch", "micro_batch_size": "loop.micro_batch",
    "gradient_accumulation_steps": "loop.micro_batch", "max_grad_norm": "loop.clip",
    "gradient_checkpointing": "loop.activation_checkpointing", "early_stopping": "loop.patience",
    "early_stopping_patience": "loop.patience", "eval_steps": "loop.evaluate_every",
    "logging_steps": "loop.log_every", "save_steps": "checkpoint.every",
    "save_total_limit": "checkpoint.keep", "warmup_steps": "schedule.warmup",
    "warmup_ratio": "schedule.warmup", "lr_scheduler_type": "schedule",
    "output_dir": "run.dir", "train_file": "data.train", "validation_file": "data.validation",
    "test_file": "data.test", "text_column": "data.text", "label_column": "data.label",
    "max_length": "data.length", "max_seq_length": "data.length", "dataset": "data",
    "model_name_or_path": "init_from", "model_name": "init_from", "pretrained": "init_from",
    "fp16": "precision=fp16", "bf16": "precision=bf16", "gpus": "devices", "num_gpus": "devices",
    "nproc_per_node": "devices", "vocab_size": "tokenizer.size", "hidden_size": "model.width",
    "num_layers": "model.depth", "num_heads": "model.heads",
}  # fmt: skip
"""What other libraries call a key."""

_SECTIONS = ("loop", "optimizer", "schedule", "data", "model", "run", "checkpoint", "adaptation")
"""Where a name is looked for, in this order: a part that all runs have comes first."""


def meant(name: str, command: str, config_dir: Path | None = None) -> str:
    """Return " Did you mean 'optimizer.lr'?" for a name such as `lr`; "" where none is meant.

    Args:
        name: What was typed in front of `=`.
        command: The name of the command, whose keys come into question.
        config_dir: A folder with the user's own configs.
    """
    known = set(_keys(command, config_dir))
    other = OTHER_NAMES.get(name, "")
    for whole in (name, other):
        if whole.partition("=")[0] in known:
            return f" Did you mean {whole!r}?"
    last = {key.rpartition(".")[2] for key in known if key.startswith(_SECTIONS)}
    names = [name, *difflib.get_close_matches(name, last, n=1, cutoff=0.85)]
    for section, each in itertools.product(_SECTIONS, names):
        inside = [k for k in known if k.startswith(f"{section}.") and k.endswith(f".{each}")]
        if inside:
            return f" Did you mean {min(inside, key=lambda key: (key.count('.'), key))!r}?"
    return ""


def _keys(command: str, config_dir: Path | None) -> Iterator[str]:
    """Yield the keys of a command, those of all options included."""
    declared: Any = OmegaConf.to_container(OmegaConf.structured(schema.COMMANDS[command]))
    groups = set()
    for key, _ in flat(declared):
        yield key
        groups.add(key.partition(".")[0])
    for option in options(config_dir):
        text = option.file.read_text(encoding="utf-8", errors="replace")
        package = re.search(r"^# @package ([\w.]+)", text, re.MULTILINE)
        section = package[1] if package else option.group.replace("/", ".")
        if section.partition(".")[0] in groups - {"experiment", "sweep"}:
            yield section
            yield from _below(section, yaml.safe_load(text))


def _below(section: str, node: Any) -> Iterator[str]:
    for key, value in node.items() if isinstance(node, Mapping) else ():
        if isinstance(key, str) and key != "defaults" and not key.startswith("_"):
            yield f"{section}.{key}"
            yield from _below(f"{section}.{key}", value)
