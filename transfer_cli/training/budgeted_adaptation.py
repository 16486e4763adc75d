"""`transfer finetune budget=10min`: what trains, and for how long, by what a step takes here."""

import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType

from omegaconf import DictConfig

from transfer_cli.assembly.blueprint import Blueprint
from transfer_cli.assembly.drawing import draw_blueprint
from transfer_cli.assembly.memory_estimate import memory_parts
from transfer_cli.assembly.origins import Origins
from transfer_cli.assembly.resumed_config import AUTO, find_run
from transfer_cli.assembly.run import TrainingRun, build_run
from transfer_cli.budget import FORWARD_COST, Budget
from transfer_cli.config.check import check_config
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.compose import compose
from transfer_cli.config.decided import with_values
from transfer_cli.config.flags import Request
from transfer_cli.config.literal import quoted
from transfer_cli.data.split import subsample
from transfer_cli.engine.evaluation import evaluate
from transfer_cli.errors import ConfigError
from transfer_cli.fitting import FILLED, free_bytes
from transfer_cli.terminal import silence_logging
from transfer_cli.training.measured_steps import main_value, measure_step

log = logging.getLogger(__name__)

OVERRIDES = MappingProxyType(
    {"full": "adaptation=full", "lora": "adaptation=lora", "quick": "experiment=quick"}
)
"""What may be chosen, and what is typed for it."""

FEWEST_TEXTS = 16
"""A classifier learns from so many texts, however short the time."""

FEWEST_STEPS = 100
"""From so many steps on, training all weights does better than a classifier on frozen states."""

FEWEST_FOR_LORA = 200
"""With fewer texts a classifier does better than such updates, however many steps they get."""

USUAL_STEPS, USUAL_EPOCHS = 300, 3
"""A run is no longer than so many steps, or passes over its texts if these are more."""

MEASURED_SECONDS, MEASURED_SHARE = 4.0, 0.05
"""For how long steps of a model are taken to measure them, also as a share of a budget."""

SCORED_TEXTS = 32
"""How many texts are scored to measure what that takes."""

ASIDE_SECONDS, ASIDE_SHARE = 3.0, 0.05
"""What of a budget is set aside: to write the model, and for slower steps."""


@dataclass(frozen=True)
class Work:
    """What a step of a scheme takes, and what there is to do.

    Args:
        step: The seconds of a step.
        batch: The texts of a step.
        scoring: The seconds in which a text is scored, or passes through a frozen model.
        texts: How many of each split there are: "train", and perhaps "validation" and "test".
    """

    step: float
    batch: int
    scoring: float
    texts: Mapping[str, int]

    @property
    def epoch(self) -> int:
        """The steps of a pass over the texts."""
        return max(1, math.ceil(self.texts["train"] / self.batch))

    def _pass_seconds(self, *splits: str) -> float:
        """Return the seconds in which all texts of splits pass through the model once."""
        return self.scoring * sum(self.texts.get(split, 0) for split in splits)

    @property
    def end_seconds(self) -> float:
        """The seconds that it takes to score the best weights."""
        return self._pass_seconds("validation", "test")

    @property
    def solve_seconds(self) -> float:
        """The seconds of a classifier on frozen states, through which each text passes once."""
        return self._pass_seconds("train") + self.end_seconds

    def seconds(self, steps: int) -> float:
        """Return what so many steps take, with a validation after each epoch, and the end."""
        validations = math.ceil(steps / self.epoch)
        return steps * self.step + validations * self._pass_seconds("validation") + self.end_seconds

    def steps(self, seconds: float) -> int:
        """Return how many steps a time pays for, of no more than are usual."""
        usual = max(USUAL_STEPS, USUAL_EPOCHS * self.epoch)
        if self.seconds(usual) <= seconds:
            return usual
        left = seconds - self.end_seconds
        of_epoch = self.epoch * self.step + self._pass_seconds("validation")
        whole = math.floor(left / of_epoch)
        part = (left - whole * of_epoch - self._pass_seconds("validation")) / self.step
        return max(0, whole * self.epoch + max(0, math.floor(part)))


