"""What is kept of feed-forward units while texts pass through a model: sums, and the top contexts.

Properties of tokens are seen without a model.

Legend: S sequences, T positions, V vocabulary, N tokens, F units, P properties of tokens,
K contexts of a unit, W tokens of a context.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from transfer_cli.batch import Batch
from transfer_cli.data.tokenizer import Tokenizer

MOST_LABELS = 60
"""With more, labels are no properties here."""

_MARKS = "\u0120\u2581#"
"""By which pieces say whether they begin a word."""


class TokenProperties:
    """Position, kind of token, and the class of the text.

    Args:
        tokenizer: The model's.
        labels: Names of the classes; the batches have them as `label`.

    Attributes:
        names: Of the properties.
    """

    def __init__(self, tokenizer: Tokenizer, labels: Sequence[str]) -> None:
        kinds = {
            "starts a word": tokenizer.starts_word.tolist(),
            **{name: [] for name in ("capital", "number", "punctuation")},
        }
        for piece in tokenizer.pieces(range(tokenizer.size)):
            text = piece.lstrip(_MARKS) or piece
            kinds["capital"].append(text[:1].isupper())
            kinds["number"].append(text.isdigit())
            kinds["punctuation"].append(not any(letter.isalnum() for letter in text))
        self._kinds_VK = torch.tensor(list(kinds.values()), dtype=torch.float64).T
        self._labels = len(labels) if len(labels) <= MOST_LABELS else 0
        self.names = ["position", *kinds, *(f"label {name}" for name in labels[: self._labels])]
        # What makes a row of a text is not the text.
        around = {tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask}
        self._is_text_V = torch.ones(tokenizer.size, dtype=torch.bool)
        self._is_text_V[sorted(around)] = False

    def is_text(self, batch: Batch) -> Tensor:
        """Return which of the real tokens, row by row, are of texts."""
        return self._is_text_V[_sequences(batch["tokens"])[_sequences(batch["mask"])]]

    def of_batch(self, batch: Batch) -> Tensor:
        """Return the properties of the real tokens, row by row, `[N, P]` in float64."""
        mask_ST, tokens_ST = _sequences(batch["mask"]), _sequences(batch["tokens"])
        position_ST = (mask_ST.cumsum(1) - 1).double()
        parts = [position_ST[mask_ST][:, None], self._kinds_VK[tokens_ST[mask_ST]]]
        if self._labels:
            sequences = len(mask_ST) // len(batch["label"])
            label_ST = batch["label"].repeat_interleave(sequences)[:, None].expand_as(mask_ST)
            label_NC = F.one_hot(label_ST[mask_ST], self._labels)
            parts.append(label_NC.double())
        return torch.cat(parts, dim=1)


def contexts_of(batch: Batch, beside: int) -> Tensor:
    """Return each real token with `beside` on each side, `[N, 2 beside + 1]`; -1: there is none."""
    mask_ST = _sequences(batch["mask"])
    tokens_ST = _sequences(batch["tokens"]).where(mask_ST, -1)
    padded = F.pad(tokens_ST, (beside, beside), value=-1)
    return padded.unfold(1, 2 * beside + 1, 1)[mask_ST].int()


def _sequences(values: Tensor) -> Tensor:
    return values.flatten(0, -2)


class PropertySums:
    """Sums over tokens of the properties that they have."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_P = self.square_P = torch.zeros(())

    def add(self, properties_NP: Tensor) -> None:
        """Add tokens, in float64."""
        self.count += len(properties_NP)
        self.sum_P = self.sum_P + properties_NP.sum(0)
        self.square_P = self.square_P + properties_NP.square().sum(0)


class UnitSums:
    """Sums over tokens of the units of a layer, and the contexts in which each is highest.

    Args:
        contexts: K.
    """

    def __init__(self, contexts: int) -> None:
        self._contexts = contexts
        self._sum_F = self._square_F = self._positive_F = torch.zeros(())
        self._product_PF = torch.zeros(())
        self.top_KF = torch.empty(0)
        """The highest values of each unit, from the highest on."""
        self.context_KFW = torch.empty(0)
        """Their contexts."""

    def add(self, units_NF: Tensor, properties_NP: Tensor, context_NW: Tensor) -> None:
        """Add tokens, with properties in float64."""
        units_NF = units_NF.double()
        self._sum_F = self._sum_F + units_NF.sum(0)
        self._square_F = self._square_F + units_NF.square().sum(0)
        self._positive_F = self._positive_F + (units_NF > 0).sum(0)
        self._product_PF = self._product_PF + properties_NP.T @ units_NF
        self._keep_top(units_NF.float(), context_NW)

    def _keep_top(self, units_NF: Tensor, context_NW: Tensor) -> None:
        known = len(self.top_KF)
        if known:
            units_NF = torch.cat([self.top_KF, units_NF])
        self.top_KF, place_KF = units_NF.topk(min(self._contexts, len(units_NF)), dim=0)
        new_KFW = context_NW[(place_KF - known).clamp(min=0)]
        if known:
            index_KFW = place_KF.clamp(max=known - 1)[..., None].expand_as(new_KFW)
            old_KFW = self.context_KFW.gather(0, index_KFW)
            new_KFW = torch.where(place_KF[..., None] < known, old_KFW, new_KFW)
        self.context_KFW = new_KFW

    def means(self, count: int) -> Tensor:
        """Return the mean of each unit, `[F]`."""
        return self._sum_F / count

    def positive_shares(self, count: int) -> Tensor:
        """Return the share of tokens at which each unit is above 0, `[F]`."""
        return self._positive_F / count

    def correlations(self, of: PropertySums) -> Tensor:
        """Return Pearson's correlation with each property, `[P, F]`; NaN where one does not vary.

        With a property that a token has or has not, it is the point-biserial correlation.
        """
        count = of.count
        both_PF = count * self._product_PF - of.sum_P[:, None] * self._sum_F
        own_F = count * self._square_F - self._sum_F.square()
        its_P = count * of.square_P - of.sum_P.square()
        # What does not vary leaves rounding errors of sums.
        varies_F = own_F > 1e-12 * count * self._square_F
        varies_P = its_P > 1e-12 * count * of.square_P
        found_PF = both_PF / (own_F.clamp(min=0) * its_P.clamp(min=0)[:, None]).sqrt()
        return found_PF.where(varies_F & varies_P[:, None], torch.nan).clamp(-1, 1)
