"""Whether the words that attributions name are those that an answer depends on.

DeYoung et al. 2020 (ERASER), section 4.2. Of a text's words, by falling score: comprehensiveness is
how much less sure the model is without the first of them, sufficiency how much less with these
alone. The first should be large and the second small, by comparison with a random order.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from transfer_cli.analysis.attributions.explained_text import ExplainedText, Explainer

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Of a text's words, one at least. The paper goes from 1 % to 50 %; questions are too short."""


def faithfulness(
    explainer: Explainer, text: ExplainedText, orders: Sequence[Sequence[int]]
) -> npt.NDArray[np.float64]:
    """Return comprehensiveness and sufficiency of orders of a text's words, `[orders, 2, shares]`.

    They are probabilities, where the model gives some, else in the unit of what it says.
    """
    cuts = [max(1, round(share * len(text.words))) for share in SHARES]
    removed = [
        [[frozenset(order[:cut]) for cut in cuts], [frozenset(order[cut:]) for cut in cuts]]
        for order in orders
    ]
    whole: frozenset[int] = frozenset()
    distinct = list(
        dict.fromkeys([whole, *(words for own in removed for kind in own for words in kind)])
    )
    _, shares = explainer.without(text, distinct)
    sure = dict(zip(distinct, shares.tolist(), strict=True))
    return np.array([[[sure[whole] - sure[words] for words in kind] for kind in own]
                     for own in removed])  # fmt: skip
