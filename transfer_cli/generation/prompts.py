"""Prompts that ask a language model for a label, and what its log-probabilities say of each.

Legend: C labels or choices.
"""

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from transfer_cli.errors import ConfigError
from transfer_cli.generation.likelihood import Ending, encode_scored
from transfer_cli.generation.prompt_layout import PromptLayout

LABEL = "{label}"
_FIELDS = re.compile(r"\{(text|pair|label)\}")

CONTENT_FREE = ("N/A", "", "[MASK]")
"""Texts that say nothing: what a model makes of them is its bias (Zhao et al. 2021)."""


@dataclass(frozen=True)
class Template:
    """How an example is written.

    Args:
        item: Its text, with `{text}`, perhaps `{pair}`, and `{label}` where the answer stands.
        separator: What stands between two of them.
    """

    item: str
    head: str = ""
    separator: str = "\n\n"

    def __post_init__(self) -> None:
        fields = _FIELDS.findall(self.item)
        if fields.count("label") != 1 or "text" not in fields:
            raise ConfigError(
                f"prompt.item: {self.item!r} has to hold {{text}} and, once, {LABEL}, such as "
                "prompt.item='{text} Label: {label}'"
            )

    def check_order(self) -> None:
        """Refuse a text behind the answer, which a causal model says after what it has read."""
        if field := _FIELDS.search(self.item.partition(LABEL)[2]):
            raise ConfigError(
                f"prompt.item: {field[0]} stands behind {LABEL}, where a causal model does not "
                f"read it; write {LABEL} last"
            )

    def fill(self, text: str, pair: str | None, label: str) -> str:
        """Return an item."""
        return _filled(self.item, text, pair, label)

    def prompt(self, items: Sequence[str], text: str, pair: str | None) -> str:
        """Return a prompt up to its answer, after so many items.

        The space before the answer is part of the answer: that is how tokens are cut.
        """
        return self.join([*items, _filled(self._before.rstrip(" "), text, pair)])

    def join(self, items: Sequence[str]) -> str:
        """Return the head and items, one after the other."""
        return self.separator.join([self.head, *items] if self.head else items)

    def answer(self, word: str) -> str:
        """Return a word as an answer: with the space that stands before it."""
        return self._before[len(self._before.rstrip(" ")) :] + word

    @property
    def bare_prompt(self) -> str:
        """What asks for the answer, without any text: all between the last text and the label."""
        return _FIELDS.split(self._before)[-1].strip()

    @property
    def _before(self) -> str:
        return self.item[: self.item.index(LABEL)]


def _filled(item: str, text: str, pair: str | None, label: str = "") -> str:
    values = {"text": text, "pair": pair or "", "label": label}
    return _FIELDS.sub(lambda field: values[field[1]], item)


def encode_ending(layout: PromptLayout, prompt: str, answer: str) -> Ending:
    """Return the tokens of a prompt and its answer; the answer begins where they differ."""
    alone, tokens = layout.encode(prompt), layout.encode(prompt + answer)
    # Some tokenizers join the prompt's end and the answer's beginning.
    pairs = zip(alone, tokens, strict=False)
    first = next((at for at, (one, other) in enumerate(pairs) if one != other), len(alone))
    if first >= len(tokens):
        raise ConfigError(f"prompt.words: {answer!r} has no tokens of its own; choose other words")
    return Ending(tokens, first) if first else Ending(encode_scored(layout, prompt + answer), 1)


def draw_shots(labels: Sequence[int], shots: int, seed: int) -> list[int]:
    """Return the numbers of `shots` examples of each label, in an order that the seed decides."""
    draw = random.Random(seed).random  # noqa: S311 - no secret; random() stays as it is
    order = sorted(range(len(labels)), key=[draw() for _ in labels].__getitem__)
    kept: list[int] = []
    for label in sorted(set(labels)):
        same = [number for number in order if labels[number] == label]
        if len(same) < shots:
            raise ConfigError(
                f"prompt.shots: of one label there are only {len(same)} training examples, not "
                f"{shots}; take fewer shots"
            )
        kept += same[:shots]
    return sorted(kept, key=[draw() for _ in labels].__getitem__)


def normalised_score(
    log_probabilities: Sequence[float], answer: str, norm: str, alone: Sequence[float] = ()
) -> float:
    """Return the score of an answer from the log-probabilities of its tokens.

    Args:
        log_probabilities: Given the prompt.
        norm: none: their sum; token, char, byte: that over the number of these; unconditional: the
            sum above that without the text (Brown et al. 2020).
        alone: The log-probabilities without the text.
    """
    total = math.fsum(log_probabilities)
    if norm == "unconditional":
        total -= math.fsum(alone)
    word = answer.strip()
    lengths = {"token": len(log_probabilities), "char": len(word), "byte": len(word.encode())}
    return total / max(1, lengths.get(norm, 1))


def label_probabilities(scores: Sequence[Sequence[float]]) -> npt.NDArray[np.float64]:
    """Return the probability of each label, `[C]`, from the scores of its words."""
    by_label = np.array([np.logaddexp.reduce(words) for words in scores])
    exponential = np.exp(by_label - by_label.max())
    return np.asarray(exponential / exponential.sum(), np.float64)


def calibrate_probabilities(
    shares_C: npt.NDArray[np.float64], bias_C: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return probabilities over the model's bias, which sum to 1 again (Zhao et al. 2021)."""
    over_C = shares_C / np.maximum(bias_C, np.finfo(np.float64).tiny)
    return np.asarray(over_C / over_C.sum(), np.float64)
