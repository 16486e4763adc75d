"""What a report consists of: plain values, made by `collect` and `compare`, shown by the rest."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transfer_cli.metrics import Metric, find_metric
from transfer_cli.runs.results import Measures, Results
from transfer_cli.runs.stored_analyses import StoredAnalysis
from transfer_cli.runs.untrusted import is_number, nested
from transfer_cli.safe_files import printable

FINISHED, RUNNING, STOPPED, FAILED, LEFT, PRUNED = (
    "finished", "running", "stopped", "failed", "left", "pruned",
)  # fmt: skip

ENDED_EARLY = (STOPPED, FAILED, PRUNED)

FEWEST_SEEDS = 3
"""Fewest runs whose spread is shown: that of two is mostly chance."""

CONFIDENCE = 95
"""Percent of an interval."""

MCNEMAR, BOOTSTRAP = "McNemar", "bootstrap"
"""The tests of a comparison."""

_OF_SLICES = Metric("accuracy/slice", higher_is_better=True, unit="fraction")
"""How right the answers of a slice are, whatever a task measures."""

LEARNT_NOTHING = "†"
"""The mark of a run that learnt next to nothing."""


@dataclass(frozen=True)
class Run:
    """One run directory, as far as it can be read; what has no file is empty.

    Args:
        name: Short, and different for each run of a report.
        status: One of the constants above.
        reason: Why it is not finished, or finished with nothing learnt.
        settings: The config, flat: dotted key -> plain value; presets by their group
            (`adaptation` -> `lora`).
        sweep: The folder of the sweep in which it is the job `number`.
        overrides: What tells it from the other jobs of the sweep.
        typed: The keys and groups that were given on the command line.
    """

    path: Path
    name: str
    command: str
    status: str
    reason: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    results: Results = field(default_factory=Results)
    timing: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    sweep: Path | None = None
    number: int | None = None
    overrides: tuple[str, ...] = ()
    typed: frozenset[str] = frozenset()
    analyses: tuple[StoredAnalysis, ...] = ()

    @property
    def measures(self) -> Measures:
        """Its scores, by split and name, of the weights that it keeps."""
        return self.results.measures

    @property
    def config(self) -> Mapping[str, Any]:
        """Its settings by their keys, as `optimizer.lr`; presets by their group."""
        return self.settings

    @property
    def seed(self) -> Any:
        """The seed; None where it is not known."""
        return self.settings.get("seed")

    @property
    def shortfall(self) -> str | None:
        """Why less came of it than should have, in one line; None for other runs."""
        if self.status in ENDED_EARLY:
            return printable(f"{self.status}: {self.reason}") if self.reason else self.status
        return None if self.reason is None else printable(f"{LEARNT_NOTHING} {self.reason}")

    @property
    def trained(self) -> int | None:
        """The number of parameters that were ever trained."""
        return self.results.parameters.trainable

    @property
    def joules(self) -> float | None:
        """The energy that was read for it; None where nobody could tell."""
        value = nested(self.timing, "spent", "joules")
        return value if is_number(value) else None


Rank = tuple[float, ...]
"""What decides, the loss, the trained parameters, of a run or the mean of a group: less is best."""


@dataclass(frozen=True)
class Criterion:
    """The measure of validation, `validation/NAME`, by which the best is chosen."""

    measure: str
    metric: Metric


@dataclass(frozen=True)
class Best:
    """The run to take of those that learnt anything, with others as good, and the next one.

    `caveat` says on what else than learning the measure may depend; "" for nothing.
    """

    run: Run
    choice: Criterion
    among: int
    tied: tuple[Run, ...] = ()
    decided: str = ""
    runner_up: Run | None = None
    caveat: str = ""


@dataclass(frozen=True)
class Spread:
    """A number over several runs; the sample deviation is None for fewer than `FEWEST_SEEDS`."""

    values: tuple[float, ...]
    mean: float
    deviation: float | None

    @classmethod
    def over(cls, values: Iterable[Any]) -> "Spread | None":
        """Return the spread of the numbers among some values; None where there is none."""
        known = tuple(
            float(value) for value in values if is_number(value) and not math.isnan(value)
        )
        if not known:
            return None
        mean = math.fsum(known) / len(known) if all(map(math.isfinite, known)) else sum(known)
        deviation = None
        if len(known) >= FEWEST_SEEDS and math.isfinite(mean):
            deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in known) / (len(known) - 1))
        return cls(known, mean, deviation)


def metric_of(measure: str, metrics: Sequence[Metric]) -> Metric:
    """Return the declaration of a `split/measure`; of what nobody declares, less is better."""
    name = measure.partition("/")[2]
    declared = find_metric(name, (*metrics, _OF_SLICES))
    return declared or Metric(name or measure or "unnamed", higher_is_better=False)


@dataclass(frozen=True)
class Comparison:
    """A group against the baseline, on the same items.

    Args:
        difference: Group minus baseline, in the unit of the measure; `low` and `high` are the
            ends of its 95 % interval.
        p: How likely a difference of this size is where there is none; neither that nor an interval
            is known where too few seeds tell.
        test: `McNemar` (McNemar 1947, exact), or `bootstrap`.
        corrected: `p`, corrected for the number of comparisons of the task (Holm 1979).
    """

    measure: str
    difference: float
    low: float | None
    high: float | None
    p: float | None
    test: str
    items: int
    baseline: str = ""
    corrected: float | None = None


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed.

    Args:
        label: What tells it from the other groups of the task: `adaptation=lora optimizer.lr=1e-3`.
        settings: The same by key, for the keys of `TaskRuns.varying`.
        measures: `split/measure` -> its spread over the finished runs, as those of `flops`,
            `seconds`, `joules` and `memory` (peak bytes).
        is_best: Whether it has the best mean of `TaskRuns.choice`, of those that learnt anything.
        against: The difference to the baseline; None for the baseline itself, or where no two runs
            can be compared item by item.
        published: What the preset of a sweep says that others had for the job, if it does.
    """

    label: str
    settings: Mapping[str, Any]
    runs: tuple[Run, ...]
    measures: Mapping[str, Spread] = field(default_factory=dict)
    trained: int | None = None
    flops: Spread | None = None
    seconds: Spread | None = None
    joules: Spread | None = None
    memory: Spread | None = None
    is_best: bool = False
    against: Comparison | None = None
    published: float | None = None

    @property
    def finished(self) -> list[Run]:
        """Its finished runs."""
        return [run for run in self.runs if run.status == FINISHED]

    def mean(self, name: str) -> float | None:
        """Return the mean of a measure, or of what a run of it took, by the name of that field."""
        found: Spread | int | None = self.measures.get(name) or getattr(self, name, None)
        return found.mean if isinstance(found, Spread) else found

    @property
    def learnt_nothing(self) -> int:
        """How many of its runs learnt next to nothing."""
        return sum(run.reason is not None for run in self.finished)


