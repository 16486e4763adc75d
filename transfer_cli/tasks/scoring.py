"""How right a text is beside the one that people wrote.

Exact match and F1 follow SQuAD's evaluation script (Rajpurkar et al. 2016, 2018): an answer is
compared without case, punctuation marks of ASCII, articles and spaces beyond one.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from unicodedata import category

import numpy as np
import numpy.typing as npt

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise_answer(text: str) -> str:
    """Return an answer as it is compared; the order of the steps is that of the script."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(given: str, predicted: str) -> float:
    """Return 1 if two answers are equal, else 0."""
    return float(normalise_answer(given) == normalise_answer(predicted))


def word_f1(given: str, predicted: str) -> float:
    """Return the F1 of the words of two answers; of no words at all, whether both have none."""
    words, others = normalise_answer(given).split(), normalise_answer(predicted).split()
    if not words or not others:
        return float(words == others)
    same = sum((Counter(words) & Counter(others)).values())
    return 2 * same / (len(words) + len(others))


def best_score(score: Callable[[str, str], float], answers: Sequence[str], predicted: str) -> float:
    """Return the score against the answer that people gave which fits best.

    Those with nothing left are not counted; where there are no others, "" is right.
    """
    counted = [answer for answer in answers if normalise_answer(answer)] or [""]
    return max(score(given, predicted) for given in counted)


def best_null_threshold(
    margins: npt.NDArray[np.float64],
    answered: npt.NDArray[np.float64],
    unanswered: npt.NDArray[np.float64],
) -> float:
    """Return the threshold with which answers are best, found by one pass over sorted margins.

    A question is answered with "" where its margin is above the threshold, which lies in the middle
    between two margins; of equally good ones it is the lowest.

    Args:
        margins: Of each question, the score of no answer less that of the best answer.
        answered: The F1 of its best answer.
        unanswered: The F1 of "".
    """
    order = np.argsort(margins, kind="stable")
    above = margins[order]
    gained = np.concatenate([[0.0], np.cumsum((answered - unanswered)[order])])
    bounds = np.concatenate([[above[0] - 2], above, [above[-1] + 2]])
    gained[bounds[1:] == bounds[:-1]] = -np.inf  # no threshold parts equal margins
    best = int(gained.argmax())
    return float((bounds[best] + bounds[best + 1]) / 2)


def words(text: str) -> list[str]:
    """Return the words of a text: runs of letters, digits and their marks, without case."""
    is_part = {char: char.isalnum() or category(char) in ("Mn", "Mc") for char in {*text.lower()}}
    return "".join(char if is_part[char] else " " for char in text.lower()).split()


def rouge_l(given: str, predicted: str) -> float:
    """Return the F1 of the longest common subsequence of words (Lin 2004, section 3).

    Of no words at all, whether both have none.
    """
    right, others = words(given), words(predicted)
    if not right or not others:
        return float(right == others)
    longest = [0] * (len(others) + 1)
    for word in right:
        before = 0
        for place, other in enumerate(others, 1):
            above = longest[place]
            longest[place] = before + 1 if word == other else max(above, longest[place - 1])
            before = above
    return 2 * longest[-1] / (len(right) + len(others))
