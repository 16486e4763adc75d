"""Averages of the weights that train, kept beside them.

Training never reads an average. Each step that was skipped counts as one that moved nothing, so an
average follows from the weights after each step, and all processes of a run have the same.
"""

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from transfer_cli.engine.distributed import reshard
from transfer_cli.metrics import AVERAGED

PLAIN = "plain"
"""What the weights are called that `AVERAGED` ones stand beside."""


class Average:
    """An average of all tensors that a run changes: each has the same weights over the steps.

    One that does not train yet averages to its value. Averages of shards are shards. torch's
    `AveragedModel`, whose rules these are, would copy what is frozen, too.

    Args:
        trains: Names of the parameters that train at any time; running statistics come on top.

    Attributes:
        best: The measures of the best validation of each of both weights, and its step.
        kept: Which of both the best weights of the run are.
    """

    def __init__(self, model: nn.Module, trains: Set[str]) -> None:
        stored, buffers = model.state_dict(), dict(model.named_buffers())
        statistics = {n: b for n, b in buffers.items() if n in stored and b.is_floating_point()}
        self._model = model
        self._tensors: dict[str, Tensor] = {
            **{n: p for n, p in model.named_parameters() if n in trains}, **statistics,
        }  # fmt: skip
        self._steps = 0
        self._copies: list[dict[str, Tensor]] = []
        self._places: dict[str, tuple[float, ...]] = {}
        self.best: dict[str, dict[str, float]] = {}
        self.kept = PLAIN

    def on_step(self) -> None:
        """Take the weights after a step."""

    def on_validation(self) -> None:
        """Take the weights that are about to be validated."""

    def _values(self) -> list[Tensor]:
        return _local_tensors(self._copies[0])

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Have the model compute with the average inside of the block."""
        plain = _local_tensors(self._copy_tensors())
        self._set_tensors(self._values())
        try:
            yield
        finally:
            self._set_tensors(plain)

    @torch.no_grad()
    def _set_tensors(self, values: list[Tensor]) -> None:
        reshard(self._model)  # what an evaluation has gathered is that of before
        for tensor, value in zip(_local_tensors(self._tensors), values, strict=True):
            tensor.copy_(value)

    def _copy_tensors(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self._tensors.items()}

    def note(
        self,
        step: int,
        measures: Mapping[str, Mapping[str, float]],
        places: Mapping[str, tuple[float, ...]],
    ) -> None:
        """Note what both weights score, and at which places among others, the lower the better."""
        for weights, place in places.items():
            if weights not in self._places or place < self._places[weights]:
                self._places[weights] = place
                self.best[weights] = {"step": step, **measures[weights]}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {
            "steps": self._steps, "copies": list(self._copies), "places": dict(self._places),
            "best": dict(self.best), "kept": self.kept,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self._steps, self.best, self.kept = int(state["steps"]), dict(state["best"]), state["kept"]
        self._places = {weights: tuple(place) for weights, place in state["places"].items()}
        self._copies = [
            {name: copy[name].to(tensor.device) for name, tensor in self._tensors.items()}
            for copy in state["copies"]
        ]


class EMA(Average):
    """The exponential moving average of the weights after each step.

    Args:
        decay: What a step leaves of the average of those before. It begins lower, so that a short
            run forgets its start, too: min(decay, (1 + n) / (10 + n)) after n steps, as
            TensorFlow's `ExponentialMovingAverage` has it.
    """

    def __init__(self, model: nn.Module, trains: Set[str], decay: float) -> None:
        super().__init__(model, trains)
        self._decay = decay

    @torch.no_grad()
    def on_step(self) -> None:
        """Move the average towards the weights after a step."""
        if not self._copies:
            self._copies = [self._copy_tensors()]
        else:
            decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
            get_ema_multi_avg_fn(decay)(self._values(), _local_tensors(self._tensors), None)
        self._steps += 1


class LastK(Average):
    """The mean of the weights at the last validations (LAWA: Kaddour 2022, at ends of epochs).

    Args:
        last: How many there are; each is kept.
    """

    def __init__(self, model: nn.Module, trains: Set[str], last: int) -> None:
        super().__init__(model, trains)
        self._last = last

    def on_validation(self) -> None:
        """Keep the weights in place of the oldest."""
        self._copies = self._copies[1 - self._last :]
        self._copies.append(self._copy_tensors())

    def _values(self) -> list[Tensor]:
        first, *others = map(_local_tensors, self._copies)
        mean = [tensor.clone() for tensor in first]
        for number, values in enumerate(others, start=1):
            get_swa_multi_avg_fn()(mean, values, number)
        return mean


def split_by_weights(measures: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the measures of the plain weights and those of the averaged ones."""
    sides: dict[str, dict[str, float]] = {PLAIN: {}, AVERAGED: {}}
    for name, value in measures.items():
        side, _, rest = name.partition("/")
        weights, measure = (AVERAGED, rest) if side == AVERAGED else (PLAIN, name)
        sides[weights][measure] = value
    return sides


def _local_tensors(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the tensors; of sharded ones, the parts of this process, in the same memory."""
    return [t.to_local() if hasattr(t, "to_local") else t for t in tensors.values()]