@dataclass(frozen=True)
class SharedError:
    """An item that `wrong` of `runs` get wrong; `predicted` counts the runs for each label."""

    text: str
    label: str
    predicted: Mapping[str, int]
    wrong: int
    runs: int


@dataclass(frozen=True)
class Prediction:
    """The loss that a run is expected to reach, and the ends of its 95 % interval, in nats."""

    loss: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return it with its interval."""
        return f"{self.loss:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Rung:
    """A run of a ladder, or one that it foretells: what it takes, and the loss that it reaches.

    Args:
        loss: In nats a token of validation; not a number where nothing has been trained.
        prediction: What was foretold of it; `refused` says why nothing is.
    """

    name: str
    depth: float
    operations: float
    parameters: float
    tokens: float
    seconds: float
    loss: float = math.nan
    prediction: Prediction | None = None
    refused: str | None = None


@dataclass(frozen=True)
class Ladder:
    """Runs of several sizes, the law that their losses follow, and what that foretells.

    Args:
        law: In words; where there is none, `refused` says why.
        curve: Operations, and what is expected there, up to as many as the law is believed for.
        target: What `ladder.target` takes and reaches.
        came: Runs that were foretold before they began.
    """

    rungs: tuple[Rung, ...] = ()
    law: str = ""
    refused: str | None = None
    curve: tuple[tuple[float, Prediction], ...] = ()
    target: Rung | None = None
    came: tuple[Rung, ...] = ()


@dataclass(frozen=True)
class TaskRuns:
    """Runs that can be compared: of one command, on the same data, with the same labels.

    Args:
        groups: Best first.
        varying: Keys in which the groups differ, the seed aside.
        measure: What is reported and tested: `test/error_rate`.
        baseline: The label of the group that the others are compared with; the settings that
            `--baseline` names, where they fit several groups.
        expected: The task's word for the right answer.
        errors: What most runs get wrong, the worst first.
        sort: What the groups are sorted by: a measure, or one of `compare.COSTS`.
        choice: What decides which group and which run are best; None without validation.
        ladder: What its runs of sweep=ladder foretell; None without any.
    """

    name: str
    groups: tuple[Group, ...]
    varying: tuple[str, ...]
    measure: str
    metrics: tuple[Metric, ...]
    baseline: str | None = None
    labels: tuple[str, ...] = ()
    expected: str = "label"
    errors: tuple[SharedError, ...] = ()
    sort: str = ""
    notes: tuple[str, ...] = ()
    choice: Criterion | None = None
    best: Best | None = None
    ladder: Ladder | None = None

    @property
    def chosen_by(self) -> str:
        """The measure that decides; the reported one without validation."""
        return self.measure if self.choice is None else self.choice.measure

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, group by group."""
        return tuple(run for group in self.groups for run in group.runs)

    @property
    def best_first(self) -> Sequence[tuple[int, Group]]:
        """Its groups with their places, the best one first, whatever they are sorted by."""
        return sorted(enumerate(self.groups), key=lambda place: not place[1].is_best)

    @property
    def lower_is_better(self) -> bool:
        """Whether less of its measure is better."""
        return not self.metric(self.measure).higher_is_better

    def metric(self, measure: str) -> Metric:
        """Return the declaration of a `split/measure`."""
        return metric_of(measure, self.metrics)


