"""Compiles forward and backward passes with `torch.compile` (Ansel et al. 2024)."""

import importlib.util
import os
import shutil
from contextlib import AbstractContextManager, nullcontext

import torch

from transfer_cli.engine.distributed.replicated import is_sharded
from transfer_cli.errors import ConfigError
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.heads import LanguageModelHead
from transfer_cli.model.transfer_model import Pass, TransferModel

GRAPHS = 256
"""How many graphs of one pass there may be: each stage of a schedule that freezes needs its own."""


class FullBatches:
    """Makes graphs for the full batches of training alone; others take one that fits, or none.

    The last batch of an epoch, a padded one and evaluation would need graphs of their own, each of
    which takes up to a minute.
    """

    def __init__(self) -> None:
        self._most = 1

    def __call__(self, made: Pass) -> AbstractContextManager[object]:
        """Return the context of a pass."""
        is_whole = min(made.lengths, default=0) == made.positions
        if torch.is_grad_enabled() and is_whole and made.sequences >= self._most:
            self._most = made.sequences
            return nullcontext()
        eager: AbstractContextManager[object] = torch.compiler.set_stance("eager_on_recompile")
        return eager


def compile_passes(model: TransferModel, device: torch.device, *, lengths_vary: bool) -> None:
    """Compile the backbone as one graph, and the loss over the vocabulary.

    Call it after edits and sharding, with the model on its device. A sharded model is compiled
    block by block, since its weights are gathered between blocks. If lengths vary, one graph serves
    batches of all sizes; else each of a stage is for full batches, see `FullBatches`.
    """
    _check_compiler(device)
    torch._dynamo.config.recompile_limit = GRAPHS
    parts = [part for part in model.modules() if isinstance(part, Backbone)]
    whole = parts if not is_sharded(model) else [block for part in parts for block in part.blocks]
    for module in whole:
        module.compile(fullgraph=True, dynamic=lengths_vary)
    for part in model.modules():
        if isinstance(part, LanguageModelHead):
            part.compiled = True
        # Tiles of sparse attention have a kernel of the compiler's in eager passes, too.
        if isinstance(part, TransferModel) and not (lengths_vary or part.backbone.shape.is_sparse):
            part.around_pass = FullBatches()


def _check_compiler(device: torch.device) -> None:
    """Refuse a missing compiler now: the error of the first step would be long and late."""
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            raise ConfigError(
                "loop.compile: for a GPU it needs the package triton, which is not installed; "
                "install it, or leave loop.compile out"
            )
        return
    compilers = [os.environ.get("CXX"), "g++", "clang++"]
    if not any(name and shutil.which(name) for name in compilers):
        raise ConfigError(
            "loop.compile: it needs a C++ compiler, and neither g++ nor clang++ is installed; "
            "install one, or leave loop.compile out"
        )
