"""What any objective must satisfy, ours or a user's.

Call `check_objective` from a test of your own:

    def test_my_objective_keeps_the_contract():
        check_objective(MyObjective(), TaskInfo(tokenizer, labels), data.batch(np.arange(8)))

Legend: B batch, T positions, D width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.testing import assert_close

from transfer_cli.batch import IGNORE, Batch, size
from transfer_cli.data.split import TextStats
from transfer_cli.metrics import find
from transfer_cli.model.backbone import Backbone, BackboneShape
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, Objective, TaskInfo
from transfer_cli.seeds import ExampleNoise

EXTRA_PADDING = 3
TOLERANCE = 1e-4


@dataclass(frozen=True)
class ObjectiveCase:
    """An objective at work on a small random model and a batch as its data makes them."""

    objective: Objective
    model: TransferModel
    batch: Batch


def check_objective(objective: Objective, info: TaskInfo, batch: Batch) -> None:
    """Check every claim of this module.

    Args:
        objective: Any objective, not yet bound.
        info: What it would be told about a run.
        batch: Two examples or more, of different lengths, not yet prepared.

    Raises:
        AssertionError: A claim does not hold; the message says which.
    """
    case = make_case(objective, info, batch)
    preparing_repeats(case)
    counts_match_what_contributes(case)
    sums_add_up_over_halves(case)
    padding_never_contributes(case)
    declared_modules_learn(case)
    outcomes_add_up(case)
    declared_metrics_are_measured(case)


def make_case(objective: Objective, info: TaskInfo, batch: Batch) -> ObjectiveCase:
    """Return a case with a model of large random weights, so that faults show, and no dropout.

    Raises:
        AssertionError: The batch cannot show whether the claims hold.
    """
    lengths_B = batch["mask"].sum(1)
    _claim(len(lengths_B.unique()) > 1, "give a batch of examples of different lengths")
    shape = BackboneShape(
        width=16, heads=2, depth=2, feedforward=32, dropout=0.0,
        positions=batch["tokens"].shape[1] + EXTRA_PADDING,
        direction=objective.direction or "causal",
    )  # fmt: skip
    objective.setup(info)
    backbone = Backbone(shape, info.vocabulary.size)
    model = TransferModel(backbone, objective.modules(backbone)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=generator)
    return ObjectiveCase(objective, model, batch)


def preparing_repeats(case: ObjectiveCase) -> None:
    """Claim: the same seed prepares an example the same way, alone or not, and changes no input."""
    before = {key: value.clone() for key, value in case.batch.items()}
    first, second = _prepared(case, case.batch), _prepared(case, case.batch)
    _claim(_equal(case.batch, before), "prepare changes the batch that it is given")
    _claim(_equal(first, second), "prepare draws something that does not come from its noise")
    for row in range(size(case.batch)):
        alone = _prepared(case, _rows(case.batch, [row]))
        _claim(
            _equal(alone, _rows(first, [row])),
            f"prepare treats example {row} differently when it is alone in its batch",
        )


def counts_match_what_contributes(case: ObjectiveCase) -> None:
    """Claim: terms are named alike everywhere, and counts say what the sums run over.

    An example has a count above 0 exactly where its hidden states get a gradient. Where the
    objective makes a `target`, that is so for every position, and the count is that of targets.
    """
    objective, batch = case.objective, _prepared(case, case.batch)
    counts, (sums, gradient_BTD) = objective.counts(batch), _gradient(case, batch)
    names = set(objective.weights)
    _claim(set(counts) == names, f"counts names {sorted(counts)}, weights {sorted(names)}")
    _claim(set(sums) == names, f"loss_sums names {sorted(sums)}, weights {sorted(names)}")
    contributes_BT = (gradient_BTD != 0).any(-1)
    for row in range(size(batch)):
        own = objective.counts(_rows(batch, [row]))
        _claim(
            bool(contributes_BT[row].any()) == any(own.values()),
            f"example {row} has the counts {own}, which is not what contributes to the loss",
        )
    if "target" in batch and batch["target"].shape == batch["tokens"].shape:
        has_target_BT = batch["target"] != IGNORE
        _claim(torch.equal(contributes_BT, has_target_BT), "positions without a target contribute")
        targets = int(has_target_BT.sum())
        _claim(targets in counts.values(), f"there are {targets} targets, and counts are {counts}")


def sums_add_up_over_halves(case: ObjectiveCase) -> None:
    """Claim: losses and counts of a batch are the sums over its halves."""
    batch = _prepared(case, case.batch)
    middle = size(batch) // 2
    halves = [_rows(batch, range(middle)), _rows(batch, range(middle, size(batch)))]
    counts = [case.objective.counts(half) for half in halves]
    losses = [_losses(case, half) for half in halves]
    for term, count in case.objective.counts(batch).items():
        parts = [part[term] for part in counts]
        _claim(sum(parts) == count, f"{term}: counts {count}, and its halves {parts}")
    for term, whole in _losses(case, batch).items():
        _close(whole, losses[0][term] + losses[1][term], f"{term}: no sum over the examples")


def padding_never_contributes(case: ObjectiveCase) -> None:
    """Claim: more padding, or other tokens in it, change no loss and no count."""
    plain = _prepared(case, case.batch)
    ordinary = max(set(range(case.model.backbone.vocabulary)) - _specials(case))
    longer = _padded(case.batch, case.objective.info.vocabulary.pad)
    rubbish = {**longer, "tokens": torch.where(longer["mask"], longer["tokens"], ordinary)}
    for what, other in (("more padding", longer), ("other tokens in the padding", rubbish)):
        prepared = _prepared(case, other)
        counts = case.objective.counts(prepared)
        _claim(counts == case.objective.counts(plain), f"{what} changes the counts to {counts}")
        changed = _losses(case, prepared)
        for term, loss in _losses(case, plain).items():
            _close(loss, changed[term], f"{term}: {what} changes the loss")


def declared_modules_learn(case: ObjectiveCase) -> None:
    """Claim: every parameter of every module that the objective declares gets a gradient."""
    case.model.zero_grad()
    torch.stack(list(_losses(case, _prepared(case, case.batch)).values())).sum().backward()
    for name, parameter in case.model.heads.named_parameters():
        moved = parameter.grad is not None and bool((parameter.grad != 0).any())
        _claim(moved, f"heads.{name} gets no gradient")
    case.model.zero_grad()


def outcomes_add_up(case: ObjectiveCase) -> None:
    """Claim: what became of single examples, where that is known, adds up to tallies and counts."""
    batch = _prepared(case, case.batch)
    encoded = Encoding(case.model, batch)
    found = case.objective.example_results(case.model, batch, encoded)
    if found is None:
        return
    for name, value in {"loss": found.loss, "targets": found.targets}.items():
        _claim(value.shape == (size(batch),), f"outcomes has no {name} for each example")
    for name, value in found.predicted.items():
        shaped = value.ndim > 0 and len(value) == size(batch)
        _claim(shaped, f"outcomes has no {name} for each example")
    total = case.objective.metric_sums(case.model, batch, encoded)["loss"]
    _close(found.loss.sum(), total.sum(), "outcomes: the losses do not add up to that of tallies")
    targets, counts = int(found.targets.sum()), case.objective.counts(batch)
    _claim(targets in counts.values(), f"outcomes has {targets} targets, and counts are {counts}")


def declared_metrics_are_measured(case: ObjectiveCase) -> None:
    """Claim: what is measured is what is declared; one metric at least, each name once."""
    batch, objective = _prepared(case, case.batch), case.objective
    declared = objective.declared_metrics()
    names = [metric.name for metric in declared]
    _claim(bool(names), "declared_metrics declares nothing")
    _claim(len(set(names)) == len(names), f"declared_metrics declares a name twice: {names}")
    with torch.no_grad():
        tallies = objective.metric_sums(case.model, batch, Encoding(case.model, batch))
    for text in (TextStats(), TextStats(words=1, size_bytes=1)):
        measured = objective.compute_metrics(tallies, objective.counts(batch), text)
        unknown = [name for name in measured if find(name, declared) is None]
        _claim(not unknown, f"measures has {unknown}, and declared_metrics {names}")
    missing = sorted(set(names) - set(measured))
    _claim(not missing, f"declared_metrics has {missing}, which measures has not")


def _prepared(case: ObjectiveCase, batch: Batch) -> Batch:
    return case.objective.prepare(dict(batch), ExampleNoise(0, "contract"))


def _losses(case: ObjectiveCase, batch: Batch) -> dict[str, Tensor]:
    return case.objective.loss_sums(case.model, batch, Encoding(case.model, batch))


def _gradient(case: ObjectiveCase, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
    """Return the losses, and their gradient by the states that the heads read, `[B, T, D]`."""
    encoded = Encoding(case.model, batch)
    sums = case.objective.loss_sums(case.model, batch, encoded)
    total = torch.stack(list(sums.values())).sum()
    return sums, torch.autograd.grad(total, encoded.top)[0]


def _rows(batch: Batch, rows: list[int] | range) -> Batch:
    return {key: value[list(rows)] for key, value in batch.items()}


def _padded(batch: Batch, pad: int) -> Batch:
    """Return the batch with more padding; other values of each position become IGNORE there."""
    positions = batch["tokens"].shape[1]
    fillers = {"tokens": pad, "mask": False, "segment": 0}
    return {
        key: torch.nn.functional.pad(value, (0, EXTRA_PADDING), value=fillers.get(key, IGNORE))
        if value.shape[1:] == (positions,)
        else value
        for key, value in batch.items()
    }


def _specials(case: ObjectiveCase) -> set[int]:
    vocabulary = case.objective.info.vocabulary
    return {*vocabulary.special, vocabulary.unk}


def _equal(left: Batch, right: Batch) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def _claim(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - a condition, as of `assert`
    if not holds:
        raise AssertionError(otherwise)


def _close(left: Tensor, right: Tensor, otherwise: str) -> None:
    assert_close(
        left, right, rtol=TOLERANCE, atol=TOLERANCE, msg=lambda detail: f"{otherwise}\n{detail}"
    )