@dataclass(frozen=True)
class ChosenScheme:
    """A scheme, for how many steps, and why.

    Args:
        texts: To how many labelled texts it is held; None: it learns from all.
    """

    scheme: str
    seconds: float
    why: str
    steps: int | None = None
    texts: int | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """Its place among those of several models: the best first, then what reads more texts."""
        if self.texts is not None:
            return len(OVERRIDES), -self.texts
        return list(OVERRIDES).index(self.scheme), 0

    @property
    def overrides(self) -> list[str]:
        """What is typed for it."""
        held = [] if self.texts is None else [f"data.labelled={self.texts}"]
        if self.steps is None:
            return [OVERRIDES[self.scheme], *held]
        return [OVERRIDES[self.scheme], f"loop.steps={self.steps}", "loop.epochs=null"]

    def __str__(self) -> str:
        length = "" if self.steps is None else f", {self.steps} steps"
        held = "" if self.texts is None else f", of {self.texts} texts"
        return f"{OVERRIDES[self.scheme]}{length}{held}, in about {self.seconds:.0f} s"


def choose_scheme(seconds: float, works: Mapping[str, Work]) -> ChosenScheme:
    """Return what to spend a time on, among the schemes whose cost is known."""
    for scheme in ("full", "lora"):
        if scheme in works and (steps := works[scheme].steps(seconds)) >= FEWEST_STEPS:
            work = works[scheme]
            why = f"a step takes {work.step:.2g} s, and {FEWEST_STEPS} do better than a classifier"
            return ChosenScheme(scheme, work.seconds(steps), why, steps)
    if (quick := works.get("quick")) is None:
        scheme, work = min(works.items(), key=lambda known: known[1].step)
        steps = max(1, work.steps(seconds))
        return ChosenScheme(
            scheme, work.seconds(steps), "nothing quicker can learn this task", steps
        )
    why = f"the time pays for fewer than {FEWEST_STEPS} steps of training"
    if quick.solve_seconds <= seconds:
        return ChosenScheme("quick", quick.solve_seconds, why)
    of_train = max(0.0, seconds - quick.end_seconds) / (quick.solve_seconds - quick.end_seconds)
    held = min(quick.texts["train"], max(FEWEST_TEXTS, math.floor(of_train * quick.texts["train"])))
    return ChosenScheme("quick", quick.end_seconds + quick.scoring * held, why, texts=held)


def within_budget(
    config: DictConfig, command: str, line: CommandLine
) -> tuple[DictConfig, CommandLine]:
    """Return the config that a budget chooses, with what would be typed for it; itself without one.

    Of several models the largest is taken that the time pays to train; where there is none, the
    largest through which each text passes once in this time, else that which reads most of them.
    """
    if config.budget is None:
        return config, line
    budget = Budget.parse(config.budget).amount
    models = [_Model(config, command, line, name) for name in config.models or [None]]
    measured = list[_Model]()
    for model in sorted(models, key=lambda model: -model.parameters):
        model.measure(budget)
        measured.append(model)
        if model.choose(budget).scheme == "full":
            break
    best = min(measured, key=lambda model: model.choose(budget).rank)
    choice, twice = best.choose(budget), best.choose(2 * budget)
    named = "" if best.name is None else f"init_from={best.name}, "
    log.info("budget: %s: %s%s", config.budget, named, choice)
    log.info("budget: %s", choice.why)
    more = "nothing more" if twice.overrides == choice.overrides else str(twice)
    log.info("budget: twice as much would bring %s", more)
    seconds = best.seconds_left(budget) - best.works[choice.scheme].end_seconds
    return best.composed([*choice.overrides, f"loop.minutes={max(0.01, round(seconds / 60, 3))}"])


