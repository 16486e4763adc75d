"""`transfer lr-find COMMAND`: a short run over a range of learning rates, and what it suggests.

The run is put together as `transfer COMMAND` would; nothing of it is kept but the curve. Files are
written when all is known, so that there is a whole folder or none.
"""

import contextlib
import itertools
import json
import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import DictConfig

from transfer_cli.analysis.pictures import as_png, new_figure
from transfer_cli.assembly.optimizer import is_solver
from transfer_cli.assembly.run import TrainingRun, build_run
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.decided import with_values
from transfer_cli.config.schema import LrFindConfig
from transfer_cli.config.stored import as_yaml
from transfer_cli.engine import distributed, handlers, lr_finder
from transfer_cli.engine.lr_finder import RangeTest
from transfer_cli.errors import ConfigError, above_zero, at_least, pip_install
from transfer_cli.runs.atomic import as_run_error, make_dated_folder, new_folder
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.tensorboard import SummaryWriter
from transfer_cli.terminal import BLANK, Entry, Line, Page, Piece, Renderable, print_out
from transfer_cli.training.console import copyable_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

log = logging.getLogger(__name__)


def find_rate(config: DictConfig, command: str) -> None:
    """Run the test, write its curve and print what it suggests."""
    _check_config(config)
    # What a run does before its first step, and is of no use here.
    leaner: dict[str, Any] = {"forgetting.data": None}
    if config.loop.compile == "auto":
        leaner["loop.compile"] = False
    config = with_values(config, leaner)
    typed = CommandLine.current()
    run = build_run(config, command, typed.overrides)
    seen = _test_range(config.lr_find, command, run)
    step = lr_finder.steepest_step(seen)
    groups = _rates_of_groups(run, seen.rates[step])
    words = [*_kept_overrides(typed.overrides), f"optimizer.lr={seen.rates[step]:.2g}"]
    line = typed.next_command(f"{command} {shlex.join(words)}")
    picture = curve_png(seen, step, groups, f"transfer lr-find {command}")
    files = {
        "curve.png": picture,
        "curve.csv": _as_csv(seen).encode(),
        "suggestion.json": json.dumps(_as_json(seen, step, groups, line), indent=2).encode(),
        "settings.yaml": as_yaml(run.blueprint.config).encode(),
    }
    folder = None if config.run.dir is None else Path(config.run.dir).expanduser()
    if folder is None:
        chosen = (typed.presets.get("data", "data"), typed.presets.get("optimizer", ""))
        root = Path(config.run.root).expanduser() / "lr-find"
        folder = make_dated_folder(root, "-".join([command, *chosen]))
    with as_run_error(folder), new_folder(folder) as new:
        for name, content in files.items():
            (new / name).write_bytes(content)
        _write_tensorboard(new / "tensorboard", seen, picture)
    print_out(_page(command, seen, step, groups, folder, line))


find_pretrain = partial(find_rate, command="pretrain")
find_finetune = partial(find_rate, command="finetune")


def _check_config(config: DictConfig) -> None:
    search = config.lr_find
    for name in ("start", "end"):
        above_zero(f"lr_find.{name}:", search[name], ConfigError)
    if search.start >= search.end:
        raise ConfigError(
            f"lr_find.start: must be below lr_find.end, got {search.start:g} and {search.end:g}"
        )
    at_least("lr_find.steps:", search.steps, lr_finder.FEWEST_STEPS, ConfigError)
    if config.devices not in (1, "auto") or distributed.world_size() > 1:
        raise ConfigError("devices: lr-find works in one process; leave devices out")
    if is_solver(config.optimizer):
        raise ConfigError("optimizer: lr-find looks for a rate, and L-BFGS needs none")
    if config.resume is not None:
        raise ConfigError("resume: lr-find begins where a run begins; leave resume out")
    if config.budget is not None:
        raise ConfigError(
            "budget: it chooses the model that trains, and lr-find tests a given one; leave it out"
        )
    if find_spec("matplotlib") is None:
        raise ConfigError(f"lr-find draws its curve with matplotlib: {pip_install('report')}")
    if config.run.dir is not None:
        RunDirectory.check_free(Path(config.run.dir).expanduser())


