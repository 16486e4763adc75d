"""What each part of `experiment=recipe/clm` brings: run what is missing, print a table.

    python scripts/recipe_ablation.py OUT_DIR --data-dir DIR [--seeds 0] [--variants NAME ...]
        [--steps 500] [--share 0.25] [--lines 600] [--jobs 1]

DIR holds `wikitext-2/` with train.txt, valid.txt and test.txt. The tutorial's recipe trains a small
model for `--steps` steps, at several rates; the recipe, and a reference with one part changed each
time, for `--share` of them, each with its schedule drawn over its own steps. The reference is the
recipe with beta2 0.95 and a linear fall. All see the same number of tokens a step. Validation is on
the first `--lines` lines of valid.txt, and the loss is in nats a token. Runs that are finished stay
as they are, so the same line goes on where an earlier one was stopped, and prints the table anew
where nothing is left to do.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from logged_run import CPU, train

MODEL = (
    "model.width=192", "model.depth=4", "model.heads=3", "model.feedforward=768",
    "model.positions=256", "tokenizer.size=4096", "data.length=128", "loop.batch=16",
)  # fmt: skip
"""2.6M parameters and 2,048 tokens a step: minutes on one core."""

ONLY_AT_THE_END = ("loop.evaluate_every=1000 epochs", "checkpoint.every=1000 epochs")

TUTORIAL_FORM = ("model.residual=tutorial", "model.activation=relu", "model.output_bias=false")

TUTORIAL = (*TUTORIAL_FORM, "schedule=cosine", "schedule.warmup=0.1")
"""Its form, AdamW with the usual averages, and a cosine; its rate is chosen among `tutorial, ...`.

The published 1,000 steps of warm-up are 0.3 % of its run, too few of a run of 500."""

RECIPE = ("experiment=recipe/clm",)

REFERENCE = "reference"
BASE = (
    *RECIPE, "optimizer.betas=[0.9,0.95]",
    "schedule=linear", "schedule.warmup=0.05",
)  # fmt: skip
"""What parts are taken from: the recipe as it was before two of them turned out to be better."""
ADAMW = (*BASE, "optimizer=adamw")
DEEP = ("model.width=128", "model.heads=2", "model.depth=12", "model.feedforward=512")

VARIANTS: dict[str, tuple[bool, Sequence[str]]] = {
    # name: (whether it has all the steps, overrides)
    "tutorial, rate 2.5e-4": (True, (*TUTORIAL, "optimizer.lr=2.5e-4")),
    "tutorial, rate 5e-4": (True, (*TUTORIAL, "optimizer.lr=5e-4")),
    "tutorial, rate 1e-3": (True, (*TUTORIAL, "optimizer.lr=1e-3")),
    "recipe": (False, RECIPE),
    REFERENCE: (False, BASE),
    "AdamW for Muon, rate 1e-3": (False, (*ADAMW, "optimizer.lr=1e-3")),
    "AdamW for Muon, rate 2e-3": (False, (*ADAMW, "optimizer.lr=2e-3")),
    "AdamW for Muon, rate 4e-3": (False, (*ADAMW, "optimizer.lr=4e-3")),
    "the tutorial's residual form for pre-norm": (False, (*BASE, "model.residual=tutorial")),
    "ReLU for GELU": (False, (*BASE, "model.activation=relu")),
    "cosine for linear": (False, (*BASE, "schedule=cosine")),
    "trapezoid for linear": (False, (*BASE, "schedule=trapezoid")),
    "beta2 0.999 for 0.95": (False, (*BASE, "optimizer.betas=[0.9,0.999]")),
    "rate 8e-3 for 4e-3": (False, (*BASE, "optimizer.lr=8e-3")),
    "12 blocks of width 128": (False, (*BASE, *DEEP)),
    "12 blocks of width 128, the tutorial's residual form": (
        False, (*BASE, *DEEP, "model.residual=tutorial"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What all runs share.

    Args:
        out: Where run directories go.
        data_dir: Where `wikitext-2/` lies, with the short validation text.
        steps: Of the tutorial's recipe.
        share: Of these, what the others have.
    """

    out: Path
    data_dir: Path
    steps: int
    share: float


