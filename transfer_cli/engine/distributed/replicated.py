"""How processes share one model: a single process, a copy for each, or shards (`sharded`).

Only the call of the model in a forward pass is wrapped. The last backward pass of a step averages
gradients over all processes; `TrainStep` weighs losses so that this mean is their sum.
"""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from transfer_cli.engine.distributed import all_reduce_tensor, world_size
from transfer_cli.model.transfer_model import TransferModel

LossSums = dict[str, Tensor]


class Parallel:
    """How the processes of a run share its model; this base class is for a single process."""

    def __init__(self, model: TransferModel) -> None:
        self._model: Any = model

    def enter_stage(self, stage: int | None) -> None:
        """Look again at which parameters train, if that is another stage."""

    def __call__(self, work: Callable[[TransferModel], LossSums]) -> LossSums:
        """Return what `work` computes with the model."""
        sums: LossSums = self._model(work)
        return sums

    def accumulating(self, *, last: bool) -> AbstractContextManager[object]:
        """Return the context of a forward and backward pass; only the last of a step is synced."""
        return nullcontext()


class Replicated(Parallel):
    """Every process has a copy, and gradients are averaged over all (DistributedDataParallel).

    A copy is wrapped again in each stage: parameters that are frozen when it is wrapped are never
    synchronised, and ones that are frozen later would be waited for.

    Args:
        some_unused: Whether there are steps in which parameters that train have no part, such as
            the heads of a loss whose stream is not drawn. Looking for them takes time.
    """

    def __init__(self, model: TransferModel, *, some_unused: bool) -> None:
        super().__init__(model)
        self._copy = model
        self._some_unused = some_unused
        self._stage: int | None = None

    def enter_stage(self, stage: int | None) -> None:
        """Wrap the model with what trains now."""
        if stage == self._stage:
            return
        self._stage = stage
        self._model = None  # its hooks go before new ones come
        with warnings.catch_warnings():
            # The name of this option is new in torch 2.13, which warns of the old one.
            warnings.simplefilter("ignore", FutureWarning)
            self._model = DistributedDataParallel(
                self._copy, find_unused_parameters=self._some_unused, broadcast_buffers=False
            )

    def accumulating(self, *, last: bool) -> AbstractContextManager[object]:
        """Reduce gradients over processes only in the last pass of the step."""
        return nullcontext() if last else self._model.no_sync()


def average_statistics(module: nn.Module) -> None:
    """Give all processes the mean of the running statistics that each has gathered (batch norm)."""
    if world_size() == 1:
        return
    for part in module.modules():
        if isinstance(part, _BatchNorm):
            for value in (part.running_mean, part.running_var):
                if value is not None:
                    value.copy_(all_reduce_tensor(value) / world_size())
