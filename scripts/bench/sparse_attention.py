"""Compare sparse attention with dense attention on texts of growing length.

    python scripts/bench/sparse_attention.py [--steps N] [--part times|losses] [--lengths 512 ...]

Time and memory of a step of `transfer pretrain` on the same number of tokens, in processes of their
own that take turns, on one thread; then whole runs of equally many tokens of WikiText-2, and their
loss on a part of its validation text, cut into texts of the same length. Blocks have about the
square root of a text's positions. On a GPU there are the losses alone.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import measuring
import product
from measuring import Command, Figure, Report, Variant

KINDS = {"full": "dense", "strided": "strided", "fixed": "fixed"}
"""`model.attention`, and what tables call it."""
BLOCKS = {512: 32, 1024: 32, 2048: 64, 4096: 64, 8192: 128}
TRIAL = {32: 4, 64: 8}
SMALL = (
    "model=small", "model.width=128", "model.heads=4", "model.depth=2", "model.feedforward=512",
    "model.dropout=0", "model.position_kind=rotary",
)  # fmt: skip
TOKENS = 8192
TO_LEARN, TO_VALIDATE = 3_000_000, 120_000
"""Characters of both texts: no run sees all of the first."""


def measure(asked: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Compare at all lengths."""
    blocks = TRIAL if asked.quick else {n: BLOCKS[n] for n in asked.lengths}
    data = ["data=text", f"run.root={folder / 'runs'}"]
    for name, file, most in (
        ("train", "train.txt", TO_LEARN),
        ("validation", "valid.txt", TO_VALIDATE),
    ):
        with (asked.data_dir / "wikitext-2" / file).open(encoding="utf-8") as text:
            (folder / file).write_text(text.read(most), encoding="utf-8")
        data.append(f"data.{name}={folder / file}")
    env = {"TRANSFER_CACHE": str(folder / "cache")}
    if asked.part != "losses" and asked.device == "cpu":
        yield times(blocks, asked, data, env)
    if asked.part != "times":
        yield losses(blocks, asked, data, env, folder)


def words_of(kind: str, length: int, block: int, asked: argparse.Namespace) -> list[str]:
    """Return the overrides that make `transfer` train with an attention on texts of a length."""
    tokens = max(TRIAL) if asked.quick else TOKENS
    return [
        *SMALL, "tokenizer=bpe", "tokenizer.size=2048",
        "optimizer.lr=3e-3", f"device={asked.device}", f"model.attention={kind}",
        f"model.window={block}", f"model.positions={length}", f"loop.batch={tokens // length}",
    ]  # fmt: skip


def times(
    blocks: dict[int, int], asked: argparse.Namespace, data: Sequence[str], env: dict[str, str]
) -> Report:
    """Measure time and memory of a step of each setting; those of one length take turns."""
    header = ["length", "block", "attention", "wall s", "CPU s", "of dense", "peak MiB", ""]
    rows, figures = [header], list[Figure]()
    for length, block in blocks.items():
        variants = []
        for kind in KINDS:
            words = [*words_of(kind, length, block, asked), *data, *product.UNDISTURBED]
            options = {"words": words}
            variants.append(Variant(f"{kind} {length}", "product", "pretrain", options, env=env))
        dense, *_ = of_length = measuring.take_turns(variants, rounds=asked.rounds, threads=1)
        for kind, figure in zip(KINDS.values(), of_length, strict=True):
            share = measuring.ratio(figure, dense, "cpu_s")
            rows.append([
                str(length), str(block), kind, f"{figure.wall_s:.4f}",
                f"{figure.cpu_s:.4f}", f"{share:.2f}", f"{figure.peak_mib:,.0f}",
                "disturbed" if figure.disturbed else "",
            ])  # fmt: skip
            print(*rows[-1], flush=True)
        figures += of_length
    title = f"Sparse and dense attention by length, {TOKENS:,} tokens a step, one thread"
    return Report(title, figures, rows=rows)


def losses(
    blocks: dict[int, int], asked: argparse.Namespace, data: Sequence[str], env: dict[str, str],
    folder: Path,
) -> Report:  # fmt: skip
    """Measure the loss on validation after a whole run of each setting."""
    rows = [["length", *KINDS.values()]]
    for length, block in blocks.items():
        rows.append([f"{length}"])
        for kind in KINDS:
            run = folder / f"{kind}-{length}"
            words = [
                *words_of(kind, length, block, asked), *data, "schedule.warmup=0.1",
                f"loop.steps={asked.steps}", f"loop.evaluate_every={asked.steps} steps",
                f"run.dir={run}",
            ]  # fmt: skip
            measuring.once(
                Command(run.name, measuring.transfer("pretrain", *words), env), threads=1
            )
            results = json.loads((run / "results.json").read_text("utf-8"))
            rows[-1].append(f"{results['measures']['validation']['loss']:.3f}")
        print(*rows[-1], flush=True)
    title = f"Loss on validation after {asked.steps} steps, nats a token"
    return Report(title, rows=rows)


if __name__ == "__main__":
    part = {"choices": ["times", "losses"], "help": "one of the two tables alone"}
    lengths = {"type": int, "nargs": "+", "choices": BLOCKS, "default": list(BLOCKS)}
    steps = {"type": int, "default": 24, "help": "of the runs whose loss is compared"}
    options = {"--part": part, "--lengths": lengths, "--steps": steps}
    measuring.main(__doc__, measure, options, rounds=3)
