"""Frozen features: hidden states that are computed once and then looked up.

If nothing in the backbone trains and it runs without dropout, a text has the same hidden states in
every epoch. With them in memory, a step costs only the readout and the heads. Where all losses
read one pooled vector a text, that is all that is kept.

Objectives that change tokens, such as masked language modelling, cannot use them. All runs that
start from the same backbone can share them (`engine.features.shared_states`).

Where examples have several sequences, `[B, T]` below is `[B, C, T]`; see `batch`.

Legend: N examples, B batch, T positions, R real tokens of all examples (or their sequences, where
one vector of each is kept), K kept layers, D width.
"""

import hashlib
import itertools
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from transfer_cli.batch import Batch, micro_batches, to_device, with_facts
from transfer_cli.data.split import Dataset
from transfer_cli.engine.features.shared_states import SharedStates
from transfer_cli.engine.precision import Precision
from transfer_cli.fitting import halve_if_out_of_memory
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.pooling import Pooling
from transfer_cli.model.transfer_model import Pass, TransferModel
from transfer_cli.objectives.base import Encoding
from transfer_cli.progress import progress

CPU = torch.device("cpu")

Layers = tuple[int, ...] | None
"""Which of the L + 1 states are kept: `(-1,)` the last, None all of them."""

_PORTION = 512
"""Examples that are read at once where no model is involved."""


class CachedFeatures:
    """A data set whose batches also hold the backbone's hidden states, as `states` or `pooled`.

    These are a list of K states instead of L + 1, so the readout must read the same from both:
    `layers` is `(-1,)` for the last one, or None for all.

    Args:
        model: Its backbone computes the states, now; the model is left in evaluation mode.
        precision: Of the forward pass. The states are stored in float32.
        batch: Examples that pass through the backbone at once.
        pooling: Keep but one vector a text, pooled like this from what the readout reads; no weight
            of the readout may ever train. None: the states of every token.
        device: The device of the states, in memory and in batches.
        shared: States on disk, shared with other runs; None: not shared.
    """

    def __init__(
        self,
        data: Dataset,
        model: TransferModel,
        precision: Precision,
        *,
        batch: int,
        layers: Layers,
        pooling: Pooling | None = None,
        device: torch.device = CPU,
        shared: SharedStates | None = None,
    ) -> None:
        self.data = data
        self.pooling = pooling
        lengths_N = _lengths(data, pooling)
        self._starts_N = np.cumsum(lengths_N) - lengths_N
        size = _size(lengths_N, model.backbone.shape, layers, pooling)
        # From short to long: least padding.
        self._portions = micro_batches(np.argsort(lengths_N, kind="stable"), batch)
        model.eval()

        def states_of(indices: np.ndarray) -> tuple[Tensor, Tensor]:
            part = data.batch(indices)
            return part["mask"], _compute_states(model, part, precision, layers, pooling)

        def compute() -> Tensor:
            states_RKD = torch.empty(size, device=device)
            with progress("features", len(self._portions), "batches") as more:
                for portion in self._portions:
                    for indices, (mask_BT, states) in halve_if_out_of_memory(portion, states_of):
                        rows = {"rows": self._rows(indices, mask_BT)}
                        states_RKD[to_device(rows, device)["rows"]] = states.to(device)
                    more(1)
            return states_RKD

        if shared is None:
            self._states_RKD = compute()
        else:
            key = _key(data, model, precision, batch, layers) | {"pooling": pooling}
            self._states_RKD = shared.fetch(key, size, compute).to(device)

    def __len__(self) -> int:
        return len(self.data)

    def passes(self, model: TransferModel) -> Iterator[Pass]:
        """Yield what the states took, or took whoever left them in the cache."""
        for indices in self._portions:
            yield Encoding(model, with_facts(self.data.batch(indices))).backbone_pass

    def batch(self, indices: npt.NDArray[np.int64]) -> Batch:
        """Return the data's own batch with `pooled`, or `states` that are zero at padding."""
        batch = self.data.batch(indices)
        kept = _stored_mask(batch["mask"], self.pooling)
        size = (kept.numel(), *self._states_RKD.shape[1:])
        states = self._states_RKD.new_zeros(size)
        places = {"from": self._rows(indices, batch["mask"]), "to": _true_places(kept)}
        places = to_device(places, states.device)
        states[places["to"]] = self._states_RKD[places["from"]]
        states = states.unflatten(0, kept.shape)
        if self.pooling is not None:
            return {**batch, "pooled": states.squeeze(-2)}
        return {**batch, "states": states}

    def _rows(self, indices: npt.NDArray[np.int64], mask_BT: Tensor) -> Tensor:
        """Return the rows of the states that are kept, one example after the other."""
        kept = _stored_mask(mask_BT, self.pooling).reshape(len(indices), -1)
        starts_B = torch.from_numpy(self._starts_N[indices])
        rows = starts_B[:, None] + kept.long().cumsum(1) - 1
        return rows[kept]


