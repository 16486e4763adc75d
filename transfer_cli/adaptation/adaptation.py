"""The record of how a model is adapted, and the checks across its parts."""

from collections.abc import Sequence
from dataclasses import dataclass

from transfer_cli.adaptation.plans import Plan
from transfer_cli.adaptation.selection import select
from transfer_cli.errors import ConfigError
from transfer_cli.model.transfer_model import LayerGroup
from transfer_cli.optim.layer_scale import LayerScale


@dataclass(frozen=True)
class Span:
    """A stage with its steps and parameters worked out.

    Args:
        begin: First step, counted from 0.
        end: The step after its last one.
        trains: Full names of the parameters that train.
    """

    begin: int
    end: int
    trains: frozenset[str]


@dataclass(frozen=True)
class Adaptation:
    """Independent choices, each usable with each other.

    Args:
        plan: Which weights train, and until when.
        layer_scale: How fast, by depth.
        frozen_eval: Whether a part of which nothing trains runs without dropout.
    """

    plan: Plan
    layer_scale: LayerScale
    frozen_eval: bool = False

    def spans(
        self, groups: Sequence[LayerGroup], total: int, steps_per_epoch: int
    ) -> tuple[Span, ...]:
        """Return the run's stages in steps.

        Raises:
            ConfigError: Stages are longer than the run, or a head never trains.
            SelectionError: A pattern matches nothing.
        """
        spans: list[Span] = []
        begin = 0
        for number, stage in enumerate(self.plan(groups)):
            if begin >= total:
                raise ConfigError(
                    f"adaptation.plan: stage {number + 1} would begin at step {begin}, but the run "
                    f"has {total}; make stages shorter or the run longer (loop.epochs, loop.steps)"
                )
            length = stage.length.steps(steps_per_epoch)
            end = total if length is None else min(total, begin + length)
            spans.append(Span(begin, end, select(stage.train, groups)))
            begin = end
        if spans[-1].end < total:
            spans[-1] = Span(spans[-1].begin, total, spans[-1].trains)
        self._check_heads(groups, spans)
        return tuple(spans)

    def _check_heads(self, groups: Sequence[LayerGroup], spans: Sequence[Span]) -> None:
        ever = frozenset[str]().union(*(span.trains for span in spans))
        for group in groups:
            if (
                group.name.startswith("head.")
                and not group.inherited
                and not ever & set(group.parameters)
            ):
                raise ConfigError(
                    f"adaptation.plan: {group.name} is new and never trains; "
                    f"add '{group.name}' to a stage"
                )
