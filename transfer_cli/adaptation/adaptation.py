"""How a model is adapted, with the checks across edits, plan and penalty, and what patterns select.

A pattern without a slash matches group names (`head.*`, `block.11`); with a slash it matches
`group/parameter` (`block.*/*norm*`).
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal

from transfer_cli.adaptation.edit import Edit
from transfer_cli.adaptation.penalties import Penalty
from transfer_cli.adaptation.plans import NEW, Plan
from transfer_cli.errors import ConfigError, SelectionError, did_you_mean, list_names, raised_as
from transfer_cli.model.transfer_model import LayerGroup
from transfer_cli.optim.layer_scale import LayerScale
from transfer_cli.optim.schedules import StagePlan


@dataclass(frozen=True)
class Adaptation:
    """Independent choices; all combinations work.

    Args:
        edits: Changes of the network, by name, applied in this order.
        frozen_eval: Whether modules without trainable parameters run in evaluation mode.
        schedule_per: Whether the learning-rate schedule spans the run or restarts with each stage.
        store: Which weights a run writes: all; only the trained ones, with a reference to the model
            it started from; or all, with every mergeable edit merged.
        teachers: Runs for the losses of a preset that learns from some; see
            `objectives.of_main_head`.
    """

    plan: Plan
    layer_scale: LayerScale
    edits: Mapping[str, Edit] = field(default_factory=dict)
    penalty: Penalty | None = None
    frozen_eval: bool = False
    schedule_per: Literal["run", "stage"] = "run"
    store: Literal["all", "trained", "merged"] = "all"
    teachers: tuple[str, ...] = ()

    @property
    def uses_weight_decay(self) -> bool:
        """Whether the optimizer's weight decay applies; some penalties replace it."""
        return self.penalty is None or not self.penalty.replaces_weight_decay

    def plan_stages(
        self, groups: Sequence[LayerGroup], total: int, steps_per_epoch: int
    ) -> tuple[StagePlan, ...]:
        """Return the stages with their steps and parameters."""
        stages = self.plan(groups)
        planned: list[StagePlan] = []
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
            with raised_as(SelectionError, "adaptation.plan: ", SelectionError):
                trains = select_parameters(stage.train, groups)
            planned.append(StagePlan(begin, end, trains, stage.rate, stage.patience))
            begin = end
        planned[-1] = replace(planned[-1], end=total)
        _check_new_parts(groups, planned)
        return tuple(planned)


def _check_new_parts(groups: Sequence[LayerGroup], stage_plans: Sequence[StagePlan]) -> None:
    """Refuse a new head or an added module that no stage trains."""
    ever = frozenset[str]().union(*(stage.trains for stage in stage_plans))
    for group in groups:
        ours = group.name.startswith(NEW)
        if ours and not group.inherited and not ever & set(group.parameters):
            raise ConfigError(
                f"adaptation.plan: {group.name} is new and never trains; "
                f"add '{group.name}' to a stage, or choose adaptation/plan=new_weights"
            )


def check_fresh(fresh: Set[str], stage_plans: Sequence[StagePlan]) -> None:
    """Raise ConfigError if no stage trains some reinitialised pretrained weights."""
    never = sorted(fresh - frozenset[str]().union(*(stage.trains for stage in stage_plans)))
    if never:
        verb = "are" if len(never) > 1 else "is"
        raise ConfigError(
            f"adaptation.plan: {list_names(never, 1)} {verb} drawn anew and never trained; take a "
            "plan that trains them, for example adaptation/plan=top_k"
        )


def select_parameters(patterns: Iterable[str], groups: Sequence[LayerGroup]) -> frozenset[str]:
    """Return the full names of the parameters that any pattern matches."""
    chosen: set[str] = set()
    for pattern in patterns:
        matching = [
            name
            for group in groups
            for name in group.parameters
            if fnmatchcase(f"{group.name}/{name}" if "/" in pattern else group.name, pattern)
        ]
        if not matching:
            names = [group.name for group in groups]
            raise SelectionError(
                f"{pattern!r} matches no parameter.{did_you_mean(pattern, names)} "
                f"The groups are {', '.join(names)}"
            )
        chosen.update(matching)
    return frozenset(chosen)
