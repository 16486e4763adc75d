"""One optimizer step: the same for pretraining, fine-tuning and every mix of losses."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from transfer_cli.adaptation.penalties import Penalty
from transfer_cli.batch import Batch, IdleBatch, batch_size, split_batch, to_device, with_facts
from transfer_cli.engine import distributed
from transfer_cli.engine.carried_memory import CarriedMemory
from transfer_cli.engine.distributed.replicated import Parallel, average_statistics
from transfer_cli.engine.gradient_cache import Comparing, add_output_gradients
from transfer_cli.engine.optimizer_state import checked_state
from transfer_cli.engine.pass_graphs import PassGraphs
from transfer_cli.engine.precision import Precision
from transfer_cli.engine.skipped_steps import HostCopy, NotedStep, SkippedSteps, skips_on_device
from transfer_cli.engine.stages import Stages
from transfer_cli.model.memory import Memory
from transfer_cli.model.transfer_model import LayerGroup, TransferModel
from transfer_cli.objectives.base import Encoding, Loss
from transfer_cli.optim.schedules import LRScheduler, schedule_position
from transfer_cli.seeds import ExampleNoise, derive

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepReport:
    """The results of one step, of all processes. Tensors stay on the device until recorded.

    Args:
        losses: Mean of each loss term, in nats a target, and the penalty.
        skipped: Number of steps found to be skipped, since loss or gradient was not finite: this
            one, or on a GPU the one before it.
    """

    losses: Mapping[str, Tensor]
    total: Tensor
    gradient_norm: Tensor
    skipped: int
    tokens: int
    examples: int


def loss_sums(
    model: TransferModel,
    losses: Sequence[Loss],
    views: Mapping[str, Batch],
    memory: Memory | None = None,
) -> dict[str, Tensor]:
    """Return each loss term summed over its targets, by "loss/term".

    A loss without a view has its batches in other steps. Losses whose views hold the same tokens
    share one pass through the backbone. A memory is for one such pass.
    """
    encoded: dict[int, Encoding] = {}
    sums: dict[str, Tensor] = {}
    for loss in losses:
        if loss.name not in views:
            continue
        view = views[loss.name]
        encoding = encoded.setdefault(id(view["tokens"]), Encoding(model, view, memory))
        for term, value in loss.objective.loss_sums(model, view, encoding).items():
            sums[f"{loss.name}/{term}"] = value
    return sums


@dataclass(frozen=True)
class Passes:
    """How forward and backward passes are computed.

    Args:
        precision: Of the forward pass, and the device.
        parallel: How processes share the model.
        add_facts: Adds to a prepared view how it is computed.
        memories: What is remembered of running text between steps; None: nothing.
        graphs: Of the passes of a step that has one, by the only loss; None: there are none.
    """

    precision: Precision
    parallel: Parallel
    add_facts: Callable[[Batch], Batch] = with_facts
    memories: CarriedMemory | None = None
    graphs: PassGraphs | None = None


@dataclass(frozen=True)
class Update:
    """How a gradient moves the weights.

    Args:
        clip: Maximum global gradient norm; None for no clipping.
        max_bad_steps: Skipped steps in a row after which the run fails.
        penalty: Pulls the weights back to their starting values; already started.
        uses_closure: Whether the optimizer computes loss and gradient anew, until at a minimum.
    """

    optimizer: Optimizer
    lr_scheduler: LRScheduler
    clip: float | None
    max_bad_steps: int
    penalty: Penalty | None = None
    uses_closure: bool = False


class TrainStep:
    """Enter the stage and set the rate; prepare, forward, backward, penalty, clip, update.

    An optimizer that takes a closure (`optim.lbfgs`) repeats forward and backward within its
    update; the report is of the first, before it.

    With a fused optimizer on a GPU the host does not wait within a step: the device itself skips a
    step whose gradient is not finite, and the host reads that during the next step.
    """

    def __init__(
        self,
        model: TransferModel,
        losses: Sequence[Loss],
        stages: Stages,
        passes: Passes,
        update: Update,
        *,
        groups: Sequence[LayerGroup],
        seed: int,
    ) -> None:
        self.model = model
        self.losses = tuple(losses)
        self.optimizer = update.optimizer
        self.lr_scheduler = update.lr_scheduler
        self.stages = stages
        self._forward = passes.parallel
        self._parameters = dict(model.named_parameters())
        self._seed = seed
        self._precision = passes.precision
        self._scaler = passes.precision.scaler()
        self._clip = update.clip
        self._penalty = update.penalty
        self._uses_closure = update.uses_closure
        self._add_facts = passes.add_facts
        self._memories = passes.memories
        self._graphs = passes.graphs
        self._skips_on_device = skips_on_device(self.optimizer, model, self._scaler)
        late = self._skips_on_device and passes.precision.device.type != "cpu"
        self._skipped = SkippedSteps(groups, update.max_bad_steps, late=late)
        self.counting: Callable[..., AbstractContextManager[Any]] = lambda *_, **__: nullcontext()
        """Entered around passes with the stage, and whether they are idle (`engine.cost`)."""
        self.max_rows: int | None = None
        """Sequences that pass through the model at most, where more ran out of memory."""
        self.time_used = 0.0
        """The share of its time that the run has used, where it is bounded by time."""

    def __call__(self, micro_batches: Sequence[Mapping[str, Batch]], step: int) -> StepReport:
        """Take one optimizer step.

        If the memory is full before weights move, passes are of half as many sequences from then
        on, and the step is taken again. Its loss is the same, as with a smaller `loop.micro_batch`.

        Args:
            micro_batches: The step's micro-batches, each under the name of its stream.
            step: Its number, counted from 0.
        """
        while (report := self._try(self._split_micro_batches(micro_batches), step)) is None:
            # Only here: the error that is over kept what the pass had made.
            torch.cuda.empty_cache()
        return report

    def _split_micro_batches(
        self, micro_batches: Sequence[Mapping[str, Batch]]
    ) -> Sequence[Mapping[str, Batch]]:
        """Return the micro-batches, none of more rows than there is memory for."""
        if (rows := self.max_rows) is None:
            return micro_batches
        cut = [{n: split_batch(b, rows) for n, b in micro.items()} for micro in micro_batches]
        return [
            {name: parts[number] for name, parts in micro.items() if number < len(parts)}
            for micro in cut
            for number in range(max(map(len, micro.values())))
        ]

    def _halve_rows(self, micro_batches: Sequence[Mapping[str, Batch]]) -> bool:
        """Have passes be of half as many sequences; return whether that can be.

        Several processes would wait for each other, and memories of texts have been written.
        """
        rows = max(batch_size(batch) for micro in micro_batches for batch in micro.values())
        if rows == 1 or self._memories is not None or distributed.world_size() > 1:
            return False
        self.max_rows = rows = -(-rows // 2)
        self.optimizer.zero_grad(set_to_none=True)
        log.warning("out of memory: going on with loop.micro_batch=%d, the same loss", rows)
        return True

    def _try(self, micro_batches: Sequence[Mapping[str, Batch]], step: int) -> StepReport | None:
        """Take a step; return None where memory ran out before anything moved, and less may fit."""
        position = schedule_position(step, self.lr_scheduler.total, self.time_used)
        self._begin(step, position / self.lr_scheduler.total)
        ready = [self._prepare(micro, step) for micro in micro_batches]
        weights = self._term_weights(int(position))
        divisors, tokens, examples = self._sum_divisors(ready, micro_batches, weights)

        def gradients() -> tuple[dict[str, Tensor], Tensor]:
            sums = self._accumulate(
                self._with_output_gradients(ready, step), divisors, weights, step
            )
            penalty = self._add_penalty()
            means = {term: total / divisors[term] for term, total in sums.items()}
            weighted = [weights[term] * mean for term, mean in means.items()]
            zero = torch.zeros((), device=self._precision.device)
            return means | penalty, sum([*weighted, *penalty.values()], start=zero)

        def closure() -> Tensor:
            self.optimizer.zero_grad(set_to_none=True)
            return gradients()[1]

        try:
            losses, total = gradients()
        except torch.OutOfMemoryError:
            if not self._halve_rows(micro_batches):
                raise
            return None
        norm = self._update(total, step, micro_batches, closure)
        skipped = self._skipped.read(leave=int(self._skipped.late))
        average_statistics(self.model)
        return StepReport(losses, total, norm, skipped, tokens, examples)

    def _begin(self, step: int, progress: float) -> None:
        """Enter the step's stage; set the rate, dropout's seed and what depends on the step."""
        # The averages of parameters that begin to train, or went back to earlier values.
        for name in self.stages.enter(step):
            self.optimizer.state.pop(self._parameters[name], None)
        self._forward.enter_stage(self.stages.current)
        stage = self.stages.spans[self.stages.stage_at(step)]
        self.lr_scheduler.set_lr(self.optimizer, step, stage, self.time_used)
        self._seed_dropout(step)
        if self._memories is not None:
            self._memories.begin(step)
        for loss in self.losses:
            loss.objective.on_step(progress)

    @property
    def waited(self) -> float | None:
        """Seconds that the host has waited for steps of the device; None where it waits anyway."""
        return self._skipped.waited if self._skipped.late else None

    def read(self) -> int:
        """Read the steps that are still unread; return how many were skipped."""
        return self._skipped.read()

    def state_dict(self) -> dict[str, object]:
        """Return what a resumed run needs beyond the weights; every step must have been read."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "stages": self.stages.state_dict(),
            "bad_steps": self._skipped.in_a_row,
            **({} if self._memories is None else {"lanes": self._memories.state_dict()}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.optimizer.load_state_dict(checked_state(self.optimizer, state["optimizer"]))
        if state["scaler"]:  # that of another precision than fp16 has none
            self._scaler.load_state_dict(state["scaler"])
        self.stages.load_state_dict(state["stages"])
        self._skipped.in_a_row = int(state["bad_steps"])
        if self._memories is not None:
            self._memories.load_state_dict(state["lanes"])

    def _term_weights(self, step: int) -> dict[str, float]:
        return {
            f"{loss.name}/{term}": loss.weight_at(step) * weight
            for loss in self.losses
            for term, weight in loss.objective.weights.items()
        }

    def _prepare(self, micro: Mapping[str, Batch], step: int) -> dict[str, Batch]:
        """Return each loss's view of its stream's batch, before it is moved to the device."""
        noise = ExampleNoise(self._seed, "train", step)
        main, views = self.losses[0], dict[str, Batch]()
        for loss in (candidate for candidate in self.losses if candidate.stream in micro):
            if loss.objective.reads_main_view and loss.stream == main.stream:
                views[loss.name] = views[main.name]
                continue
            batch = micro[loss.stream]
            view = loss.objective.prepare(batch, noise)
            views[loss.name] = IdleBatch(view) if isinstance(batch, IdleBatch) else view
        return views

    def _with_output_gradients(
        self, ready: Sequence[Mapping[str, Batch]], step: int
    ) -> Sequence[Mapping[str, Batch]]:
        """Return the views; where the main loss compares examples, with its gradient by outputs."""
        if not self._needs_output_gradients(ready):
            return ready
        main, outputs = self.losses[0], list[Tensor]()
        objective = cast("Comparing", main.objective)

        def outputs_of(model: TransferModel, view: Batch) -> dict[str, Tensor]:
            return {"outputs": objective.outputs(model, view, Encoding(model, view))}

        # Others hold streams that join with more examples.
        of_main = {n: views[main.name] for n, views in enumerate(ready) if main.name in views}
        for number, host_view in of_main.items():
            self._seed_dropout(step, number)
            view = to_device(self._add_facts(host_view), self._precision.device)
            with (
                self._counting(host_view),
                self._forward.accumulating(last=False),
                self._precision.context(),
                torch.no_grad(),
            ):
                outputs.append(self._forward(partial(outputs_of, view=view))["outputs"])
        added = add_output_gradients(objective, [*of_main.values()], outputs)
        with_gradients = {n: {main.name: view} for n, view in zip(of_main, added, strict=True)}
        return [{**views, **with_gradients.get(n, {})} for n, views in enumerate(ready)]

    def _counting(self, *views: Batch) -> AbstractContextManager[object]:
        """Return the context in which what these views take is counted."""
        is_idle = all(isinstance(view, IdleBatch) for view in views)
        return self.counting(self.stages.current, is_idle=is_idle)

    def _needs_output_gradients(self, ready: Sequence[Mapping[str, Batch]]) -> bool:
        """Return whether the main loss compares examples that do not pass at once, here."""
        main, is_alone = self.losses[0], distributed.world_size() == 1
        passes = sum(main.name in views for views in ready)
        return bool(main.objective.compares) and passes > (1 if is_alone else 0)

    def _seed_dropout(self, step: int, *passes: int) -> None:
        """Seed torch's own generators from the seed and the step, perhaps anew for each pass.

        `torch.manual_seed` would note a stack trace for each kind of device that is not in use.
        """
        others = [distributed.rank()] if distributed.rank() else []
        seed = derive(self._seed, "dropout", step, *others, *passes)
        torch.default_generator.manual_seed(seed)
        if self._precision.device.type == "cuda":
            torch.cuda.manual_seed_all(seed)

    def _sum_divisors(
        self,
        ready: Sequence[Mapping[str, Batch]],
        micro_batches: Sequence[Mapping[str, Batch]],
        terms: Iterable[str],
    ) -> tuple[dict[str, float], int, int]:
        """Return the targets of each term, the tokens and the examples of the whole step.

        The targets, or their weights, over all micro-batches and processes, are the only divisor
        there is.
        """
        divisors: dict[str, float] = dict.fromkeys(terms, 0)
        tokens = examples = 0
        for views, micro in zip(ready, micro_batches, strict=True):
            for loss in self.losses:
                view = views.get(loss.name)
                if view is not None and not isinstance(view, IdleBatch):
                    for term, divisor in loss.objective.divisors(view).items():
                        divisors[f"{loss.name}/{term}"] += divisor
            real = [batch for batch in micro.values() if not isinstance(batch, IdleBatch)]
            tokens += sum(int(batch["mask"].sum()) for batch in real)
            examples += sum(map(batch_size, real))
        *targets, of_tokens, of_examples = distributed.all_reduce_sum(
            [*divisors.values(), tokens, examples]
        )
        return dict(zip(divisors, targets, strict=True)), int(of_tokens), int(of_examples)

    def _accumulate(
        self,
        ready: Sequence[Mapping[str, Batch]],
        divisors: Mapping[str, float],
        weights: Mapping[str, float],
        step: int,
    ) -> dict[str, Tensor]:
        """Add up gradients over micro-batches and processes; return each term's summed loss."""
        present = [term for term, divisor in divisors.items() if divisor]
        device = self._precision.device
        totals = {term: torch.zeros((), device=device) for term in present}
        if not present:
            return totals
        # DDP averages gradients where we want their sum, and waits for those of all heads. So a
        # term without targets gives a gradient of 0. It does for one process, too, whose optimizer
        # would else leave out a head that momentum moves for several.
        processes = distributed.world_size()
        factors = dict.fromkeys(divisors, 0.0)
        factors |= {term: processes * weights[term] / divisors[term] for term in present}
        seeds_each = self._needs_output_gradients(ready)  # with the dropout of the pass before
        for number, views in enumerate(ready):
            if seeds_each:
                self._seed_dropout(step, number)
            idle = {name for name, view in views.items() if isinstance(view, IdleBatch)}
            scales = {t: 0.0 if _loss_of(t) in idle else factor for t, factor in factors.items()}
            last = number == len(ready) - 1
            with self._counting(*views.values()), self._forward.accumulating(last=last):
                sums = self._pass(
                    views, scales, self._memory(number, views), is_only=len(ready) == 1
                )
            for term in present:
                if term in sums and _loss_of(term) not in idle:
                    totals[term] = totals[term] + sums[term]
        summed = distributed.all_reduce_tensor(torch.stack(list(totals.values())))
        return dict(zip(totals, summed, strict=True))

    def _pass(
        self,
        views: Mapping[str, Batch],
        factors: Mapping[str, float],
        memory: Memory | None,
        *,
        is_only: bool,
    ) -> dict[str, Tensor]:
        """Add the gradients of the losses of views, times a factor each; return their sums."""

        def compute(
            here: Mapping[str, Batch], factors: Mapping[str, float | Tensor]
        ) -> dict[str, Tensor]:
            with self._precision.context():
                work = partial(loss_sums, losses=self.losses, views=here, memory=memory)
                sums = self._forward(work)
            parts = [factor * sums[term] for term, factor in factors.items() if term in sums]
            if parts:
                self._scaler.scale(torch.stack([p.float() for p in parts]).sum()).backward()
            return {term: value.detach() for term, value in sums.items()}

        if self._graphs is not None and is_only:
            main, stage = self.losses[0].name, self.stages.current
            if (view := self._graphs.prepare(views[main])) is not None:
                return self._graphs(stage, view, factors, lambda b, fs: compute({main: b}, fs))
        ready = {name: self._add_facts(view) for name, view in views.items()}
        return compute(_move_views(ready, self._precision.device), factors)

    def _memory(self, number: int, views: Mapping[str, Batch]) -> Memory | None:
        """Return what the lanes of a micro-batch remember."""
        main = views.get(self.losses[0].name)
        if self._memories is None or main is None or isinstance(main, IdleBatch):
            return None
        return self._memories.memory(number, batch_size(main))

    def _add_penalty(self) -> dict[str, Tensor]:
        """Add the penalty's gradient, once for all micro-batches; return its value."""
        if self._penalty is None:
            return {}
        value = self._penalty(self.model)
        if value.requires_grad:
            self._scaler.scale(value).backward()
        return {f"penalty/{self._penalty.name}": value.detach()}

    def _update(
        self,
        loss: Tensor,
        step: int,
        micro_batches: Sequence[Mapping[str, Batch]],
        closure: Callable[[], Tensor],
    ) -> Tensor:
        """Clip once, on the complete gradient, and step unless numbers are not finite.

        `closure` computes loss and gradient anew, for an optimizer that asks for it.
        """
        moving = {n: p for n, p in self._parameters.items() if p.grad is not None}
        if not moving:  # no loss has a target
            return torch.zeros((), device=self._precision.device)
        self._scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in moving.values() if p.grad is not None]
        norms = dict(zip(moving, torch._foreach_norm(gradients), strict=True))
        # As torch's `get_total_norm`, which takes the norm of each once more.
        own_norm = torch.linalg.vector_norm(torch.stack([*norms.values()]))
        norm = distributed.full_tensor(own_norm)
        finite = torch.isfinite(norm + loss)
        self._skipped.note(NotedStep(step, HostCopy(finite), norms, micro_batches))
        if self._skips_on_device:
            self._step_on_device(norm, finite)
        elif bool(finite):
            if self._clip is not None:
                nn.utils.clip_grads_with_norm_(moving.values(), self._clip, own_norm)
            if self._uses_closure:
                self.optimizer.step(closure)  # type: ignore[arg-type]  # LBFGS asks for a tensor, typed as a float
            else:
                self._scaler.step(self.optimizer)
        self._scaler.update()  # an fp16 one lowers its scale where the gradient is not finite
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _step_on_device(self, norm: Tensor, finite: Tensor) -> None:
        """Have a fused optimizer clip and step, or skip the step, without waiting for it."""
        self.optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
        if self._clip is not None:
            # It divides gradients by that as it reads them, so that clipping is no pass of its own.
            epsilon = 1e-6  # of `torch.nn.utils.clip_grads_with_norm_`
            divisor = (norm.float() + epsilon).div(self._clip).clamp(min=1)
            self.optimizer.grad_scale = divisor  # type: ignore[attr-defined]
        self.optimizer.step()


def _loss_of(term: str) -> str:
    """Return the name of a term's loss."""
    return term.partition("/")[0]


def _move_views(known: Mapping[str, Batch], device: torch.device) -> dict[str, Batch]:
    """Return the views on the device; tensors that views share are moved once and stay shared."""
    moved: dict[int, Tensor] = {}
    for view in known.values():
        for key, tensor in view.items():
            if id(tensor) not in moved:
                moved[id(tensor)] = to_device({key: tensor}, device)[key]
    return {name: {k: moved[id(t)] for k, t in view.items()} for name, view in known.items()}
