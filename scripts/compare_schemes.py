"""Compare adaptation schemes on TREC-6: run what is missing, print a table for each label count.

    python scripts/compare_schemes.py CHECKPOINT OUT_DIR [--data-dir DIR] [--seeds 0 1 2]
        [--labels 100 all] [--schemes full lora ...] [--jobs 1] [--forgetting TEXT]

CHECKPOINT is what `init_from` takes. Runs that are finished stay as they are, so the same line goes
on where an earlier one was stopped, and prints the table anew where nothing is left to do. A run
that fails does not stop the others; the script then ends with exit code 1.

Settings are chosen on validation, with the test set out of sight:

    python scripts/compare_schemes.py CHECKPOINT OUT_DIR --validation --rate 1e-4 5e-4 2e-3
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logged_run import is_finished, train

ALL = "all"
"""How people write that no label is left out."""


def rate(value: str) -> tuple[str]:
    """Return the override that sets the learning rate."""
    return (f"optimizer.lr={value}",)


OFTEN = "loop.evaluate_every=1 epoch"
"""Chain-thaw chooses among the evaluations of each stage, and has seven of them."""

SMALL_SECOND = ("mixing.power=0", "streams.second.batch=4", "streams.second.data.length=64")
"""Half of the steps read four blocks of text; by size to a power, text would take nearly all."""

SCHEMES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    # preset: (overrides for few labels, overrides for all labels)
    "scratch": (("adaptation=full", "init=scratch", *rate("3e-4")),) * 2,
    "frozen": (rate("3e-3"),) * 2,
    "feature_extraction": (rate("1e-2"),) * 2,
    "full": (rate("1e-3"),) * 2,
    "top_k": (rate("3e-3"),) * 2,
    "bias_only": (rate("1e-2"),) * 2,
    "adapters": (rate("1e-2"),) * 2,
    "adapters_tutorial": (rate("1e-3"),) * 2,
    "lora": (rate("3e-3"),) * 2,
    "discriminative": (rate("3e-4"),) * 2,
    "gradual_unfreezing": (rate("1e-3"),) * 2,
    "gradual_unfreezing_tutorial": (rate("1e-3"),) * 2,
    "chain_thaw": ((*rate("1e-2"), OFTEN), (*rate("1e-2"), "loop.evaluate_every=0.25 epochs")),
    "sequential_unfreezing": (rate("1e-3"),) * 2,
    "ulmfit": (rate("1e-2"),) * 2,
    "l2_sp": (rate("1e-3"),) * 2,
    "ewc": (rate("1e-3"),) * 2,
    "source_distillation": (rate("1e-3"),) * 2,
    "lm_auxiliary": (rate("3e-4"),) * 2,
    "siatl": (rate("1e-3"),) * 2,
    "multitask": ((*rate("1e-3"), *SMALL_SECOND),) * 2,
}
"""What each scheme is run with beyond `COMMON`: the best of four rates (3e-4, 1e-3, 3e-3, 1e-2) on
validation with 100 labels and seed 10, used for all labels too. `multitask` needs WikiText-2 in the
data folder."""

COMMON = (
    "data=trec6",
    "objective.pooling=mean",
    "loop.batch=16",
    "loop.monitor=accuracy",
    "checkpoint.every=1000 epochs",
    "loop.bucket=false",  # as what was published was made
)
FEW = ("loop.epochs=20", "loop.evaluate_every=2 epochs")
MANY = ("data.labelled=null", "loop.epochs=3", "loop.evaluate_every=0.5 epochs")

NONE = "-"
"""What a cell shows that has nothing to show."""

FAILED_MARK = "†"


@dataclass(frozen=True)
class Run:
    """One training run of the comparison.

    Args:
        scheme: A key of `SCHEMES`, or another adaptation preset.
        labels: How many labels, or "all".
        seed: The run's seed.
        rate: The learning rate in place of the scheme's own; None: its own.
    """

    scheme: str
    labels: str
    seed: int
    rate: float | None = None

    @property
    def row(self) -> str:
        """The name of its row in the table: runs that differ in the seed alone share it."""
        return self.scheme if self.rate is None else f"{self.scheme} lr={self.rate:g}"

    @property
    def name(self) -> str:
        """The folder of the run, below the script's own."""
        return f"{self.labels}-labels/{self.row.replace(' lr=', '-lr-')}/seed-{self.seed}"


