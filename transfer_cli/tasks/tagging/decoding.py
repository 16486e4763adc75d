"""The likeliest sequence of tags that marks entities without fault.

Legend: W words, C tags.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from transfer_cli.tasks.tagging.schemes import OUTSIDE, marks_entity

Floats = npt.NDArray[np.float64]


def may_follow(labels: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return whether the tag of a column may follow that of a row, `[C + 1, C]`.

    I-X may follow B-X and I-X alone. The last row is the beginning of a text.
    """
    before = [*labels, OUTSIDE]
    return np.array(
        [
            [
                not marks_entity(tag, "I") or (one != OUTSIDE and one[1:] == tag[1:])
                for tag in labels
            ]
            for one in before
        ]
    )


def viterbi(log_shares_WC: Floats, allowed_CC: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the sequence with the highest sum among those that are allowed, `[W]`.

    Args:
        log_shares_WC: The log-probability of each tag of each word.
        allowed_CC: See `may_follow`.
    """
    best_W: npt.NDArray[np.int64] = log_shares_WC.argmax(1)
    if not len(best_W) or allowed_CC[np.append(-1, best_W[:-1]), best_W].all():
        return best_W  # no other has a higher sum
    barred_CC = np.where(allowed_CC, 0.0, -np.inf)
    score_C = log_shares_WC[0] + barred_CC[-1]
    came_from = list[npt.NDArray[np.int64]]()
    for log_shares_C in log_shares_WC[1:]:
        paths_CC = score_C[:, None] + barred_CC[:-1]
        came_from.append(paths_CC.argmax(0))
        score_C = paths_CC.max(0) + log_shares_C
    best_W[-1] = score_C.argmax()
    for at in range(len(best_W) - 2, -1, -1):
        best_W[at] = came_from[at][best_W[at + 1]]
    return best_W
