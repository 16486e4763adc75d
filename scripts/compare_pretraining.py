"""Compare ways to pretrain at equal operations and time: run what is missing, print tables.

    python scripts/compare_pretraining.py OUT_DIR --data-dir DIR [--time]
        [--steps 1000] [--seeds 0 1 2] [--labels 100 all] [--rates 2e-4 5e-4 1.5e-3]
        [--methods NAME ...] [--jobs 1]

DIR holds `enwiki-2015/train.txt.xz`, `enwiki-2015/valid.txt` and `trec/`. `--steps` are those of
`mlm`; another method takes as many as make its operations the same, which two short runs count.
With `--time` each is run once more, for as many steps as make the CPU time the same; what a step
takes is measured by the runs of equal operations, which wants a machine that does nothing else.
Each pretrained model is then fine-tuned on TREC-6. The rate is chosen for each method and count of
labels by the validation error of the first seed; the other seeds run at that rate alone.

Runs that are finished stay as they are, so the same line goes on where an earlier one was stopped,
and prints the tables anew where nothing is left to do.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare_schemes import ALL, label_count, markdown, whole_path
from logged_run import CPU, is_finished, train

REFERENCE = "mlm"
"""The method whose steps are given."""

MLM = ("objective=mlm",)
PAIR = ("+objective@losses.pair=sentence_pair", "model.segments=2")
ELECTRA = ("objective=replaced_tokens",)

METHODS: dict[str, Sequence[str]] = {
    "clm": ("objective=clm",),
    "clm, GPT-2's blocks": ("objective=clm", "model=tiny"),
    REFERENCE: MLM,
    "mlm, GPT-2's blocks": (*MLM, "model=tiny"),
    "mlm + nsp": (*MLM, "data.pairs=nsp", *PAIR),
    "mlm + sop": (*MLM, "data.pairs=sop", *PAIR),
    "mlm, shared blocks": (*MLM, "model.share=all"),
    "electra": (*ELECTRA, "objective.mode=detect"),
    "electra, all tokens": (*ELECTRA, "objective.mode=all_tokens"),
    "electra, selected tokens": (*ELECTRA, "objective.mode=detect_selected"),
    "electra, replace": (*ELECTRA, "objective.mode=replace"),
}
"""What each is pretrained with beyond `PRETRAINING`."""

SCRATCH = {"scratch, causal": "clm", "scratch, bidirectional": REFERENCE}
"""Rows that start from fresh weights of the same shape."""

PRETRAINING = (
    "data=text", "data.length=128", "model=modern-tiny", "model.dropout=0", "tokenizer.size=4096",
    "tokenizer.lowercase=true", "loop.batch=16", "loop.clip=1.0", "optimizer=muon",
    "schedule=trapezoid", "checkpoint.every=1000 epochs",
)  # fmt: skip
FINE_TUNING = (
    "data=trec6", "objective.pooling=mean", "loop.batch=16", "loop.monitor=accuracy",
    "checkpoint.every=1000 epochs",
)  # fmt: skip
FEW = ("loop.epochs=20", "loop.evaluate_every=2 epochs")
MANY = ("data.labelled=null", "loop.epochs=2", "loop.evaluate_every=0.5 epochs")

FIRST, SHORT = 1, 10
"""Steps of two runs, which differ by what nine steps take; the first one encodes the text."""

SAME = 0.03
"""Steps for equal time that are so near those for equal operations are not run once more."""


@dataclass(frozen=True)
class Setting:
    """What all runs share.

    Args:
        out: Where run directories go.
        data_dir: Where the data sets lie.
    """

    out: Path
    data_dir: Path

    def transfer(self, command: str, name: str, words: Iterable[str]) -> None:
        """Run a command of `transfer` in folder `name`, unless it is done, and keep its CPU time.

        Raises:
            RuntimeError: It failed.
        """
        folder = self.out / name
        if is_finished(folder) and (folder / CPU).exists():
            return
        own = (f'data_dir="{self.data_dir}"', f'run.dir="{folder}"', "device=cpu")
        # What is said later wins, such as another model.
        last = {word.partition("=")[0]: word for word in (*words, *own)}
        if reason := train(command, list(last.values()), folder, name):
            raise RuntimeError(reason)

    def read(self, name: str, file: str = "results.json") -> Any:
        """Return what a JSON file of a finished run holds."""
        return json.loads((self.out / name / file).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Pretraining:
    """One pretraining of the comparison.

    Args:
        method: A key of `METHODS`.
        steps: Optimizer steps.
        seed: The run's seed.
    """

    method: str
    steps: int
    seed: int

    @property
    def name(self) -> str:
        """The folder of the run, below the script's own."""
        return f"pretraining/{file_name(self.method)}-{self.steps}/seed-{self.seed}"

    def run(self, setting: Setting) -> None:
        """Train, unless it is done."""
        text = setting.data_dir / "enwiki-2015"
        words = (
            *PRETRAINING,
            f'data.train="{text}/train.txt.xz"', f'data.validation="{text}/valid.txt"',
            *METHODS[self.method], f"loop.steps={self.steps}", f"seed={self.seed}",
            "loop.evaluate_every=1000 epochs",
        )  # fmt: skip
        setting.transfer("pretrain", self.name, words)


