"""Noise: what source and target an objective makes of a text, to pretrain on it.

| `noise=` | source | target | of |
|---|---|---|---|
| `spans` | a sentinel for each hidden span | the spans, each behind its sentinel | T5 |
| `infilling` | a mask for each hidden span; some spans are empty | the text | BART |
| `permutation` | the sentences, in another order | the text | BART |
| `infilling+permutation` | both | the text | BART |
| `mass` | a mask for each token of a hidden span | the span | MASS |

Legend: N tokens, B texts, T positions.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import one_of

Draws = npt.NDArray[np.floating]

ENDS = re.compile(r"[.!?…。\uff01\uff1f][\"'”\u2019»)\]]*$")
"""What a piece that ends a sentence ends with."""


@dataclass(frozen=True)
class Marks:
    """The tokens of a vocabulary that noise puts into a text, or looks for.

    Args:
        sentinels: Those that stand for hidden spans, each for one.
        mask: That which stands for whatever is hidden; None: there is none.
        ends: Those behind which a sentence ends: pieces such as "." (in an abbreviation or a
            number as well), and the token that ends texts or lines.
    """

    sentinels: Sequence[int] = ()
    mask: int | None = None
    ends: Collection[int] = ()


class Noise(ABC):
    """What is read and what is written of a text, by uniform numbers."""

    permutes: bool = False
    """Whether sentences change places."""

    @property
    def num_draws(self) -> int:
        """How many numbers there are for each token; the third chooses a part of a longer text."""
        return 3 + self.permutes

    def marks(self, vocabulary: Tokenizer) -> Marks:
        """Return the tokens of a vocabulary that it needs to know."""
        texts = range(vocabulary.size if self.permutes else 0)
        ends = {token for token in texts if ENDS.search(vocabulary.decode([token]).strip())}
        mask = vocabulary.mask if vocabulary.has_mask else None
        return Marks(vocabulary.sentinels, mask, ends | {vocabulary.sep})

    @abstractmethod
    def sizes(self, length: int) -> tuple[int, int]:
        """Return the most tokens of the source and of the target that a text of a length makes."""

    @abstractmethod
    def source_and_target(
        self, tokens: Sequence[int], marks: Marks, draws_NC: Draws
    ) -> tuple[list[int], list[int]]:
        """Return what is read and what is written; no target where nothing is hidden.

        Args:
            marks: Of its vocabulary.
            draws_NC: Uniform numbers, `num_draws` for each token; further ones change nothing.
        """

    def missing_tokens(self, marks: Marks, length: int) -> str | None:
        """Return what a vocabulary lacks for texts of up to `length`, and the cure; None: nothing.

        It begins with the option of the objective that asks for it.
        """
        if marks.mask is not None:
            return None
        return (
            "noise: it hides tokens behind a mask token, and the tokenizer has none of its own; "
            "take noise=spans or noise=permutation, or a model or tokenizer with one "
            "(tokenizer=wordpiece)"
        )

    def max_length(self, room: int, size: Callable[[Iterable[int]], int] = sum) -> int:
        """Return the length of the longest text whose source and target have room.

        Args:
            size: What they need of it: together as much as both (sum), or as the longer one (max).
        """
        lengths = range(room, 0, -1)
        return next((length for length in lengths if size(self.sizes(length)) <= room), 0)


@dataclass(frozen=True)
class SpanCorruption(Noise):
    """Which spans of a text are hidden, and what source and target they make.

    In the source a sentinel stands for each hidden span. In the target each span stands behind its
    sentinel, and one more sentinel behind the last one. A text begins with what is shown and ends
    with what is hidden. How many tokens and spans that are depends on its length alone.

    Args:
        rate: The share of the tokens that is hidden, in (0, 1).
        mean_length: Tokens of a span in the mean.

    Source: Raffel et al. 2020, section 3.3.4; rounded and drawn as their released code does.
    """

    rate: float = 0.15
    mean_length: float = 3.0

    def __post_init__(self) -> None:
        check_rate(self.rate, self.mean_length)

    def counts(self, length: int) -> tuple[int, int]:
        """Return how many tokens of a text are hidden, in how many spans; of a single one, none."""
        hidden = num_hidden_tokens(self.rate, length)
        if not hidden:
            return 0, 0
        return hidden, min(max(round(hidden / self.mean_length), 1), length - hidden)

    def sizes(self, length: int) -> tuple[int, int]:
        hidden, spans = self.counts(length)
        return length - hidden + spans, hidden + spans + (spans > 0)

    def missing_tokens(self, marks: Marks, length: int) -> str | None:
        _, spans = self.counts(length)
        if spans < len(marks.sentinels):
            return None
        return (
            f"corrupt: up to {spans} spans of a text are hidden, and the tokenizer has "
            f"{len(marks.sentinels)} sentinels, <extra_id_0> and so on; say "
            f"tokenizer.sentinels={spans + 1}"
        )

    def source_and_target(
        self, tokens: Sequence[int], marks: Marks, draws_NC: Draws
    ) -> tuple[list[int], list[int]]:
        hidden, spans = self.counts(len(tokens))
        if not spans:
            return list(tokens), []
        shown = random_partition(len(tokens) - hidden, spans, draws_NC[:, 0])
        covered = random_partition(hidden, spans, draws_NC[:, 1])
        source, target, at = list[int](), list[int](), 0
        for sentinel, seen, unseen in zip(marks.sentinels, shown, covered, strict=False):
            source += [*tokens[at : at + seen], sentinel]
            target += [sentinel, *tokens[at + seen : at + seen + unseen]]
            at += seen + unseen
        return source, [*target, marks.sentinels[spans]]


@dataclass(frozen=True)
class Denoising(Noise):
    """All of a text is written, from what spans are missing in, or sentences changed places.

    Infilling: spans whose lengths follow a Poisson distribution, 0 included, each become one mask
    token; the last one is cut where enough is hidden, and there are no more spans than hidden
    tokens. No two of them touch. Permutation: all sentences of a text are in another order, each
    as likely; they end behind `Marks.ends`, in texts of blocks the last one with the block.

    Args:
        rate: The share of the tokens that is hidden, in (0, 1); 0: none is.
        mean_length: Tokens of a span in the mean.
        permutes: Whether sentences change places, before spans are hidden.

    Source: Lewis et al. 2020, section 2.2.
    """

    rate: float = 0.3
    mean_length: float = 3.0
    permutes: bool = False

    def __post_init__(self) -> None:
        if self.rate or not self.permutes:
            check_rate(self.rate, self.mean_length)

    def sizes(self, length: int) -> tuple[int, int]:
        return length, length if length > 1 else 0

    def missing_tokens(self, marks: Marks, length: int) -> str | None:
        return super().missing_tokens(marks, length) if self.rate else None

    def source_and_target(
        self, tokens: Sequence[int], marks: Marks, draws_NC: Draws
    ) -> tuple[list[int], list[int]]:
        if len(tokens) < 2:
            return list(tokens), []
        source = list(tokens)
        if self.permutes:
            source = permute_sentences(source, marks.ends, draws_NC[:, 3])
        if self.rate and marks.mask is not None:
            source = self._infill(source, marks.mask, draws_NC)
        return source, list(tokens)

    def _infill(self, tokens: Sequence[int], mask: int, draws_NC: Draws) -> list[int]:
        hidden = num_hidden_tokens(self.rate, len(tokens))
        shown = len(tokens) - hidden
        lengths = poisson_quantiles(self.mean_length, draws_NC[: min(hidden, shown + 1), 0], hidden)
        ends = np.minimum(np.cumsum(lengths), hidden)
        ends = ends[: np.searchsorted(ends, hidden) + 1]
        ends[-1] = hidden
        # Each span has a place of its own among the tokens that are shown, before the first one
        # and behind the last one included.
        places = np.argsort(draws_NC[: shown + 1, 1], kind="stable")[: len(ends)]
        source, shown_at, at = list[int](), 0, 0
        for place, size in sorted(zip(places, np.diff(ends, prepend=0), strict=True)):
            source += [*tokens[at : at + place - shown_at], mask]
            at += place - shown_at + size
            shown_at = place
        return [*source, *tokens[at:]]


@dataclass(frozen=True)
class MaskedSpan(Noise):
    """One span is hidden and written: a mask stands for each of its tokens (Song et al. 2019, 3.2).

    The target is the span alone, whose positions are counted from its own beginning.

    Args:
        rate: The share of the tokens that is hidden, in (0, 1).
    """

    rate: float = 0.5

    def __post_init__(self) -> None:
        check_rate(self.rate)

    def sizes(self, length: int) -> tuple[int, int]:
        return length, num_hidden_tokens(self.rate, length)

    def source_and_target(
        self, tokens: Sequence[int], marks: Marks, draws_NC: Draws
    ) -> tuple[list[int], list[int]]:
        hidden = num_hidden_tokens(self.rate, len(tokens))
        if not hidden or marks.mask is None:
            return list(tokens), []
        first = int(draws_NC[0, 0] * (len(tokens) - hidden + 1))
        span = slice(first, first + hidden)
        source = list(tokens)
        source[span] = [marks.mask] * hidden
        return source, list(tokens[span])


NOISES: dict[str, Callable[..., Noise]] = {
    "spans": SpanCorruption,
    "infilling": Denoising,
    "permutation": partial(Denoising, rate=0, permutes=True),
    "infilling+permutation": partial(Denoising, permutes=True),
    "mass": MaskedSpan,
}


def build_noise(kind: str | None, rate: float | None, mean_length: float) -> Noise | None:
    """Return the noise that the options of an objective ask for; None: none.

    Args:
        kind: Of `NOISES`; None: spans, where there is a rate.
        rate: The share of the tokens to hide; None: that of the noise's paper.
        mean_length: Tokens of a hidden span in the mean, where there are several.
    """
    if kind is None and rate is None:
        return None
    kind = kind or "spans"
    one_of("noise", kind, NOISES, ValueError)
    if kind == "permutation" and rate is not None:
        raise ValueError(
            f"corrupt is {rate}, and noise=permutation hides nothing; take "
            "noise=infilling+permutation, or leave corrupt out"
        )
    given = {} if rate is None else {"rate": rate}
    return NOISES[kind](**given, **({} if kind == "mass" else {"mean_length": mean_length}))


def check_rate(rate: float, mean_length: float = 1.0) -> None:
    """Refuse shares of tokens, and lengths of spans, that cannot be."""
    if not 0 < rate < 1:
        raise ValueError(f"corrupt is {rate}, expected between 0 and 1")
    if not 1 <= mean_length < np.inf:
        raise ValueError(f"corrupt_length is {mean_length}, expected 1 or more")


def num_hidden_tokens(rate: float, length: int) -> int:
    """Return how many tokens of a text are hidden, one at least and not all; of one token, none."""
    return min(max(round(length * rate), 1), length - 1) if length > 1 else 0


def poisson_quantiles(mean: float, draws_N: Draws, most: int) -> npt.NDArray[np.integer]:
    """Return the numbers of a Poisson distribution at quantiles, none above `most`."""
    number = np.arange(most)
    log_factorial = np.cumsum(np.log(np.maximum(number, 1)))
    below = np.cumsum(np.exp(number * np.log(mean) - mean - log_factorial))
    return np.searchsorted(below, draws_N, side="right")


def permute_sentences(tokens: Sequence[int], ends: Collection[int], draws_N: Draws) -> list[int]:
    """Return a text with its sentences in another order."""
    bounds = [at + 1 for at, token in enumerate(tokens[:-1]) if token in ends]
    sentences = [tokens[a:b] for a, b in zip([0, *bounds], [*bounds, len(tokens)], strict=True)]
    order = np.argsort(draws_N[: len(sentences)], kind="stable")
    return [token for number in order for token in sentences[number]]


def random_partition(total: int, parts: int, draws_N: Draws) -> list[int]:
    """Return `parts` numbers of 1 or more whose sum is `total`, every such list equally likely."""
    cuts = np.sort(np.argsort(draws_N[: total - 1], kind="stable")[: parts - 1]) + 1
    return [int(size) for size in np.diff([0, *cuts, total])]
