"""What does not go together in a run, as far as no batch is needed to see it.

Each refusal names the key, the cause and the cure; see `assembly.advice` for what is but unwise.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from transfer_cli.adaptation.adaptation import Adaptation
from transfer_cli.adaptation.penalties import EWC
from transfer_cli.assembly.datasets import RunData
from transfer_cli.assembly.init_from import Pretrained
from transfer_cli.assembly.losses import RequestedLoss
from transfer_cli.assembly.model import block_length
from transfer_cli.config.literal import path_override
from transfer_cli.config.schema import LoopConfig, MixingConfig
from transfer_cli.engine import distributed
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import ConfigError
from transfer_cli.metrics import AVERAGED
from transfer_cli.model.added import edits_in, unmergeable_edits
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.block import BESIDE_BLOCK
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Loss, loss_key
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.language_model import HEAD
from transfer_cli.optim.schedules import StagePlan

SOURCE_CURE = "name the text it was pretrained on with data@source.data=..., for example wikitext2"


def check_lm_head(
    start: Pretrained | None, losses: Mapping[str, RequestedLoss], adaptation: Adaptation
) -> None:
    """Refuse what goes back to a language model where `init_from` has no head of one."""
    shape = None if start is None else start.description.shape
    if start is None or shape is None or not (shape.output_transform or shape.output_bias):
        return  # such a head may be the table of embeddings, and nothing else
    users = {
        loss_key(name): type(loss.objective).__name__
        for name, loss in losses.items()
        if loss.objective.asks_language_model
    }
    # Behind a run there may be one that has it.
    if isinstance(adaptation.penalty, EWC) and start.published is not None:
        users["adaptation.penalty"] = "EWC"
    if not users or any(name.startswith(f"heads.{HEAD}.") for name in start.tensors(values=False)):
        return
    key, user = next(iter(users.items()))
    more, objective = "", "clm" if shape.direction == "causal" else "mlm"
    if user == "SourceDistillation" and objective == "mlm":
        more = f" {key}.language_model._target_=transfer_cli.objectives.masked_lm.MaskedLM"
    raise ConfigError(
        f"{key}: {user} asks the language model that {start.folder} was, whose head is not "
        f"there; give it one first: transfer pretrain {path_override('init_from', start.folder)} "
        f"objective={objective} data=text data.train=FILE run.dir=RUN, then init_from=RUN{more}"
    )


def check_residual(loop: LoopConfig, precision: Precision) -> None:
    """Refuse a residual stream in bf16 where nothing else is."""
    if loop.bf16_residual and precision.kind != "bf16":
        raise ConfigError(
            f"loop.bf16_residual: the precision is {precision.kind}; take precision=bf16, or leave "
            "loop.bf16_residual out"
        )


def takes_graphs(
    loop: LoopConfig,
    precision: Precision,
    losses: Sequence[Loss],
    *,
    micro_batch: int,
    differs: bool,
    is_shared: bool,
    solves: bool,
) -> bool:
    """Return whether passes are CUDA graphs; refuse them where a step is not always the same pass.

    A graph computes where it did before: a second pass would overwrite gradients of the first.

    Args:
        differs: Whether full batches differ in what is computed, if that is compiled.
        is_shared: Whether processes share the run, or its weights.
        solves: Whether the optimizer computes gradients itself.
    """
    steady = all(loss.objective.is_steady for loss in losses)
    by_shape = not loop.compile  # graphs of `engine.pass_graphs`, not of the compiler
    reasons = {
        f"the device is {precision.device.type}": precision.device.type != "cuda",
        "processes share the run": is_shared,
        f"there are {len(losses)} losses": len(losses) > 1,
        f"{micro_batch} of {loop.batch} sequences pass at once": micro_batch < loop.batch,
        "batches differ in what is computed": differs,
        "this loss is not computed alike in each step, and loop.compile is off": by_shape
        and not steady,
        "loop.pack is on": by_shape and loop.pack,
        "loop.activation_checkpointing is on": by_shape and loop.activation_checkpointing,
        "the precision is fp16": by_shape and precision.kind == "fp16",
        "the optimizer computes gradients itself": by_shape and solves,
    }
    reason = next((reason for reason, holds in reasons.items() if holds), "")
    if reason and loop.cuda_graphs is True:
        raise ConfigError(f"loop.cuda_graphs: {reason}; leave loop.cuda_graphs out")
    return bool(loop.cuda_graphs) and not reason


def check_source(start: Pretrained, adaptation: Adaptation, forgetting: str | None) -> None:
    """Refuse what goes back to the text of pretraining where `init_from` brings none along."""
    if start.published is None:
        return
    uses = {
        "adaptation.penalty": isinstance(adaptation.penalty, EWC),
        "forgetting.data": forgetting == "source",
    }
    _refuse(uses, f": {start.weights} brings no text along; {SOURCE_CURE}")


def check_packed_rows(
    shape: BackboneShape, data: Mapping[str, Mapping[str, Any]], *, packs: bool
) -> None:
    """Refuse rows of several texts that sparse attention would take for one.

    Args:
        data: The options of each data set, by its key.
        packs: Whether labelled texts are put into rows.
    """
    if not shape.is_sparse:
        return
    packed = {
        f"{key}.documents: separate": options.get("documents") == "separate"
        for key, options in data.items()
    }
    _refuse(
        {**packed, "loop.pack: true": packs},
        " puts texts into a row, which sparse attention (model.attention=strided or fixed) sees as "
        "one; leave it out, or take model.attention=full or window",
    )


def is_sharded(
    parallel: str,
    losses: Mapping[str, RequestedLoss],
    adaptation: Adaptation,
    forgetting: str | None,
) -> bool:
    """Return whether each process is to hold a part of the model."""
    if parallel != "fsdp" or distributed.world_size() == 1:
        return False
    need_whole = {
        "adaptation.penalty": adaptation.penalty is not None,
        "adaptation.store=merged": adaptation.store == "merged",
        "forgetting.data": forgetting is not None,
        **{
            f"{loss_key(name)} ({type(loss.objective).__name__})": loss.objective.needs_whole_model
            for name, loss in losses.items()
        },
    }
    _refuse(
        need_whole,
        " needs; leave one of them out, or take parallel=ddp",
        before="parallel: with fsdp no process has the whole model, which ",
    )
    return True


def check_recurrence(model: TransferModel, losses: Sequence[Loss], weights: object) -> None:
    """Refuse what does not go with a memory of the text before a block."""
    main, *others = losses
    sites = [name for name, _ in model.backbone.blocks.named_modules()]
    misfits = {
        f"losses: {', '.join(loss.name for loss in others)} beside the main one": others,
        "objective: one that does not predict each next token of the text as it stands": (
            not isinstance(main.objective, CausalLM) or not main.objective.keeps_tokens
        ),
        "adaptation.edits: an attention beside the blocks, which sees the block alone,": any(
            name.endswith(f".{BESIDE_BLOCK}") for name in sites
        ),
        "data.weights: a draw of blocks from several texts": weights,
    }
    _refuse(
        misfits,
        f" does not go with a memory (model.recurrence={model.backbone.shape.recurrence}); leave "
        "it out, or take model.recurrence=0",
    )


def _refuse(table: Mapping[str, object], cure: str, before: str = "") -> None:
    """Refuse the first of a table that is there."""
    for what, is_there in table.items():
        if is_there:
            raise ConfigError(f"{before}{what}{cure}")


def check_contrastive_batch(losses: Sequence[Loss], batch: int) -> None:
    """Refuse steps of one example where the examples of a step are told from each other."""
    if losses[0].objective.compares and batch == 1:
        raise ConfigError(
            "loop.batch: a step is of one example, and the loss tells the examples of a step from "
            "each other; take loop.batch=2 or more"
        )


def check_store(store: str, model: TransferModel, losses: Sequence[Loss]) -> None:
    """Refuse ways to store a model that do not fit it."""
    stay = unmergeable_edits(model)
    why = "which cannot take over " + ", ".join(stay.values()) if stay else "and none adds anything"
    if store == "merged" and not edits_in(model) - stay.keys():
        raise ConfigError(
            f"adaptation.store: merged folds edits into the base weights, {why}; add "
            "adaptation/edits=lora, or take store=all or store=trained"
        )
    parts = [name for loss in losses for name in loss.objective.parts_of(model.backbone.shape)]
    if store == "trained" and parts:
        raise ConfigError(
            f"adaptation.store: trained leaves weights where init_from has them, and the "
            f"{parts[0]} is written with them; take adaptation.store=all"
        )


def check_average(average: str | None, losses: Sequence[Loss], *, validates: bool) -> None:
    """Refuse an average of weights where nothing decides on it, or a loss has its name."""
    reasons = {
        "validation decides whether it is kept, and the data have none": not validates,
        f"its measures begin with {AVERAGED}/, as those of losses.{AVERAGED} do": any(
            loss.name == AVERAGED for loss in losses
        ),
    }
    if average is not None:
        _refuse(reasons, "; change that, or leave loop.average out", before="loop.average: ")


def checked_block_length(
    length: int | None, data: RunData, shape: BackboneShape, loop: LoopConfig
) -> int:
    """Return the tokens of each block of running text; refuse data whose steps differ in size."""
    key = "loop.tokens" if loop.tokens is not None else "loop.flops"
    if data.info["main"].task is not None or data.info["main"].pairs or len(data.counts) > 1:
        raise ConfigError(
            f"{key}: is a length for one running text, whose steps are all alike; give "
            "loop.epochs or loop.steps"
        )
    return block_length(length, shape.positions)


def check_time_limit(
    loop: LoopConfig, stage_plans: Sequence[StagePlan], mixing: MixingConfig
) -> None:
    """Refuse `loop.minutes` where parts of the run begin at steps that it might not reach."""
    counted = f"adaptation.plan has {len(stage_plans)} stages" if len(stage_plans) > 1 else ""
    if mixing.target_only is not None or mixing.anneal:
        counted = f"mixing.{'anneal' if mixing.target_only is None else 'target_only'} is"
    if counted and loop.minutes is not None:
        raise ConfigError(
            f"loop.minutes: {counted} counted in steps, which time may cut off; leave "
            "loop.minutes out, and bound the run by loop.steps or loop.epochs"
        )
