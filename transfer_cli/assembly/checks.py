"""What does not go together in a run, and what is probably not intended; no batch is needed for it.

Refusals raise `ConfigError`; warnings are returned, each a line that names the key and the cure.
"""

import math
from collections.abc import Mapping, Sequence

from omegaconf import DictConfig

from transfer_cli.adaptation.adaptation import Adaptation
from transfer_cli.adaptation.penalties import EWC
from transfer_cli.adaptation.plans import StagePlan
from transfer_cli.assembly.init_from import Pretrained
from transfer_cli.assembly.losses import Asked, loss_key
from transfer_cli.config.literal import as_typed
from transfer_cli.config.schema import LoopConfig
from transfer_cli.engine import distributed
from transfer_cli.engine.step import Loss
from transfer_cli.errors import ConfigError
from transfer_cli.model.added import edits_in, unmergeable_edits
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.block import BESIDE_BLOCK
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.language_model import HEAD
from transfer_cli.objectives.relation_distillation import RelationDistillation
from transfer_cli.objectives.source_distillation import SourceDistillation
from transfer_cli.optim.schedules import LRScheduler
from transfer_cli.tasks.cloze.objective import Cloze

CURE = "name the text it was pretrained on with data@source.data=..., for example wikitext2"

FEWEST_STEPS = 4
"""Steps from which on a stage is long enough to learn in, however small a part of an epoch.

With 500 questions of TREC-6, gradual unfreezing of MiniLM in 8 stages of 4 steps has 21.5 % error,
full fine-tuning of 32 steps 66.3; of 8 steps 8.8 and 11.9, of 12 steps 7.6 and 7.9 (three seeds).
"""


def check_head(start: Pretrained | None, asked: Mapping[str, Asked], chosen: Adaptation) -> None:
    """Refuse what goes back to a language model where `init_from` has no head of one."""
    shape = None if start is None else start.description.shape
    if start is None or shape is None or not (shape.output_transform or shape.output_bias):
        return  # such a head may be the table of embeddings, and nothing else
    users = {
        loss_key(name): type(loss.objective).__name__
        for name, loss in asked.items()
        if isinstance(loss.objective, SourceDistillation | Cloze)
    }
    # Behind a run there may be one that has it.
    if isinstance(chosen.penalty, EWC) and start.published is not None:
        users["adaptation.penalty"] = "EWC"
    if not users or any(name.startswith(f"heads.{HEAD}.") for name in start.tensors(values=False)):
        return
    for key, user in users.items():
        more, objective = "", "clm" if shape.direction == "causal" else "mlm"
        if user == "SourceDistillation" and objective == "mlm":
            more = f" {key}.language_model._target_=transfer_cli.objectives.masked_lm.MaskedLM"
        raise ConfigError(
            f"{key}: {user} asks the language model that {start.folder} was, whose head is not "
            f"there; give it one first: transfer pretrain {as_typed('init_from', start.folder)} "
            f"objective={objective} data=text data.train=FILE run.dir=RUN, then init_from=RUN{more}"
        )


def check_source(config: DictConfig, start: Pretrained | None, chosen: Adaptation) -> None:
    """Refuse what goes back to the text of pretraining where `init_from` brings none along."""
    if start is None or start.published is None or config.source.data is not None:
        return
    uses = {
        "adaptation.penalty": isinstance(chosen.penalty, EWC),
        "forgetting.data": config.forgetting.data == "source",
    }
    for key in (key for key, goes_back in uses.items() if goes_back):
        raise ConfigError(f"{key}: {start.weights} brings no text along; {CURE}")


FEW_STEPS, ENOUGH_STEPS = 50, 80
"""Steps below which it is said that so many more bring more; measured in docs/results.md."""


def check_rows(shape: BackboneShape, config: DictConfig) -> None:
    """Refuse rows of several texts that sparse attention would take for one."""
    if not shape.is_sparse:
        return
    streams = {f"streams.{name}.data": config.streams[name].data for name in config.streams}
    problems = {
        f"{key}.documents=separate": node.get("documents") == "separate"
        for key, node in {"data": config.data, **streams}.items()
    }
    for what, holds in {**problems, "loop.pack=true": config.loop.pack}.items():
        if holds:
            raise ConfigError(
                f"{what.partition('=')[0]}: {what.partition('=')[2]} puts texts into a row, which "
                "sparse attention (model.attention=strided or fixed) sees as one; leave it out, "
                "or take model.attention=full or window"
            )


def is_sharded(config: DictConfig, asked: Mapping[str, Asked], chosen: Adaptation) -> bool:
    """Return whether each process is to hold a part of the model."""
    if config.parallel != "fsdp" or distributed.world_size() == 1:
        return False
    whole = {
        "adaptation.penalty": chosen.penalty is not None,
        "adaptation.store=merged": chosen.store == "merged",
        "forgetting.data": config.forgetting.data is not None,
        "source_distillation": any(
            isinstance(loss.objective, SourceDistillation) for loss in asked.values()
        ),
        "relation_distillation": any(
            isinstance(loss.objective, RelationDistillation) for loss in asked.values()
        ),
    }
    for what in (name for name, needs in whole.items() if needs):
        raise ConfigError(
            f"parallel: with fsdp no process has the whole model, which {what} needs; leave one "
            "of them out, or take parallel=ddp"
        )
    return True


