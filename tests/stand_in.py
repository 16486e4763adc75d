"""A device that exists in Python alone, to find what would break or wait on a GPU, without one.

torch's Python backend registers it, for good and for the whole process: so everything here runs in
a process of its own (`tests/on_stand_in.py`). A tensor there holds one of the host, on which every
operation is computed, so results are real and can be compared with the host's. What is refused:

* an operation on tensors of both, unless a GPU's kernels take it (a host scalar among its inputs);
* a wait for the device, unless the function that waits may do so.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

NAME = "standin"
PACKAGE = "transfer_cli."
aten = torch.ops.aten

TAKE_HOST_SCALARS = {
    aten.fill_.Tensor, aten.masked_fill.Tensor, aten.masked_fill_.Tensor,
    aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default,
}  # fmt: skip
"""Beyond what is computed element by element."""

IN_HALF_PRECISION = (
    aten.linear.default, aten.matmul.default, aten.mm.default, aten.addmm.default,
    aten.bmm.default, aten.scaled_dot_product_attention.default,
)  # fmt: skip
"""What autocast computes in half precision, of what models are made of."""

_COMPOSED = torch._C.DispatchKey.CompositeImplicitAutograd
_libraries: list[torch.library.Library] = []
_DATA_DECIDES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_INDEXING = {
    aten.index.Tensor, aten.index_put.default, aten.index_put_.default,
    aten._index_put_impl_.default,
}  # fmt: skip


class MixedError(RuntimeError):
    """An operation on tensors of the device and of the host."""


class WaitError(RuntimeError):
    """The host waits for the device where it must not."""


def missing() -> str | None:
    """Return what this torch lacks of a device in Python; None where it has all of it."""
    names = ("_setup_privateuseone_for_python_backend", "_DummyBackendModule")
    lacks = [name for name in names if not hasattr(backend_registration, name)]
    return f"torch {torch.__version__} has no {lacks[0]}" if lacks else None


def register() -> torch.device:
    """Make the device known to this process."""

    class Module(backend_registration._DummyBackendModule):
        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.bfloat16, torch.float16]

    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    everywhere, aten_library = (
        torch.library.Library("_", "IMPL"),
        torch.library.Library("aten", "IMPL"),
    )
    everywhere.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for operation in IN_HALF_PRECISION:
        aten_library.impl(operation, _autocast(operation), "AutocastPrivateUse1")
    _libraries.extend((everywhere, aten_library))
    return torch.device(NAME, 0)


def _autocast(operation: Any) -> Callable[..., Any]:
    """Return what autocast makes of a product."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def computed(*args: Any, **kwargs: Any) -> Any:
        kind = torch.get_autocast_dtype(NAME)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            args, kwargs = tree_map_only(
                Tensor, lambda tensor: tensor.to(kind) if tensor.dtype == torch.float32 else tensor,
                (args, kwargs),
            )  # fmt: skip
            return operation(*args, **kwargs)

    return computed


