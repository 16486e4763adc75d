"""What a run says about itself on the terminal: a few lines before, a few after."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from transfer_cli.commands.parts import Parts

log = logging.getLogger(__name__)


def say_start(command: str, run: Path, parts: Parts, config: DictConfig) -> None:
    """Say what is about to be trained, on what, for how long."""
    splits = parts.data.splits
    unit = "texts" if parts.data.labels else "blocks of text"
    sizes = " · ".join(f"{len(split.data):,} {name}" for name, split in splits.items())
    total = sum(p.numel() for p in parts.model.parameters())
    shape = parts.model.backbone.shape
    portions = parts.micro_batch < config.loop.batch
    cut = f" in portions of {parts.micro_batch}" if portions else ""
    rows = {
        "run": str(run),
        "model": f"{total:,} parameters, {shape.depth} blocks of width {shape.width}, "
        f"{shape.direction}",
        "data": f"{sizes} ({unit})"
        + (f", {len(parts.data.labels)} labels" if parts.data.labels else ""),
        "steps": f"{parts.total_steps:,} of {config.loop.batch} sequences{cut}, "
        f"{parts.layout.sizes.steps_per_epoch:,} an epoch",
        "on": f"{parts.precision.device}, {parts.precision.kind}",
    }
    log.info("%s", command)
    for name, text in rows.items():
        log.info("  %-6s %s", name, text)


def say_results(command: str, run: Path, results: Mapping[str, Any], seconds: float) -> None:
    """Print the final measures to standard output, and where to go from here."""
    steps = results["seen"]["steps"]
    print(f"done: {steps:,} steps in {seconds:,.0f} s; the best weights, of step", end=" ")
    print(f"{results['best_step']:,}, score:")
    for split, measures in results["measures"].items():
        shown = {k: v for k, v in measures.items() if "/" not in k}
        print(f"  {split:10s} " + "  ".join(f"{name} {value:.4g}" for name, value in shown.items()))
    if results["forgetting"] is not None:
        before, after = results["forgetting"]["before"], results["forgetting"]["after"]
        for name in (n for n in before if n != "loss"):
            print(f"  {'source':10s} {name} {before[name]:.4g} before, {after[name]:.4g} after")
    print(f"  {'files':10s} {run}")
    print(f"  {'curves':10s} tensorboard --logdir {run}")
    if command == "pretrain":
        print(f"  {'next':10s} transfer finetune init_from={run}")
    else:
        print(f"  {'next':10s} transfer predict run={run} input=FILE")
