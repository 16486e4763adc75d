"""Further losses of what the main head says, which bring no head: consistency, and distillation.

Legend: B batch, T positions, N texts, questions or words; C labels, choices or numbers.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.batch import Batch, view_of
from transfer_cli.data.split import Dataset
from transfer_cli.errors import ConfigError, RunError, above_zero, one_of
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.pooling import Pooling
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.answering import UnitObjective
from transfer_cli.objectives.base import Encoding, Objective, TaskInfo
from transfer_cli.objectives.perturbations import PERTURBATIONS
from transfer_cli.seeds import ExampleNoise


def main_of(info: TaskInfo) -> UnitObjective:
    """Return the main objective, for a further loss."""
    if isinstance(info.main, UnitObjective):
        return info.main
    if info.main is None:
        raise ConfigError(
            "objective: it is a further loss, about what the main objective says of a text; take "
            "+objective@losses.NAME= instead"
        )
    raise ConfigError(
        f"losses.{info.name}: it is about what the main objective says of a text, of two, of "
        f"choices or of each word ({type(info.main).__name__} does not); take "
        "objective=classification, multilabel, regression, choice or tagging"
    )


class OfMainHead(Objective):
    """A further loss of what the main head says of each unit, such as a text or a word."""

    main: UnitObjective

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        self.main = main_of(info)
        any_text = self.main.units_are_examples
        if not any_text and _name_of(info.task) != _name_of(self.main.info.task):
            raise ConfigError(
                f"losses.{info.name}.stream: {type(self.main).__name__} answers parts of an "
                "example, and these examples do not say which; take main, or a stream of rest or "
                f"of other data of the task {self.main.task}"
            )

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        """Return none: the head is that of the main loss."""
        return {}

    def pooling_of(self, model: TransferModel) -> Pooling | None:
        """Return that of the main head."""
        return self.main.pooling_of(model)

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"loss": self.main.num_units(batch)}


def _name_of(task: Any) -> str | None:
    return None if task is None else task.name


_UNCHANGED = ("none", "dropout")
"""The copy has the same tokens; in training, dropout draws anew."""


@dataclass(eq=False, repr=False)
class Consistency(OfMainHead):
    """KL(p || q) of what the main head says of a text, p, and of a perturbed copy, q.

    It needs no label. No gradient flows through p, which comes from a pass with dropout, too. Of
    words p and q are compared one by one; a word that the copy lacks is left out.

    Args:
        perturb: dropout: the copy differs by dropout alone; mask, delete, unigram or tfidf: see
            `objectives.perturbations`; none, for a test: not even by that, without training.
        rate: The share of tokens that is perturbed, in (0, 1).
        temperature: Sharpens p, below 1.
        confidence: Where p, not sharpened, is not surer than this, it counts as 0, in [0, 1). The
            mean is over all.
        symmetric: Whether KL(q || p) is added, with gradients through both, and halved: with
            perturb=dropout that is R-Drop (Wu et al. 2021).
        paraphrases: A table of texts that say the same (`data.paraphrases`): a text that has some
            is compared with one of them, drawn anew in each step, and not with a perturbed copy.
    """

    perturb: str = "mask"
    rate: float = 0.15
    temperature: float = 1.0
    confidence: float = 0.0
    symmetric: bool = field(default=False, kw_only=True)
    paraphrases: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        one_of("perturb", self.perturb, (*_UNCHANGED, *PERTURBATIONS), ValueError)
        if not 0 < self.rate < 1:
            raise ValueError(f"rate must be between 0 and 1, got {self.rate}")
        if not 0 <= self.confidence < 1:
            raise ValueError(f"confidence must be in [0, 1), got {self.confidence}")
        above_zero("temperature", self.temperature)
        is_changed = self.perturb not in _UNCHANGED
        self._perturb = PERTURBATIONS[self.perturb](self.rate) if is_changed else None
        self.keeps_tokens = False  # its second pass needs them
        self.encoded: Dataset | None = None
        """All paraphrases, which the run gives it."""

    @property
    def key(self) -> str:
        """The key in a batch of which of the paraphrases are a text's; see `batch`."""
        return f"paraphrases_{self.info.name}"

    def setup(self, info: TaskInfo) -> None:
        """Store the facts of the run; for errors see `OfMainHead` and `Perturbation`."""
        super().setup(info)
        if self._perturb is not None:
            self._perturb.setup(info)

    def on_data(self, data: Dataset) -> None:
        if self._perturb is not None:
            self._perturb.on_data(data)

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Return the batch with a further view: the perturbed copy, or a paraphrase."""
        if self._perturb is None:
            left, tokens, mask = batch, batch["tokens"], batch["mask"]
        else:
            tokens, mask = self._perturb(batch, noise)
            left = self.main.left_in(batch, mask)
        if self.encoded is not None and self.key in batch:
            tokens, mask = _with_drawn(self.encoded, batch[self.key], batch, noise, (tokens, mask))
        elif self._perturb is None:
            return batch
        return {**left, "tokens_copy": tokens, "mask_copy": mask}

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the divergence, summed over texts, questions or words, in float32."""
        main = self.main
        # A pass of its own without gradients: another loss may need those of `encoded`.
        with nullcontext() if self.symmetric else torch.no_grad():
            first = encoded if self.symmetric else Encoding(model, batch)
            scores_NC = main.scores(model, batch, first)
            target_NC = main.softened(scores_NC, self.temperature)
        copy = view_of(batch, "copy")
        other_NC = main.scores(model, copy, Encoding(model, copy))
        each_N = main.divergence(target_NC, other_NC)
        if self.symmetric:
            back_N = main.divergence(other_NC, scores_NC)
            each_N = (each_N + back_N) / 2
        if self.confidence:
            each_N = torch.where(main.confidence(scores_NC) > self.confidence, each_N, 0)
        return {"loss": each_N.sum()}


