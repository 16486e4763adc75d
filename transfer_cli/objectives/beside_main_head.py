"""Further losses with heads like the main one, which end with the training: views and slices.

Legend: B batch, T positions, K slices, N texts, questions or words; C labels, choices or numbers.
"""

import copy
import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from transfer_cli.batch import Batch, Counts, Sums, select_view
from transfer_cli.data.split import Split, TextStats
from transfer_cli.errors import ConfigError, RunError, check_share, one_of
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.pooling import Pooling
from transfer_cli.model.shape import BackboneShape
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.answering import UnitObjective
from transfer_cli.objectives.base import Encoding, Objective, TaskInfo
from transfer_cli.objectives.of_main_head import fixed_scores, main_objective
from transfer_cli.objectives.perturbations import Mask
from transfer_cli.runs.slices import Slice, slice_masks
from transfer_cli.seeds import ExampleNoise

log = logging.getLogger(__name__)

Main = TypeVar("Main", bound=Objective)


class BesideMainHead(Objective, Generic[Main]):
    """A loss with several terms, each of a head like the main one; all count as much."""

    terms: Sequence[str]
    """The names of its terms."""

    @property
    def weights(self) -> Mapping[str, float]:
        return dict.fromkeys(self.terms, 1 / len(self.terms))

    @property
    def training_heads(self) -> Set[str]:
        return {other.head for other in self.objectives.values() if other.head is not None}

    @abstractmethod
    def main_objective(self, info: TaskInfo) -> Main:
        """Return the main objective, or refuse one that heads cannot be like."""

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        self.main = self.main_objective(info)
        self.keeps_tokens = self.main.keeps_tokens
        self.objectives = {
            term: _with_head(self.main, f"{info.name}_{term}") for term in self.terms
        }
        """The main objective with the head of each term."""
        if any(other.head in (None, self.main.head) for other in self.objectives.values()):
            raise ConfigError(
                f"losses.{info.name}: its heads are like that of the main objective, which has "
                f"none of its own ({type(self.main).__name__}); leave this loss out"
            )

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        modules: dict[str, nn.Module] = {}
        for other in self.objectives.values():
            modules |= other.modules(backbone)
        return modules

    def finalize_options(self, model: TransferModel, trains: Set[str]) -> dict[str, Any]:
        for other in self.objectives.values():
            other.finalize_options(model, trains)
        return {}

    def pooling_of(self, model: TransferModel) -> Pooling | None:
        return self.main.pooling_of(model)

    def compute_metrics(self, totals: Sums, counts: Counts, text: TextStats) -> dict[str, float]:
        """Return the mean over the terms, and each; terms that count nothing are left out."""
        means = {term: float(totals[term]) / count for term, count in counts.items() if count}
        losses = {f"loss/{term}": mean for term, mean in means.items()}
        return {"loss": sum(means.values()) / max(1, len(means)), **losses}


def _with_head(main: Main, name: str) -> Main:
    """Return the same objective, after `setup`, with the head of a further loss called so."""
    other = copy.copy(main)
    other.info = replace(main.info, name=name)
    return other


VIEWS = ("masked", "left", "right")


