"""What a finished run says about itself beyond its measures."""

import resource
import sys

import torch

from transfer_cli.engine.distributed.replicated import full_tensor
from transfer_cli.model.readout import ScalarMix
from transfer_cli.model.transfer_model import TransferModel

MOST_JUDGED = 1000
"""Training examples by which a run is judged to have failed."""


def layer_shares(model: TransferModel) -> list[float] | None:
    """Return how much each layer counts in a learnt mix, from the embeddings up; None without.

    Of a sharded model all processes call this.
    """
    if not isinstance(model.readout, ScalarMix):
        return None
    return [round(share, 6) for share in full_tensor(model.readout.layer_weights()).tolist()]


def peak_memory(device: torch.device) -> int:
    """Return the most bytes held at once: on a GPU by tensors, else by the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
