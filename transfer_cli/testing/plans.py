"""What any plan, schedule and layer scale must satisfy."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from transfer_cli.adaptation.adaptation import Adaptation, select_parameters
from transfer_cli.adaptation.plans import Plan, Stage
from transfer_cli.errors import TransferError, raised_as
from transfer_cli.model.adapters import Adapter
from transfer_cli.model.backbone import Backbone, BackboneShape
from transfer_cli.model.heads import SequenceHead
from transfer_cli.model.transfer_model import LayerGroup, TransferModel, layer_groups
from transfer_cli.optim.layer_scale import LayerScale, Uniform
from transfer_cli.testing.claims import claim

TOTALS = (1, 2, 3, 10, 100, 921)
DEPTHS = (1, 3, 16)


def check_plan(
    plan: Plan,
    models: Mapping[str, Sequence[LayerGroup]] | None = None,
    *,
    total: int = 1000,
    steps_per_epoch: int = 100,
) -> None:
    """Check that a plan is a function of the layer groups and divides any run.

    Args:
        models: Layer groups of models that it is for, by what they are; none: `example_models`.
        total: Steps of a run for which its stages are short enough.
    """
    for what, groups in (models or example_models()).items():
        with raised_as(AssertionError, f"{what}: ", AssertionError, TransferError):
            _check_plan_on(plan, list(groups), total, steps_per_epoch)


def example_models(depth: int = 3) -> dict[str, list[LayerGroup]]:
    """Return the layer groups of a small model: plain, adapted, from scratch, of a finished run."""
    plain, adapted = _model(depth), _model(depth)
    for block in adapted.backbone.blocks:
        block.get_submodule("sites").add_module("after_feed_forward", Adapter(8, 4, "relu"))
    pretrained = {n for n, _ in plain.named_parameters() if n.startswith("backbone.")}
    return {
        "a pretrained model": layer_groups(plain, pretrained),
        "a model with added modules": layer_groups(adapted, pretrained),
        "a model from scratch": layer_groups(plain, set()),
        "a model that inherits all": [
            replace(group, inherited=True) for group in layer_groups(plain, pretrained)
        ],
    }


def _model(depth: int) -> TransferModel:
    shape = BackboneShape(
        width=8, heads=2, depth=depth, feedforward=16, positions=8, direction="causal"
    )
    return TransferModel(Backbone(shape, 12), {"class": SequenceHead(8, 3, "cls_last")})


def _check_plan_on(plan: Plan, groups: list[LayerGroup], total: int, steps_per_epoch: int) -> None:
    before = list(groups)
    stages, again = plan(groups), plan(groups)
    claim(groups == before, "the plan changes the layer groups that it is given")
    claim(stages == again, "the plan gives other stages when it is asked again")
    claim(len(stages) > 0, "there is no stage")
    for number, stage in enumerate(stages, start=1):
        claim(isinstance(stage, Stage), f"stage {number} is no Stage but {stage!r}")
        claim(
            isinstance(stage.train, tuple) and bool(select_parameters(stage.train, groups)),
            f"stage {number} trains nothing, or its patterns are no tuple: {stage.train!r}",
        )
        claim(
            number == len(stages) or stage.length.resolve(100, 1000, len(stages)) is not None,
            f"stage {number} takes the rest of the run, and others follow it",
        )
    spans = Adaptation(plan, Uniform()).plan_stages(groups, total, steps_per_epoch)
    covered = [(span.begin, span.end) for span in spans]
    ends = [0, *(span.end for span in spans)]
    claim(
        ends[-1] == total and covered == list(itertools.pairwise(ends)),
        f"the stages are at {covered}, which does not cover a run of {total} steps once",
    )


def check_schedule(schedule: Callable[[int, int], float], totals: Sequence[int] = TOTALS) -> None:
    """Check that a schedule is a function of the step that any run can be trained with."""
    for total in totals:
        forwards = [schedule(step, total) for step in range(total)]
        for step, value in enumerate(forwards):
            # Above 1, `optimizer.lr` would not be the peak; what is not a number is in no range.
            claim(
                0 <= value <= 1,
                f"step {step} of {total} has the multiplier {value}, which is not in [0, 1]",
            )
        backwards = [schedule(step, total) for step in reversed(range(total))]
        claim(
            forwards == backwards[::-1],
            f"in a run of {total} steps, a multiplier depends on which were asked for before",
        )
        claim(forwards[0] > 0, f"the first step of {total} has a rate of 0: its batch is wasted")


def check_layer_scale(scale: LayerScale, names: Sequence[str] | None = None) -> None:
    """Check that a layer scale gives every layer group of any model a rate above 0.

    Args:
        names: Names of the groups of a model that it is for, from the bottom to the top, with one
            for each depth; none: models of 1, 3 and 16 blocks.
    """
    usual = [
        ["embeddings", *(f"block.{number}" for number in range(depth)), "head.class"]
        for depth in DEPTHS
    ]
    for model in usual if names is None else [names]:
        try:
            getattr(scale, "check", lambda names: None)(list(model))
        except ValueError as error:
            raise AssertionError(f"{error}; give the names of a model that it is for") from error
        top = len(model) - 1
        places = [*((name, depth) for depth, name in enumerate(model)), ("added.0", top)]
        first = [scale(name, depth, top) for name, depth in places]
        again = [scale(name, depth, top) for name, depth in reversed(places)]
        claim(first == again[::-1], "a multiplier depends on which were asked for before")
        for (name, depth), value in zip(places, first, strict=True):
            claim(
                0 < value < math.inf,
                f"{name}, at depth {depth} of {top}, has the multiplier {value}; "
                "it must be above 0 and finite (a plan says what is frozen)",
            )
