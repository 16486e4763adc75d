"""How well vectors of queries find the vectors of their documents.

Legend: Q queries, M documents, D width.
"""

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

CUTOFF = 10
_PORTION = 1024


def unit_vectors(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return vectors divided by their length, along the last axis."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    units: npt.NDArray[np.float32] = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return units


def retrieval_measures(
    queries_QD: npt.NDArray[np.float32],
    documents_MD: npt.NDArray[np.float32],
    relevant: Sequence[Collection[int]],
    equal: Sequence[int | None],
) -> dict[str, float]:
    """Return means over queries of what their documents, ranked by cosine, are worth.

    `recall_at_k` is the share of a query's relevant documents among the first k, `mrr` 1 / the rank
    of the first relevant one, `ndcg_at_10` the discounted gain as a share of the best (Jarvelin and
    Kekalainen 2002). Of documents that are equally near, a relevant one comes last, so that
    vectors which are all the same find nothing.

    Args:
        relevant: The numbers of each query's relevant documents, at least one.
        equal: That of the document which is the query itself, and is not looked for; None: none is.
    """
    queries_QD, documents_MD = unit_vectors(queries_QD), unit_vectors(documents_MD)
    sums = dict.fromkeys(("mrr", "recall_at_1", "recall_at_10", "ndcg_at_10"), 0.0)
    gains = 1 / np.log2(np.arange(2, CUTOFF + 2))
    for first in range(0, len(queries_QD), _PORTION):
        cosines_QM = queries_QD[first : first + _PORTION] @ documents_MD.T
        both = zip(relevant[first : first + _PORTION], equal[first : first + _PORTION], strict=True)
        for cosines_M, (documents, same) in zip(cosines_QM, both, strict=True):
            if same is not None and same not in documents:
                cosines_M[same] = -np.inf
            ranks = np.sort([(cosines_M >= cosines_M[at]).sum() for at in documents])
            hits = ranks[ranks <= CUTOFF]
            sums["mrr"] += 1 / ranks[0]
            sums["recall_at_1"] += (ranks == 1).sum() / len(ranks)
            sums["recall_at_10"] += len(hits) / len(ranks)
            sums["ndcg_at_10"] += gains[hits - 1].sum() / gains[: len(ranks)].sum()
    return {name: float(total) / len(queries_QD) for name, total in sums.items()}
