"""Plans: pure functions from layer groups to stages, which say what trains when.

*New* groups are heads and added modules, even if an earlier run trained them, and every other group
that pretrained weights did not fill. All others are *old*, ordered from bottom to top.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Protocol

from transfer_cli.errors import ConfigError, above_zero, at_least, raised_as
from transfer_cli.lengths import Length
from transfer_cli.model.transfer_model import LayerGroup

REMAINDER = Length(None)

NEW = ("head.", "added.")
"""Prefixes of the names of heads and added modules."""


@dataclass(frozen=True)
class Stage:
    """A part of a run in which the same weights train.

    Args:
        train: Patterns of the groups or parameters that train (see `adaptation.select_parameters`).
        length: Its length; the last stage has the remainder of the run.
        rate: Multiplies every learning rate in the stage.
        patience: Validations without improvement after which the stage ends early. At its end its
            best weights are restored. None: it has its full length and keeps its last weights.
    """

    train: tuple[str, ...]
    length: Length
    rate: float = 1.0
    patience: int | None = None

    def __post_init__(self) -> None:
        above_zero("rate", self.rate)
        if self.patience is not None:
            at_least("patience", self.patience, 1)


class Plan(Protocol):
    """Divides a run into stages."""

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        """Return one or more stages, in order."""


@dataclass(frozen=True)
class AllAtOnce:
    """Everything trains from the first step on."""

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        return [Stage(("*",), REMAINDER)]


@dataclass(frozen=True)
class Only:
    """Only the selected parameters train; all others keep their loaded values, bit for bit.

    Args:
        train: Patterns, for example `head.*` or `block.11` or `block.*/*norm*`.
    """

    train: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError("train must name at least one pattern, for example 'head.*'")

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        return [Stage(tuple(self.train), REMAINDER)]


@dataclass(frozen=True)
class NewWeights:
    """Only new groups train: heads, added modules, reinitialised weights.

    Args:
        norms: Whether all norms train as well (Houlsby et al. 2019, section 2.1).
    """

    norms: bool = False
    also: tuple[str, ...] = ()

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        norms = ("*/*norm*",) if self.norms else ()
        return [Stage((*_names(new_groups(groups)), *norms, *self.also), REMAINDER)]


@dataclass(frozen=True)
class Biases:
    """All biases and the new groups train (BitFit; Ben Zaken et al. 2021)."""

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        old = (n for g in groups if not g.name.startswith(NEW) for n in g.parameters)
        if not any(name.endswith(".bias") for name in old):
            raise ConfigError(
                "adaptation.plan: it trains biases, and this model has none; adaptation=lora adds "
                "few parameters to any model, adaptation=frozen trains the head alone"
            )
        return [Stage((*_names(new_groups(groups)), "*/*.bias"), REMAINDER)]


@dataclass(frozen=True)
class TopBlocks:
    """The top blocks, heads and added modules train."""

    count: int = 2

    def __post_init__(self) -> None:
        at_least("count", self.count, 1)

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        blocks = [group for group in groups if group.is_block]
        if self.count > len(blocks):
            raise ConfigError(
                f"adaptation.plan.count: the model has {len(blocks)} blocks, got {self.count}"
            )
        beside = [group for group in groups if group.name.startswith(NEW)]
        return [Stage(_names([*blocks[-self.count :], *beside]), REMAINDER)]


@dataclass(frozen=True)
class GradualUnfreezing:
    """First the new groups train; each later stage adds one old group, from the top down.

    Howard and Ruder 2018, section 3.3. In the last stage, which has the remainder of the run,
    everything trains. The tutorial's variant has `always=("embeddings",)`: with 16 blocks and 921
    steps, 17 stages of 54 steps.

    Args:
        every: Length of a stage; one epoch in the paper. auto: an equal share of the run.
    """

    every: str = "auto"
    always: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_length("every", self.every)

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        train = [*_names(new_groups(groups)), *self.always]
        stages = [Stage(tuple(train), Length.parse(self.every))]
        for group in reversed(old_groups(groups)):
            if not any(fnmatchcase(group.name, pattern) for pattern in self.always):
                train.append(group.name)
                stages.append(Stage(tuple(train), Length.parse(self.every)))
        return _with_remainder(stages)


@dataclass(frozen=True)
class ChainThaw:
    """First the new groups train, then each old group alone from bottom to top, then everything.

    Felbo et al. 2017, section 3.3. There each stage runs until validation stops improving, and
    restores its best weights; the first has a learning rate of 1e-3, the others 1e-4.

    Args:
        every: Maximum length of a stage. auto: an equal share of the run.
        with_new: Whether the new groups train in every stage. In the paper they do not.
    """

    every: str = "auto"
    patience: int | None = 3
    with_new: bool = False
    later_rate: float = 0.1

    def __post_init__(self) -> None:
        _check_length("every", self.every)
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience must be at least 1, or null, got {self.patience}")
        above_zero("later_rate", self.later_rate)

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        new, old = _names(new_groups(groups)), _names(old_groups(groups))
        beside = new if self.with_new else ()
        # Without pretrained weights all groups are new, and one stage is enough.
        later = [*((*beside, name) for name in old), ("*",)] if old else []
        length = Length.parse(self.every)
        stages = [Stage(new, length, 1.0, self.patience)]
        stages += [Stage(train, length, self.later_rate, self.patience) for train in later]
        return _with_remainder(stages)


@dataclass(frozen=True)
class SequentialUnfreezing:
    """First the new groups train, then everything but the embeddings, then everything.

    Chronopoulou et al. 2019, section 3.2, where the stages begin at epochs 0, 1 and 4.
    """

    new: str = "20%"
    upper: str = "60%"

    def __post_init__(self) -> None:
        _check_length("new", self.new)
        _check_length("upper", self.upper)

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        new, old = new_groups(groups), old_groups(groups)
        upper = [group for group in groups if group in new or group.depth > 0]
        stages = [Stage(_names(new), Length.parse(self.new))]
        if old:
            stages += [Stage(_names(upper), Length.parse(self.upper)), Stage(("*",), REMAINDER)]
        return _with_remainder(stages)


def new_groups(groups: Sequence[LayerGroup]) -> list[LayerGroup]:
    """Return heads, added modules, and groups that pretrained weights did not fill."""
    return [group for group in groups if group.name.startswith(NEW) or not group.inherited]


def old_groups(groups: Sequence[LayerGroup]) -> list[LayerGroup]:
    """Return all other groups, from bottom to top."""
    new = new_groups(groups)
    return [group for group in groups if group not in new]


def _names(groups: Sequence[LayerGroup]) -> tuple[str, ...]:
    return tuple(group.name for group in groups)


def _with_remainder(stages: Sequence[Stage]) -> list[Stage]:
    """Drop stages that train nothing; give the last one the remainder of the run."""
    kept = [stage for stage in stages if stage.train]
    return [*kept[:-1], *(replace(stage, length=REMAINDER) for stage in kept[-1:])]


def _check_length(name: str, text: str) -> None:
    with raised_as(ValueError, f"{name}: "):
        length = Length.parse(text)
    if length == REMAINDER:
        raise ValueError(f"{name}: only the last stage can have the rest of the run")
