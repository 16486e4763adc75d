"""An analysis of our own: are long texts harder?"""

from collections.abc import Sequence

import numpy as np

from transfer_cli.analysis.analysis import Analysis, Subject
from transfer_cli.engine.evaluation import EachExample, evaluate
from transfer_cli.reports.finding import Finding, FindingTable, Lines


class TokenLengths(Analysis):
    """The mean loss of a split's rows by their length.

    Args:
        bounds: The most tokens of each bin, from short to long; one more bin holds the rest.
    """

    def __init__(self, bounds: Sequence[int] = (4, 8, 16, 32)) -> None:
        self.bounds = list(bounds)

    def __call__(self, subject: Subject) -> Finding:
        """See `Analysis`."""
        split, collector = subject.split, EachExample()
        evaluate(
            subject.model, subject.objective, split,
            batch=subject.batch, precision=subject.precision, each=collector,
        )  # fmt: skip
        outcomes = collector.gathered()
        losses = np.array([outcome.loss for outcome in outcomes])
        lengths = np.array([split.data.lengths[outcome.index] for outcome in outcomes])
        bins = np.searchsorted(self.bounds, lengths)
        rows = [
            [self._bin_name(bin_), int((bins == bin_).sum()), float(losses[bins == bin_].mean())]
            for bin_ in np.unique(bins)
        ]
        names, _, means = zip(*rows, strict=True)
        return Finding(
            "Length against loss",
            f"Texts of {split.name} by their number of tokens.",
            {"texts": len(lengths), "longest": int(lengths.max())},
            [FindingTable(["tokens", "texts", "loss (nats)"], rows)],
            {"loss_by_length": Lines({"loss": means}, names, "tokens", "nats a text")},
        )

    def _bin_name(self, bin_: int) -> str:
        first = 1 if bin_ == 0 else self.bounds[bin_ - 1] + 1
        return f"{first} to {self.bounds[bin_]}" if bin_ < len(self.bounds) else f"{first} or more"
