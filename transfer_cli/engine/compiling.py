"""Compiles forward and backward passes with `torch.compile` (Ansel et al. 2024)."""

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from transfer_cli.engine.distributed import is_sharded
from transfer_cli.errors import ConfigError
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.encoder_decoder import Stack
from transfer_cli.model.heads import LanguageModelHead
from transfer_cli.model.transfer_model import Pass, TransferModel

FEWEST_STEPS = 500
"""Steps from which on `auto` compiles: those of the minute or so that it takes, and as many."""

FEWEST_MINUTES = 4.0
"""The same, of a run that ends by the clock."""

MAX_GRAPHS = 256
"""How many graphs of one pass there may be: each stage of a schedule that freezes needs its own."""


class FullBatches:
    """Makes graphs for the full batches of training alone; others take one that fits, or none.

    The last batch of an epoch, a padded one and evaluation would need graphs of their own, each of
    which takes up to a minute. Where memory ran out, smaller ones come: two in a row are full.

    Args:
        on_shrink: Called when that happens, as a step is several passes from then on.
    """

    def __init__(self, on_shrink: Callable[[], None] | None = None) -> None:
        self._on_shrink = on_shrink
        self._most = self._last = 1

    def __call__(self, passed: Pass) -> AbstractContextManager[object]:
        """Return the context of a pass."""
        is_whole = min(passed.lengths, default=0) == passed.positions
        if torch.is_grad_enabled() and is_whole:
            full = min(self._most, self._last)
            self._last = passed.sequences
            if passed.sequences >= full:
                if passed.sequences < self._most and self._on_shrink is not None:
                    self._on_shrink()
                self._most = passed.sequences
                return nullcontext()
        eager: AbstractContextManager[object] = torch.compiler.set_stance("eager_on_recompile")
        return eager


def compile_passes(
    model: TransferModel, device: torch.device, *, lengths_vary: bool, cuda_graphs: bool = False
) -> None:
    """Compile the backbone as one graph, and the loss over the vocabulary.

    Call it after edits and sharding, with the model on its device. A sharded model is compiled
    block by block, since its weights are gathered between blocks. If lengths vary, one graph serves
    batches of all sizes; else each of a stage is for full batches, see `FullBatches`. With
    `cuda_graphs` a GPU is given all kernels of a pass at once, as long as a step is one: each by
    itself costs the host some 10 microseconds, and a step has 700.
    """
    # Now: the error of the first step would be long and late.
    if missing := missing_compiler(device):
        raise ConfigError(
            f"loop.compile: it needs {missing}, which is not there; install it, or leave "
            "loop.compile out"
        )
    torch._dynamo.config.recompile_limit = MAX_GRAPHS
    _set_up_inductor()
    backbones = [part for part in model.modules() if isinstance(part, Backbone)]
    parts = [part for part in backbones if not isinstance(part, Stack)]
    whole = parts if not is_sharded(model) else [block for part in parts for block in part.blocks]

    def compile_parts(*, cuda_graphs: bool) -> None:
        options: dict[str, Any] = {"options": {"triton.cudagraphs": True}} if cuda_graphs else {}
        for module in whole:
            module.compile(fullgraph=True, dynamic=lengths_vary, **options)

    compile_parts(cuda_graphs=cuda_graphs)
    for part in model.modules():
        if isinstance(part, LanguageModelHead):
            part.compiled = True
        # Tiles of sparse attention have a kernel of the compiler's in eager passes, too.
        if isinstance(part, TransferModel) and not (lengths_vary or part.backbone.shape.is_sparse):
            part.around_pass = FullBatches(
                partial(compile_parts, cuda_graphs=False) if cuda_graphs else None
            )


def _set_up_inductor() -> None:
    """Leave out what costs time in each step."""
    from torch._inductor import config  # takes seconds

    # Some 400 checks a step of what the compiler itself has planned.
    config.size_asserts = False
    if torch.__version__ < "2.12" and hasattr(config.triton, "mix_order_reduction"):
        # It joins a norm's backward pass with its column sums into kernels of too many registers.
        config.triton.mix_order_reduction = False


def why_eager(
    device: torch.device,
    missing: str,
    *,
    lengths_vary: bool,
    sharded: bool,
    steps: int,
    minutes: float,
) -> str:
    """Return why `loop.compile=auto` leaves a run of such a length as it is; "": it compiles.

    What is `missing` says `missing_compiler`.
    """
    reasons = {
        "on no GPU": device.type != "cuda",
        f"{missing} is not there": missing,
        "texts vary in length": lengths_vary,
        "the model is sharded": sharded,
        f"{steps:,} steps are below {FEWEST_STEPS}": steps < FEWEST_STEPS,
        f"{minutes:.3g} minutes are below {FEWEST_MINUTES:g}": minutes < FEWEST_MINUTES,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def missing_compiler(device: torch.device) -> str:
    """Return what torch's compiler needs for a device and is not there; "" for nothing."""
    names = ("CXX", "g++", "clang++")
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "the package triton"
        if torch.cuda.get_device_capability(device) < (7, 0):  # for Triton
            return "a GPU of compute capability 7.0 or higher"
        # Triton builds what calls its kernels.
        if not (Path(sysconfig.get_paths("posix_prefix")["include"]) / "Python.h").exists():
            return "Python.h (package python3-dev)"
        names = ("CC", "gcc", "clang")
    compilers = (os.environ.get(names[0]), *names[1:])
    has_compiler = any(name and shutil.which(name) for name in compilers)
    return "" if has_compiler else f"a compiler ({names[1]} or {names[2]})"
