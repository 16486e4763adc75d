"""What single operations of a training step take on a GPU, without the model around them."""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

ROWS, WIDTH, INNER, BLOCKS = 16_384, 512, 2048, 11
VOCABULARIES = (28_996, 29_056)
HEAD_ROWS = (4096, 16_384)
SHAPES = ((64, 8, 256, 64), (32, 12, 512, 64))
"""Of attention: sequences, heads, positions, width of a head."""


def timed_ms(call: Callable[[], object], repeats: int = 30) -> float:
    """Return the median time of a call, by events of the GPU where there is one."""
    for _ in range(3):
        call()
    if not torch.cuda.is_available():
        began = time.perf_counter()
        call()
        return 1000 * (time.perf_counter() - began)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    spans = itertools.pairwise(events)
    return statistics.median(begin.elapsed_time(end) for begin, end in spans)


def measure(device: str, before: str | None, *, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield milliseconds, and what they come to in TFLOP/s or TB/s."""
    shrink = 64 if quick else 1
    draw = partial(torch.randn, device=device, dtype=torch.bfloat16)
    rows = ROWS // shrink
    linear = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, INNER), (INNER, WIDTH)]
    yield _products("products of a block", [(rows, *shape) for shape in linear], draw)
    for vocabulary in VOCABULARIES:
        for head_rows in HEAD_ROWS:
            name = f"products of the head, {head_rows} x {vocabulary}"
            shape = (head_rows // shrink, WIDTH, vocabulary // shrink)
            yield _products(name, [shape], draw)
    source = draw(2**28 // shrink)
    target = torch.empty_like(source)
    milliseconds = timed_ms(lambda: target.copy_(source))
    yield {"what": "copy", "ms": milliseconds, "TB/s": 4 * source.numel() / milliseconds / 1e9}
    backends = (
        ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION") if not quick else ("MATH",)
    )
    for shape in SHAPES:
        for backend in backends:
            yield _attention(shape, backend, draw, shrink)
    yield from _loss_kernels(before, draw, rows // 4, VOCABULARIES[1] // shrink, compiled=not quick)
    yield from _muon(before, device, BLOCKS if not quick else 1)


def _products(
    name: str, shapes: list[tuple[int, int, int]], draw: Callable[..., Tensor]
) -> dict[str, Any]:
    """Time the three products of each linear layer: forward, by its input, by its weight."""
    pairs = []
    for rows, inward, outward in shapes:
        x, y, weight = draw(rows, inward), draw(rows, outward), draw(outward, inward)
        pairs += [(x, weight.t()), (y, weight), (y.t(), x)]

    def multiply() -> None:
        for left, right in pairs:
            torch.mm(left, right)

    milliseconds = timed_ms(multiply)
    flops = sum(6 * rows * inward * outward for rows, inward, outward in shapes)
    return {"what": name, "ms": milliseconds, "TFLOP/s": flops / milliseconds / 1e9}


def _attention(
    shape: tuple[int, ...], backend: str, draw: Callable[..., Tensor], shrink: int
) -> dict[str, Any]:
    name = f"attention {shape}, {backend}"
    sequences, *rest = shape
    query, key, value = (
        draw(max(1, sequences // shrink), *rest).requires_grad_() for _ in range(3)
    )
    gradient = torch.randn_like(query)

    def both() -> None:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        torch.autograd.grad(out, (query, key, value), gradient)

    try:
        return {"what": name, "ms": timed_ms(both)}
    except RuntimeError as error:
        return {"what": name, "said": str(error)[:200]}


def _loss_kernels(
    before: str | None, draw: Callable[..., Tensor], rows: int, vocabulary: int, *, compiled: bool
) -> Iterator[dict[str, Any]]:
    """Time what is computed of logits, as it is and as it was."""
    from transfer_cli.model import vocabulary_loss

    logits = draw(rows, vocabulary)
    target = torch.randint(vocabulary, (rows, 1), device=logits.device)
    for name, module in _modules(vocabulary_loss, before).items():
        work = module._compiled() if compiled else module._at_once
        milliseconds = timed_ms(partial(work, logits, target))
        yield {"what": f"loss of {rows} rows, {name}", "ms": milliseconds}


def _muon(before: str | None, device: str, blocks: int) -> Iterator[dict[str, Any]]:
    """Time a step of Muon over the matrices of a model's blocks."""
    from transfer_cli.optim import muon

    shapes = [(3 * WIDTH, WIDTH), (WIDTH, WIDTH), (INNER, WIDTH), (WIDTH, INNER)] * blocks
    for name, module in _modules(muon, before).items():
        matrices = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
        for matrix in matrices:
            matrix.grad = torch.randn_like(matrix)
        optimizer = module.MuonWithAdamW(matrices)
        milliseconds = timed_ms(optimizer.step, 10)
        yield {"what": f"Muon, {len(matrices)} matrices, {name}", "ms": milliseconds}


def _modules(now: ModuleType, before: str | None) -> dict[str, ModuleType]:
    """Return a module, and that of the earlier commit under a name of its own."""
    modules = {"now": now}
    if before is not None:
        file = Path(before, *now.__name__.split(".")).with_suffix(".py")
        modules["before"] = SourceFileLoader(f"before_{file.stem}", str(file)).load_module()
    return modules
