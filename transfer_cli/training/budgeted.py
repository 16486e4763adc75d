"""`budget=10min`: measures what a token of some depths costs, and chooses depth and length."""

import json
import logging
import platform
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from transfer_cli.assembly.blueprint import Blueprint, draw
from transfer_cli.assembly.model import block_length
from transfer_cli.assembly.origins import Origins
from transfer_cli.assembly.run import TrainingRun, build_run
from transfer_cli.budget import (
    FORWARD,
    WORTH_NEW,
    Budget,
    Corpus,
    Law,
    Offer,
    between_depths,
    offers_of,
)
from transfer_cli.config.build import plain
from transfer_cli.config.decided import with_values
from transfer_cli.config.dialled import redialled
from transfer_cli.config.stored import plain_values
from transfer_cli.data.folders import cache_folder
from transfer_cli.data.loader import StepDataLoader
from transfer_cli.engine import distributed
from transfer_cli.engine.cost import training_flops
from transfer_cli.errors import ConfigError
from transfer_cli.runs.atomic import write_json
from transfer_cli.runs.environment import ran_on
from transfer_cli.safe_files import UnreadableError, read_json

log = logging.getLogger(__name__)

DEPTHS = (2, 4, 8, 16, 32)
"""The depths that are measured, until a deeper one is foreseen to do worse."""

SPEEDS = "speeds.json"
"""The file in the cache with the seconds of a token, by machine and shape."""

ASIDE_SECONDS, ASIDE_SHARE = 6.0, 0.03
"""What of a budget is set aside: to start and to write the model, and for slower steps."""

MEASURED_SECONDS, MEASURED_SHARE, MEASURED_STEPS = 2.0, 0.01, 12
"""For how long steps are taken to measure them, also as a share of a budget, and how many."""

GUESSED_SECONDS = 2e-9
"""Of a parameter and a token on a CPU, before anything is measured."""


def within_budget(config: DictConfig, command: str, typed: Sequence[str]) -> DictConfig:
    """Return a config with the depth and the length that its budget chooses; itself without one.

    All processes of a run measure together, and choose by what the main one took.
    """
    if config.get("budget") is None:
        return config
    began, budget = time.perf_counter(), Budget.parse(config.budget)
    law = Law(**plain(config.dial.law, "dial.law"))
    prices = _Prices(command, typed, budget)
    is_typed = any(word.lstrip("+").startswith("model.depth=") for word in typed)
    known = dict[int, float]()
    # Of a parameter and a token; with it, each depth is measured at about the batch of its run.
    guess = 1.0 if budget.unit == "flop" else GUESSED_SECONDS

    def offers(amount: float, every: Mapping[int, float]) -> Sequence[Offer]:
        sizes = {depth: _parameters(config, depth, typed) for depth in every}
        return offers_of(amount, every, sizes, prices.corpus, law)

    for depth in (config.model.depth,) if is_typed else DEPTHS:
        size = _parameters(config, depth, typed)
        reads = max(1.0, budget.amount / (guess * size))
        known[depth] = prices.of(
            redialled(config, {"model.depth": depth, "loop.tokens": reads}, typed)
        )
        guess = known[depth] / size
        found = offers(budget.amount, known)
        if not found or found[0].depth < depth:
            break
    every, amount = between_depths(known), budget.amount
    if budget.unit == "s":
        spent = _of_main(time.perf_counter() - began)
        amount = (1 - ASIDE_SHARE) * (budget.amount - spent - ASIDE_SECONDS)
    found = offers(amount, every)
    if not found:
        raise ConfigError(
            f"budget: {config.budget} is too short to train on this text and to score it; give "
            "more, or fewer texts for validation (data.validation)"
        )
    best = found[0]
    chosen = redialled(config, {"model.depth": best.depth, "loop.tokens": best.tokens}, typed)
    if budget.unit == "s":
        # At its own batch, and for a depth that lies between those that were measured.
        before = time.perf_counter()
        every[best.depth] = prices.of(chosen)
        amount -= _of_main(time.perf_counter() - before)
        best = next(iter(offers(amount, {best.depth: every[best.depth]})), best)
    _say(config.budget, best, found, offers(amount + budget.amount, every)[0], prices.corpus)
    values: dict[str, Any] = {"loop.tokens": float(round(best.tokens))}
    if budget.unit == "s":
        scoring = FORWARD * every[best.depth] * prices.corpus.scored
        values["loop.minutes"] = round((amount - scoring) / 60, 3)
    return with_values(chosen, {**values, "dial.foreseen": round(best.loss, 4)})


