"""What any objective must satisfy.

Legend: B batch, T positions, D width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.testing import assert_close

from transfer_cli.batch import IGNORE, Batch, batch_size
from transfer_cli.data.split import TextStats
from transfer_cli.engine.gradient_cache import add_output_gradients
from transfer_cli.metrics import find_metric
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.encoder_decoder import build_backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.answering import Answering
from transfer_cli.objectives.base import Encoding, Objective, TaskInfo
from transfer_cli.seeds import ExampleNoise
from transfer_cli.testing.claims import claim, randomize

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
        info: What it would be told about a run.
        batch: Two examples or more, of different lengths, not yet prepared.
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
    lengths_B = batch["mask"].flatten(1).sum(1)
    claim(len(lengths_B.unique()) > 1, "give a batch of examples of different lengths")
    shape = BackboneShape(
        width=16, heads=2, depth=2, feedforward=32, dropout=0.0,
        positions=batch["tokens"].shape[-1] + EXTRA_PADDING,
        direction=objective.direction or "causal",
    )  # fmt: skip
    objective.setup(info)
    backbone = build_backbone(shape, info.vocabulary.size)
    model = TransferModel(backbone, objective.modules(backbone)).eval()
    randomize(model)
    return ObjectiveCase(objective, model, batch)


def preparing_repeats(case: ObjectiveCase) -> None:
    """Claim: the same seed prepares an example the same way, alone or not, and changes no input."""
    before = {key: value.clone() for key, value in case.batch.items()}
    first, second = _prepared(case, case.batch), _prepared(case, case.batch)
    claim(_equal(case.batch, before), "prepare changes the batch that it is given")
    claim(_equal(first, second), "prepare draws something that does not come from its noise")
    for row in range(batch_size(case.batch)):
        alone = _prepared(case, _rows(case.batch, [row]))
        claim(
            _equal(alone, _as_wide(_rows(first, [row]), alone)),
            f"prepare treats example {row} differently when it is alone in its batch",
        )


def counts_match_what_contributes(case: ObjectiveCase) -> None:
    """Claim: terms are named alike everywhere, and counts say what the sums run over.

    An example has a count above 0 exactly where its hidden states get a gradient. Where the
    objective makes a `target`, that is so for every position, and the count is that of targets.
    """
    objective, batch = case.objective, _prepared(case, case.batch)
    encoded, counts, names = Encoding(case.model, batch), objective.counts(batch), objective.weights
    sums = objective.loss_sums(case.model, batch, encoded)
    for where, terms in (("counts", counts), ("loss_sums", sums)):
        same = terms.keys() == names.keys()
        claim(same, f"{where} names {sorted(terms)}, weights {sorted(names)}")
    (gradient_BTD,) = torch.autograd.grad(torch.stack([*sums.values()]).sum(), encoded.top)
    contributes_BT = gradient_BTD.any(-1).view_as(batch["mask"])
    for row in range(batch_size(batch)):
        alone = objective.counts(_rows(batch, [row]))
        claim(
            bool(contributes_BT[row].any()) == any(alone.values()),
            f"example {row} has the counts {alone}, which is not what contributes to the loss",
        )
    if "target" in batch and batch["target"].shape == batch["tokens"].shape:
        has_target_BT = batch["target"] != IGNORE
        claim(torch.equal(contributes_BT, has_target_BT), "positions without a target contribute")
        targets = int(has_target_BT.sum())
        claim(targets in counts.values(), f"there are {targets} targets, and counts are {counts}")


def sums_add_up_over_halves(case: ObjectiveCase) -> None:
    """Claim: losses and counts of a batch are the sums over its halves.

    Of a loss that compares the examples of a step, a half gets the others, too.
    """
    batch = _prepared(case, case.batch)
    middle = batch_size(batch) // 2
    halves = [_rows(batch, range(middle)), _rows(batch, range(middle, batch_size(batch)))]
    counts = [case.objective.counts(half) for half in halves]
    is_compared = isinstance(case.objective, Answering) and bool(case.objective.compares)
    if isinstance(case.objective, Answering) and is_compared:
        encoded = [Encoding(case.model, half) for half in halves]
        both = zip(halves, encoded, strict=True)
        outputs = [case.objective.outputs(case.model, *pair).detach() for pair in both]
        halves = add_output_gradients(case.objective, halves, outputs)
    losses = [_losses(case, half) for half in halves]
    if is_compared:
        _claim_same_gradient(case, _losses(case, batch), losses)
    for term, count in case.objective.counts(batch).items():
        parts = [part[term] for part in counts]
        claim(sum(parts) == count, f"{term}: counts {count}, and its halves {parts}")
    for term, whole in _losses(case, batch).items():
        _close(whole, losses[0][term] + losses[1][term], f"{term}: no sum over the examples")


def _claim_same_gradient(
    case: ObjectiveCase, whole: dict[str, Tensor], parts: list[dict[str, Tensor]]
) -> None:
    weights = list(case.model.backbone.parameters())
    sums = [torch.stack([*losses.values()]).sum() for losses in (whole, *parts)]
    whole_gradients, *part_gradients = (
        torch.autograd.grad(total, weights, allow_unused=True, materialize_grads=True)
        for total in sums
    )
    for gradient, *summed in zip(whole_gradients, *part_gradients, strict=True):
        _close(gradient, torch.stack(summed).sum(0), "the gradient is no sum over the examples")


def padding_never_contributes(case: ObjectiveCase) -> None:
    """Claim: more padding, or other tokens in it, change no loss and no count."""
    plain = _prepared(case, case.batch)
    vocabulary = case.objective.info.vocabulary
    ordinary = max({*range(vocabulary.size)} - {*vocabulary.special, vocabulary.unk})
    longer = _padded(case.batch, vocabulary.pad)
    rubbish = {**longer, "tokens": torch.where(longer["mask"], longer["tokens"], ordinary)}
    for what, other in (("more padding", longer), ("other tokens in the padding", rubbish)):
        prepared = _prepared(case, other)
        counts = case.objective.counts(prepared)
        claim(counts == case.objective.counts(plain), f"{what} changes the counts to {counts}")
        changed = _losses(case, prepared)
        for term, loss in _losses(case, plain).items():
            _close(loss, changed[term], f"{term}: {what} changes the loss")


def declared_modules_learn(case: ObjectiveCase) -> None:
    """Claim: every part of every module that the objective declares gets a gradient.

    A bias alone may get none: a softmax over one output for each of several texts takes it away.
    """
    case.model.zero_grad()
    torch.stack([*_losses(case, _prepared(case, case.batch)).values()]).sum().backward()
    for name, part in case.model.heads.named_modules():
        parameters = dict(part.named_parameters(recurse=False))
        gradients = {parameter: value.grad for parameter, value in parameters.items()}
        without = [
            parameter
            for parameter, gradient in gradients.items()
            if gradient is None or not gradient.any()
        ]
        learns = not without or (without == ["bias"] and len(parameters) > 1)
        claim(learns, f"heads.{name}.{''.join(without[:1])} gets no gradient")
    case.model.zero_grad()


def outcomes_add_up(case: ObjectiveCase) -> None:
    """Claim: the results of single examples, if there are any, add up to metric sums and counts."""
    batch = _prepared(case, case.batch)
    encoded = Encoding(case.model, batch)
    results = case.objective.example_results(case.model, batch, encoded)
    if results is None:
        return
    for name, value in {
        "loss": results.loss,
        "targets": results.targets,
        **results.predicted,
    }.items():
        axes = value.shape[:1] if name in results.predicted else value.shape
        claim(axes == (batch_size(batch),), f"example_results has no {name} for each example")
    total = case.objective.metric_sums(case.model, batch, encoded)["loss"]
    _close(results.loss.sum(), total.sum(), "the losses of example_results and metric_sums differ")
    targets, counts = int(results.targets.sum()), case.objective.counts(batch)
    claim(targets in counts.values(), f"there are {targets} targets, and counts are {counts}")


def declared_metrics_are_measured(case: ObjectiveCase) -> None:
    """Claim: what is measured is what is declared; one metric at least, each name once."""
    batch, objective = _prepared(case, case.batch), case.objective
    declared = objective.declared_metrics()
    names = [metric.name for metric in declared]
    claim(bool(names), "declared_metrics declares nothing")
    claim(len(set(names)) == len(names), f"declared_metrics declares a name twice: {names}")
    with torch.no_grad():
        sums = objective.metric_sums(case.model, batch, Encoding(case.model, batch))
    for text in (TextStats(), TextStats(words=1, size_bytes=1)):
        measured = objective.compute_metrics(sums, objective.counts(batch), text)
        unknown = [name for name in measured if find_metric(name, declared) is None]
        claim(not unknown, f"compute_metrics has {unknown}, and declared_metrics {names}")
    missing = sorted(set(names) - set(measured))
    claim(not missing, f"declared_metrics has {missing}, which compute_metrics has not")


def _prepared(case: ObjectiveCase, batch: Batch) -> Batch:
    return case.objective.prepare(dict(batch), ExampleNoise(0, "contract"))


def _losses(case: ObjectiveCase, batch: Batch) -> dict[str, Tensor]:
    return case.objective.loss_sums(case.model, batch, Encoding(case.model, batch))


def _rows(batch: Batch, rows: list[int] | range) -> Batch:
    return {key: value[list(rows)] for key, value in batch.items()}


def _as_wide(batch: Batch, other: Batch) -> Batch:
    """Return a batch without what stands behind the positions of another, such as padding."""
    widths = {key: tuple(map(slice, value.shape)) for key, value in other.items()}
    return {key: value[widths.get(key, ())] for key, value in batch.items()}


def _padded(batch: Batch, pad: int) -> Batch:
    """Return the batch with more padding; other values of each position become IGNORE there."""
    fillers, shape = {"tokens": pad, "mask": False, "segment": 0}, batch["tokens"].shape
    padded = dict(batch)
    for key, value in batch.items():
        if value.shape[: len(shape)] == shape:
            before_T = (0, 0) * (value.dim() - len(shape))
            padded[key] = torch.nn.functional.pad(
                value, (*before_T, 0, EXTRA_PADDING), value=fillers.get(key, IGNORE)
            )
    return padded


def _equal(left: Batch, right: Batch) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def _close(left: Tensor, right: Tensor, otherwise: str) -> None:
    assert_close(
        left, right, rtol=TOLERANCE, atol=TOLERANCE, msg=lambda detail: f"{otherwise}\n{detail}"
    )
