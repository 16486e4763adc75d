"""What a run says about itself on the terminal: a few lines before, a few after."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from transfer_cli.assembly.run import TrainingRun
from transfer_cli.terminal import Entry, Line, Page, Piece, Renderable, print_out

log = logging.getLogger(__name__)


def say_start(command: str, run: Path, parts: TrainingRun, config: DictConfig) -> None:
    """Say what is about to be trained, on what, for how long."""
    splits = parts.data.splits
    unit = "blocks of text" if parts.data.task is None else "texts"
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
        f"{parts.sizes.steps_per_epoch:,} an epoch",
        "on": f"{parts.precision.device}, {parts.precision.kind}",
    }
    log.info("%s", command)
    for name, text in rows.items():
        log.info("  %-6s %s", name, text)


def say_results(command: str, run: Path, results: Mapping[str, Any], seconds: float) -> None:
    """Print the final measures to standard output, and where to go from here."""
    steps = results["seen"]["steps"]
    blocks: list[Renderable] = [
        Line(
            Piece("done:", "good"),
            f" {steps:,} steps in {seconds:,.0f} s; the best weights, of step "
            f"{results['best_step']:,}, score:",
        )
    ]
    for split, measures in results["measures"].items():
        shown = {k: v for k, v in measures.items() if "/" not in k}
        values = "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
        blocks.append(_entry(split, values))
    if results["forgetting"] is not None:
        before, after = results["forgetting"]["before"], results["forgetting"]["after"]
        for name in (n for n in before if n != "loss"):
            text = f"{name} {before[name]:.4g} before, {after[name]:.4g} after"
            blocks.append(_entry("source", text))
    blocks.append(_command("files", str(run)))
    blocks.append(_command("curves", f"tensorboard --logdir {run}"))
    if command == "pretrain":
        blocks.append(_command("next", f"transfer finetune init_from={run}"))
    else:
        blocks.append(_command("next", f"transfer predict run={run} input=FILE"))
    print_out(Page(*blocks))


def _entry(name: str, text: str) -> Entry:
    return Entry(["  ", Piece(f"{name:10s}", "name"), " "], [text], 13)


def _command(name: str, text: str) -> Line:
    """Return a line that is never broken: what stands there is to be copied."""
    return Line("  ", Piece(f"{name:10s}", "name"), f" {text}")