def _test_range(asked: LrFindConfig, command: str, run: TrainingRun) -> RangeTest:
    mixture = run.blueprint.course.sizes.mixture
    if mixture is not None and mixture.total < asked.steps:
        raise ConfigError(
            f"lr_find.steps: the streams are mixed for the {mixture.total} steps of the run; give "
            f"no more, or more loop.steps, got {asked.steps}"
        )
    optimizer = run.step.optimizer
    what = "tokens" if command == "pretrain" else "examples"
    log.info("lr-find %s", command)
    with handlers.log_above_bar():
        return lr_finder.run_range_test(
            run.step,
            run.streams,
            lr_finder.ExponentialGrowth(asked.start, asked.end),
            asked.steps,
            frozen_eval=run.blueprint.adaptation.frozen_eval,
            micro_batch=run.micro_batch,
            mixture=mixture,
            attach=lambda trainer: handlers.attach(
                trainer, handlers.progress_bar(optimizer, asked.steps, what)
            ),
        )


def _rates_of_groups(run: TrainingRun, rate: float) -> dict[str, float]:
    ever = run.step.stages.ever_trains
    scales = {group["layer"]: group["scale"] for group in run.step.optimizer.param_groups}
    return {
        group.name: rate * scales[group.name]
        for group in run.blueprint.network.groups
        if ever & set(group.parameters)
    }


def _kept_overrides(typed: Sequence[str]) -> list[str]:
    """Return the overrides of the test that a run at the rate that was found takes as well."""
    ours = re.compile(r"[+~]*(optimizer\.lr|run\.dir|lr_find(\..*)?)(=.*)?", re.DOTALL)
    return [word for word in typed if not ours.fullmatch(word)]


def _as_csv(seen: RangeTest) -> str:
    rows = enumerate(zip(seen.rates, seen.losses, seen.smoothed, strict=True), 1)
    lines = (f"{step},{rate},{loss},{smoothed}\n" for step, (rate, loss, smoothed) in rows)
    return "".join(["step,optimizer.lr,loss,smoothed\n", *lines])


def _as_json(seen: RangeTest, step: int, groups: Mapping[str, float], line: str) -> dict[str, Any]:
    lowest = min(range(len(seen.smoothed)), key=seen.smoothed.__getitem__)
    return {
        "optimizer.lr": seen.rates[step],
        "groups": dict(groups),
        "step": step + 1,
        "lowest": {"optimizer.lr": seen.rates[lowest], "loss": seen.smoothed[lowest]},
        "first_loss": seen.smoothed[0],
        "steps": len(seen.losses),
        "exploded": seen.exploded,
        "next": line,
    }


def _write_tensorboard(folder: Path, seen: RangeTest, picture: bytes) -> None:
    with contextlib.closing(SummaryWriter(folder)) as writer:
        for number, rate in enumerate(seen.rates):
            writer.add_scalar("lr_find/loss", seen.losses[number], number + 1)
            writer.add_scalar("lr_find/smoothed_loss", seen.smoothed[number], number + 1)
            writer.add_scalar("lr_find/rate", rate, number + 1)
        writer.add_image("lr_find/curve", picture, len(seen.rates))


