"""What an H100 would launch in a step, counted without one.

    python scripts/gpu/kernels.py [CASE ...] [--compile] [--json FILE]

Needs torch, whose build for CPUs does, and the package triton; neither a GPU nor a driver.

Each graph that torch's compiler is asked for is traced, differentiated and cut in two on fake
tensors of the host. Both halves then get the device of the H100 in place of the host's, and
Inductor, told of that device's properties, schedules its kernels and writes their code. Printed is
how many kernels there are, what they read and write, how many calls of libraries (products,
attention), and how many operations the step takes eagerly, each of which launches at least one
kernel. Cases of blocks are a model of two less a model of one.

With `--compile`, Triton compiles each configuration of the kernels for sm_90: registers, stack
(where they do not suffice), loads and stores by their bytes. Only a GPU decides which is fastest;
no time is known here, nor what caches save, nor how many kernels a library's call launches, and a
table of which a few rows are read counts whole.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
import triton
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo import device_interface
from torch._guards import detect_fake_mode
from torch._inductor import compile_fx, config, ir
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime import triton_helpers
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver

from transfer_cli.model import dropout, vocabulary_loss
from transfer_cli.model.backbone import Backbone, BackboneShape
from transfer_cli.model.kv_cache import KVCache

H100 = SimpleNamespace(
    name="H100", major=9, multi_processor_count=132, regs_per_multiprocessor=2**16, warp_size=32,
    max_threads_per_block=1024, max_threads_per_multi_processor=2048, gcnArchName="",
    shared_memory_per_block_optin=227 * 2**10,
)  # fmt: skip
DEVICE, TARGET = torch.device("cuda", 0), GPUTarget("cuda", 90, 32)

Step = Callable[[], object]
Graph = tuple[Counter[str], str]
"""Kernels, bytes and library calls of a forward or a backward pass, and the code that runs it."""


class _CodeWritten(BaseException):
    """The code of a graph is written; no `except Exception` of the compiler catches it."""


def compiled_graphs(prepare: Callable[[], Step]) -> list[Graph]:
    """Return the graphs that are compiled in a step, which is prepared on fake tensors."""
    graphs: list[Graph] = []

    def write(graph: GraphLowering) -> None:
        code, _ = graph.codegen()
        count = Counter[str]()
        for node in graph.scheduler.nodes:
            if node.is_extern():
                count["library calls"] += not isinstance(node.node, ir.MultiOutput | ir.NopKernel)
            else:
                count += Counter(kernels=1, bytes=node.get_read_write_buffers_sizes())
        graphs.append((count, code.value))
        raise _CodeWritten

    def compiled(module: torch.fx.GraphModule, inputs: Sequence[Any], **words: Any) -> Any:
        on_host = deepcopy(module)
        for node in module.graph.nodes:
            node.args, node.kwargs = (map_aggregate(a, _on_h100) for a in (node.args, node.kwargs))
            node.meta["val"] = tree_map(_on_h100, node.meta.get("val"))
        module.recompile()
        # A pass of the compiler would see by a copy whether two shapes fit.
        with suppress(_CodeWritten), mock.patch.object(FakeTensor, "copy_", lambda kept, _: kept):
            compile_fx.compile_fx_inner(module, tree_map(_on_h100, inputs), **words)
        # A backward pass is traced where a forward pass runs, so it does, on the host's tensors.
        return make_boxed_func(on_host)

    inductor = partial(compile_fx.compile_fx, inner_compile=compiled)
    # Types and sizes are known from the host; run on that device, operations would ask for it.
    with (
        mock.patch.object(GraphLowering, "compile_to_module", write),
        mock.patch.object(compile_fx, "compile_fx", inductor),
        mock.patch.object(compile_fx, "fake_tensor_prop", lambda _, i, *__: detect_fake_mode(i)),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        torch._dynamo.reset()
        prepare()()
    return graphs


def _on_h100(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        with value.fake_mode:
            sizes = value.shape, value.stride()
            return torch.empty_strided(*sizes, dtype=value.dtype, device=DEVICE)
    return DEVICE if isinstance(value, torch.device) else value


def pretend_h100() -> None:
    """Let the compiler believe in an H100; nothing can run on it."""

    def always(value: object) -> Any:
        return staticmethod(lambda *_, **__: value)

    fake_tensor.init_gpu_context = triton_helpers.set_driver_to_gpu = always(None)
    interface = device_interface.CudaInterface
    for place in (torch.cuda, interface, interface.Worker):
        place.get_device_properties = always(H100)
        place.get_device_capability, place.is_bf16_supported = always((9, 0)), always(value=True)
        place.device_count, place.current_device = always(1), always(0)
    # Of torch.cuda itself that stays false: torch would ask the GPU for its random numbers.
    interface.is_available, interface.get_raw_stream = always(value=True), always(0)
    for name in ("cuda", "cuda:0"):
        device_interface.register_interface_for_device(name, interface)
    names = {"get_current_target": always(TARGET), "get_current_device": always(0)}
    driver.set_active(SimpleNamespace(**names))
    config.compile_threads, config.fx_graph_cache = 1, False
    torch._functorch.config.enable_autograd_cache = False


class _LaunchCounter(TorchDispatchMode):
    """Counts operations that compute; of dropout and RMS norm, one on a GPU, their products."""

    free = ("empty", "empty_like", "new_empty", "new_empty_strided", "_unsafe_view", "bernoulli_",
            "div_", "pow", "mean", "add_", "rsqrt")  # fmt: skip
    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.number += func.namespace == "aten" and not func.is_view and name not in self.free
        return func(*args, **(kwargs or {}))


def count_launches(prepare: Callable[[], Step]) -> int:
    """Return how many operations that compute a step takes if nothing is compiled."""
    with (
        # The host's own dropout computes with arrays, and fake tensors hold none.
        mock.patch.object(dropout, "LEAST_ELEMENTS", 2**62),
        torch.compiler.set_stance("force_eager"),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        step = prepare()
        with _LaunchCounter() as launches:
            step()
    return launches.number


# --------------------------------------------------------------------------------------- cases

VOCABULARY, CHUNK = 29_056, 4096
BASE = BackboneShape(512, 8, 11, 2048, 256, dropout=0.1, direction="causal")
# Attention without dropout: with it, the host would not compute it as one operation.
MINILM = BackboneShape(384, 12, 6, 1536, 512, dropout=0.1, residual="post", segments=2,
                       direction="bidirectional")  # fmt: skip
SMOLLM2 = BackboneShape(
    576, 9, 30, 1536, 8192, key_value_heads=3, norm="rms", activation="silu", biases="none",
    feedforward_kind="gated", position_kind="rotary", direction="causal",
)  # fmt: skip


def blocks(shape: BackboneShape, case: str = "", size: tuple[int, int] = (64, 256)) -> Step:
    """Take a backbone forward and backward: all of a step but its loss and its optimizer."""
    backbone = Backbone(shape, VOCABULARY)
    backbone.set_residual_dtype(torch.bfloat16 if case == "bf16 residual" else None)
    backbone.compile(fullgraph=True)
    tokens = torch.empty(size, dtype=torch.int64)
    if case == "any rows":
        torch._dynamo.mark_dynamic(tokens, 0)
    mask = torch.empty_like(tokens, dtype=torch.bool)
    layers = None if case == "all states" else (-1,)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            states = backbone(tokens, mask, padded=shape is MINILM, layers=layers)
        states[-1].sum(dtype=torch.float32).backward()

    return step


def loss() -> Step:
    """Compute the loss of a chunk of logits, and its gradient."""
    logits = torch.empty(CHUNK, VOCABULARY, dtype=torch.bfloat16)
    return partial(vocabulary_loss._compile(), logits, torch.empty(CHUNK, 1, dtype=torch.int64))


def token(earlier: int = 20) -> Step:
    """Read a token behind others, and find the likeliest next one."""
    backbone, cache = Backbone(SMOLLM2, VOCABULARY).eval(), KVCache(SMOLLM2.depth, 2 * earlier)
    for layer in cache.layers:
        size = (1, SMOLLM2.key_value_heads, 2 * earlier, SMOLLM2.width // SMOLLM2.heads)
        layer._kv, layer._filled = [torch.empty(size), torch.empty(size)], earlier
    tokens = torch.empty(1, 1, dtype=torch.int64)
    mask = torch.empty_like(tokens, dtype=torch.bool)

    @partial(torch.compile, fullgraph=True)
    def read() -> Tensor:
        top = backbone(tokens, mask, padded=False, kv_cache=cache)[-1]
        return F.linear(top[:, -1], backbone.token_embedding.weight).argmax(1)

    return torch.no_grad()(read)


BLOCKS = "block", "all states", "any rows", "bf16 residual", "no biases"
OTHERS: dict[str, Callable[[], Step]] = {
    "loss": loss, "fine-tuning": partial(blocks, MINILM, size=(32, 24)), "token": token,
}  # fmt: skip


def count_case(name: str) -> tuple[Counter[str], list[Graph]]:
    """Return what a case comes to, and its graphs, or those of its single block."""
    if name in OTHERS:
        return _count(OTHERS[name])
    shape = replace(BASE, biases="none" if name == "no biases" else "all")
    one, two = (partial(blocks, replace(shape, depth=depth), name) for depth in (1, 2))
    (less, graphs), (total, _) = _count(one), _count(two)
    total.subtract(less)
    return total, graphs


def _count(prepare: Callable[[], Step]) -> tuple[Counter[str], list[Graph]]:
    graphs = compiled_graphs(prepare)
    launches = Counter({"if eager": count_launches(prepare)})
    return sum((count for count, _ in graphs), launches), graphs


def compiled_kernels(code: str) -> Iterator[dict[str, Any]]:
    """Yield the kernels of a graph as Triton compiles them, a row for each configuration."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.py")
        for name, text in re.findall(r"triton\('(\w+)', '''(.*?)''', device_str", code, re.DOTALL):
            path.write_text(text, encoding="utf-8")
            kernel = getattr(SourceFileLoader(name, str(path)).load_module(), name)
            for configuration in kernel.configs:
                meta = kernel._create_compile_meta(configuration)
                constants = meta["constants"], meta["configs"][0]
                source = ASTSource(kernel.fn, meta["signature"], *constants)
                options = kernel._create_compile_options(configuration, meta)
                asm = triton.compile(source, target=TARGET, options=options).asm
                path.write_bytes(asm["cubin"])
                words = [tool, "-res-usage", path]
                usage = subprocess.check_output(words, text=True)
                [sizes] = re.findall(r"REG:(\d+) STACK:(\d+)", usage)
                yield {
                    "kernel": name, "registers": int(sizes[0]), "stack": int(sizes[1]),
                    "loads": _widths(asm["ptx"], "ld"), "stores": _widths(asm["ptx"], "st"),
                    "configuration": str(configuration),
                }  # fmt: skip