class OnDevice(Tensor):
    """A tensor of the device.

    Args:
        held: Its content, on the host.
    """

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnDevice":
        """Return one of the same shape and strides."""
        # A view in inference mode is no tensor of that mode where what it views is none.
        with torch.inference_mode(mode=False):
            made: OnDevice = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(),
                dtype=held.dtype, layout=held.layout, device=torch.device(NAME, 0),
            )  # fmt: skip
        made.held = held
        return made

    def __repr__(self) -> str:
        """Return what is shown when a test fails; that asks no device for anything."""
        return f"OnDevice({tuple(self.shape)}, {self.dtype})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Be stored as what is loaded on the host."""
        _wait("pickle")
        return self.held.detach().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """Return a copy on the device."""
        copied = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied

    def tolist(self) -> Any:
        """Return plain values, which torch's own method reads past every dispatch."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Compute where no mode is, such as in the threads of a backward pass."""
        return _computed(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Sees what makes a tensor on the device without being given one."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _computed(func, args, kwargs or {})


_allowed: frozenset[str] = frozenset()
_met: set[str] = set()
_refused: list[RuntimeError] = []


@contextmanager
def watched(allowed: Sequence[str]) -> Iterator[set[str]]:
    """Let nothing mix and nothing wait but what is allowed; yield the waits that were met.

    Args:
        allowed: Names of functions of the package, as `engine.step.TrainStep.read`. What waits
            outside of the package, in a test, is no wait.
    """
    global _allowed, _met
    _allowed, _met = frozenset(allowed), set()
    _refused.clear()
    # Else `torch.tensor` would make what it is given on the device itself.
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        with _Mode():
            yield _met
    finally:
        torch._C._set_only_lift_cpu_tensors(False)
    if _refused:
        raise _refused[0]


def _computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaves = tree_leaves((args, kwargs))
    here = [x for x in leaves if isinstance(x, Tensor) and not isinstance(x, OnDevice)]
    is_there = any(isinstance(x, OnDevice) for x in leaves)
    target = kwargs.get("device")
    goes_there = is_there if target is None else target.type == NAME
    if not is_there and not goes_there:
        return func(*args, **kwargs)
    if torch.is_inference_mode_enabled() and func.has_kernel_for_dispatch_key(_COMPOSED):
        # Elsewhere autograd has taken it apart already.
        with _Mode():
            return func.decompose(*args, **kwargs)
    if func is aten.copy_.default:
        goes_there = isinstance(args[0], OnDevice)
        _check_copy(func, goes_there, bool(here), kwargs.get("non_blocking", (*args, False)[2]))
    elif func is aten._to_copy.default:
        _check_copy(func, goes_there, goes_there == bool(here), kwargs.get("non_blocking", False))
    elif target is None:  # else it makes a tensor, of whatever device those are that it is like
        _check_mixing(func, args, here)
        if _data_decide(func, args):
            _wait(str(func))
    plain_args, plain = tree_map_only(OnDevice, lambda leaf: leaf.held, (args, kwargs))
    if target is not None:
        plain["device"] = torch.device("cpu") if target.type == NAME else target
    result = func(*plain_args, **plain)
    if not goes_there:
        return args[0] if func is aten.copy_.default else result
    # What was changed in place is what was given, and no tensor of its own.
    given = {id(leaf.held): leaf for leaf in leaves if isinstance(leaf, OnDevice)}
    return tree_map_only(
        Tensor, lambda leaf: given[id(leaf)] if id(leaf) in given else OnDevice(leaf), result
    )


def _check_copy(func: Any, goes_there: bool, crosses: bool, non_blocking: bool) -> None:
    # From the device, what is copied is not there before the device is done; a copy that does not
    # block counts as a wait all the same: who begins one has to be listed.
    if crosses and not (goes_there and non_blocking):
        _wait(f"{func} to {'the device, blocking' if goes_there else 'the host'}")


def _check_mixing(func: Any, args: tuple[Any, ...], here: Sequence[Tensor]) -> None:
    takes_scalars = func in TAKE_HOST_SCALARS or torch.Tag.pointwise in func.tags
    takes_scalars = takes_scalars or func._schema.name.startswith("aten::_foreach_")
    changes_host = func._schema.is_mutable and any(args[0] is tensor for tensor in here)
    if here and (changes_host or not takes_scalars or any(tensor.dim() for tensor in here)):
        shapes = [tuple(tensor.shape) for tensor in here]
        _refuse(MixedError(f"{func} in {_caller()}: of its inputs {shapes} lie on the host"))


def _data_decide(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether the host has to know data before it can go on."""
    if func in _INDEXING:
        return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
    return bool(_DATA_DECIDES & set(func.tags))


def _wait(operation: str) -> None:
    caller = _caller()
    if caller is None:
        return
    if caller not in _allowed:
        _refuse(WaitError(f"{caller} waits for the device, by {operation}"))
    _met.add(caller)


def _refuse(error: RuntimeError) -> None:
    if _in_main_thread():
        raise error
    # What a thread of a backward pass raises ends the process.
    _refused.append(error)


def _in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _caller() -> str | None:
    """Return the innermost function of the package that is at work; None in a test's own code."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(PACKAGE):
            name = frame.f_code.co_qualname.partition(".<")[0]
            return f"{module.removeprefix(PACKAGE)}.{name}"
        frame = frame.f_back  # type: ignore[assignment]
    return None if _in_main_thread() else "a backward pass"


def on_host(value: Any) -> Any:
    """Return the same with every tensor on the host."""
    return tree_map_only(OnDevice, lambda tensor: tensor.held.detach(), value)
