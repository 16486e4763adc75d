"""A sharded model, for models larger than the memory of one device.

Torch's `fully_shard` cuts every tensor along its first dimension. A checkpoint holds the shards as
safetensors, written by all processes with `torch.distributed.checkpoint`; any number of processes
can read it. The library's usual format is a pickle, which is never opened here.

Imported only on demand: the imports take most of a second.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.distributed.checkpoint.state_dict_saver import save as save_parts
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import zeros as sharded_zeros

from transfer_cli.engine.distributed import all_reduce_tensor, world_size
from transfer_cli.engine.distributed.replicated import Parallel
from transfer_cli.engine.step import TrainStep
from transfer_cli.model.transfer_model import TransferModel

_PLACEHOLDER = "sharded tensor"
"""Key of the placeholder of a sharded tensor in the plain state."""


def shard_model(model: TransferModel, device: torch.device) -> None:
    """Reduce every tensor of the model to this process's shard, on its device.

    Call it after weights are loaded and edits made, and before the optimizer is built: it replaces
    the parameters, under the same names. A block's weights are gathered for its forward and its
    backward pass, and resharded in between. Scalars cannot be cut: every process has them.
    """
    mesh = init_device_mesh(device.type, (world_size(),))
    scalars = _replicate_scalars(model, mesh, device)
    # Torch 2.6 does not know the argument.
    ignored: dict[str, Any] = {"ignored_params": scalars} if scalars else {}
    for block in model.backbone.blocks:
        fully_shard(block, mesh=mesh, **ignored)
    fully_shard(model, mesh=mesh, **ignored)


def _replicate_scalars(
    model: TransferModel, mesh: DeviceMesh, device: torch.device
) -> set[nn.Parameter]:
    scalars = set()
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.ndim == 0:
                value = distribute_tensor(parameter.detach().to(device), mesh, [Replicate()])
                scalar = nn.Parameter(value, requires_grad=parameter.requires_grad)
                module.register_parameter(name, scalar)
                _unwrap_in_forward(module, name, scalar)
                scalars.add(scalar)
    return scalars


def _unwrap_in_forward(module: nn.Module, name: str, scalar: nn.Parameter) -> None:
    """Give the module a plain tensor instead of a replicated one during its forward pass."""

    def before(module: nn.Module, args: object) -> None:
        # Shadows the parameter, which stays registered; its gradient is still of this process.
        vars(module)[name] = scalar.to_local()  # type: ignore[attr-defined]  # only DTensors are wrapped so

    def after(module: nn.Module, args: object, result: object) -> None:
        vars(module).pop(name, None)

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after, always_call=True)


class Sharded(Parallel):
    """Every process has a shard of the model (FSDP)."""

    @contextmanager
    def accumulating(self, *, last: bool) -> Iterator[None]:
        """Reduce gradients over processes only in the last pass of the step."""
        self._model.set_requires_gradient_sync(last)
        yield
        if last:
            self._average_scalars()

    def _average_scalars(self) -> None:
        """Average the gradients of the replicated scalars over processes, as those of shards."""
        for parameter in self._model.parameters():
            if parameter.ndim == 0 and parameter.grad is not None:
                gradient = parameter.grad.to_local()
                gradient.copy_(all_reduce_tensor(gradient) / world_size())


# --- checkpoints of shards ---------------------------------------------------------------------


def save(folder: Path, model: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Write the weights and the sharded tensors of a state; return the state without them.

    All processes call this.
    """
    parts: dict[str, Tensor] = {f"model.{name}": t for name, t in model.state_dict().items()}
    plain: dict[str, Any] = _without_shards(state, "state", parts)
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    save_parts(parts, storage_writer=writer, no_dist=not dist.is_initialized())
    return plain


def load(folder: Path, model: nn.Module, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Load a model, sharded or not, and return the state that `save` got, from its result."""
    reader = HuggingFaceStorageReader(str(folder))
    known = reader.read_metadata().state_dict_metadata
    parts: dict[str, Tensor] = {f"model.{name}": t for name, t in model.state_dict().items()}
    like = next((p for p in model.parameters() if isinstance(p, DTensor)), None)
    for name in known.keys() - parts.keys():
        parts[name] = _empty_tensor(known[name], like)
    with warnings.catch_warnings():
        # It warns if one process reads what several have written.
        warnings.simplefilter("ignore", UserWarning)
        load_parts(parts, storage_reader=reader, no_dist=not dist.is_initialized())
    state: dict[str, Any] = _with_shards(plain, parts)
    return state


def _without_shards(value: Any, path: str, parts: dict[str, Tensor]) -> Any:
    """Return a nested value without its sharded tensors, which are put into `parts` by path."""
    if isinstance(value, DTensor):
        parts[path] = value
        return {_PLACEHOLDER: path}
    if isinstance(value, Mapping):
        return {key: _without_shards(inner, f"{path}.{key}", parts) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_shards(inner, f"{path}.{n}", parts) for n, inner in enumerate(value)]
    return value


def _with_shards(value: Any, parts: Mapping[str, Tensor]) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {_PLACEHOLDER}:
            return parts[value[_PLACEHOLDER]]
        return {key: _with_shards(inner, parts) for key, inner in value.items()}
    return [_with_shards(inner, parts) for inner in value] if isinstance(value, list) else value


def _empty_tensor(known: Any, like: DTensor | None) -> Tensor:
    """Return zeros to read a tensor into: a shard if the model is sharded."""
    assert isinstance(known, TensorStorageMetadata)  # noqa: S101 - nothing else is in safetensors
    size, kind = known.size, known.properties.dtype
    if like is None:
        return torch.zeros(size, dtype=kind)
    mesh = like.device_mesh
    placement = Shard(0) if size else Replicate()
    return sharded_zeros(size, dtype=kind, device_mesh=mesh, placements=[placement])


def shard_state(state: Mapping[str, Any], step: TrainStep) -> dict[str, Any]:
    """Return the state of an unsharded step as the state of a sharded one."""
    order = [p for group in step.optimizer.param_groups for p in group["params"]]
    parameters = dict(step.model.named_parameters())
    optimizer, stages = state["optimizer"], state["stages"]
    moments = {
        number: {key: _sharded(value, order[int(number)]) for key, value in averages.items()}
        for number, averages in optimizer["state"].items()
    }
    kept = {name: _sharded(tensor, parameters.get(name)) for name, tensor in stages["kept"].items()}
    return {
        **state,
        "optimizer": {**optimizer, "state": moments},
        "stages": {**stages, "kept": kept},
    }


def shard_average(state: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Return the state of an average of unsharded weights as that of one of sharded weights."""
    tensors = model.state_dict()
    copies = [{n: shard_like(t, tensors[n]) for n, t in copy.items()} for copy in state["copies"]]
    return {**state, "copies": copies}


def _sharded(value: Any, parameter: Tensor | None) -> Any:
    """Return a shard of a tensor that has the parameter's shape, and anything else as it is."""
    if parameter is None or not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    return shard_like(value, parameter)


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this process's shard of a full tensor; the tensor itself where `like` is unsharded."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)