class CrossView(BesideMainHead[UnitObjective]):
    """KL(p || q) for each view: p is what the main head says of a text, q what the view's does.

    Cross-view training (Clark et al. 2018), in the form that fits Transformers. The paper restricts
    what a head reads of a recurrent network; here the states of a whole text know all of it, so
    each view is a pass of its own, which sees a part. It needs no label. No gradient flows through
    p, which comes from a pass with dropout, too.

    Args:
        views: masked: a share of the tokens is hidden; left, right: this half of them is seen.
            Special tokens always are.
        rate: The share that is hidden, in (0, 1).
    """

    def __init__(self, views: tuple[str, ...] = VIEWS, rate: float = 0.15) -> None:
        if not views:
            raise ValueError(f"views is empty; give some of {', '.join(VIEWS)}")
        for view in views:
            one_of("views", view, VIEWS, ValueError)
        check_share("rate", rate)
        self.terms = tuple(dict.fromkeys(views))
        self._hide = Mask(rate)

    def main_objective(self, info: TaskInfo) -> UnitObjective:
        return main_objective(info)

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        self.keeps_tokens = False  # its further passes need them
        self._ordinary_V = torch.ones(info.vocabulary.size, dtype=torch.bool)
        self._ordinary_V[sorted(info.vocabulary.special)] = False
        if "masked" not in self.terms:
            return
        if not info.vocabulary.has_mask:
            raise ConfigError(
                f"losses.{info.name}.views: this tokenizer has no mask token of its own to hide "
                "others by; take views=[left,right]"
            )
        self._hide.setup(info)

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Return the batch with masks of the halves, and some tokens hidden."""
        views = dict(batch)
        if "masked" in self.terms:
            views["tokens_masked"], _ = self._hide(batch, noise)
        ordinary_BT = batch["mask"] & self._ordinary_V[batch["tokens"]]
        place_BT, count_B1 = ordinary_BT.cumsum(-1), ordinary_BT.sum(-1, keepdim=True)
        half_B1 = (count_B1 + 1) // 2  # the one in the middle is in both, so that neither is empty
        hidden = {"left": place_BT > half_B1, "right": place_BT <= count_B1 - half_B1}
        for side in hidden.keys() & set(self.terms):
            views[f"mask_{side}"] = batch["mask"] & ~(ordinary_BT & hidden[side])
        return views

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of texts, questions or words that each view sees."""
        return {view: int(self._visible_units(view, batch).sum()) for view in self.terms}

    def _visible_units(self, view: str, batch: Batch) -> Tensor:
        return self.main.visible_units(batch, select_view(batch, view)["mask"])

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return each view's divergence, summed over what it sees, in float32."""
        target_NC = fixed_scores(self.main, model, batch)
        sums = {}
        for view, objective in self.objectives.items():
            part = select_view(batch, view)
            scores_NC = objective.scores(model, part, Encoding(model, part))
            each_N = self.main.divergence(target_NC, scores_NC)
            is_seen_N = self._visible_units(view, batch)
            sums[view] = torch.where(is_seen_N, each_N, 0).sum()
        return sums


class SliceHeads(BesideMainHead[Objective]):
    """The main loss on each slice, by a head of the slice's own.

    So what is special to a slice has weights to be learnt in, and the backbone learns it; the main
    head answers as before. This is the simplest form of slice-based learning (Chen et al. 2019),
    without its indicator heads and its attention over slices.

    Args:
        parts: The slices, by name.
    """

    def __init__(self, parts: Mapping[str, Slice]) -> None:
        if not parts:
            raise ValueError("parts is empty; give slices, such as parts.short.length=[0,6]")
        self.parts, self.terms = parts, tuple(parts)

    def main_objective(self, info: TaskInfo) -> Objective:
        if info.main is None:
            raise ConfigError(
                "objective: slices are a further loss; take +objective@losses.slices=slice_heads"
            )
        if getattr(info.main, "class_weight", None) is not None:
            raise ConfigError(
                f"losses.{info.name}: heads of slices learn from all classes alike; leave it out, "
                "or objective.class_weight"
            )
        return info.main

    @property
    def key(self) -> str:
        """The key in a batch for the slices of its examples, `[B, K]` bool."""
        return f"slices_{self.info.name}"

    def on_examples(self, splits: Mapping[str, Split], shape: BackboneShape) -> None:
        key, task = f"losses.{self.info.name}", self.info.task
        if task is None or self.info.stream != "main":
            raise ConfigError(f"{key}.stream: slices are parts of the labelled main stream")
        for split in splits.values():
            data = split.encoded
            texts = [task.texts(example) for example in data.examples]
            members = slice_masks(self.parts, split.name, texts, split.column, f"{key}.parts")
            data.add(self.key, np.stack([*members.values()], 1)[data.example_of])
            for name, member_N in members.items():
                if split.name == "train" and not member_N.any():
                    log.warning("%s.parts.%s: no training example is in it", key, name)

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        return self.main.prepare(batch, noise)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of targets in each slice; 0 where no example is in it."""
        counts = {}
        for term, member_B in self._members(batch):
            members = {key: value[member_B] for key, value in batch.items() if value.dim()}
            counts[term] = self.main.counts(members)["loss"]
        return counts

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the loss of each slice's head, summed over its examples."""
        sums = {}
        for term, member_B in self._members(batch):
            results = self.objectives[term].example_results(model, batch, encoded)
            if results is None:
                name = type(self.main).__name__
                raise RunError(f"losses.{self.info.name}: {name} has no loss of single examples")
            sums[term] = torch.where(member_B, results.loss, 0).sum()
        return sums

    def _members(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        if self.key not in batch:
            raise RunError(
                f"losses.{self.info.name}: slices come with a run's own data; evaluate the main "
                "loss, with slices of its own"
            )
        yield from zip(self.terms, batch[self.key].unbind(1), strict=True)
