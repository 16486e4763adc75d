"""The record of how a model is adapted, and the checks across its parts."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from transfer_cli.adaptation.edits import Edit
from transfer_cli.adaptation.penalties import Penalty
from transfer_cli.adaptation.plans import Plan
from transfer_cli.adaptation.selection import select
from transfer_cli.errors import ConfigError, SelectionError
from transfer_cli.model.transfer_model import LayerGroup
from transfer_cli.optim.layer_scale import LayerScale


@dataclass(frozen=True)
class Span:
    """A stage with its steps and parameters worked out.

    Args:
        begin: First step, counted from 0.
        end: The step after its last one.
        trains: Full names of the parameters that train.
        rate: Multiplies every rate.
        patience: Validations without a better value after which it ends early; when it ends, its
            best weights are put back. None: it has its full length and keeps its last weights.
    """

    begin: int
    end: int
    trains: frozenset[str]
    rate: float = 1.0
    patience: int | None = None


@dataclass(frozen=True)
class Adaptation:
    """Independent choices, each usable with each other.

    Args:
        plan: Which weights train, and until when.
        layer_scale: How fast, by depth.
        edits: What is changed in the network, by name, in this order.
        penalty: What pulls the weights back to where they started.
        frozen_eval: Whether a part of which nothing trains runs without dropout.
        schedule_per: Whether the learning-rate schedule spans the run, or begins anew with each
            stage.
        store: What a run keeps of its weights: all of them; those that trained, with a reference
            to the model that it started from; or all, with every edit merged that can be.
    """

    plan: Plan
    layer_scale: LayerScale
    edits: Mapping[str, Edit] = field(default_factory=dict)
    penalty: Penalty | None = None
    frozen_eval: bool = False
    schedule_per: Literal["run", "stage"] = "run"
    store: Literal["all", "trained", "merged"] = "all"

    @property
    def uses_weight_decay(self) -> bool:
        """Whether the optimizer's weight decay applies: some penalties replace it."""
        return self.penalty is None or not self.penalty.replaces_weight_decay

    def spans(
        self, groups: Sequence[LayerGroup], total: int, steps_per_epoch: int
    ) -> tuple[Span, ...]:
        """Return the run's stages in steps.

        Raises:
            ConfigError: Stages are longer than the run, one trains nothing, or something new that
                the model uses never trains.
            SelectionError: A pattern matches nothing.
        """
        stages = self.plan(groups)
        spans: list[Span] = []
        begin = 0
        for number, stage in enumerate(stages):
            length = stage.length.resolve(steps_per_epoch, total, len(stages))
            last = number == len(stages) - 1
            end = total if last and length is None else begin + (length or total)
            if begin >= total or end > total:
                raise ConfigError(
                    f"adaptation.plan: stage {number + 1} of {len(stages)} would last from step "
                    f"{begin} to {end}, but the run has {total}; make stages shorter or the run "
                    "longer (loop.epochs, loop.steps)"
                )
            if not stage.train:
                raise ConfigError(
                    f"adaptation.plan: stage {number + 1} of {len(stages)} trains nothing; "
                    f"the groups are {', '.join(group.name for group in groups)}"
                )
            try:
                trains = select(stage.train, groups)
            except SelectionError as error:
                raise SelectionError(f"adaptation.plan: {error}") from error
            spans.append(Span(begin, end, trains, stage.rate, stage.patience))
            begin = end
        final = spans[-1]
        spans[-1] = Span(final.begin, total, final.trains, final.rate, final.patience)
        _check_new_parts(groups, spans)
        return tuple(spans)


def _check_new_parts(groups: Sequence[LayerGroup], spans: Sequence[Span]) -> None:
    """Refuse a new head, or a part that an edit added, which no stage trains."""
    ever = frozenset[str]().union(*(span.trains for span in spans))
    for group in groups:
        ours = group.name.startswith(("head.", "added."))
        if ours and not group.inherited and not ever & set(group.parameters):
            raise ConfigError(
                f"adaptation.plan: {group.name} is new and never trains; "
                f"add '{group.name}' to a stage, or choose adaptation/plan=new_weights"
            )


def check_fresh(fresh: Set[str], spans: Sequence[Span]) -> None:
    """Refuse inherited weights that an edit made new and that no stage trains.

    Raises:
        ConfigError: There are some.
    """
    never = sorted(fresh - frozenset[str]().union(*(span.trains for span in spans)))
    if never:
        raise ConfigError(
            f"adaptation.edits: {never[0]} and {len(never) - 1} more are drawn anew and never "
            "train; let adaptation.plan train them, for example adaptation/plan=top_k"
        )
