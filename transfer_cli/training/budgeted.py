"""`budget=10min`: measures what a token of some depths costs, and chooses depth and length."""

import gc
import json
import logging
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from transfer_cli.assembly.blueprint import Blueprint
from transfer_cli.assembly.drawing import draw_blueprint
from transfer_cli.assembly.foretold import runs_of_ladder
from transfer_cli.assembly.origins import Origins
from transfer_cli.assembly.run import build_run
from transfer_cli.budget import (
    EPOCHS_WORTH_NEW,
    FORWARD_COST,
    Budget,
    Corpus,
    Law,
    PlannedRun,
    affordable_runs,
    interpolate_costs,
    scale_costs,
    vocabulary_factor,
)
from transfer_cli.config.build import resolved_node
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.decided import with_values
from transfer_cli.config.dialled import apply_rules
from transfer_cli.config.stored import plain_values
from transfer_cli.data.folders import cache_folder
from transfer_cli.engine import distributed
from transfer_cli.engine.bf16_products import command_precision
from transfer_cli.engine.compiling import FEWEST_MINUTES
from transfer_cli.engine.cost import training_flops
from transfer_cli.errors import ConfigError
from transfer_cli.reports.ladder import loss_by_size
from transfer_cli.runs.atomic import write_json
from transfer_cli.runs.environment import numerical_environment
from transfer_cli.safe_files import UnreadableError, read_json
from transfer_cli.terminal import silence_logging
from transfer_cli.training.measured_steps import main_value, measure_step
from transfer_cli.training.measurements import peak_flops

log = logging.getLogger(__name__)

DEPTHS = (2, 4, 8, 16, 32)
"""The depths that are measured, until a deeper one is foreseen to do worse."""

SPEEDS = "speeds.json"
"""The file in the cache with the seconds of a token, by machine and shape."""

ASIDE_SECONDS, ASIDE_SHARE = 6.0, 0.03
"""What of a budget is set aside: to begin and to write the model, and for slower steps."""

MEASURED_SECONDS, MEASURED_SHARE = 2.0, 0.01
"""For how long steps are taken to measure them, also as a share of a budget."""

GUESSED_OPERATIONS, GUESSED_FLOPS = 20.0, {"cpu": 1e10, "cuda": 1e14}
"""Of a parameter and a token; of a second of a device: before anything is measured."""

FIRST_COMPILED, COMPILED_SHARE = 8, 0.1
"""The depth whose plan says whether runs are compiled; which share of a budget compiling one may
take, if a further one is to be measured."""

COMPILING_SECONDS = 30.0
"""What compiling takes, where it was not measured."""


def within_budget(
    config: DictConfig, command: str, line: CommandLine
) -> tuple[DictConfig, CommandLine]:
    """Return a config with the depth and the length that its budget chooses; itself without one.

    All processes of a run measure together, and choose by what the main one took.
    """
    if config.budget is None:
        return config, line
    typed = line.overrides
    meter = _TokenCosts(config, command, typed, Budget.parse(config.budget))
    meter.look_at_depths()
    budget, left = meter.budget, meter.left(line.began)
    runs, values = _affordable_runs(config.budget, meter, left), dict[str, Any]()
    # Once more at its own batch: it may lie between the depths that were measured.
    while budget.unit == "s" and runs[0].depth not in meter.measured:
        meter.measure(runs[0].depth, runs[0].tokens)
        left = meter.left(line.began)
        runs = _affordable_runs(config.budget, meter, left)
    best = runs[0]
    if budget.unit == "s":
        scoring = FORWARD_COST * meter.costs()[best.depth] * meter.corpus.scored
        # The clock of a run goes while it compiles.
        values["loop.minutes"] = round((left + meter.compiling - scoring) / 60, 3)
    if meter.is_compiled:
        values["loop.compile"] = True
    _log_choice(config.budget, best, runs, meter)
    twice = meter.planned_runs(left + budget.amount)[0]
    log.info("budget: twice as much would bring %.3f, with depth %d and %.3gM tokens",
             twice.loss, twice.depth, twice.tokens / 1e6)  # fmt: skip
    values |= {"model.depth": best.depth, "loop.tokens": float(round(best.tokens))}
    return apply_rules(config, {**values, "dial.foreseen": round(best.loss, 4)}, typed), line


def _affordable_runs(budget: str, meter: "_TokenCosts", left: float) -> Sequence[PlannedRun]:
    runs = meter.planned_runs(left)
    if not runs or runs[0].tokens < meter.tokens_of_step(runs[0]):
        raise ConfigError(
            f"budget: {budget} is too short to train on this text and to score it; give more, or "
            "fewer texts for validation (data.validation)"
        )
    return runs


