"""Which weights train, and until when: plans are pure functions from layer groups to stages.

What plans call *new*: heads and added modules, also where an earlier run has trained them already,
and every other group that pretrained weights did not fill. The rest is *old*, in order from the
bottom to the top.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Protocol

from transfer_cli.errors import ConfigError, above_zero, at_least
from transfer_cli.lengths import Length
from transfer_cli.model.transfer_model import LayerGroup

REST = Length(None)

NEW = ("head.", "added.")
"""How the names of the groups begin that pretraining never has, unless it had that very task."""


@dataclass(frozen=True)
class Stage:
    """A stretch of a run in which the same weights train.

    Args:
        train: Patterns of what trains (see `selection`).
        length: How long; the last stage takes the rest of the run.
        rate: Multiplies every rate in the stage.
        patience: Evaluations without a better monitored measure after which the stage ends early.
            With it, a stage ends with its best weights, whenever it ends. None: the stage has its
            whole length, and keeps its last weights.
    """

    train: tuple[str, ...]
    length: Length
    rate: float = 1.0
    patience: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where a value cannot work."""
        above_zero("rate", self.rate)
        if self.patience is not None:
            at_least("patience", self.patience, 1)


class Plan(Protocol):
    """What a preset's `plan` is."""

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        """Return the stages in order; at least one."""


@dataclass(frozen=True)
class AllAtOnce:
    """Everything trains from the first step on."""

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        """Return one stage of all groups."""
        return [Stage(("*",), REST)]


@dataclass(frozen=True)
class Only:
    """What the patterns select trains; the rest keeps its loaded value, bit for bit.

    Args:
        train: Patterns, for example `head.*` or `block.11` or `block.*/*norm*`.
    """

    train: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raise ValueError where nothing is named."""
        if not self.train:
            raise ValueError("train must name at least one pattern, for example 'head.*'")

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        """Return one stage."""
        return [Stage(tuple(self.train), REST)]


@dataclass(frozen=True)
class NewWeights:
    """Only what is new trains: heads, added modules, what was drawn anew.

    Args:
        norms: Whether all norms train as well (Houlsby et al. 2019, section 2.1).
        also: Patterns of what else trains.
    """

    norms: bool = False
    also: tuple[str, ...] = ()

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        """Return one stage."""
        norms = ("*/*norm*",) if self.norms else ()
        return [Stage((*_names(new_groups(groups)), *norms, *self.also), REST)]


@dataclass(frozen=True)
class Biases:
    """All biases and what is new train (Ben Zaken et al. 2021)."""

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        """Return one stage."""
        return [Stage((*_names(new_groups(groups)), "*/*.bias"), REST)]


@dataclass(frozen=True)
class TopBlocks:
    """The blocks nearest to the heads, heads and added modules train.

    Args:
        count: How many blocks.
    """

    count: int = 2

    def __post_init__(self) -> None:
        """Raise ValueError where no block is left."""
        at_least("count", self.count, 1)

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        """Return one stage.

        Raises:
            ConfigError: The model has fewer blocks.
        """
        blocks = [group for group in groups if group.name.startswith("block.")]
        if self.count > len(blocks):
            raise ConfigError(
                f"adaptation.plan.count: the model has {len(blocks)} blocks, got {self.count}"
            )
        beside = [group for group in groups if group.name.startswith(NEW)]
        return [Stage(_names([*blocks[-self.count :], *beside]), REST)]


@dataclass(frozen=True)
class GradualUnfreezing:
    """First what is new, then in each stage one old group more, from the top down.

    Howard and Ruder 2018, section 3.3. The last stage, in which everything trains, takes the rest
    of the run. The tutorial's variant has `always=("embeddings",)`: with 16 blocks and 921 steps,
    17 stages of 54 steps.

    Args:
        every: A stage's length; the paper's is one epoch. auto: an equal share of the run.
        always: Patterns of what trains from the start.
    """

    every: str = "auto"
    always: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError where the length is none."""
        _check_length("every", self.every)

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        """Return one stage for what is new, and one for each old group."""
        train = [*_names(new_groups(groups)), *self.always]
        stages = [Stage(tuple(train), Length.parse(self.every))]
        for group in reversed(old_groups(groups)):
            if not any(fnmatchcase(group.name, pattern) for pattern in self.always):
                train.append(group.name)
                stages.append(Stage(tuple(train), Length.parse(self.every)))
        return _closed(stages)


