"""Compare training on a GPU with a compiled plain loop and with Hugging Face's Trainer.

    python scripts/bench/gpu.py [--peers PYTHON] [--sizes tutorial base base-long bert-base]
        [--rounds N] [--steps 20] [--device cuda] [--quick] [--json FILE]

One command, meant to end within nine minutes on one large GPU: for each size `transfer pretrain`
(bf16, `loop.compile=true`), a nanoGPT-style loop (bf16, compiled, fused AdamW) and GPT-2 under
Hugging Face's Trainer (bf16, compiled, fused AdamW) take turns of `--steps` steps on random tokens.
It prints tokens a second, the share of the GPU's arithmetic that the model's own comes to (MFU),
and the peak of the GPU's memory.

All sizes are multiples of 64, the vocabulary included: on others a GPU multiplies with a part of
its units. So `tutorial` here is the preset `tutorial-fast`. Nothing is compiled with `--quick`,
which also runs without a GPU (`--device cpu`).
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import measuring
import product
from growth import flops_per_token
from measuring import Goal, Report, Variant, compare

VOCABULARY = 29_056

SIZES: dict[str, tuple[str, dict[str, int]]] = {
    # name: (preset of ours, sizes as the peers take them)
    "tutorial": (
        "tutorial-fast",
        {"width": 448, "heads": 7, "depth": 16, "feedforward": 1792, "length": 256, "batch": 64},
    ),
    "base": (
        "base",
        {"width": 512, "heads": 8, "depth": 11, "feedforward": 2048, "length": 256, "batch": 64},
    ),
    "base-long": (
        "base",
        {"width": 512, "heads": 8, "depth": 11, "feedforward": 2048, "length": 1024, "batch": 16},
    ),
    "bert-base": (
        "bert-base",
        {"width": 768, "heads": 12, "depth": 12, "feedforward": 3072, "length": 512, "batch": 32},
    ),
}
_TRIAL = {"width": 64, "heads": 1, "depth": 1, "feedforward": 128, "length": 32, "batch": 4}

MFU_GOALS = {"base": 0.45, "bert-base": 0.55}

NOMINAL_TFLOPS = {"H100": 989.4, "H200": 989.4, "A100": 312.0}
"""Dense bfloat16, by what the name of the GPU contains (Nvidia's data sheets)."""

OURS, PLAIN, TRAINER = "transfer", "nanoGPT-style loop", "Hugging Face GPT-2, Trainer"
SQUARE = 8192


def variants(name: str, asked: argparse.Namespace, folder: Path) -> list[Variant]:
    """Return the ways to train a model of a size."""
    preset, size = SIZES[name]
    if asked.quick:
        size = _TRIAL
    size = {**size, "vocabulary": 512 if asked.quick else VOCABULARY}
    material = product.make_material(
        folder, size["vocabulary"], 40 * size["batch"] * size["length"]
    )
    words = [
        f"model={preset}",
        f"model.width={size['width']}",
        f"model.heads={size['heads']}",
        f"model.depth={size['depth']}",
        f"model.feedforward={size['feedforward']}",
        f"model.positions={size['length']}",
        "model.attention_dropout=0",
        f"loop.batch={size['batch']}",
        f"loop.compile={str(not asked.quick).lower()}",
        "loop.log_every=50",
        *material.words,
        *product.ENDLESS,
        f"device={asked.device}",
        f"precision={'fp32' if asked.quick else 'bf16'}",
    ]
    common = {"steps": asked.steps, "device": asked.device}
    own = {**common, "words": words}
    theirs = {**common, "size": size, "compiled": not asked.quick}
    found = [
        Variant(OURS, "gpu", "transfer_run", own, env=material.env, terminal=True),
        Variant(PLAIN, "gpu", "plain_loop", theirs),
    ]
    peers = measuring.peers_of(asked.peers)
    if peers and measuring.can_import(peers, "transformers", "accelerate"):
        found.append(Variant(TRAINER, "gpu", "trainer", theirs, peers))
    return found


def measure(name: str, asked: argparse.Namespace, peak_tflops: float) -> Report:
    """Let the ways to train one size take turns."""
    size = _TRIAL if asked.quick else SIZES[name][1]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        ways, rounds = variants(name, asked, Path(folder)), asked.rounds or 5
        # Two turns of each beside the others: all compile at the same time.
        figures = measuring.take_turns(
            ways, rounds=rounds, unmeasured=0, at_once=2, threads=asked.threads
        )
    vocabulary = 512 if asked.quick else VOCABULARY
    sizes = size["width"], size["depth"], size["feedforward"], vocabulary
    flops = flops_per_token(*sizes, size["length"])
    tokens = size["batch"] * size["length"] * asked.steps
    rows = [["variant", "ms a step", "tokens/s", "MFU", "peak GPU MiB"]]
    for figure in figures:
        speed = tokens / figure.wall_s
        rows.append(
            [
                figure.name,
                f"{1000 * figure.wall_s / asked.steps:.2f}",
                f"{speed:,.0f}",
                f"{speed * flops / (peak_tflops * 1e12):.1%}",
                f"{figure.noted('gpu_mib'):,.0f}",
            ]
        )
    goals = []
    for peer in figures[1:]:
        limit = 1 / 1.4 if peer.name == TRAINER else 1.0
        goals.append(compare(f"{name}: time over that of {peer.name}", figures[0], peer, limit))
        if peer.name == TRAINER and peer.noted("gpu_mib"):
            ratio = figures[0].noted("gpu_mib") / peer.noted("gpu_mib")
            goals.append(Goal(f"{name}: GPU memory over that of {peer.name}", ratio, 0.5))
    if name in MFU_GOALS:
        share = tokens / figures[0].wall_s * flops / (peak_tflops * 1e12)
        goals.append(Goal(f"{name}: MFU", share, MFU_GOALS[name], at_most=False))
    notes = [] if TRAINER in {figure.name for figure in figures} else [measuring.NO_PEERS]
    title = f"{name}: {size['batch']} x {size['length']} tokens a step on {asked.device}"
    return Report(title, figures, goals, rows=rows, notes=notes)


# -------------------------------------------------------------------------------------- workers


class _EveryFew:
    """A gate that is reached every few steps: between them the host runs ahead of the GPU."""

    def __init__(self, arrive: measuring.Gate, steps: int, device: str) -> None:
        self._arrive, self._steps, self._device = arrive, steps, device
        self._taken = 0

    def __call__(self) -> None:
        """Count a step; at the last of a turn wait for the GPU, and for the next turn."""
        import torch

        if self._taken % self._steps == 0:
            if self._device.startswith("cuda"):
                torch.cuda.synchronize()
                self._arrive.note(gpu_mib=torch.cuda.max_memory_allocated() / 2**20)
            else:
                self._arrive.note(gpu_mib=0.0)
            self._arrive()
        self._taken += 1


def transfer_run(arrive: Any, words: Sequence[str], steps: int, device: str) -> None:
    """Run the whole of `transfer pretrain`."""
    product.pretrain(_EveryFew(arrive, steps, device), words)


def plain_loop(
    arrive: Any,
    size: Mapping[str, int],
    steps: int,
    device: str,
    *,
    compiled: bool,
) -> None:
    """Train a nanoGPT-style model with what makes such a loop fast on a GPU."""
    import torch
    import torch.nn.functional as F
    from peers import CLIP, RATE, PlainLanguageModel, Size

    s, stop = Size(**size), _EveryFew(arrive, steps, device)
    model = PlainLanguageModel(s).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.partition(":")[0], torch.bfloat16, enabled=compiled):
            logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    run = torch.compile(loss_of) if compiled else loss_of
    for tokens in _batches(s, device):
        stop()
        run(tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _batches(size: Any, device: str) -> Iterator[Any]:
    """Yield `[batch, length + 1]` random tokens, which lie on the device."""
    import torch

    generator = torch.Generator().manual_seed(0)
    shape = (16, size.batch, size.length + 1)
    made = torch.randint(5, size.vocabulary, shape, generator=generator).to(device)
    while True:
        yield from made


def trainer(
    arrive: Any,
    size: Mapping[str, int],
    steps: int,
    device: str,
    *,
    compiled: bool,
) -> None:
    """Train GPT-2 under Hugging Face's `Trainer` with its fast settings."""
    from peers import Size, gpt2, train_with_trainer

    settings: dict[str, Any] = {"optim": "adamw_torch_fused"}
    if compiled:
        settings |= {"bf16": True, "torch_compile": True}
    if device == "cpu":
        settings |= {"use_cpu": True}
    else:
        settings |= {"dataloader_num_workers": 2, "dataloader_pin_memory": True}
    stop: Callable[[], None] = _EveryFew(arrive, steps, device)
    train_with_trainer(stop, gpt2(Size(**size)), Size(**size), **settings)


def peak_of(device: str) -> tuple[float, str]:
    """Return the TFLOP/s that shares are of, and a line that says what they are."""
    import torch

    if not device.startswith("cuda"):
        return 1.0, "no GPU: shares mean nothing"
    name = torch.cuda.get_device_name(device)
    a, b = (torch.randn(SQUARE, SQUARE, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(10):
        a @ b
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(50):
        a @ b
    torch.cuda.synchronize()
    measured = 50 * 2 * SQUARE**3 / (time.perf_counter() - began) / 1e12
    nominal = next((v for key, v in NOMINAL_TFLOPS.items() if key in name), measured)
    return nominal, (
        f"{name}: shares are of {nominal:,.0f} TFLOP/s (bfloat16, dense); a product of "
        f"{SQUARE} x {SQUARE} matrices reaches {measured:,.0f}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark from the command line."""
    parser = measuring.parser(__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--steps", type=int, default=20, help="steps of a turn")
    parser.add_argument("--device", default="cuda")
    asked = parser.parse_args(argv)
    if measuring.device_is_missing(asked.device):
        return 2
    peak, line = peak_of(asked.device)
    print(line)
    reports = [measure(name, asked, peak) for name in asked.sizes]
    measuring.show(reports, asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