def _widths(ptx: str, word: str) -> dict[int, int]:
    """Return how many of a kernel's loads (ld) or stores (st) are of how many bytes."""
    widths = re.findall(rf"\b{word}\.global[\w.:]*?(?:\.v([248]))?\.b(\d+)", ptx)
    return dict(sorted(Counter(int(many or 1) * int(bits) // 8 for many, bits in widths).items()))


def main(argv: Sequence[str] | None = None) -> int:
    """Count from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join([*BLOCKS, *OTHERS]))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    if unknown := [name for name in args.cases if name not in (*BLOCKS, *OTHERS)]:
        parser.error(f"there is no case {unknown[0]!r}; take {', '.join([*BLOCKS, *OTHERS])}")
    pretend_h100()
    records = []
    columns = ("kernels", "MB", "library calls", "if eager")
    print("case".ljust(14), *columns, f"  torch {torch.__version__}")
    for name in args.cases or [*BLOCKS, *OTHERS]:
        count, graphs = count_case(name)
        record: dict[str, Any] = {"case": name, **count, "MB": round(count["bytes"] / 1e6, 1)}
        print(name.ljust(14), *(f"{record.get(column, 0):>{len(column)}}" for column in columns))
        if args.compile:
            record["compiled"] = [row for _, code in graphs for row in compiled_kernels(code)]
            for row in record["compiled"]:
                print("   ", *(f"{key} {value}" for key, value in row.items()))
        records.append(record)
    if args.json is not None:
        args.json.write_text(json.dumps(records, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
