"""Memories of running text that are carried from step to step, and over a resume.

Unlike data, rates and masks, it is no function of the step's number: what a block sees of the
blocks before it are states that earlier weights made.

Legend: B lanes, L places of blocks, M remembered positions, D width.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from transfer_cli.batch import micro_batches, shard
from transfer_cli.engine import distributed
from transfer_cli.model.memory import Memory
from transfer_cli.model.shape import BackboneShape


class CarriedMemory:
    """The memory of each micro-batch of this process, whose n-th example is always of one lane.

    Args:
        shape: Of the model; it says how much is remembered.
        batch: B, over all processes.
        micro_batch: Lanes that pass through the model at once.
        steps_per_epoch: After so many steps every lane begins anew, and nothing is remembered.
    """

    def __init__(
        self,
        shape: BackboneShape,
        batch: int,
        micro_batch: int,
        steps_per_epoch: int,
        device: torch.device,
    ) -> None:
        self._places, self._width = shape.depth, shape.width
        self._batch, self._steps_per_epoch, self._device = batch, steps_per_epoch, device
        lanes = shard(np.arange(batch), distributed.rank(), distributed.world_size())
        self._parts = micro_batches(lanes, micro_batch)
        self._memories = [Memory(shape.recurrence) for _ in self._parts]
        self._next = 0

    def begin(self, step: int) -> None:
        """Forget everything where a step is the first of an epoch."""
        self._next = step + 1
        if step % self._steps_per_epoch == 0:
            for memory in self._memories:
                memory.clear()

    def memory(self, micro_batch: int, rows: int) -> Memory:
        """Return that of a micro-batch of so many lanes, by its number in the step."""
        memory = self._memories[micro_batch]
        memory.keep_first(rows)
        return memory

    def state_dict(self) -> dict[str, Tensor]:
        """Return what all lanes remember, on the CPU; all processes call this.

        States are `[B, L, M, D]`, documents `[B, M]`. There are none where an epoch begins.
        """
        longest = max((memory.length for memory in self._memories), default=0)
        length = distributed.all_reduce_max(longest)
        if not length or self._next % self._steps_per_epoch == 0:
            return {}
        states = torch.zeros(self._batch, self._places, length, self._width, device=self._device)
        document = torch.zeros(self._batch, length, dtype=torch.int64, device=self._device)
        for lanes, memory in zip(self._parts, self._memories, strict=True):
            states[lanes] = torch.stack(memory.states, dim=1).to(states.dtype)
            if memory.document is not None:
                document[lanes] = memory.document
        state = {"states": distributed.all_reduce_tensor(states).cpu()}
        has_documents = any(memory.document is not None for memory in self._memories)
        if distributed.all_reduce_max(int(has_documents)):
            state["document"] = distributed.all_reduce_tensor(document).cpu()
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take up where `state_dict` left off, on any number of processes."""
        if not state:
            return
        states, document = state["states"], state.get("document")
        shape = (self._batch, self._places, states.shape[2], self._width)
        if states.shape != shape:
            raise ValueError(f"the memory is {tuple(states.shape)}, expected {shape}")
        if document is not None and document.shape != (self._batch, states.shape[2]):
            raise ValueError(f"the memory is of documents {tuple(document.shape)}")
        for lanes, memory in zip(self._parts, self._memories, strict=True):
            memory.states = states[lanes].to(self._device).unbind(1)
            if document is not None:
                memory.document = document[lanes].to(self._device)
