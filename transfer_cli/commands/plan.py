"""`transfer plan COMMAND`: what a run would train when, how fast, from which tensors; no training.

The model is built on the meta device and of the checkpoint only the header is read, so a plan of a
large model takes no longer than one of a small one. Of the data only its size is needed. The time
is measured at the end, on the run itself, by default where that takes seconds.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from transfer_cli.adaptation.penalties import EWC
from transfer_cli.assembly.advice import advice
from transfer_cli.assembly.blueprint import Blueprint
from transfer_cli.assembly.drawing import draw_blueprint
from transfer_cli.assembly.flops_estimate import caches_states, flops_of_run, full_text_costs
from transfer_cli.assembly.foretold import with_prediction
from transfer_cli.assembly.memory_estimate import (
    STATES_PREFIX,
    memory_parts,
    num_processes,
    with_micro_batch,
)
from transfer_cli.assembly.optimizer import is_solver
from transfer_cli.assembly.origins import Origins
from transfer_cli.assembly.plan_table import named_line, plan_page, run_facts
from transfer_cli.assembly.resumed_config import config_to_resume, find_run
from transfer_cli.batch import Batch
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.decided import with_values
from transfer_cli.config.dialled import dialled_keys
from transfer_cli.data.loader import StepDataLoader
from transfer_cli.data.mixture import MAIN
from transfer_cli.engine.cost import Amounts, Prices, flops_of
from transfer_cli.reports import formats
from transfer_cli.runs.environment import available_cores
from transfer_cli.sweeps.processes import duration_text
from transfer_cli.terminal import BLANK, Line, Page, Piece, print_out, silence_logging
from transfer_cli.training.resume import course_change_text

if TYPE_CHECKING:
    from transfer_cli.assembly.run import TrainingRun

MOST_BYTES = 4 * 2**30
"""Memory of a run, its states aside, up to which its time is measured without being asked for."""

PATIENCE_SECONDS = 5.0
"""How long a step may be then to be taken whole, and how long whole ones are taken."""

MEASURED_STEPS = 6
"""How many short ones are taken; the first warms up."""

MOST_SORTED_STEPS = 500
"""Steps of the first epoch among which those to take are chosen by the length of their texts."""


def plan(config: DictConfig, command: str) -> None:
    """Print what a run would do, after the one before it, and take some steps for its time."""
    if config.get("before") is not None:
        from transfer_cli.commands.pretrain_finetune import with_run_before  # it trains

        before, config = with_run_before(config)
        if before is not None:
            _print_plan(before, command)
            then = "then the run that starts from it:"
            print_out(Page(BLANK, Line(Piece(then, "heading")), BLANK))
    _print_plan(config, command)


def _print_plan(config: DictConfig, command: str) -> None:
    line, steps = CommandLine.current(), config.plan.steps
    if command == "finetune":
        from transfer_cli.training.budgeted_adaptation import with_earlier_choice  # it trains

        config, line = with_earlier_choice(config, line)
    typed = line.overrides
    resumed = find_run(config.resume, config.run.dir)
    origins = Origins(resumed, config.data_changed)
    if resumed is not None:
        config = config_to_resume(config, resumed, command, typed)
    elif config.get("budget") is not None:
        from transfer_cli.commands.pretrain_finetune import BUDGET_CHOOSERS  # it trains

        config, _ = BUDGET_CHOOSERS[command](config, command, CommandLine.current())
    drawn = with_prediction(draw_blueprint(config, command, typed, origins, device="meta"))
    blueprint = with_micro_batch(drawn)
    for loss in blueprint.network.losses:
        loss.objective.on_train_start(blueprint.model, blueprint.network.inherited)
    print_out(plan_page(blueprint))
    lines = [
        *run_facts(blueprint, blueprint.data.encoded()).items(),
        *((entry.key, str(entry)) for entry in dialled_keys(blueprint.config)),
        *(("warning", text) for text in advice(blueprint)),
    ]
    if resumed is not None and (course := course_change_text(resumed, blueprint)):
        lines.append(("resume", course))
    for name, text in lines:
        print_out(named_line(name, text))
    _print_cost(blueprint, command, typed, origins, steps)


def _print_cost(
    blueprint: Blueprint, command: str, typed: Sequence[str], origins: Origins, steps: int | None
) -> None:
    """Print what all steps compute, and how long they take by some, or why none was taken."""
    of_weights = sum(
        size for name, size in memory_parts(blueprint).items() if not name.startswith(STATES_PREFIX)
    )
    length = blueprint.most_tokens
    processes, most = num_processes(blueprint.config.devices), available_cores()
    too_many = processes > most and blueprint.precision.device.type == "cpu"
    if too_many or steps == 0 or (steps is None and of_weights > MOST_BYTES):
        print_out(named_line("flops", _flops_text(blueprint, *full_text_costs(blueprint, length))))
        if steps != 0:
            reason = "not measured for so much; plan.steps=3 takes three steps to say"
            if too_many:
                reason = f"not guessed: {processes} processes would share {most} cores"
            print_out(named_line("time", reason))
        return
    with silence_logging():  # of what the run reads all was said when the plan was drawn
        run = _build_lean_run(blueprint, command, typed, origins)
        measured = _measure(run, steps)
    # The first steps of a run that remembers have little to remember.
    costs = full_text_costs(blueprint, length) if run.blueprint.carries_memory else None
    costs = costs or _measured_flops(run, measured)
    print_out(named_line("flops", _flops_text(blueprint, *costs)))
    print_out(named_line("time", _time_text(run, blueprint, measured)))


plan_pretrain = partial(plan, command="pretrain")
plan_finetune = partial(plan, command="finetune")


def _build_lean_run(
    planned: Blueprint, command: str, typed: Sequence[str], origins: Origins
) -> "TrainingRun":
    """Return the run, without what takes time before its first step: all that counts is a step."""
    # Only here is anything trained; to import what trains takes longer than to plan.
    from transfer_cli.assembly.run import build_run

    config = planned.config
    leaner: dict[str, Any] = {"forgetting.data": None, "loop.cache_features": False}
    if is_solver(config.optimizer):  # each of its passes is a step of any other
        leaner["optimizer"] = {"_target_": "torch.optim.SGD", "lr": config.optimizer.lr}
    if planned.adaptation.penalty is not None:
        leaner["adaptation.penalty"] = None
    return build_run(with_values(config, leaner), command, typed, origins)


@dataclass(frozen=True)
class _StepCost:
    """What some steps of a run took: the fastest of them, and the slowest, in seconds.

    Args:
        tokens: Real ones of the main data in all that was computed.
        steps: How many steps that was; for a sequence a part of one.
    """

    low: float
    high: float
    of_what: str
    tokens: int
    steps: float


def _measure(run: "TrainingRun", steps: int | None) -> _StepCost:
    """Return what a step takes, by a few of them; what they compute is in the run's tally.

    Args:
        run: A run that keeps no states of a frozen backbone.
        steps: How many to take; None: as many as there is time for.
    """
    # To compile a sequence alone would take as long again as to compile a step.
    compiles = run.blueprint.course.loop.compile
    alone = steps is None and not (run.blueprint.carries_memory or compiles)
    measured = _measure_sequences(run) if alone else None
    if measured is not None:
        return measured
    patience = PATIENCE_SECONDS if steps is None else math.inf
    return _measure_whole_steps(
        run, min(steps or MEASURED_STEPS, run.blueprint.course.sizes.total_steps), patience
    )


def _time_text(run: "TrainingRun", planned: Blueprint, measured: _StepCost) -> str:
    """Return how long a run will take, by what some steps took; `planned` is as it will be."""
    counted = total = run.blueprint.course.sizes.total_steps
    rest = ""
    if caches_states(planned):
        counted = min(total, run.blueprint.course.sizes.steps_per_epoch)
        rest = ", the frozen backbone being passed once"
    low, high = measured.low * counted, measured.high * counted
    if planned.course.loop.minutes is not None and high > 60 * planned.course.loop.minutes:
        low, high = min(low, 60 * planned.course.loop.minutes), 60 * planned.course.loop.minutes
        rest += ", or what of them fits into loop.minutes"
    besides, penalty = "evaluations", planned.adaptation.penalty
    if isinstance(penalty, EWC):
        besides += f" and the Fisher information of {penalty.sequences:,} sequences"
    step = _range_text(f"{measured.low:.3g}", f"{measured.high:.3g}")
    whole = _range_text(duration_text(low), duration_text(high))
    return (
        f"{step} s a step in the first stage, "
        f"measured over {measured.of_what} on {run.blueprint.precision.device}; about {whole} for "
        f"all {total:,}{rest}, {besides} not counted"
    )


def _range_text(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _measured_flops(run: "TrainingRun", cost: _StepCost) -> tuple[Sequence[Prices], Amounts, str]:
    """Return what a step computes, by what some have, for texts of the mean length of all."""
    steps, lengths, tally = cost.steps, run.data.lengths, run.tally
    if lengths is not None and cost.tokens:
        steps = cost.tokens / (run.blueprint.course.loop.batch * float(lengths.mean()))
    amounts = {key: (done / steps, real / steps) for key, (done, real) in tally.amounts().items()}
    return tally.prices, amounts, f"as counted over {cost.of_what}"


def _measure_sequences(run: "TrainingRun") -> _StepCost | None:
    """Return what a step takes, told by its shortest and longest sequence.

    It is None where a step is short.
    """
    sequences = sorted(_loader(run, 1).load(0), key=lambda one: _num_tokens([one]))
    _step_seconds(run, sequences[:1], 0)  # warms up
    run.tally.take_flops()
    ends = [sequences[0], sequences[-1]]
    seconds = [len(sequences) * _step_seconds(run, [one], 0) for one in ends]
    if max(seconds) <= PATIENCE_SECONDS:
        return None
    part = len(ends) / len(sequences)
    return _StepCost(min(seconds), max(seconds), "two of its sequences", _num_tokens(ends), part)


def _measure_whole_steps(run: "TrainingRun", most: int, patience: float) -> _StepCost:
    """Return what some steps take, short and long ones, as many as there is patience for."""
    loader, seconds, tokens = _loader(run, run.micro_batch), list[float](), 0
    numbers = _steps_of_all_lengths(run, most)
    run.tally.take_flops()
    while len(seconds) < most and sum(seconds) < patience:
        batches = loader.load(numbers[len(seconds)])
        tokens += _num_tokens(batches)
        seconds.append(_step_seconds(run, batches, len(seconds)))
    # The first step warms up; with one step alone there is nothing else.
    known = seconds[1:] or seconds
    of_what = f"{len(seconds)} step{'s' if len(seconds) > 1 else ''}"
    return _StepCost(min(known), max(known), of_what, tokens, len(seconds))


def _steps_of_all_lengths(run: "TrainingRun", most: int) -> list[int]:
    """Return the numbers of steps to take: of texts in order the first ones, else of each length.

    The first is one of middle length, which warms up; then come those that differ most from it.
    """
    sizes, lengths = run.blueprint.course.sizes, run.data.lengths
    if lengths is None or sizes.mixture is not None or run.blueprint.carries_memory:
        return list(range(most))
    sampler = run.streams[MAIN].sampler
    steps = range(min(sizes.total_steps, sizes.steps_per_epoch, MOST_SORTED_STEPS))
    by_size = sorted(steps, key=lambda step: int(lengths[sampler.indices(step)].max()))
    last, middle = len(by_size) - 1, len(by_size) // 2
    places = [round((place + 0.5) / (most - 1) * last) for place in range(most - 1)]
    places.sort(key=lambda place: -abs(place - middle))
    return [by_size[place] for place in (middle, *places)]


def _num_tokens(batches: Sequence[Mapping[str, Batch]]) -> int:
    """Return the length of all examples of the main data; of several sequences the longest."""
    lengths = [micro[MAIN]["mask"].sum(-1) for micro in batches if MAIN in micro]
    return sum(
        int(sizes.flatten(1).amax(1).sum() if sizes.dim() > 1 else sizes.sum()) for sizes in lengths
    )


def _loader(run: "TrainingRun", micro_batch: int) -> StepDataLoader:
    return StepDataLoader(run.streams, micro_batch, lambda: 0, run.blueprint.course.sizes.mixture)


def _step_seconds(run: "TrainingRun", batches: Sequence[Mapping[str, Batch]], number: int) -> float:
    began = time.perf_counter()
    float(run.step(batches, number).total)  # waits for the device
    return time.perf_counter() - began


# --- what steps take, in floating-point operations (`engine.cost`) -------------------------------


def _flops_text(planned: Blueprint, prices: Sequence[Prices], amounts: Amounts, how: str) -> str:
    """Return in words what the steps of each stage compute, and all of them together."""
    stages = planned.course.stage_plans
    costs = [flops_of(amounts, of_stage) for of_stage in prices]
    rest = ", the frozen backbone being passed once" if caches_states(planned) else ""
    step = f"a step takes {formats.flops(costs[0].done)}"
    if len(stages) > 1:
        of_stages = (f"{formats.flops(e.done)} in stage {n}" for n, e in enumerate(costs, start=1))
        step = f"a step takes {', '.join(of_stages)}"
    elif costs[0].done != costs[0].real:
        step += f", {formats.flops(costs[0].real)} of it without padding and masks"
    total = formats.flops(flops_of_run(planned, prices, amounts))
    steps = planned.course.sizes.total_steps
    return f"about {total} for all {steps:,} steps{rest}; {step}, {how}"