def memory_needed(
    data: Dataset, shape: BackboneShape, layers: Layers, pooling: Pooling | None = None
) -> int:
    """Return the bytes that `CachedFeatures` of this data would hold."""
    size = _size(_lengths(data, pooling), shape, layers, pooling)
    return torch.Size(size).numel() * torch.float32.itemsize


def _size(
    lengths_N: npt.NDArray[np.int64], shape: BackboneShape, layers: Layers, pooling: Pooling | None
) -> tuple[int, int, int]:
    """Return R, K and D."""
    if pooling is not None:
        return int(lengths_N.sum()), 1, shape.width * (3 if pooling == "concat" else 1)
    kept = shape.depth + 1 if layers is None else len(layers)
    return int(lengths_N.sum()), kept, shape.width


def _lengths(data: Dataset, pooling: Pooling | None) -> npt.NDArray[np.int64]:
    """Return how many states of every example are kept: of its real tokens, or its sequences."""
    portions = micro_batches(np.arange(len(data)), _PORTION)
    kept = (_stored_mask(data.batch(indices)["mask"], pooling) for indices in portions)
    return np.concatenate([part.reshape(len(part), -1).sum(1).numpy() for part in kept])


def _stored_mask(mask_BT: Tensor, pooling: Pooling | None) -> Tensor:
    """Return where there is a state to keep: each real token's, or one a sequence."""
    return mask_BT if pooling is None else mask_BT.any(-1)


def _key(
    data: Dataset, model: TransferModel, precision: Precision, batch: int, layers: Layers
) -> dict[str, Any]:
    """Return everything that decides the states, to the last bit."""
    return {
        "inputs": _digest_of_inputs(data),
        "backbone": _digest_of_backbone(model.backbone),
        "shape": asdict(model.backbone.shape),
        "layers": layers,
        "batch": batch,
        "precision": precision.kind,
        "machine": _machine(precision.device),
    }


def _machine(device: torch.device) -> list[Any]:
    """Return what decides the last bits of a product on this machine."""
    if device.type == "cuda":
        kind: list[Any] = [torch.cuda.get_device_name(device)]
    else:
        kind = [torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()]
    return [torch.__version__, device.type, torch.get_float32_matmul_precision(), *kind]


def _digest_of_inputs(data: Dataset) -> str:
    """Return a digest of the inputs of all examples, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for indices in micro_batches(np.arange(len(data)), _PORTION):
        batch = data.batch(indices)
        for name in ("tokens", "mask", "segment", "prefix"):
            if name in batch:
                digest.update(_bytes(name, batch[name]))
    return digest.hexdigest()


def _digest_of_backbone(backbone: nn.Module) -> str:
    """Return a digest of all weights, of the modules that hold them and of their source code."""
    digest = hashlib.blake2b(repr(backbone).encode(), digest_size=16)
    for name, tensor in itertools.chain(backbone.named_parameters(), backbone.named_buffers()):
        digest.update(_bytes(name, tensor))
    # A user's code may change between runs.
    modules = {type(module).__module__ for module in backbone.modules()}
    for name in sorted(modules):
        source = getattr(sys.modules.get(name), "__file__", None)
        if source is not None and not name.startswith("torch."):
            digest.update(Path(source).read_bytes())
    return digest.hexdigest()


def _bytes(name: str, tensor: Tensor) -> bytes:
    """Return a tensor's name, type, shape and content."""
    flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + flat.numpy().tobytes()


def _compute_states(
    model: TransferModel,
    batch: Batch,
    precision: Precision,
    layers: Layers,
    pooling: Pooling | None,
) -> Tensor:
    """Return the chosen states of a batch's real tokens, or its pooled ones, in float32."""
    real = _true_places(_stored_mask(batch["mask"], pooling))
    view = to_device({**with_facts(batch), "real": real}, precision.device)
    with torch.inference_mode(), precision.context():
        encoded = Encoding(model, view)
        if pooling is not None:
            return encoded.pooled(pooling).float()[view["real"], None]
        states = encoded.states
    chosen = states if layers is None else [states[layer] for layer in layers]
    return torch.stack([state.flatten(0, 1)[view["real"]].float() for state in chosen], dim=1)


def _true_places(mask: Tensor) -> Tensor:
    """Return the places where a mask is True, `[R]`, counted through a batch row by row."""
    return mask.flatten().nonzero().squeeze(1)