@dataclass(frozen=True)
class FineTuning:
    """One fine-tuning of a pretrained model, or of fresh weights of its shape.

    Args:
        start: What it starts from.
        scratch: Whether its weights are fresh all the same.
        labels: How many labels, or "all".
        rate: The peak learning rate.
    """

    start: Pretraining
    scratch: bool
    labels: str
    rate: float

    @property
    def name(self) -> str:
        """The folder of the run, below the script's own."""
        # Fresh weights do not depend on what was learnt, so not on its steps either.
        start = f"scratch-{file_name(self.start.method)}" if self.scratch else (
            f"{file_name(self.start.method)}-{self.start.steps}")  # fmt: skip
        return f"trec6-{self.labels}/{start}/lr-{self.rate:g}/seed-{self.start.seed}"

    def run(self, setting: Setting) -> None:
        """Train, unless it is done."""
        words = [*FINE_TUNING, *(MANY if self.labels == ALL else FEW)]
        if self.labels != ALL:
            words.append(f"data.labelled={self.labels}")
        if self.scratch:
            words.append("init=scratch")
        words += [
            f'init_from="{setting.out / self.start.name}"', f"optimizer.lr={self.rate:g}",
            f"seed={self.start.seed}",
        ]  # fmt: skip
        setting.transfer("finetune", self.name, words)

    def error(self, setting: Setting, split: str) -> float:
        """Return the error rate in percent."""
        return float(setting.read(self.name)["measures"][split]["error_rate"])


def file_name(method: str) -> str:
    """Return a method's name as that of a folder."""
    return method.replace(",", "").replace("'", "").replace(" + ", "-").replace(" ", "-")


def flops_of_step(method: str, setting: Setting) -> float:
    """Return the operations of a step, by the two short runs."""
    first, short = (
        setting.read(Pretraining(method, steps, seed=0).name)["cost"]["flops"]
        for steps in (FIRST, SHORT)
    )
    return float(short - first) / (SHORT - FIRST)


def seconds_of_step(runs: Sequence[Pretraining], setting: Setting) -> float:
    """Return the CPU-seconds of a step, by whole runs of one method and a short one."""
    short = setting.read(Pretraining(runs[0].method, SHORT, seed=0).name, CPU)
    long = statistics.mean(setting.read(run.name, CPU) for run in runs)
    return float(long - short) / (runs[0].steps - SHORT)


def of_equal_flops(
    methods: Sequence[str], seeds: Sequence[int], steps: int, setting: Setting
) -> list[Pretraining]:
    """Return the runs that take the operations of `steps` of the reference, seed by seed."""
    taken = {method: flops_of_step(method, setting) for method in methods}
    return [
        Pretraining(method, round(steps * taken[REFERENCE] / taken[method]), seed)
        for seed in seeds
        for method in methods
    ]


def of_equal_time(runs: Sequence[Pretraining], setting: Setting) -> list[Pretraining]:
    """Return the runs that take the CPU time of the reference, given those of equal operations."""
    by_method = {run.method: [own for own in runs if own.method == run.method] for run in runs}
    taken = {method: seconds_of_step(own, setting) for method, own in by_method.items()}
    found = []
    for run in runs:
        steps = by_method[REFERENCE][0].steps * taken[REFERENCE] / taken[run.method]
        near = abs(steps / run.steps - 1) <= SAME
        found.append(run if near else Pretraining(run.method, round(steps), run.seed))
    return found


@dataclass(frozen=True)
class Row:
    """A row of a table: fine-tunings at every rate of the first seed, at the best of the others.

    Args:
        name: What the row is called.
        starts: What is fine-tuned, a pretraining for each seed.
        scratch: Whether their weights are left aside.
    """

    name: str
    starts: Sequence[Pretraining]
    scratch: bool

    def tried(self, labels: str, rates: Sequence[float]) -> list[FineTuning]:
        """Return the fine-tunings by which a rate is chosen."""
        return [FineTuning(self.starts[0], self.scratch, labels, rate) for rate in rates]

    def chosen(self, labels: str, rates: Sequence[float], setting: Setting) -> list[FineTuning]:
        """Return that of each seed, once those that were tried are done."""
        best = min(self.tried(labels, rates), key=lambda run: run.error(setting, "validation"))
        return [FineTuning(start, self.scratch, labels, best.rate) for start in self.starts]