@dataclass(frozen=True)
class Setting:
    """What all runs share.

    Args:
        checkpoint: What they start from.
        out: Where run directories go.
        data_dir: Where data sets lie; None: where `transfer` looks by itself.
        forgetting: A text on which forgetting is measured; None: it is not.
    """

    checkpoint: Path
    out: Path
    data_dir: Path | None = None
    forgetting: Path | None = None


# ----------------------------------------------------------------------------------- running


def overrides(run: Run, setting: Setting) -> list[str]:
    """Return what `transfer finetune` is given for a run, each key once."""
    few, many = SCHEMES.get(run.scheme, (rate("1e-3"),) * 2)
    words = [f"adaptation={run.scheme}", *COMMON]
    words += [*MANY, *many] if run.labels == ALL else [f"data.labelled={run.labels}", *FEW, *few]
    if run.rate is not None:
        words.append(f"optimizer.lr={run.rate:g}")
    if setting.data_dir is not None:
        words.append(f'data_dir="{setting.data_dir}"')
    # Who starts from scratch has nothing to forget.
    if setting.forgetting is not None and "init=scratch" not in words:
        words += [f'forgetting.data="{setting.forgetting}"', "forgetting.blocks=200"]
    words += [f'init_from="{setting.checkpoint}"', f"seed={run.seed}"]
    words.append(f'run.dir="{setting.out / run.name}"')
    # What is said later wins, such as a scheme's own number of epochs.
    last = {word.partition("=")[0]: word for word in words}
    return list(last.values())


def perform(run: Run, setting: Setting) -> str | None:
    """Train, unless it is done; return why nothing came of it, None when something did."""
    folder = setting.out / run.name
    if is_finished(folder):
        return None
    return train("finetune", overrides(run, setting), folder, run.name)


def results_of(runs: Iterable[Run], out: Path) -> dict[Run, dict[str, Any]]:
    """Return the results of those runs that are finished, with how long they took."""
    return {run: _results(out / run.name) for run in runs if is_finished(out / run.name)}


def _results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    # Runs of earlier versions have all in the second.
    for path in (folder / "timing.json", folder / "results.json"):
        if path.exists():
            found |= json.loads(path.read_text(encoding="utf-8"))
    return found


# ----------------------------------------------------------------------------------- showing

Results = Mapping[str, Any]


def table(found: Mapping[str, Sequence[Results]], seeds: int) -> str:
    """Return the Markdown table of the finished runs of each row."""
    head = (
        "scheme", "test error, %", "parameters trained", "stored", "seconds", "peak memory",
        "forgetting: token perplexity before → after",
    )  # fmt: skip
    rows = [
        [
            name,
            error(results, "test", seeds),
            mean_of((r["parameters"]["trainable"] for r in results), count),
            mean_of((r.get("stored_bytes") for r in results), size),
            mean_of((r["seconds"] for r in results), "{:.0f}".format),
            mean_of((r.get("peak_memory_bytes") for r in results), size),
            forgetting(results),
        ]
        for name, results in found.items()
    ]
    return markdown(head, rows)


def validation_table(found: Mapping[str, Sequence[Results]], seeds: int) -> str:
    """Return a Markdown table without anything of the test set, to choose settings by."""
    rows = [
        [
            name,
            error(results, "validation", seeds),
            mean_of((r["seconds"] for r in results), "{:.0f}".format),
        ]
        for name, results in found.items()
    ]
    return markdown(("scheme", "validation error, %", "seconds"), rows)


def error(results: Sequence[Results], split: str, seeds: int) -> str:
    """Return mean ± sample deviation of the error rate; say what failed and what is missing.

    A failed run is one that learnt next to nothing. It counts, and is marked.
    """
    if not results:
        return "no run finished"
    values = [float(r["measures"][split]["error_rate"]) for r in results]
    shown = f"{statistics.mean(values):.1f}"
    if len(values) > 1:
        shown += f" ± {statistics.stdev(values):.1f}"
    failed = sum(r.get("failed") is not None for r in results)
    if failed:
        shown += f" {FAILED_MARK} {failed} of {len(values)} failed"
    if len(values) < seeds:
        shown += f" ({len(values)} of {seeds} runs)"
    return shown