@dataclass(frozen=True)
class ChainThaw:
    """What is new; then each old group alone, from the bottom to the top; then everything.

    Felbo et al. 2017, section 3.3. There each stage runs until validation stops improving and goes
    back to its best weights; the first has a rate of 1e-3, the others 1e-4.

    Args:
        every: A stage's longest length. auto: an equal share of the run.
        patience: Evaluations without a better one that end a stage; None: each has its full length,
            and keeps its last weights.
        with_new: Whether what is new trains in every stage. In the paper it does not.
        later_rate: Multiplies all rates after the first stage.
    """

    every: str = "auto"
    patience: int | None = 3
    with_new: bool = False
    later_rate: float = 0.1

    def __post_init__(self) -> None:
        """Raise ValueError where a value cannot work."""
        _check_length("every", self.every)
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience must be at least 1, or null, got {self.patience}")
        above_zero("later_rate", self.later_rate)

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        """Return a stage for what is new, one for each old group, one for everything."""
        new, old = _names(new_groups(groups)), _names(old_groups(groups))
        beside = new if self.with_new else ()
        # From scratch everything is new, and there is nothing to thaw.
        later = [*((*beside, name) for name in old), ("*",)] if old else []
        length = Length.parse(self.every)
        stages = [Stage(new, length, 1.0, self.patience)]
        stages += [Stage(train, length, self.later_rate, self.patience) for train in later]
        return _closed(stages)


@dataclass(frozen=True)
class SequentialUnfreezing:
    """What is new; then everything but the embeddings; then everything.

    Chronopoulou et al. 2019, section 3.2, where the stages begin at epochs 0, 1 and 4.

    Args:
        new: Length of the first stage.
        upper: Length of the second one.
    """

    new: str = "20%"
    upper: str = "60%"

    def __post_init__(self) -> None:
        """Raise ValueError where a length is none."""
        _check_length("new", self.new)
        _check_length("upper", self.upper)

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        """Return three stages, one where everything is new."""
        new, old = new_groups(groups), old_groups(groups)
        upper = [group for group in groups if group in new or group.depth > 0]
        stages = [Stage(_names(new), Length.parse(self.new))]
        if old:
            stages += [Stage(_names(upper), Length.parse(self.upper)), Stage(("*",), REST)]
        return _closed(stages)


def new_groups(groups: Sequence[LayerGroup]) -> list[LayerGroup]:
    """Return heads, added modules, and whatever else pretrained weights did not fill."""
    return [group for group in groups if group.name.startswith(NEW) or not group.inherited]


def old_groups(groups: Sequence[LayerGroup]) -> list[LayerGroup]:
    """Return all other groups, from the bottom to the top."""
    new = new_groups(groups)
    return [group for group in groups if group not in new]


def _names(groups: Sequence[LayerGroup]) -> tuple[str, ...]:
    return tuple(group.name for group in groups)


def _closed(stages: Sequence[Stage]) -> list[Stage]:
    """Return the stages without those that train nothing; the last one takes the run's rest."""
    kept = [stage for stage in stages if stage.train]
    return [*kept[:-1], *(replace(stage, length=REST) for stage in kept[-1:])]


def _check_length(name: str, text: str) -> None:
    """Refuse what is no length of a stage that others follow."""
    try:
        length = Length.parse(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if length == REST:
        raise ValueError(f"{name}: only the last stage can have the rest of the run")