def check_memory(model: TransferModel, losses: Sequence[Loss]) -> None:
    """Refuse what does not go with a memory of the text before a block."""
    sites = [name for name, _ in model.backbone.blocks.named_modules()]
    problems = {
        f"losses: {', '.join(each.name for each in losses[1:])} beside the main one": losses[1:],
        "objective: one that does not predict each next token of the text as it stands": (
            not isinstance(losses[0].objective, CausalLM) or not losses[0].objective.keeps_tokens
        ),
        "adaptation.edits: an attention beside the blocks, which sees the block alone,": any(
            name.endswith(f".{BESIDE_BLOCK}") for name in sites
        ),
    }
    for problem, is_there in problems.items():
        if is_there:
            raise ConfigError(
                f"{problem} does not go with a memory (model.recurrence="
                f"{model.backbone.shape.recurrence}); leave it out, or take model.recurrence=0"
            )


def check_stored(store: str, model: TransferModel, losses: Sequence[Loss]) -> None:
    """Refuse ways to store a model that do not fit it."""
    if store == "merged":
        _check_mergeable(model)
    parts = [name for each in losses for name in each.objective.parts_of(model.backbone.shape)]
    if store == "trained" and parts:
        raise ConfigError(
            f"adaptation.store: trained leaves weights where init_from has them, and the "
            f"{parts[0]} is written with them; take adaptation.store=all"
        )


def _check_mergeable(model: TransferModel) -> None:
    """Refuse to store a model merged where nothing of it can be."""
    stay = unmergeable_edits(model)
    if not edits_in(model):
        raise ConfigError(
            "adaptation.store: merged folds edits into the base weights, and none adds anything; "
            "add adaptation/edits=lora, or take store=all"
        )
    if not edits_in(model) - stay.keys():
        raise ConfigError(
            "adaptation.store: merged folds edits into the base weights, which cannot take over "
            f"{', '.join(stay.values())}; take store=all or store=trained"
        )


def check_bounded_by_time(
    loop: LoopConfig, stage_plans: Sequence[StagePlan], target_only: str | None
) -> None:
    """Refuse `loop.minutes` where parts of the run begin at steps that it might not reach."""
    counted = f"adaptation.plan has {len(stage_plans)} stages" if len(stage_plans) > 1 else ""
    if target_only is not None:
        counted = "mixing.target_only is"
    if counted and loop.minutes is not None:
        raise ConfigError(
            f"loop.minutes: {counted} counted in steps, which time may cut off; leave "
            "loop.minutes out, and bound the run by loop.steps or loop.epochs"
        )


def unread_labels(losses: Sequence[Loss], info: TaskInfo) -> tuple[str, ...]:
    """Warn about labelled data without a loss that reads the labels."""
    if info.task is None or any(loss.objective.task == info.task.name for loss in losses):
        return ()
    return (
        "objective: no loss reads the labels of data, only its texts; to learn the labels take "
        f"objective={info.task.objective}",
    )


def one_segment(model: TransferModel, info: Mapping[str, TaskInfo]) -> tuple[str, ...]:
    """Warn about pairs of texts that a model reads without embeddings of segments."""
    is_read = any(each.pairs is not None for each in info.values())
    if not is_read or model.backbone.num_segments > 1:
        return ()
    return (
        "model.segments: nothing but the separator tells this model both texts of a pair apart; a "
        "fresh one learns them with model.segments=2",
    )


def warmup_as_long(
    lr_scheduler: LRScheduler, stage_plans: tuple[StagePlan, ...]
) -> tuple[str, ...]:
    """Say so where a warm-up is as long as what it warms up, and never reaches its rate."""
    whole = [("the run", lr_scheduler.total)]
    if lr_scheduler.per_stage:
        whole = [(f"stage {n + 1}", stage.end - stage.begin) for n, stage in enumerate(stage_plans)]
    for what, steps in whole:
        warmup = lr_scheduler.schedule.warmup_steps(steps)
        if warmup >= steps > 1:
            return (
                f"schedule.warmup: its {warmup} steps are as long as {what}, which has {steps}; "
                "make it shorter (a share such as 0.1 fits any run) or the run longer",
            )
    return ()


def few_steps(loop: LoopConfig, info: TaskInfo, texts: int, total_steps: int) -> tuple[str, ...]:
    """Say so where epochs of a few labelled texts are next to no steps."""
    if info.task is None or loop.steps is not None or loop.epochs is None:
        return ()
    if total_steps >= FEW_STEPS:
        return ()
    epochs = math.ceil(loop.epochs * ENOUGH_STEPS / total_steps)
    return (
        f"loop.epochs: {loop.epochs:g} of {texts:,} texts are {total_steps} steps, few to learn "
        f"in; loop.epochs={epochs} makes {ENOUGH_STEPS}",
    )


def short_stages(stage_plans: Sequence[StagePlan], steps_per_epoch: int) -> tuple[str, ...]:
    """Say so where a stage is too short for what it unfreezes to learn anything."""
    lengths = [stage.end - stage.begin for stage in stage_plans]
    shortest = min(lengths)
    if len(lengths) == 1 or shortest >= min(FEWEST_STEPS, steps_per_epoch):
        return ()
    return (
        f"adaptation.plan: the shortest of {len(lengths)} stages has {shortest} step(s), too few "
        "to learn in; make the run longer (loop.epochs, loop.steps), or the stages (the lengths in "
        "adaptation.plan, such as adaptation.plan.every)",
    )
