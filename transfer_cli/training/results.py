"""What a finished run says about itself beyond its measures."""

import resource
import sys
from pathlib import Path

import torch

from transfer_cli.engine.evaluate import Scores
from transfer_cli.model.readout import ScalarMix
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.weights import WEIGHTS

MOST_JUDGED = 1000
"""Training examples by which a run is judged to have failed."""

MARGIN = 0.02
"""How far above the majority's share an accuracy still counts as the majority's."""


def majority_failure(found: Scores, labels: tuple[str, ...]) -> str | None:
    """Return why a classifier learnt nothing; None when it did.

    Fine-tuning sometimes ends where every answer is the most frequent label (Devlin et al. 2019,
    section 4.1). Such a run is to be repeated with another seed, not averaged in silently.

    Args:
        found: Its scores on training examples.
        labels: The class names.
    """
    given = [sum(row) for row in found.tables.get("confusion", [])]
    if not given or "accuracy" not in found.measures:
        return None
    share = max(given) / sum(given)
    accuracy = found.measures["accuracy"]
    if accuracy > share + MARGIN or sum(count > 0 for count in given) < 2:
        return None
    return (
        f"training accuracy {100 * accuracy:.1f} % is no better than always answering "
        f"{labels[given.index(max(given))]} ({100 * share:.1f} %); "
        "try another seed, another optimizer.lr or a longer run"
    )


def layer_shares(model: TransferModel) -> list[float] | None:
    """Return how much each layer counts in a learnt mix, from the embeddings up; None without."""
    if not isinstance(model.readout, ScalarMix):
        return None
    return [round(share, 6) for share in model.readout.layer_weights().tolist()]


def peak_memory(device: torch.device) -> int:
    """Return the most bytes held at once: on a GPU by tensors, else by the whole process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def weights_size(folder: Path) -> int:
    """Return the bytes of the weights in a folder."""
    return (folder / WEIGHTS).stat().st_size