class _Model:
    """A model to adapt.

    Attributes:
        name: What `init_from` is to be; None: what it is.
        works: What there is to do for each scheme that is possible, once it is measured.
    """

    def __init__(
        self, config: DictConfig, command: str, line: CommandLine, name: str | None
    ) -> None:
        self._config, self._command, self._line, self.name = config, command, line, name
        self._full = self._draw([OVERRIDES["full"]])
        self._loading, self.works = 0.0, dict[str, Work]()

    @property
    def parameters(self) -> int:
        """How many parameters it has."""
        return sum(parameter.numel() for parameter in self._full.model.parameters())

    def composed(self, words: Sequence[str]) -> tuple[DictConfig, CommandLine]:
        """Return the config with further words typed, and all that is typed then."""
        start = [] if self.name is None else [f"init_from={quoted(self.name)}"]
        return recompose(self._config, self._line, [*start, *words])

    def measure(self, budget: float) -> None:
        """Find out what a step of all weights takes, and where these do not pay one of LoRA."""
        max_seconds = min(MEASURED_SECONDS, MEASURED_SHARE * budget)
        if self._has_room():
            self._measure("full", max_seconds)
        few = self.works and self.works["full"].texts["train"] < FEWEST_FOR_LORA
        if not self.works or not (few or self.choose(budget).scheme == "full"):
            self._measure("lora", max_seconds)
        with suppress(ConfigError):  # not every task can be solved, nor on every kind of model
            self._draw([OVERRIDES["quick"]])
            self.works["quick"] = next(iter(self.works.values()))

    def _measure(self, scheme: str, max_seconds: float) -> None:
        config, line = self.composed([OVERRIDES[scheme]])
        began = time.perf_counter()
        with silence_logging():
            run = build_run(config, self._command, line.overrides)
            self._loading = main_value(time.perf_counter() - began)
            step = main_value(measure_step(run, max_seconds))
            batch = run.blueprint.course.loop.batch
            scoring = main_value(_seconds_per_text(run) or FORWARD_COST * step / batch)
        texts = {name: int(split.counts()["scored"]) for name, split in run.data.splits.items()}
        self.works[scheme] = Work(step, batch, scoring, texts | {"train": run.data.count})

    def seconds_left(self, budget: float) -> float:
        """Return what is left of a budget once a run of it has begun."""
        spent = main_value(time.perf_counter() - self._line.began) + self._loading
        return (1 - ASIDE_SHARE) * (budget - spent - ASIDE_SECONDS)

    def choose(self, budget: float) -> ChosenScheme:
        """Return what a budget is to be spent on."""
        choice = choose_scheme(self.seconds_left(budget), self.works)
        return choice if "labelled" in self._config.data else replace(choice, texts=None)

    def _has_room(self) -> bool:
        """Return whether all weights can be trained, a text at a time."""
        device = self._full.precision.device
        room = free_bytes(device)
        if not math.isfinite(room):
            room = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        fits = sum(memory_parts(self._full, rows=1).values()) <= FILLED * room
        return main_value(float(fits)) > 0

    def _draw(self, words: Sequence[str]) -> Blueprint:
        config, line = self.composed(words)
        with silence_logging():
            return draw_blueprint(config, self._command, line.overrides, Origins(), device="meta")


def _seconds_per_text(run: TrainingRun) -> float | None:
    """Return the seconds in which a text is scored; None where there are none to score.

    Answers are not written: a model that has learnt nothing does not know where they end.
    """
    scored = [run.data.splits[name] for name in ("validation", "test") if name in run.data.splits]
    if not scored:
        return None
    plan, some = run.blueprint, replace(subsample(scored[0], SCORED_TEXTS), scorer=None)
    began = time.perf_counter()
    objective = plan.network.losses[0].objective
    evaluate(run.model, objective, some, batch=run.inference_batch, precision=plan.precision)
    return (time.perf_counter() - began) / int(some.counts()["scored"])


def recompose(
    config: DictConfig, line: CommandLine, words: Sequence[str]
) -> tuple[DictConfig, CommandLine]:
    """Return the config of `finetune` with further words typed, and all that is typed then."""
    overrides = [
        word for word in line.overrides if word.partition("=")[0] not in ("budget", "models")
    ]
    typed = replace(line, overrides=(*line.overrides, *words))
    composition = compose("finetune", Request((*overrides, *words), config_dir=line.config_dir))
    check_config(composition.config, "finetune")
    unchanged = {key: config[key] for key in ("budget", "models", "devices")}
    if config.models is None:
        unchanged["init_from"] = config.init_from  # of a sweep, its best run
    config = with_values(composition.config, unchanged)
    return config, replace(typed, presets=composition.typed.presets)


def with_earlier_choice(config: DictConfig, line: CommandLine) -> tuple[DictConfig, CommandLine]:
    """Return the config of a command; typed again, with what its run's budget has chosen."""
    if config.budget is None or config.resume != AUTO:
        return config, line
    if (run := find_run(AUTO, config.run.dir)) is None:
        return config, line
    then = run.overrides.read_text(encoding="utf-8").splitlines()
    typed = {word.lstrip("+").partition("=")[0] for word in line.overrides}
    typed -= set() if config.models is None else {"init_from"}  # it follows from them
    words = [word for word in then if word.lstrip("+").partition("=")[0] not in typed]
    return recompose(config, line, words)
