"""Whether a language model prefers the acceptable sentence of a minimal pair."""

import math
from dataclasses import asdict, dataclass
from typing import Literal

import torch

from transfer_cli.analysis.analysis import Analysis, Subject
from transfer_cli.assembly.language_models import sentence_scorer
from transfer_cli.data.minimal_pairs import MAX_PAIRS, Agreement
from transfer_cli.errors import at_least, between
from transfer_cli.generation.sentences import (
    JudgedPair,
    accuracy_by_group,
    judge_pairs,
    longer_wins,
)
from transfer_cli.reports.finding import Finding, FindingTable

DECIMALS = 6


@dataclass(frozen=True)
class NumberAgreement(Analysis):
    """How often the good sentence is the likelier, by what pairs are about; a tie counts half.

    Pairs are those of `data=`, where it names some (`data=minimal_pairs`), else made ones whose
    verb has, or has not, the number of its subject, with nouns between them that may have another
    (Linzen et al. 2016). `transfer score` asks the same, and writes it as a run. For the options
    see `conf/analysis/agreement.yaml`.
    """

    pairs: int = 60
    first: Literal["scored", "given"] = "scored"
    within_word: bool = True
    shown: int = 20

    def __post_init__(self) -> None:
        between("pairs", self.pairs, 1, MAX_PAIRS)
        at_least("shown", self.shown, 0)

    def __call__(self, subject: Subject) -> Finding:
        scorer = sentence_scorer(
            subject.opened, batch=subject.batch, scores_first=self.first == "scored",
            within_word=self.within_word,
        )  # fmt: skip
        pairs_of_data = subject.material.pairs
        pairs = (Agreement(pairs=self.pairs) if pairs_of_data is None else pairs_of_data).load()
        with torch.inference_mode(), subject.precision.context():
            judged = judge_pairs(scorer, pairs)
        groups, longer = accuracy_by_group(judged), longer_wins(judged)
        right = math.fsum(pair.score for pair in judged) / len(judged)
        macro = math.fsum(group.accuracy for group in groups) / len(groups)
        wrong = sorted((pair for pair in judged if pair.score < 1), key=_nats_preferred)
        summary = (
            f"{len(judged):,} pairs: the good sentence is the likelier in {100 * right:.1f} %, "
            f"{100 * macro:.1f} % as the mean over {len(groups)} groups."
        )
        rows = []
        for kind in groups:
            percents = [round(100 * share, 1) for share in (kind.accuracy, kind.low, kind.high)]
            rows.append([kind.group or "all", *percents, kind.count])
        shown = [
            {**asdict(judgment.pair), "nats": round(_nats_preferred(judgment), 4)}
            for judgment in wrong[: self.shown]
        ]
        return Finding(
            "Agreement",
            summary,
            {
                "accuracy": round(right, DECIMALS),
                "macro accuracy": round(macro, DECIMALS),
                **({} if longer is None else {"longer wins": round(longer, DECIMALS)}),
            },
            [
                FindingTable(["group", "right, %", "from", "to", "pairs"], rows, "Right by group"),
                FindingTable(
                    ["good", "found likelier", "group", "nats between them"],
                    [list(pair.values()) for pair in shown],
                    "Wrong pairs",
                ),
            ],
            data={"groups": [asdict(group) for group in groups], "wrong": shown},
        )


def _nats_preferred(judged: JudgedPair) -> float:
    return judged.good - judged.bad
