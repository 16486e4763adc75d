"""How processes share one model, and the ways without shards: one process, or a copy for each.

Only the one call of the model in which a pass takes place is wrapped; nothing else needs to know.
The last backward pass of a step leaves gradients averaged over all processes, once a step whatever
the number of its micro-batches.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from transfer_cli.engine.distributed.group import all_reduce_tensor, world_size
from transfer_cli.model.transfer_model import TransferModel

LossSums = dict[str, Tensor]


class Parallel(Protocol):
    """How the processes of a run share its model."""

    def enter_stage(self) -> None:
        """Look again at which parameters train."""

    def __call__(self, work: Callable[[TransferModel], LossSums]) -> LossSums:
        """Return what `work` computes with the model."""

    def accumulating(self, *, last: bool) -> AbstractContextManager[object]:
        """Return the context of a forward and backward pass; only the last of a step is synced."""


class SingleProcess:
    """One process has all of the model."""

    def __init__(self, model: TransferModel) -> None:
        self._model = model

    def enter_stage(self) -> None:
        """Nothing depends on what trains."""

    def __call__(self, work: Callable[[TransferModel], LossSums]) -> LossSums:
        """Return what `work` computes with the model."""
        found: LossSums = self._model(work)
        return found

    def accumulating(self, *, last: bool) -> AbstractContextManager[object]:
        """Return a context that does nothing."""
        return nullcontext()


class Replicated:
    """Every process has a copy, and the gradients of all are summed (DistributedDataParallel).

    A copy is wrapped again in each stage: parameters that are frozen when it is wrapped are never
    synchronised, and ones that are frozen later would be waited for.

    Args:
        model: The model.
        some_unused: Whether there are steps in which parameters that train have no part, such as
            the heads of a loss whose stream is not drawn. Looking for them takes time.
    """

    def __init__(self, model: TransferModel, *, some_unused: bool) -> None:
        self._model = model
        self._some_unused = some_unused
        self._wrapped: DistributedDataParallel | None = None

    def enter_stage(self) -> None:
        """Wrap the model with what trains now."""
        self._wrapped = None  # its hooks go before new ones come
        with warnings.catch_warnings():
            # The name of this option is new in torch 2.13, which warns of the old one.
            warnings.simplefilter("ignore", FutureWarning)
            self._wrapped = DistributedDataParallel(
                self._model, find_unused_parameters=self._some_unused, broadcast_buffers=False
            )

    def __call__(self, work: Callable[[TransferModel], LossSums]) -> LossSums:
        """Return what `work` computes with the model."""
        found: LossSums = self._now()(work)
        return found

    @contextmanager
    def accumulating(self, *, last: bool) -> Iterator[None]:
        """Keep gradients to this process, unless it is the last pass of the step."""
        with nullcontext() if last else self._now().no_sync():
            yield

    def _now(self) -> DistributedDataParallel:
        if self._wrapped is None:
            raise RuntimeError("enter_stage comes before the first step")
        return self._wrapped


def is_sharded(module: nn.Module) -> bool:
    """Return whether this process holds only a shard of the parameters."""
    # A test by the type of tensor would import torch.distributed.tensor, which takes long.
    return any(hasattr(parameter, "full_tensor") for parameter in module.parameters())


def full_tensor(tensor: Tensor) -> Tensor:
    """Return all of a tensor that may be sharded; all processes call this."""
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found


def average_statistics(module: nn.Module) -> None:
    """Give all processes the mean of the running statistics that each has gathered (batch norm)."""
    if world_size() == 1:
        return
    for part in module.modules():
        if isinstance(part, _BatchNorm):
            for value in (part.running_mean, part.running_var):
                if value is not None:
                    value.copy_(all_reduce_tensor(value) / world_size())