def _parameters(config: DictConfig, depth: int, typed: Sequence[str]) -> float:
    return float(redialled(config, {"model.depth": depth}, typed).dial.parameters)


def _of_main(number: float) -> float:
    """Return the number that the main process has."""
    return float(distributed.broadcast_text(repr(number)))


def _say(budget: str, best: Offer, found: Sequence[Offer], of_twice: Offer, corpus: Corpus) -> None:
    epochs = best.tokens / corpus.tokens
    repeats = ""
    if epochs > WORTH_NEW:
        repeats = f", worth {best.worth / corpus.tokens:.1f} of new text (Muennighoff et al. 2023)"
    others = [
        f"{each.loss:.3f} with depth {each.depth}" for each in found if each.depth != best.depth
    ][:3]
    besides = f", against {', '.join(others)}" if others else ""
    log.info("budget: %s: depth %d and %s, %.3g epochs%s", budget, best.depth,
             _tokens(best), epochs, repeats)  # fmt: skip
    log.info("budget: a loss of %.3f a token is foreseen by dial.law%s", best.loss, besides)
    log.info("budget: twice as much would bring %.3f, with depth %d and %s", of_twice.loss,
             of_twice.depth, _tokens(of_twice))  # fmt: skip


def _tokens(offer: Offer) -> str:
    return f"{offer.tokens / 1e6:,.3g}M tokens"


class _Prices:
    """What a token costs: in seconds, measured here once for a shape, or in operations.

    Attributes:
        corpus: The text of the model that was last asked for.
    """

    def __init__(self, command: str, typed: Sequence[str], budget: Budget) -> None:
        self._command, self._typed, self._budget = command, typed, budget
        self.corpus = Corpus(0.0)

    def of(self, config: DictConfig) -> float:
        """Return the price of a token of training."""
        config = with_values(config, {"budget": None, "logger": None})
        with _quietly():
            plan = draw(config, self._command, self._typed, Origins(), device="meta")
        length = block_length(config.data.get("length"), plan.model.backbone.shape.positions)
        tokens = float(plan.data.drawn["main"] * length)
        if self._budget.unit == "flop":
            self.corpus = Corpus(tokens)
            return float(training_flops(plan.model, length))
        splits = plan.data.encoded()["main"].splits
        scored = sum(len(split.data) for name, split in splits.items() if name != "train")
        self.corpus = Corpus(tokens, float(scored * length))
        place, key = cache_folder(config.data_dir) / SPEEDS, _key(plan)
        speeds = _speeds_in(place)
        known = float(distributed.broadcast_text(repr(speeds.get(key, 0.0))))
        if known:
            return known
        with _quietly():
            run = build_run(config, self._command, self._typed)
            most = min(MEASURED_SECONDS, MEASURED_SHARE * self._budget.amount)
            of_step = _of_main(_seconds(run, most))
        seconds = of_step / (run.blueprint.course.loop.batch * length)
        if distributed.is_main():
            place.parent.mkdir(parents=True, exist_ok=True)
            write_json(place, {**_speeds_in(place), key: seconds})
        return seconds


@contextmanager
def _quietly() -> Iterator[None]:
    """Say nothing of runs that are only measured, or looked at."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _seconds(run: TrainingRun, most: float) -> float:
    """Return what a step takes, in the mean of some after the first, which warms up."""
    sizes = run.blueprint.course.sizes
    loader = StepDataLoader(
        run.streams, run.micro_batch, lambda: 0, sizes.mixture,
        rank=distributed.rank(), world_size=distributed.world_size(),
    )  # fmt: skip
    each = list[float]()
    for number in range(min(sizes.total_steps, MEASURED_STEPS)):
        began = time.perf_counter()
        float(run.step(loader.at(number), number).total)  # waits for the device
        each.append(time.perf_counter() - began)
        if _of_main(sum(each[1:])) > most:
            break
    return statistics.mean(each[1:] or each)


def _key(plan: Blueprint) -> str:
    """Return what decides how long a step takes: the machine, and what is computed."""
    shape = {name: value for name, value in plain_values(plan.config.model).items() if value}
    course = {"batch": plan.course.loop.batch, "compile": plan.course.loop.compile}
    known = {
        "machine": platform.node(),
        **ran_on(plan.precision.device, distributed.world_size()),
        "precision": plan.precision.kind,
        "vocabulary": plan.data.tokenizer.size,
        "optimizer": plan.config.optimizer.get("_target_"),
        **course,
        **shape,
    }
    return json.dumps(known, sort_keys=True)


def _speeds_in(place: Path) -> dict[str, float]:
    try:
        found = read_json(place)
    except (OSError, UnreadableError):
        return {}
    return found if isinstance(found, dict) else {}
