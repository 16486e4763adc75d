"""Base classes of objectives whose head answers examples, or parts of them.

A subclass defines `outputs`, what the head says of a batch, and functions of that: `losses`,
`answers`, `display_pairs` and, for further measures, `tallies`. The rest follows from these.

Legend: B batch, T positions, N units, C labels, choices or numbers.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Set
from typing import Any, ClassVar

import torch
from torch import Tensor

from transfer_cli.batch import IGNORE, Batch, Counts, Sums, batch_size
from transfer_cli.data.split import TextStats
from transfer_cli.errors import ConfigError
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives import confidence
from transfer_cli.objectives.base import Encoding, ExampleResults, Objective, Sample, TaskInfo
from transfer_cli.objectives.class_weights import ClassWeight, ClassWeights


def occurrences(number_N: Tensor, kinds: int) -> Tensor:
    """Return how often each of the numbers below `kinds` occurs, `[kinds]`.

    `torch.bincount` looks for the largest number first, so that the host waits for the device.
    """
    counts = torch.zeros(kinds, dtype=torch.long, device=number_N.device)
    return counts.scatter_add_(0, number_N, torch.ones_like(number_N))


class Answering(Objective):
    """A loss of what a head says of examples."""

    counted: ClassVar[tuple[str, ...]] = ()
    """The tallies that are tables of counts."""

    @abstractmethod
    def outputs(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Any:
        """Return what the head says of a batch."""

    @abstractmethod
    def losses(self, outputs: Any, batch: Batch) -> Tensor:
        """Return the loss of each row, `[B]`, summed over its targets, in nats."""

    def targets(self, batch: Batch) -> Tensor:
        """Return the number of targets of each row, `[B]`: those in `target`, else one."""
        if "target" in batch:
            return (batch["target"] != IGNORE).sum(1)
        return torch.ones(batch_size(batch), dtype=torch.long, device=batch["tokens"].device)

    def tallies(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return the sums, "loss" among them, that an evaluation adds up over batches."""
        return {"loss": self.losses(outputs, batch).sum()}

    def answers(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return the predictions of its task, which need no targets, by name, each `[B, ...]`."""
        return {}

    def results(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return what the result of an example is made of: by default its answer."""
        return self.answers(outputs, batch)

    def display_pairs(
        self, outputs: Any, batch: Batch
    ) -> Iterable[tuple[list[int] | str, list[int] | str]]:
        """Return the right answer and the model's for each row, for display."""
        return ()

    # --- what follows -----------------------------------------------------------------------

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"loss": int(self.targets(batch).sum())}

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        return {"loss": self.losses(self.outputs(model, batch, encoded), batch).sum()}

    def metric_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Sums:
        return self.tallies(self._cached_outputs(model, batch, encoded), batch)

    def predictions(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> dict[str, Tensor]:
        return self.answers(self._cached_outputs(model, batch, encoded), batch)

    def example_results(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> ExampleResults:
        outputs = self._cached_outputs(model, batch, encoded)
        loss_B, targets_B = self.losses(outputs, batch), self.targets(batch)
        return ExampleResults(loss_B, targets_B, self.results(outputs, batch))

    def samples(self, model: TransferModel, batch: Batch, encoded: Encoding) -> list[Sample]:
        shown = self.display_pairs(self._cached_outputs(model, batch, encoded), batch)
        rows = zip(batch["tokens"], batch["mask"], shown, strict=False)
        return [Sample(tokens[mask].tolist(), *pair) for tokens, mask, pair in rows]

    def tables(self, totals: Mapping[str, Tensor]) -> dict[str, list[list[int]]]:
        return {name: totals[name].long().tolist() for name in self.counted if name in totals}

    def _cached_outputs(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Any:
        """Return `outputs`, for which the head runs once in an evaluation."""
        if self not in encoded.outputs:
            encoded.outputs[self] = self.outputs(model, batch, encoded)
        return encoded.outputs[self]


class UnitObjective(Answering):
    """A loss of what a head says of each unit; others can be about the same (`OfMainHead`).

    By default units are examples with one label each.
    """

    units_are_examples: ClassVar[bool] = True
    """Whether any text has such units; else a batch says which there are, as that of its task."""
    has_temperature: ClassVar[bool] = True
    """Whether scores are of probabilities, which one softens."""
    calibrate: confidence.Calibrate = False
    """Whether the end of a run fits a temperature on validation; auto: from `MIN_EXAMPLES` on."""
    abstain: float | None = None
    """The share of given answers that is to be right: others are not given. None: all are."""

    class_weight: ClassWeight = None
    """How much the targets of each label count in training; an option of some."""
    class_weights: ClassWeights | None = None
    """What that comes to with a run's data."""

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        self.class_weights = ClassWeights.from_option(self.class_weight, info)
        self._check_confidence(info)

    def _check_confidence(self, info: TaskInfo) -> None:
        """Refuse what says when not to answer where it cannot be fitted."""
        if self.abstain is not None and not 0 < self.abstain < 1:
            raise ConfigError(
                f"{info.key}.abstain is {self.abstain:g}, expected the share of answers that is to "
                "be right, between 0 and 1, such as 0.95"
            )
        why = "" if info.main is None else "it is for the main objective"
        if not info.validates:
            why = "there is no validation split to fit it on"
        wanted = {"abstain": self.abstain is not None, "calibrate": self.calibrate is True}
        for name in (name for name, is_wanted in wanted.items() if why and is_wanted):
            raise ConfigError(f"{info.key}.{name}: {why}; leave it out")

    def finalize_options(self, model: TransferModel, trains: Set[str]) -> dict[str, Any]:
        weights = self.class_weights
        return {} if weights is None else {"class_weight": weights.by_label}

    def divisors(self, batch: Batch) -> Mapping[str, float]:
        counts, weights = self.counts(batch), self.class_weights
        return counts if weights is None else {**counts, "loss": weights.total(self.classes(batch))}

    def classes(self, batch: Batch) -> Tensor:
        """Return, of the weights, the number of each target's."""
        return batch["label"]

    def class_weights_on(self, device: torch.device) -> Tensor | None:
        """Return the weights on a device; None: all targets count alike."""
        return None if self.class_weights is None else self.class_weights.to(device)

    @abstractmethod
    def scores(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        """Return the numbers that say what each unit is, in float32, `[N, C]`."""

    def calibrated(self, outputs: Tensor) -> Tensor:
        """Return outputs as the temperature of a finished run has them; else as they are."""
        temperature = getattr(self.info.task, "temperature", 1.0)
        return outputs if temperature == 1.0 else outputs / temperature

    def judged_units(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return scores and targets of what has a probability; see `confidence.judge_answers`."""
        return outputs, batch["label"]

    def judged_answers(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return how sure the answers that are given or not are, and whether they are right."""
        return confidence.judge_answers(scores, target)

    def unit_results(self, model: TransferModel, batch: Batch, encoded: Encoding) -> ExampleResults:
        """Return `example_results` with `judged_units` as predictions."""
        outputs = self._cached_outputs(model, batch, encoded)
        scores, target = self.judged_units(outputs, batch)
        results = {"scores": scores, "target": target}
        return ExampleResults(self.losses(outputs, batch), self.targets(batch), results)

    def metric_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Sums:
        """Return `tallies`, and of a finished run how far its probabilities can be believed."""
        sums = super().metric_sums(model, batch, encoded)
        fitted = getattr(self.info.task, "fitted", {})
        if not {"temperature", "abstain_below"} & fitted.keys():
            return sums
        scores, target = self.judged_units(self._cached_outputs(model, batch, encoded), batch)
        calibrated = self.calibrated(scores)
        if "temperature" in fitted:
            both = (confidence.reliability(version, target) for version in (scores, calibrated))
            sums["reliability"] = torch.stack([*both])
        answers = self.judged_answers(calibrated, target)
        sums["curve"] = confidence.curve(*answers)
        if "abstain_below" in fitted:
            sums["given"] = confidence.count_given(*answers, fitted["abstain_below"])
        return sums

    def tables(self, totals: Mapping[str, Tensor]) -> dict[str, list[list[int]]]:
        return super().tables(totals) | confidence.tables(totals)

    def compute_metrics(self, totals: Sums, counts: Counts, text: TextStats) -> dict[str, float]:
        return super().compute_metrics(totals, counts, text) | confidence.measures(totals)

    def num_units(self, batch: Batch) -> int:
        """Return the number of units."""
        return batch_size(batch)

    def unit_values(self, values: Tensor, batch: Batch) -> Tensor:
        """Return, `[N, C]`, the values of units that are a key of their batch."""
        return values

    def drop_hidden_units(self, batch: Batch, mask: Tensor) -> Batch:
        """Return a batch without the units that another mask of its tokens takes away."""
        return batch

    def visible_units(self, batch: Batch, mask: Tensor) -> Tensor:
        """Return which units another mask of the tokens leaves, `[N]` bool."""
        return torch.ones(self.num_units(batch), dtype=torch.bool, device=mask.device)

    def answer_scores(self, answers_NC: Tensor) -> Tensor:
        """Return the scores that a finished run's answers are made from."""
        return answers_NC.log()

    def first_choice(self, answers_NC: Tensor) -> Tensor:
        """Return answers without their doubts: the likeliest one alone."""
        likeliest_N1 = answers_NC.argmax(1, keepdim=True)
        return torch.zeros_like(answers_NC).scatter(1, likeliest_N1, 1.0)

    def soften(self, scores_NC: Tensor, temperature: float) -> Tensor:
        """Return scores that say less, or more below 1; numbers as they are."""
        return scores_NC / temperature if self.has_temperature else scores_NC

    def confidence(self, scores_NC: Tensor) -> Tensor:
        """Return the probability of what the scores say first, `[N]`."""
        return scores_NC.softmax(1).amax(1)

    def divergence(self, target_NC: Tensor, scores_NC: Tensor) -> Tensor:
        """Return how far scores are from others, `[N]`: KL(target || scores)."""
        first_NC, second_NC = target_NC.log_softmax(1), scores_NC.log_softmax(1)
        target_NC = first_NC.exp()
        never_NC = target_NC == 0  # such as a choice that is not there
        difference_NC = first_NC.masked_fill(never_NC, 0) - second_NC.masked_fill(never_NC, 0)
        return (target_NC * difference_NC).sum(1)