def _log_choice(
    budget: str, best: PlannedRun, runs: Sequence[PlannedRun], meter: "_TokenCosts"
) -> None:
    epochs, repeats = best.tokens / meter.corpus.tokens, ""
    if epochs > EPOCHS_WORTH_NEW:
        worth = best.effective_tokens / meter.corpus.tokens
        repeats = f", worth {worth:.1f} of new text (Muennighoff et al. 2023)"
    log.info("budget: %s: depth %d and %.3gM tokens, %.3g epochs%s", budget, best.depth,
             best.tokens / 1e6, epochs, repeats)  # fmt: skip
    rest = [run for run in runs if run.depth != best.depth][:3]
    others = "".join(f", {run.loss:.3f} with depth {run.depth}" for run in rest)
    log.info("budget: a loss of %.3f a token is foreseen by %s%s", best.loss, meter.basis, others)


class _TokenCosts:
    """Tells what tokens cost: in operations, or in seconds, measured here once for a shape.

    Attributes:
        basis: What foresees the loss: the key dial.law, or a ladder.
        corpus: The text of the model that was last asked for.
        is_compiled: Whether the run will be compiled, and its steps are measured so.
        compiling: The seconds that compiling it takes.
        measured: The depths that were chosen, and measured at their own batch.
    """

    def __init__(
        self, config: DictConfig, command: str, typed: Sequence[str], budget: Budget
    ) -> None:
        measured: dict[str, Any] = {"budget": None, "logger": None}
        if config.loop.compile == "auto" and budget.amount < 60 * FEWEST_MINUTES:
            measured["loop.compile"] = False
        self._config = with_values(config, measured)
        self._command, self._typed = command, typed
        self.budget, self.corpus, self._building = budget, Corpus(0.0), 0.0
        self.is_compiled, self.compiling = False, 0.0
        self._known, self.measured = dict[int, float](), set[int]()
        self._shapes, self._length = dict[int, tuple[float, float]](), 0
        is_typed = any(word.lstrip("+").startswith("model.depth=") for word in typed)
        self._depths = (config.model.depth,) if is_typed else DEPTHS
        numbers = resolved_node(config.dial.law, "dial.law")
        if not isinstance(numbers, Mapping) or len(numbers) < len(fields(Law)):
            raise ConfigError("dial.law: must have N, alpha, D and beta; leave it out")
        self._law: Callable[[float, float], float] = Law(**numbers)
        self.basis, self._rows = "dial.law", 0
        if (sweep := config.ladder.of) is not None and (law := loss_by_size(runs_of_ladder(sweep))):
            self._law, self.basis = law, sweep

    def left(self, began: float) -> float:
        """Return what is left of the budget for steps, in a process that began at such a time."""
        if self.budget.unit == "flop":
            return self.budget.amount
        aside = ASIDE_SECONDS + main_value(self._building) + main_value(self.compiling)
        spent = main_value(time.perf_counter() - began)
        return (1 - ASIDE_SHARE) * (self.budget.amount - spent - aside)

    def planned_runs(self, amount: float) -> Sequence[PlannedRun]:
        """Return what an amount pays for, the lowest foreseen loss first."""
        costs, law = self.costs(), self._law
        if self.basis == "dial.law":
            factor = vocabulary_factor(self._rows)
            sizes = {depth: self._parameters(depth) for depth in costs}
            return affordable_runs(amount, costs, sizes, self.corpus, lambda *n: factor * law(*n))
        sizes = {depth: self._size(depth) for depth in costs}  # a ladder counts embeddings, too
        return affordable_runs(amount, costs, sizes, self.corpus, law)

    def tokens_of_step(self, run: PlannedRun) -> float:
        """Return the tokens of a step of a run."""
        return float(self._config_of(run.depth, run.tokens).loop.batch * self._length)

    def costs(self) -> dict[int, float]:
        """Return the cost of a token of each depth that may be the best one."""
        if not self.is_compiled:
            return interpolate_costs(self._known)
        most = COMPILED_SHARE * self.budget.amount
        if self.measured and main_value(self.compiling) > most:  # no time to compile another
            return {depth: self._known[depth] for depth in self.measured}
        depths = range(self._depths[0], self._depths[-1] + 1)
        return scale_costs(self._known, {depth: self._size(depth) for depth in depths})

    def look_at_depths(self) -> None:
        """Measure depths until a deeper one is foreseen to do worse; none of a compiled run."""
        # Of a parameter; with it, each depth is measured at about the batch of its run.
        amount, guess = self.budget.amount, GUESSED_OPERATIONS
        if self.budget.unit == "s":
            config = self._config
            precision = command_precision(self._command, config.device, config.precision)
            guess /= peak_flops(precision) or GUESSED_FLOPS[precision.device.type]
            if config.loop.compile is True or (
                config.loop.compile == "auto" and precision.device.type == "cuda"
            ):
                self._look_at_compiled(guess)
        for depth in self._depths if not self.is_compiled else ():
            size = self._parameters(depth)
            plan, length = self._draw(depth, max(1.0, amount / (guess * size)))
            self._known[depth] = self._cost(plan, length)
            guess = self._known[depth] / size
            runs = self.planned_runs(amount)
            if not runs or runs[0].depth < depth:
                break

    def _look_at_compiled(self, guess: float) -> None:
        """Guess what tokens cost, if the run will be compiled."""
        depth = self._depths[0] if len(self._depths) == 1 else FIRST_COMPILED
        tokens = self.budget.amount / (guess * self._parameters(depth))
        plan, _ = self._draw(depth, max(1.0, tokens))
        if plan.course.loop.compile:
            self.is_compiled, self.compiling = True, COMPILING_SECONDS
            self._known[depth] = guess * self._size(depth)

    def measure(self, depth: int, tokens: float) -> None:
        """Measure a token of a depth in a run of so many."""
        if self.is_compiled and not self.measured:
            self._known.clear()  # it was guessed
        self._known[depth] = self._cost(*self._draw(depth, tokens))
        self.measured.add(depth)

    def _config_of(self, depth: int, tokens: float | None = None) -> DictConfig:
        length = {} if tokens is None else {"loop.tokens": tokens}
        return apply_rules(self._config, {"model.depth": depth, **length}, self._typed)

    def _shape(self, depth: int) -> tuple[float, float]:
        """Return the parameters of a depth, without embeddings, and its width."""
        if depth not in self._shapes:
            config = self._config_of(depth)
            self._shapes[depth] = float(config.dial.parameters), float(config.model.width)
        return self._shapes[depth]

    def _parameters(self, depth: int) -> float:
        return self._shape(depth)[0]

    def _size(self, depth: int) -> float:
        """Return the parameters of a depth, with embeddings."""
        parameters, width = self._shape(depth)
        return parameters + self._rows * width

    def _draw(self, depth: int, tokens: float) -> tuple[Blueprint, int]:
        """Return what a run of so many tokens is, and the tokens of its blocks."""
        config = self._config_of(depth, tokens)
        began = time.perf_counter()
        with silence_logging():
            plan = draw_blueprint(config, self._command, self._typed, Origins(), device="meta")
        self._building = 2 * (time.perf_counter() - began)  # about
        self._rows = plan.data.tokenizer.size
        length = self._length = plan.most_tokens
        self.corpus = Corpus(float(plan.data.drawn_counts["main"] * length))
        if self.budget.unit == "s":
            splits = plan.data.encoded()["main"].splits
            scored = sum(len(split.data) for name, split in splits.items() if name != "train")
            self.corpus = replace(self.corpus, scored=float(scored * length))
        return plan, length

    def _cost(self, plan: Blueprint, length: int) -> float:
        if self.budget.unit == "flop":
            return float(training_flops(plan.model, length))
        place, key = cache_folder(self._config.data_dir) / SPEEDS, _speed_key(plan)
        known = main_value(_read_speeds(place).get(key, 0.0))
        if known:
            return known
        began = time.perf_counter()
        with silence_logging():
            run = build_run(plan.config, self._command, self._typed)
            built = time.perf_counter()
            of_step = measure_step(run, min(MEASURED_SECONDS, MEASURED_SHARE * self.budget.amount))
        seconds = main_value(of_step) / (run.blueprint.course.loop.batch * length)
        if self.is_compiled:
            self._building, self.compiling = built - began, time.perf_counter() - built
            del run
            torch.compiler.reset()  # else its graphs keep their memory
            gc.collect()
            torch.cuda.empty_cache()
        if distributed.is_main():
            place.parent.mkdir(parents=True, exist_ok=True)
            write_json(place, {**_read_speeds(place), key: seconds})
        return seconds


def _speed_key(plan: Blueprint) -> str:
    """Return what decides how long a step takes: the machine, and what is computed."""
    known = {
        "machine": platform.node(),
        **numerical_environment(plan.precision.device, distributed.world_size()),
        "precision": plan.precision.kind,
        "vocabulary": plan.data.tokenizer.size,
        "optimizer": plan.config.optimizer.get("_target_"),
        "batch": plan.course.loop.batch,
        "compiled": plan.course.loop.compile,
        **{name: value for name, value in plain_values(plan.config.model).items() if value},
    }
    return json.dumps(known, sort_keys=True)


def _read_speeds(place: Path) -> dict[str, float]:
    with suppress(OSError, UnreadableError):
        speeds = read_json(place)
        return speeds if isinstance(speeds, dict) else {}
    return {}