def shortened(data_dir: Path, out: Path, lines: int) -> Path:
    """Return a data folder whose validation and test texts are the first lines of the real ones."""
    for part in ("train", "valid", "test"):
        target = out / "data" / "wikitext-2" / f"{part}.txt"
        if target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with (data_dir / "wikitext-2" / f"{part}.txt").open(encoding="utf-8") as text:
            most = {"train": None, "valid": lines, "test": lines // 10}[part]
            target.write_text("".join(islice(text, most)), encoding="utf-8")
    return out / "data"


def overrides(variant: str, seed: int, setting: Setting) -> list[str]:
    """Return what `transfer pretrain` is given."""
    whole, own = VARIANTS[variant]
    steps = setting.steps if whole else round(setting.share * setting.steps)
    words = [
        "data=wikitext2", *MODEL, *ONLY_AT_THE_END, *own, f"loop.steps={steps}", f"seed={seed}",
        f'data_dir="{setting.data_dir}"', f'run.dir="{folder_of(variant, seed, setting)}"',
        "device=cpu",
    ]  # fmt: skip
    # What is said later wins, such as another width.
    return list({word.partition("=")[0]: word for word in words}.values())


def folder_of(variant: str, seed: int, setting: Setting) -> Path:
    """Return where a run's files go."""
    steps = setting.steps if VARIANTS[variant][0] else round(setting.share * setting.steps)
    name = "".join(c if c.isalnum() or c == "-" else "_" for c in variant)
    return setting.out / f"{steps}-steps" / name / f"seed-{seed}"


def perform(variant: str, seed: int, setting: Setting) -> str | None:
    """Train, unless it is done; return why nothing came of it, None when something did."""
    folder = folder_of(variant, seed, setting)
    if (folder / CPU).exists():
        return None
    return train("pretrain", overrides(variant, seed, setting), folder, f"{variant}, seed {seed}")


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Args:
        steps: That it took.
        loss: On the validation text, in nats a token.
        cpu_s: CPU-seconds of the whole command.
    """

    steps: int
    loss: float
    cpu_s: float


def outcome(folder: Path) -> Outcome:
    """Return what a finished run came to."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    loss = results["measures"]["validation"]["loss"]
    cpu_s = json.loads((folder / CPU).read_text(encoding="utf-8"))
    return Outcome(results["seen"]["steps"], loss, cpu_s)


def table(found: dict[str, list[Outcome]]) -> str:
    """Return the Markdown table of all variants, with what each has over the reference."""
    known = [o.loss for o in found.get(REFERENCE, [])]
    against = statistics.mean(known) if known else None
    lines = [
        "| run | steps | validation loss | over the reference | CPU-seconds |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, outcomes in found.items():
        loss = statistics.mean(o.loss for o in outcomes)
        over = "" if against is None or name == REFERENCE else f"{loss - against:+.3f}"
        losses = " ".join(f"{o.loss:.3f}" for o in outcomes)
        cpu_s = statistics.mean(o.cpu_s for o in outcomes)
        lines.append(f"| {name} | {outcomes[0].steps} | {losses} | {over} | {cpu_s:.0f} |")
    return "\n".join(lines)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder for the run directories")
    parser.add_argument("--data-dir", type=Path, required=True, help="where wikitext-2/ lies")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--steps", type=int, default=500, help="of the tutorial's recipe")
    parser.add_argument("--share", type=float, default=0.25, help="what of these the others have")
    parser.add_argument("--lines", type=int, default=600, help="of the validation text")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run what is missing and print the table; return 1 where a run came to nothing."""
    chosen = arguments(words)
    out = chosen.out.expanduser().resolve()
    data_dir = shortened(chosen.data_dir.expanduser().resolve(), out, chosen.lines)
    setting = Setting(out, data_dir, chosen.steps, chosen.share)
    runs = [(variant, seed) for seed in chosen.seeds for variant in chosen.variants]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        reasons = list(pool.map(lambda run: perform(*run, setting), runs))
    found: dict[str, list[Outcome]] = {}
    for variant in chosen.variants:
        folders = [folder_of(variant, seed, setting) for seed in chosen.seeds]
        done = [outcome(folder) for folder in folders if (folder / CPU).exists()]
        if done:
            found[variant] = done
    print(table(found))
    broken = [reason for reason in reasons if reason is not None]
    for reason in broken:
        print(f"nothing came of {reason}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