def forgetting(results: Sequence[Results]) -> str:
    """Return the mean perplexity on the source text before and after; of masked tokens, if so."""
    pairs = [
        (perplexity(r["forgetting"]["before"]), perplexity(r["forgetting"]["after"]))
        for r in results
        if r.get("forgetting")
    ]
    known = [(before, after) for before, after in pairs if before and after]
    if not known:
        return NONE
    before, after = (statistics.mean(values) for values in zip(*known, strict=True))
    return f"{before:.1f} → {after:.1f}"


def perplexity(measures: Results) -> float | None:
    """Return the perplexity per token among the measures of a language model."""
    for name in ("token_perplexity", "masked_token_perplexity"):
        if name in measures:
            return float(measures[name])
    return None


def mean_of(values: Iterable[float | None], show: Any) -> str:
    """Return the mean of what is known, as `show` writes it."""
    known = [value for value in values if value is not None]
    return str(show(statistics.mean(known))) if known else NONE


def count(number: float) -> str:
    """Return a number of parameters."""
    return f"{number:,.0f}"


def size(size_bytes: float) -> str:
    """Return a size with the unit that suits it, powers of 1000."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size_bytes >= limit:
            return f"{size_bytes / limit:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; all columns but the first are aligned on the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def by_row(runs: Sequence[Run], results: Mapping[Run, Results]) -> dict[str, list[Results]]:
    """Return the results of each row, in the order of the runs."""
    return {
        row: [results[run] for run in runs if run.row == row and run in results]
        for row in dict.fromkeys(run.row for run in runs)
    }


# ------------------------------------------------------------------------------ command line


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=whole_path, help="what init_from takes")
    parser.add_argument("out", type=whole_path, help="folder for the run directories")
    parser.add_argument("--data-dir", type=whole_path, help="where data sets lie")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--labels", type=label_count, nargs="+", default=["100", ALL])
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES), help="adaptation presets")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--forgetting", type=whole_path, help="a text to measure forgetting on")
    parser.add_argument(
        "--validation", action="store_true", help="print validation errors and never test errors"
    )
    parser.add_argument("--rate", type=float, nargs="+", help="learning rates to choose among")
    chosen = parser.parse_args(words)
    if chosen.rate and not chosen.validation:
        parser.error("--rate is there to choose a rate, which the test set must not: "
                     "add --validation")  # fmt: skip
    return chosen


def whole_path(word: str) -> Path:
    """Return a path that means the same in every folder."""
    return Path(word).expanduser().resolve()


def label_count(word: str) -> str:
    """Return a number of labels as it is written, or "all"."""
    if word != ALL and not (word.isdigit() and int(word) > 0):
        raise argparse.ArgumentTypeError(f"{word!r} is neither a number of labels nor {ALL!r}")
    return word


def main() -> int:
    """Run what is missing and print the tables; return 1 where a run came to nothing."""
    chosen = arguments()
    setting = Setting(chosen.checkpoint, chosen.out, chosen.data_dir, chosen.forgetting)
    runs = [
        Run(scheme, labels, seed, rate)
        for labels in chosen.labels
        for scheme in chosen.schemes
        for rate in chosen.rate or [None]
        for seed in chosen.seeds
    ]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        reasons = list(pool.map(lambda run: perform(run, setting), runs))
    results = results_of(runs, setting.out)
    show = validation_table if chosen.validation else table
    for labels in chosen.labels:
        own = [run for run in runs if run.labels == labels]
        print(f"\n### {labels.capitalize()} labels, seeds {', '.join(map(str, chosen.seeds))}\n")
        shown = show(by_row(own, results), len(chosen.seeds))
        print(shown)
        if FAILED_MARK in shown:
            print(f"\n{FAILED_MARK} learnt next to nothing (results.json: failed); counted as well")
    broken = [reason for reason in reasons if reason is not None]
    for reason in broken:
        print(f"nothing came of {reason}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
