"""Compare training on a GPU with a compiled plain loop and with Hugging Face's Trainer.

    python scripts/bench/gpu.py [--sizes tutorial base base-long bert-base] [--steps 20]

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
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import measuring
import product
from growth import flops_per_token
from measuring import Gate, Goal, Report, Variant, compare

PRESETS = {
    "tutorial": "tutorial-fast",
    "base": "base",
    "base-long": "base",
    "bert-base": "bert-base",
}
SIZES = {
    name: dict(zip(product.SIZES, numbers, strict=True))
    for name, numbers in {
        # width, heads, depth, feed-forward, vocabulary, length, batch
        "tutorial": (448, 7, 16, 1792, 29_056, 256, 64),
        "base": (512, 8, 11, 2048, 29_056, 256, 64),
        "base-long": (512, 8, 11, 2048, 29_056, 1024, 16),
        "bert-base": (768, 12, 12, 3072, 29_056, 512, 32),
    }.items()
}
TRIAL = dict(zip(product.SIZES, (64, 1, 1, 128, 512, 32, 4), strict=True))

MFU_GOALS = {"base": 0.45, "bert-base": 0.55}
NOMINAL_TFLOPS = {"H100": 989.4, "H200": 989.4, "A100": 312.0}
"""Dense bfloat16, by what the name of the GPU contains (Nvidia's data sheets)."""

OURS, PLAIN, TRAINER = "transfer", "nanoGPT-style loop", "Hugging Face GPT-2, Trainer"
SQUARE = 8192


def run_words(
    name: str, asked: argparse.Namespace, folder: Path
) -> tuple[dict[str, int], list[str], product.Material]:
    """Return a size, the overrides of our run of it, and what that reads."""
    size = TRIAL if asked.quick else SIZES[name]
    tokens = 40 * size["batch"] * size["length"]
    material = product.make_material(folder, size["vocabulary"], tokens)
    precision = "fp32" if asked.quick else "bf16"
    words = [
        f"model={PRESETS[name]}", *product.model_words(size), "model.attention_dropout=0",
        f"loop.compile={str(not asked.quick).lower()}", "loop.log_every=50", *material.words,
        *product.ENDLESS, f"device={asked.device}", f"precision={precision}",
    ]  # fmt: skip
    return size, words, material


def measure(asked: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Measure each size."""
    peak, line = peak_of(asked.device)
    print(line)
    yield from (of_size(name, asked, folder, peak) for name in asked.sizes)


def of_size(name: str, asked: argparse.Namespace, folder: Path, peak_tflops: float) -> Report:
    """Let the ways to train one size take turns."""
    size, words, material = run_words(name, asked, folder)
    common = {"steps": asked.steps, "device": asked.device}
    theirs = {**common, "size": size, "compiled": not asked.quick}
    ways = [
        material.worker(words, OURS, "gpu", "transfer_run", **common),
        Variant(PLAIN, "gpu", "plain_loop", theirs),
    ]
    has_trainer = asked.peers and measuring.can_import(asked.peers, "transformers", "accelerate")
    ways += [Variant(TRAINER, "gpu", "trainer", theirs, asked.peers)] if has_trainer else []
    # Two turns of each beside the others: all compile at the same time.
    figures = measuring.take_turns(
        ways, rounds=asked.rounds, unmeasured=0, at_once=2, threads=asked.threads
    )
    tokens, flops = size["batch"] * size["length"] * asked.steps, flops_per_token(size)
    shares = {f.name: tokens / f.wall_s * flops / (peak_tflops * 1e12) for f in figures}
    rows = measuring.rows_of(figures, {
        "ms a step": lambda figure: f"{1000 * figure.wall_s / asked.steps:.2f}",
        "tokens/s": lambda figure: f"{tokens / figure.wall_s:,.0f}",
        "MFU": lambda figure: f"{shares[figure.name]:.1%}",
        "peak GPU MiB": lambda figure: f"{figure.noted('gpu_mib'):,.0f}",
    })  # fmt: skip
    ours, *peers = figures
    goals = [
        compare(f"{name}: time over that of {peer.name}", ours, peer, limit)
        for peer, limit in zip(peers, (1.0, 1 / 1.4), strict=False)
    ]
    for trainer in peers[1:]:
        ratio = ours.noted("gpu_mib") / max(1.0, trainer.noted("gpu_mib"))
        goals.append(Goal(f"{name}: GPU memory over that of {TRAINER}", ratio, 0.5))
    if name in MFU_GOALS:
        goals.append(Goal(f"{name}: MFU", shares[OURS], MFU_GOALS[name], at_most=False))
    notes = [] if has_trainer else [measuring.NO_PEERS]
    title = f"{name}: {size['batch']} x {size['length']} tokens a step on {asked.device}"
    return Report(title, figures, goals, rows, notes)


# -------------------------------------------------------------------------------------- workers


class EveryFew:
    """A gate that is reached every few steps: between them the host runs ahead of the GPU."""

    def __init__(self, arrive: Gate, steps: int, device: str) -> None:
        self._arrive, self._steps, self._is_gpu = arrive, steps, device.startswith("cuda")
        self._taken = 0

    def __call__(self) -> None:
        """Count a step; at the last of a turn wait for the GPU, and for the next turn."""
        import torch

        if self._taken % self._steps == 0:
            if self._is_gpu:
                torch.cuda.synchronize()
            mib = torch.cuda.max_memory_allocated() / 2**20 if self._is_gpu else 0.0
            self._arrive.note(gpu_mib=mib)
            self._arrive()
        self._taken += 1


def transfer_run(arrive: Gate, words: Sequence[str], steps: int, device: str) -> None:
    """Run the whole of `transfer pretrain`."""
    product.pretrain(EveryFew(arrive, steps, device), words)


def plain_loop(
    arrive: Gate, size: Mapping[str, int], steps: int, device: str, *, compiled: bool
) -> None:
    """Train a nanoGPT-style model with what makes such a loop fast on a GPU."""
    import peers

    peers.plain_loop(EveryFew(arrive, steps, device), size, device=device, compiled=compiled)


def trainer(
    arrive: Gate, size: Mapping[str, int], steps: int, device: str, *, compiled: bool
) -> None:
    """Train GPT-2 under Hugging Face's `Trainer` with its fast settings."""
    import peers

    settings: dict[str, Any] = {"optim": "adamw_torch_fused"}
    if compiled:
        settings |= {"bf16": True, "torch_compile": True}
    if device == "cpu":
        settings |= {"use_cpu": True}
    else:
        settings |= {"dataloader_num_workers": 2, "dataloader_pin_memory": True}
    peers.gpt2_trainer(EveryFew(arrive, steps, device), size, "gelu_new", **settings)


def peak_of(device: str) -> tuple[float, str]:
    """Return the TFLOP/s that shares are of, and a line that says what they are."""
    import torch

    if not device.startswith("cuda"):
        return 1.0, "no GPU: shares mean nothing"
    name = torch.cuda.get_device_name(device)
    a, b = (torch.randn(SQUARE, SQUARE, device=device, dtype=torch.bfloat16) for _ in range(2))
    for number in range(60):
        if number == 10:
            torch.cuda.synchronize()
            began = time.perf_counter()
        a @ b
    torch.cuda.synchronize()
    measured = 50 * 2 * SQUARE**3 / (time.perf_counter() - began) / 1e12
    nominal = next((v for key, v in NOMINAL_TFLOPS.items() if key in name), measured)
    return nominal, (
        f"{name}: shares are of {nominal:,.0f} TFLOP/s (bfloat16, dense); a product of "
        f"{SQUARE} x {SQUARE} matrices reaches {measured:,.0f}"
    )


if __name__ == "__main__":
    sizes = {"nargs": "+", "choices": SIZES, "default": list(SIZES)}
    steps = {"type": int, "default": 20, "help": "steps of a turn"}
    options = {"--sizes": sizes, "--steps": steps}
    measuring.main(__doc__, measure, options, rounds=5, device="cuda")