def _with_drawn(
    encoded: Dataset,
    places_B2: Tensor,
    batch: Batch,
    noise: ExampleNoise,
    copies: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Return tokens and mask of copies of which those that have paraphrases are one of them."""
    first_B, count_B = places_B2.unbind(1)
    draw_B = noise.uniform(batch["index"], 1, 1)[:, 0, 0]
    row_N = (first_B + (draw_B * count_B).long())[count_B > 0]
    if not len(row_N):
        return copies
    others = encoded.batch(row_N.numpy())
    width = max(copies[0].shape[1], others["tokens"].shape[1])
    found = []
    for copy_BT, other_NT in zip(copies, (others["tokens"], others["mask"]), strict=True):
        copy_BT = F.pad(copy_BT, (0, width - copy_BT.shape[1]))
        copy_BT[count_B > 0] = F.pad(other_NT, (0, width - other_NT.shape[1]))
        found.append(copy_BT)
    return found[0], found[1]


@dataclass(eq=False, repr=False)
class Distillation(OfMainHead):
    """tau^2 KL(p || q) between a teacher's answer p and the main head's q, both flattened by tau.

    It needs no label, so it goes with any stream of the task's texts. Of numbers it is the squared
    difference. What the teachers say of each training and validation example is computed before the
    run (`assembly.example_facts`) and comes with its batch; several teachers answer together, as in
    `predict`. The paper's loss is the cross-entropy, whose gradient is the same; a divergence of 0
    means "as the teacher".

    Args:
        teachers: Runs, or published models with a head; their tokenizers may be others.
        temperature: tau, above 0.
        hard: Whether p is the teacher's first choice alone, as in self-training; tau is then 1.
        confidence: What the teacher is not surer of than this is left out, in [0, 1).
    """

    teachers: tuple[str, ...]
    temperature: float = 2.0
    hard: bool = field(default=False, kw_only=True)
    confidence: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        above_zero("temperature", self.temperature)
        if not self.teachers:
            raise ValueError("teachers is empty; give one run or more: teachers=[RUN]")
        if not 0 <= self.confidence < 1:
            raise ValueError(f"confidence must be in [0, 1), got {self.confidence}")
        if self.hard:
            self.temperature = 1.0

    @property
    def teacher_runs(self) -> Sequence[str]:
        return self.teachers

    @property
    def key(self) -> str:
        """The key of the teachers' answers in a batch; see `batch`."""
        return f"teacher_{self.info.name}"

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of texts, questions or words that are not left out."""
        return {"loss": int(self._kept(self._answers(batch)).sum())}

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the divergence from the teachers, summed, in float32."""
        given_NC = answers_NC = self._answers(batch)
        if self.hard:
            likeliest_N1 = given_NC.argmax(1, keepdim=True)
            answers_NC = torch.zeros_like(given_NC).scatter(1, likeliest_N1, 1.0)
        scores_NC = self.main.scores(model, batch, encoded)
        answers_NC = answers_NC[:, : scores_NC.shape[1]]  # of choices, a batch may have fewer
        each_N = self.main.divergence(
            *(
                self.main.softened(each_NC, self.temperature)
                for each_NC in (self.main.scores_of(answers_NC), scores_NC)
            )
        )
        kept_N = self._kept(given_NC)
        return {"loss": self.temperature**2 * torch.where(kept_N, each_N, 0).sum()}

    def _answers(self, batch: Batch) -> Tensor:
        if self.key not in batch:
            raise RunError(
                f"losses.{self.info.name}: what the teachers say comes with a run's own data; "
                "evaluate the main loss"
            )
        return self.main.of_units(batch[self.key], batch)

    def _kept(self, answers_NC: Tensor) -> Tensor:
        if not self.confidence:
            return torch.ones_like(answers_NC[:, 0], dtype=torch.bool)
        return self.main.confidence(self.main.scores_of(answers_NC)) > self.confidence
