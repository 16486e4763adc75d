"""Ladders: what runs of `sweep=ladder` foretell of a larger one, and what such a run reached."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from transfer_cli.budget import Budget
from transfer_cli.errors import ConfigError
from transfer_cli.reports import formats
from transfer_cli.reports.best import learnt_runs
from transfer_cli.reports.contents import Ladder, Prediction, Run, Rung
from transfer_cli.reports.grouping import first_difference
from transfer_cli.reports.scaling_law import FARTHEST, Fit, NoLawError, fit_law, interval
from transfer_cli.runs.untrusted import is_number, nested

_LOSS, _DEPTH = "validation/loss", "model.depth"
_AMOUNTS = ("depth", "operations", "parameters", "tokens")
_POINTS = 33
"""Of the line that is drawn."""


def ladder_of(runs: Sequence[Run]) -> Ladder | None:
    """Return what the runs of a task say as a ladder; None where they have to do with none."""
    members = ladder_runs(runs)
    rungs = tuple(_rungs(members))
    ladder = Ladder(rungs, came=tuple(rung for rung in _rungs(runs) if rung.prediction))
    if not members:
        return ladder if ladder.came else None
    try:
        fit = _fit(members)
    except NoLawError as error:
        return replace(ladder, refused=str(error))
    ladder = replace(ladder, law=_law_text(fit), curve=tuple(_curve(rungs, fit)))
    targets = {str(text) for run in members if (text := run.settings.get("ladder.target"))}
    with suppress(ValueError, ConfigError):  # none, several, or what a stranger has written
        [only] = targets
        name = f"ladder.target={formats.plain(only)}"
        try:
            return replace(ladder, target=_target(name, only, rungs, fit))
        except NoLawError as error:
            nan = math.nan
            return replace(ladder, target=Rung(name, nan, nan, nan, nan, nan, refused=str(error)))
    return ladder


def predict_run(
    runs: Sequence[Run], operations: float, parameters: float, tokens: float
) -> Prediction:
    """Return the loss that the runs of a ladder foretell of another one.

    Raises:
        NoLawError: There are none, or their law does not hold, or not as far.
    """
    return _fit(runs).predict(operations, parameters, tokens)


def loss_by_size(runs: Sequence[Run]) -> Callable[[float, float], float] | None:
    """Return the loss by parameters and tokens; None of a ladder that tells operations alone.

    Raises:
        NoLawError: There are no runs, or their law does not hold.
    """
    law = _fit(runs).law
    return (lambda *sizes_S: float(law.at(sizes_S)[0])) if len(law.units) > 1 else None


def ladder_runs(runs: Sequence[Run]) -> list[Run]:
    """Return those of some runs that are of a ladder."""
    return [run for run in runs if run.settings.get("sweep") == "ladder"]


def _law_text(fit: Fit) -> str:
    law, ends = fit.law, map(interval, (fit.resampled.floors, *fit.resampled.exponents.T))
    parts = zip("C" if len(law.units) == 1 else "ND", law.units, law.scales[0], law.exponents[0],
                strict=True)  # fmt: skip
    terms = (f"{scale:.3g} ({of}/{unit:.2g})^-{power:.3g}" for of, unit, scale, power in parts)
    intervals = ", ".join(f"{low:.3g} to {high:.3g}" for low, high in ends)
    return (
        f"{' + '.join([f'{law.floors[0]:.3g}', *terms])}; floor and exponent 95 % {intervals}; "
        f"runs are {fit.deviation:.3f} from it"
    )


def _rungs(runs: Sequence[Run]) -> Iterator[Rung]:
    for run in learnt_runs(runs):
        numbers: list[Any] = [
            run.settings.get(_DEPTH), run.results.flops, run.results.parameters.total,
            run.results.seen.tokens, run.timing.get("seconds"), run.results.by_name.get(_LOSS),
        ]  # fmt: skip
        if all(is_number(value) and 0 < value < math.inf for value in numbers):
            known = [nested(run.results.more, "prediction", key) for key in ("loss", "low", "high")]
            prediction = Prediction(*known) if all(map(is_number, known)) else None
            depth, operations, parameters, tokens, seconds, loss = map(float, numbers)
            yield Rung(run.name, depth, operations, parameters, tokens, seconds, loss, prediction)


def _fit(runs: Sequence[Run]) -> Fit:
    for run in runs[1:]:
        if key := first_difference(runs[0].settings, run.settings):
            raise NoLawError(f"the runs differ in {key}, and a loss per token with it")
    return fit_law([*_rungs(runs)])


def _estimate(rungs: Sequence[Rung], amount: str, over: str, place: float, power: int = 2) -> float:
    """Return an amount of a run of this ladder, by another one: a polynomial of their logarithms.

    What depth decides is no matter of chance, so that a bent line goes on well.
    """
    places, values = (np.log([getattr(rung, name) for rung in rungs]) for name in (over, amount))
    line = np.polynomial.Polynomial.fit(places, values, power)
    return float(np.exp(line(np.log(place))))


def _target(name: str, asked: str, rungs: Sequence[Rung], fit: Fit) -> Rung:
    if len({rung.parameters for rung in rungs}) > len({rung.depth for rung in rungs}):
        raise NoLawError("models of one depth differ in size; ladder.of foretells of any run")
    if asked.isdecimal():
        depth = max(1.0, float(asked))
    else:
        budget = Budget.parse(asked)
        operations = budget.amount
        if budget.unit == "s":
            operations = _estimate(rungs, "operations", "seconds", budget.amount, 1)
        depth = _estimate(rungs, "depth", "operations", operations)
    amounts: dict[str, Any] = {name: _estimate(rungs, name, "depth", depth) for name in _AMOUNTS}
    seconds = _estimate(rungs, "seconds", "operations", amounts["operations"], 1)
    expected = fit.predict(*(amounts[name] for name in _AMOUNTS[1:]))
    return Rung(name, **amounts, seconds=seconds, prediction=expected)


def _curve(rungs: Sequence[Rung], fit: Fit) -> Iterator[tuple[float, Prediction]]:
    operations = [rung.operations for rung in rungs]
    most = 0.999 * FARTHEST * max(operations)
    for place in np.geomspace(min(operations), most, _POINTS).tolist():
        sizes = (_estimate(rungs, name, "operations", place) for name in ("parameters", "tokens"))
        yield place, fit.predict(place, *sizes)