def _page(
    command: str, seen: RangeTest, step: int, groups: Mapping[str, float], folder: Path, line: str
) -> Page:
    first, last = f"{seen.rates[0]:.1e}", f"{seen.rates[-1]:.1e}"
    ending = "where the loss exploded" if seen.exploded else "the loss did not explode"
    lowest = min(range(len(seen.smoothed)), key=seen.smoothed.__getitem__)
    blocks: list[Renderable] = [
        Line(
            Piece(f"lr-find {command}:", "heading"),
            f" {len(seen.losses)} steps, rates from {first} to {last}, {ending}",
        ),
        BLANK,
        Line(
            Piece(f"suggested: optimizer.lr={seen.rates[step]:.2g}", "good"),
            f", where the loss fell fastest; it was lowest at {seen.rates[lowest]:.2g}, and rates "
            "in between are worth a run each",
        ),
    ]
    for rate, members in itertools.groupby(groups, key=groups.__getitem__):
        names = list(members)
        head = names[0] + (f" ... {names[-1]}" if len(names) > 1 else "")
        blocks.append(Entry(["  ", Piece(f"{head}:", "name"), " "], [f"{rate:.2g}"], len(head) + 4))
    return Page(*blocks, *copyable_lines({"files": folder, "next": line}))


def curve_png(seen: RangeTest, suggested: int, groups: Mapping[str, float], title: str) -> bytes:
    """Return the curve as a picture, with the suggestion marked.

    Where layer groups have rates of their own, a second panel shows which.
    """
    several = len(set(groups.values())) > 1
    heights = [3.4, 0.5 + 0.22 * len(groups)] if several else [3.4]
    figure = new_figure(7.5, sum(heights) + 1.0)
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    _draw_curve(axes[0], seen, suggested)
    figure.suptitle(title, fontsize=11)
    if several:
        _draw_groups(axes[1], seen, suggested, groups)
    return as_png(figure)


def _draw_curve(axes: "Axes", seen: RangeTest, suggested: int) -> None:
    low, first = min(seen.smoothed), seen.smoothed[0]
    fall = max(first - low, 1e-3 * abs(first), 1e-9)
    rate = seen.rates[suggested]
    lowest = int(np.argmin(seen.smoothed))
    axes.semilogx(seen.rates, seen.losses, ".", color="0.7", markersize=4, label="each step")
    axes.semilogx(seen.rates, seen.smoothed, color="C0", linewidth=2, label="smoothed")
    axes.axvline(rate, color="C3", linewidth=1, linestyle="--")
    axes.plot(
        [rate], [seen.smoothed[suggested]], "o", color="C3",
        label=f"fastest fall: optimizer.lr={rate:.2g}",
    )  # fmt: skip
    axes.plot(
        [seen.rates[lowest]], [seen.smoothed[lowest]], "v", color="0.3",
        label=f"lowest, at {seen.rates[lowest]:.2g}",
    )  # fmt: skip
    axes.set_xlim(seen.rates[0], seen.rates[-1])
    # How much of the loss's fall is shown above where it began; explosions are cut off.
    headroom = 0.6
    axes.set_ylim(low - 0.1 * fall, first + headroom * fall)
    axes.set_xlabel("learning rate (optimizer.lr)")
    axes.set_ylabel("training loss (nats a target)")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(loc="best", fontsize=9)


def _draw_groups(
    axes: "Axes", seen: RangeTest, suggested: int, groups: Mapping[str, float]
) -> None:
    """Show the rates that each group passed through, and the one suggested for it."""
    base = seen.rates[suggested]
    places = range(len(groups))
    for place, rate in zip(places, groups.values(), strict=True):
        scale = rate / base
        passed = [seen.rates[0] * scale, seen.rates[-1] * scale]
        axes.semilogx(passed, [place, place], color="0.8", linewidth=3, solid_capstyle="butt")
        axes.semilogx([rate], [place], "o", color="C3")
        axes.annotate(f"{rate:.2g}", (rate, place), (6, 3), textcoords="offset points", fontsize=8)
    axes.set_yticks(list(places), list(groups), fontsize=8)
    axes.set_ylim(-0.7, len(groups) - 0.3)
    axes.set_xlabel("learning rate of each layer group")
    axes.grid(visible=True, axis="x", alpha=0.3)
