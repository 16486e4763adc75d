"""A further loss: what the main head says of a text and of one that says the same should agree.

Legend: B batch, T positions, N texts, questions or words; C labels, choices or numbers.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.batch import Batch, select_view
from transfer_cli.data.encoded_task import encode_texts
from transfer_cli.data.labelled import Example
from transfer_cli.data.paraphrases import read_paraphrases
from transfer_cli.data.split import Dataset, Split
from transfer_cli.errors import ConfigError, DataError, above_zero, check_share, one_of, raised_as
from transfer_cli.model.shape import BackboneShape
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.of_main_head import OfMainHead, fixed_scores
from transfer_cli.objectives.perturbations import PERTURBATIONS
from transfer_cli.seeds import ExampleNoise

log = logging.getLogger(__name__)

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
        check_share("rate", self.rate)
        if not 0 <= self.confidence < 1:
            raise ValueError(f"confidence must be in [0, 1), got {self.confidence}")
        above_zero("temperature", self.temperature)
        is_changed = self.perturb not in _UNCHANGED
        self._perturb = PERTURBATIONS[self.perturb](self.rate) if is_changed else None
        self.keeps_tokens = False  # its second pass needs them
        self.encoded: Dataset | None = None
        """All paraphrases of a run's examples."""

    @property
    def key(self) -> str:
        """The key in a batch for the paraphrases of each text; see `batch`."""
        return f"paraphrases_{self.info.name}"

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        if self._perturb is not None:
            self._perturb.setup(info)

    def on_data(self, data: Dataset) -> None:
        if self._perturb is not None:
            self._perturb.on_data(data)

    def on_examples(self, splits: Mapping[str, Split], shape: BackboneShape) -> None:
        """Add to batches which paraphrases their texts have, and encode these."""
        if self.paraphrases is None:
            return
        key = f"losses.{self.info.name}.paraphrases"
        with raised_as(DataError, f"{key}: ", DataError):
            known = read_paraphrases(Path(self.paraphrases))
        rows, places = list[Example](), dict[str, tuple[int, int]]()
        for split in splits.values():
            data, task = split.encoded, self.info.task
            texts = [task.texts(example) if task is not None else () for example in data.examples]
            if not self.main.units_are_examples or any(len(parts) != 1 for parts in texts):
                raise ConfigError(
                    f"{key}: they are for examples of one text each; take "
                    f"losses.{self.info.name}.perturb"
                )
            keys = ["".join(parts).strip() for parts in texts]  # of one text each
            for text in keys:
                if text in known and text not in places:
                    places[text] = len(rows), len(known[text])
                    rows += map(Example, known[text])
            place_N2 = np.array([places.get(text, (0, 0)) for text in keys], np.int64)
            data.add(self.key, place_N2.reshape(-1, 2)[data.example_of])
            if split.name == "train":
                with_some = sum(text in places for text in keys)
                if not with_some:
                    raise ConfigError(
                        f"{key}: {self.paraphrases} has none of the {len(keys):,} training texts"
                    )
                log.info(
                    "%s: %s of %s training texts have some, the others are perturbed (%s)", key,
                    f"{with_some:,}", f"{len(keys):,}", self.perturb,
                )  # fmt: skip
        train = splits["train"].encoded
        length = int(train.lengths.max()) if train.num_cut else shape.positions
        self.encoded = encode_texts(rows, self.info.vocabulary, length, shape.direction)

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Return the batch with a further view: the perturbed copy, or a paraphrase."""
        if self._perturb is None:
            copy, tokens, mask = batch, batch["tokens"], batch["mask"]
        else:
            tokens, mask = self._perturb(batch, noise)
            copy = self.main.drop_hidden_units(batch, mask)
        if self.encoded is not None and self.key in batch:
            tokens, mask = _paraphrase(self.encoded, batch[self.key], batch, noise, (tokens, mask))
        elif self._perturb is None:
            return batch
        return {**copy, "tokens_copy": tokens, "mask_copy": mask}

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return the divergence, summed over texts, questions or words, in float32."""
        main = self.main
        if self.symmetric:
            scores_NC = main.scores(model, batch, encoded)
        else:
            scores_NC = fixed_scores(main, model, batch)
        target_NC = main.soften(scores_NC, self.temperature)
        copy = select_view(batch, "copy")
        other_NC = main.scores(model, copy, Encoding(model, copy))
        each_N = main.divergence(target_NC, other_NC)
        if self.symmetric:
            back_N = main.divergence(other_NC, scores_NC)
            each_N = (each_N + back_N) / 2
        if self.confidence:
            each_N = torch.where(main.confidence(scores_NC) > self.confidence, each_N, 0)
        return {"loss": each_N.sum()}


def _paraphrase(
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
    drawn = []
    for copy_BT, other_NT in zip(copies, (others["tokens"], others["mask"]), strict=True):
        copy_BT = F.pad(copy_BT, (0, width - copy_BT.shape[1]))
        copy_BT[count_B > 0] = F.pad(other_NT, (0, width - other_NT.shape[1]))
        drawn.append(copy_BT)
    return drawn[0], drawn[1]
