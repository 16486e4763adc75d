"""Compare sparse attention with dense attention on texts of growing length.

    python scripts/bench/sparse_attention.py [--data-dir DIR] [--rounds N] [--steps N]
        [--part times|losses] [--lengths 512 ...] [--device cuda] [--quick] [--json FILE]

Time and memory of a step of `transfer pretrain` on the same number of tokens, in processes of their
own that take turns, on one thread; then whole runs of equally many tokens of WikiText-2, and their
loss on a part of its validation text, cut into texts of the same length. Blocks have about the
square root of a text's positions. On a GPU steps are timed of a larger model and more tokens, in
bfloat16; memory is that of the GPU.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import measuring
import product
from measuring import Command, Figure, Report, Variant

DENSE = "full"
KINDS = (DENSE, "strided", "fixed")
BLOCKS = {512: 32, 1024: 32, 2048: 64, 4096: 64, 8192: 128, 32768: 128}
TRIAL = {32: 4, 64: 8}
SMALL = (
    "model=small", "model.width=128", "model.heads=4", "model.depth=2", "model.feedforward=512",
    "model.dropout=0", "model.position_kind=rotary",
)  # fmt: skip
ON_A_GPU = (
    "model=base", "model.dropout=0", "model.position_kind=rotary", "precision=bf16",
)  # fmt: skip
"""What is timed there, where `SMALL` would leave the GPU nothing to do."""
TOKENS_OF_A_STEP, STEPS_OF_A_TURN = 65_536, 10
"""There, too."""
TOKENS = 8192
"""Of a step."""
TO_LEARN, TO_VALIDATE = 3_000_000, 120_000
"""Characters of both texts: no run sees all of the first."""


@dataclass(frozen=True)
class Setting:
    """An attention, and the length of its texts.

    Args:
        kind: `model.attention`.
        length: Tokens of a text.
        block: `model.window`.
        tokens: Of a step.
        device: Where it computes.
    """

    kind: str
    length: int
    block: int
    tokens: int
    device: str

    @property
    def name(self) -> str:
        """Both, in words."""
        return f"{self.kind} {self.length}"

    def words(self, model: Sequence[str] = SMALL) -> list[str]:
        """Return the overrides that make `transfer` train this."""
        return [
            *model, "tokenizer=bpe", "tokenizer.size=2048", "optimizer.lr=3e-3",
            f"device={self.device}", f"model.attention={self.kind}", f"model.window={self.block}",
            f"model.positions={self.length}", f"loop.batch={self.tokens // self.length}",
        ]  # fmt: skip


def write_texts(source: Path, folder: Path) -> list[str]:
    """Write the beginnings of both texts; return the overrides that name them."""
    found = ["data=text"]
    for name, file, most in (
        ("train", "train.txt", TO_LEARN), ("validation", "valid.txt", TO_VALIDATE)
    ):  # fmt: skip
        with (source / file).open(encoding="utf-8") as text:
            (folder / file).write_text(text.read(most), encoding="utf-8")
        found.append(f"data.{name}={folder / file}")
    return found


def losses(settings: Sequence[Setting], steps: int, data: Sequence[str], folder: Path) -> Report:
    """Measure the loss on validation after a whole run of each setting."""
    rows = [["length", *map(_called, KINDS)]]
    for setting in settings:
        run = folder / setting.name.replace(" ", "-")
        words = [
            sys.executable, "-m", "transfer_cli", "pretrain", *setting.words(), *data,
            f"loop.steps={steps}", f"loop.evaluate_every={steps} steps",
            "schedule.warmup=0.1", f"run.dir={run}",
        ]  # fmt: skip
        measuring.once(Command(setting.name, words, _cache(folder)), threads=1)
        results = json.loads((run / "results.json").read_text("utf-8"))
        if setting.kind == DENSE:
            rows.append([f"{setting.length}"])
        rows[-1].append(f"{results['measures']['validation']['loss']:.3f}")
        print(*rows[-1], file=sys.stderr, flush=True)
    tokens = f"{steps * settings[0].tokens:,} tokens, {steps} steps"
    return Report("Loss on validation, nats a token", rows=rows, notes=[f"After {tokens}."])


def times_on_a_gpu(
    settings: Sequence[Setting], rounds: int, data: Sequence[str], folder: Path
) -> Report:
    """Measure time and memory of steps on a GPU; those of one length take turns."""
    header = ["length", "block", "attention", "ms a step", "of dense", "peak GPU MiB"]
    rows, figures = [header], list[Figure]()
    words = [*data, f"run.root={folder / 'runs'}", *product.ENDLESS]
    for first in range(0, len(settings), len(KINDS)):
        of_length = [
            replace(each, tokens=TOKENS_OF_A_STEP) for each in settings[first : first + len(KINDS)]
        ]
        variants = [
            Variant(
                each.name, "gpu", "transfer_run",
                {
                    "words": [*each.words(ON_A_GPU), *words], "steps": STEPS_OF_A_TURN,
                    "device": each.device,
                },
                env=_cache(folder),
            )
            for each in of_length
        ]  # fmt: skip
        found = measuring.take_turns(variants, rounds=rounds, unmeasured=0, at_once=2)
        for setting, figure in zip(of_length, found, strict=True):
            rows.append([
                str(setting.length), str(setting.block), _called(setting.kind),
                f"{1000 * figure.wall_s / STEPS_OF_A_TURN:.1f}",
                f"{measuring.ratio(figure, found[0]):.2f}", f"{figure.noted('gpu_mib'):,.0f}",
            ])  # fmt: skip
            print(*rows[-1], file=sys.stderr, flush=True)
        figures += found
    notes = [f"{TOKENS_OF_A_STEP:,} tokens a step."]
    return Report("Sparse and dense attention by length, on a GPU", figures, rows=rows, notes=notes)


def times(settings: Sequence[Setting], rounds: int, data: Sequence[str], folder: Path) -> Report:
    """Measure time and memory of a step of each setting; those of one length take turns."""
    words = [*data, f"run.root={folder / 'runs'}", *product.UNDISTURBED]
    header = ["length", "block", "attention", "wall s", "CPU s", "of dense", "peak MiB", ""]
    rows, figures = [header], list[Figure]()
    for first in range(0, len(settings), len(KINDS)):
        of_length = settings[first : first + len(KINDS)]
        variants = [
            Variant(
                each.name, "product", "bare_loop", {"words": [*each.words(), *words]},
                env=_cache(folder),
            )
            for each in of_length
        ]  # fmt: skip
        found = measuring.take_turns(variants, rounds=rounds, threads=1)
        for setting, figure in zip(of_length, found, strict=True):
            rows.append(_row(setting, figure, measuring.ratio(figure, found[0], "cpu_s")))
            print(*rows[-1], file=sys.stderr, flush=True)
        figures += found
    notes = [f"{settings[0].tokens:,} tokens a step, one thread."]
    return Report("Sparse and dense attention by length", figures, rows=rows, notes=notes)


def _cache(folder: Path) -> dict[str, str]:
    return {"TRANSFER_CACHE": str(folder / "cache")}


def _called(kind: str) -> str:
    return "dense" if kind == DENSE else kind


def _row(setting: Setting, figure: Figure, share: float) -> list[str]:
    return [
        str(setting.length), str(setting.block), _called(setting.kind), f"{figure.wall_s:.2f}",
        f"{figure.cpu_s:.2f}", f"{share:.2f}", f"{figure.peak_mib:,.0f}",
        "disturbed" if figure.disturbed else "",
    ]  # fmt: skip


def reports(asked: argparse.Namespace) -> list[Report]:
    """Compare at all lengths."""
    blocks = TRIAL if asked.quick else {n: BLOCKS[n] for n in asked.lengths}
    tokens = max(TRIAL) if asked.quick else TOKENS
    settings = [
        Setting(kind, length, block, tokens, asked.device)
        for length, block in blocks.items()
        for kind in KINDS
    ]
    with tempfile.TemporaryDirectory(prefix="sparse-") as made:
        folder = Path(made)
        data = write_texts(asked.data_dir / "wikitext-2", folder)
        found = []
        if asked.part != "losses":
            measure = times if asked.device == "cpu" else times_on_a_gpu
            found.append(measure(settings, asked.rounds or 3, data, folder))
        if asked.part != "times":
            found.append(losses(settings, asked.steps, data, folder))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison from the command line."""
    parser = measuring.parser(__doc__)
    measuring.add_data_dir(parser)
    parser.add_argument("--part", choices=["times", "losses"], help="one of the two tables alone")
    parser.add_argument("--lengths", type=int, nargs="+", choices=BLOCKS, default=list(BLOCKS)[:-1])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=24, help="of the runs whose loss is compared")
    asked = parser.parse_args(argv)
    if measuring.device_is_missing(asked.device):
        return 2
    measuring.show(reports(asked), asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