def rows_of(starts: Sequence[Pretraining]) -> list[Row]:
    """Return the rows of a table, those from scratch first."""
    methods = dict.fromkeys(start.method for start in starts)
    by_method = {name: [start for start in starts if start.method == name] for name in methods}
    scratch = [
        Row(name, by_method[method], scratch=True)
        for name, method in SCRATCH.items()
        if method in methods
    ]
    return scratch + [Row(name, own, scratch=False) for name, own in by_method.items()]


def spread(values: Sequence[float]) -> str:
    """Return mean ± sample deviation."""
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


def table(
    starts: Sequence[Pretraining], labels: Sequence[str], rates: Sequence[float], setting: Setting
) -> str:
    """Return the Markdown table of one kind of equality."""
    rows = rows_of(starts)
    cells = {row.name: pretraining_cells(row, setting) for row in rows}
    head = ["start", "steps", "tokens", "TFLOP", "CPU-s", "own measure"]
    for count in labels:
        head += [f"error, {count} labels", f"over {REFERENCE}", "rate"]
        chosen = {row.name: row.chosen(count, rates, setting) for row in rows}
        errors = {
            name: [run.error(setting, "test") for run in runs] for name, runs in chosen.items()
        }
        for name, values in errors.items():
            # Seed by seed: those that share one have the same labels.
            over = [own - other for own, other in zip(values, errors[REFERENCE], strict=True)]
            same = name == REFERENCE
            cells[name] += [
                spread(values),
                "" if same else spread(over),
                f"{chosen[name][0].rate:g}",
            ]
    return markdown(head, [[name, *values] for name, values in cells.items()])


def pretraining_cells(row: Row, setting: Setting) -> list[str]:
    """Return what a row says of its pretraining."""
    if row.scratch:
        return [""] * 5
    own = row.starts
    results = [setting.read(start.name) for start in own]
    monitored = (
        "token_perplexity", "masked_token_perplexity", "detect_excess", "restored_perplexity",
    )  # fmt: skip
    found = next(name for name in monitored if name in results[0]["measures"]["validation"])
    measured = [result["measures"]["validation"][found] for result in results]
    return [
        str(own[0].steps),
        f"{statistics.mean(result['cost']['tokens'] for result in results) / 1e6:.2f}M",
        f"{statistics.mean(result['cost']['flops'] for result in results) / 1e12:.2f}",
        f"{statistics.mean(setting.read(start.name, 'cpu.json') for start in own):.0f}",
        f"{found} {statistics.mean(measured):.3g}",
    ]


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=whole_path, help="folder for the run directories")
    parser.add_argument("--data-dir", type=whole_path, required=True)
    parser.add_argument("--time", action="store_true", help="compare at equal time, too")
    parser.add_argument("--steps", type=int, default=1000, help=f"of {REFERENCE}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--labels", type=label_count, nargs="+", default=["100", ALL])
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-4, 5e-4, 1.5e-3])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    return parser.parse_args(words)


def main() -> int:
    """Run what is missing and print a table for each kind of equality; return 1 where one fails."""
    try:
        compare(arguments())
    except RuntimeError as error:
        print(f"nothing came of {error}", file=sys.stderr)
        return 1
    return 0


def compare(chosen: argparse.Namespace) -> None:
    """Run what is missing and print the tables.

    Raises:
        RuntimeError: A run failed.
    """
    setting = Setting(chosen.out, chosen.data_dir)
    methods = list(dict.fromkeys((REFERENCE, *chosen.methods)))
    with ThreadPoolExecutor(chosen.jobs) as pool:

        def run(all_of: Iterable[Pretraining | FineTuning]) -> None:
            list(pool.map(lambda each: each.run(setting), dict.fromkeys(all_of)))

        # Alone, since it makes the tokenizer and encodes the text for the others.
        run([Pretraining(REFERENCE, FIRST, seed=0)])
        # The time of the short ones counts, so nothing is left to encode for them.
        for steps in (FIRST, SHORT):
            run(Pretraining(method, steps, seed=0) for method in methods)
        tables = {"operations": of_equal_flops(methods, chosen.seeds, chosen.steps, setting)}
        run(tables["operations"])
        if chosen.time:
            tables["CPU time"] = of_equal_time(tables["operations"], setting)
            run(tables["CPU time"])
        rows = [
            (row, labels)
            for starts in tables.values()
            for row in rows_of(starts)
            for labels in chosen.labels
        ]
        run(tried for row, labels in rows for tried in row.tried(labels, chosen.rates))
        run(best for row, labels in rows for best in row.chosen(labels, chosen.rates, setting))
    for equal, starts in tables.items():
        print(f"\n### Equal {equal}, seeds {', '.join(map(str, chosen.seeds))}\n")
        print(table(starts, chosen.labels, chosen.rates, setting))


if __name__ == "__main__":
    sys.exit(main())