@dataclass(frozen=True)
class SweepProgress:
    """How many jobs of a sweep are done, at work, left, failed and pruned.

    Args:
        left: Jobs not begun, or stopped half way.
        failed: Number, overrides and reason of each job that failed.
        seconds_left: A guess from the jobs that are done; None without any, and at the end.
    """

    path: Path
    command: str
    done: int
    running: int
    left: int
    failed: tuple[tuple[int, str, str], ...] = ()
    pruned: int = 0
    seconds_left: float | None = None


@dataclass(frozen=True)
class Report:
    """All that there is to show; `problems` are what could not be read, a line each."""

    tasks: tuple[TaskRuns, ...]
    standings: tuple[SweepProgress, ...] = ()
    problems: tuple[str, ...] = ()
    created: str = ""


def plain_values(value: object) -> Any:
    """Return records, paths and plain values as lists and mappings that JSON can hold."""
    return json.loads(json.dumps(value, default=_record_fields), parse_constant=lambda _: None)


def _record_fields(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Results):
        return value.as_json() if value != Results() else {}
    fields = dict(vars(value))
    if isinstance(value, TaskRuns):
        fields["lower_is_better"] = value.lower_is_better
    if isinstance(value, Criterion):
        fields["lower_is_better"] = not value.metric.higher_is_better
    if isinstance(value, Run) and not value.analyses:
        del fields["analyses"]
    if isinstance(value, Best):  # the runs themselves are in their groups
        fields |= {
            "run": value.run.path,
            "tied": [run.path for run in value.tied],
            "runner_up": value.runner_up and value.runner_up.path,
        }
    return fields
