"""Compare settings that stand in a grid: run what is missing, print tables.

    python scripts/compare.py schemes|pretraining|recipe|GRID.yaml OUT --data-dir DIR
        [--with KEY=VALUE ...] [--rows NAME ...] [--seeds 0 1 2] [--jobs 1] [--equal flops|time]
        [--rates 1e-4 5e-4 ...]

A grid names a command of `transfer`, what all its runs are given, and a row of the table for each
setting; `scripts/grids/` has some:

    schemes      adaptation presets from one checkpoint: --with start=RUN [forgetting=TEXT]
    pretraining  ways to pretrain, and then TREC-6: --with steps=700 --equal time
    recipe       what each part of experiment=recipe/clm brings
    tutorial     the tutorial's hands-on parts: --with start=RUN
    gpu_*        on a GPU: the recipe by the clock, flags (--with text=FILE), sizes

A word with a `{key}` that nobody has given is left out. Runs that are finished stay as they are, so
the same line goes on where an earlier one was stopped, and prints the tables anew where nothing is
left to do. A run that fails does not stop the others; the exit code is then 1. Settings are chosen
on validation, with the test set out of sight: with `--rates` each row is run at each of them, and
the table has validation errors alone.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from rich.filesize import decimal

from transfer_cli.runs.directory import RunDirectory

GRIDS = Path(__file__).with_name("grids")
CPU = "cpu.json"
"""The file in a run directory that holds the CPU-seconds of the whole command."""

FIRST, SHORT = 1, 10
"""Steps of two runs, which differ by what nine steps take; the first one encodes the text."""
SAME = 0.03
"""Steps for equal time that are so near those for equal operations are not run once more."""

UNKNOWN = "-"
FAILED_MARK = "†"

Results = Mapping[str, Any]


# ------------------------------------------------------------------------------------- running


@dataclass(frozen=True)
class Run:
    """One training run of a comparison: `transfer COMMAND WORDS`, its folder below that of all.

    Runs that differ in the seed alone share a row.
    """

    row: str
    folder: str
    command: str = field(compare=False)
    words: tuple[str, ...] = field(compare=False)
    seed: int


@dataclass(frozen=True)
class Comparison:
    """A grid as it is written, and the folder of its runs, of which `jobs` are at work at once.

    `placeholders` are values by the keys that stand in braces.
    """

    grid: Mapping[str, Any]
    out: Path
    placeholders: Mapping[str, Any]
    jobs: int = 1

    def words(self, words: Iterable[str], **more: object) -> list[str]:
        """Return words with their keys filled in, each part replaced by what it stands for."""
        placeholders, filled = {**self.grid.get("with", {}), **self.placeholders, **more}, []
        for word in words:
            part = self.grid.get("parts", {}).get(word.removeprefix("+"))
            if part is not None and word.startswith("+"):
                filled += self.words(part, **more)
            elif set(re.findall(r"{(\w+)}", word)) <= placeholders.keys():
                filled.append(re.sub(r"{(\w+)}", lambda key: str(placeholders[key[1]]), word))
        return filled

    def run(self, row: str, place: str, seed: int, words: Sequence[str], command: str = "") -> Run:
        """Return a run of a row, each key said once."""
        folder = f"{place}/{_file_name(row)}/seed-{seed}".strip("/")
        all_words = [*words, f"seed={seed}", f'run.dir="{self.out / folder}"']
        last = {word.partition("=")[0]: word for word in all_words}
        return Run(row, folder, command or self.grid["command"], tuple(last.values()), seed)

    def run_missing(self, runs: Iterable[Run]) -> list[str]:
        """Train what is not done; return why nothing came of some."""
        with ThreadPoolExecutor(self.jobs) as pool:
            reasons = list(pool.map(self._train, dict.fromkeys(runs)))
        return [reason for reason in reasons if reason]

    def _train(self, run: Run) -> str | None:
        folder = self.out / run.folder
        if is_finished(folder):
            return None
        shutil.rmtree(folder, ignore_errors=True)  # a run that was broken off
        folder.parent.mkdir(parents=True, exist_ok=True)
        print(f"running {run.folder}", file=sys.stderr, flush=True)
        log = folder.with_name(f"{folder.name}.log")
        with log.open("w", encoding="utf-8") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "transfer_cli", run.command, *run.words],
                stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if status or not is_finished(folder):
            lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "no word")
            return f"{run.folder}: exit code {process.returncode}: {last} (see {log})"
        (folder / CPU).write_text(json.dumps(usage.ru_utime + usage.ru_stime), encoding="utf-8")
        return None

    def results(self, run: Run) -> dict[str, Any]:
        """Return the results of a finished run, with what it took; nothing of another."""
        folder, results = self.out / run.folder, dict[str, Any]()
        if is_finished(folder):
            # Runs of earlier versions have all in the second.
            for path in (folder / "timing.json", folder / "results.json"):
                results |= json.loads(path.read_text("utf-8")) if path.exists() else {}
            if (folder / CPU).exists():
                results["cpu_s"] = json.loads((folder / CPU).read_text())
        return results

    def cut_data(self, data_dir: Path | None) -> Path | None:
        """Return a folder of data whose files are the first lines of real ones, if a grid cuts."""
        if "cut" not in self.grid or data_dir is None:
            return None
        for name, most in self.grid["cut"].items():
            target = self.out / "data" / name
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                with (data_dir / name).open(encoding="utf-8") as text:
                    target.write_text("".join(islice(text, most)), encoding="utf-8")
        return self.out / "data"


def is_finished(folder: Path) -> bool:
    """Return whether a run directory is complete."""
    return RunDirectory(folder).read_status() == "finished"


def _file_name(row: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", row)


# ------------------------------------------------------------------------------------- showing


def error_cell(results: Sequence[Results], split: str, seeds: int = 0) -> str:
    """Return mean ± sample deviation of the error rate; say what failed and what is missing.

    A failed run is one that learnt next to nothing. It counts, and is marked.
    """
    if not results:
        return "no run finished"
    shown = mean_std([float(result["measures"][split]["error_rate"]) for result in results])
    failed = sum(result.get("failed") is not None for result in results)
    if failed:
        shown += f" {FAILED_MARK} {failed} of {len(results)} failed"
    return shown if len(results) >= seeds else f"{shown} ({len(results)} of {seeds} runs)"


def mean_std(values: Sequence[float], sign: str = "") -> str:
    """Return mean ± sample deviation."""
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}.1f}{deviation}"


def forgetting(results: Sequence[Results]) -> str:
    """Return the mean perplexity on the source text before and after; of masked tokens, if so."""
    for name in ("token_perplexity", "masked_token_perplexity"):
        columns = [mean_of(f"forgetting.{when}.{name}", "{:.1f}") for when in ("before", "after")]
        means = [column(results) for column in columns]
        if UNKNOWN not in means:
            return " → ".join(means)
    return UNKNOWN


def pretraining_measure(results: Sequence[Results]) -> str:
    """Return the mean of what a kind of pretraining is measured by."""
    names = ("token_perplexity", "masked_token_perplexity", "detect_excess", "restored_perplexity")
    for name in names:
        mean = mean_of(f"measures.validation.{name}", "{:.3g}")(results)
        if mean != UNKNOWN:
            return f"{name} {mean}"
    return UNKNOWN


def mean_of(path: str, form: str | Callable[[float], str]) -> Callable[[Sequence[Results]], str]:
    """Return what writes the mean of a value of the results, where it is known."""
    show = form.format if isinstance(form, str) else form

    def column(results: Sequence[Results]) -> str:
        known = [value for one in results if (value := value_at(one, path)) is not None]
        return show(statistics.mean(known)) if known else UNKNOWN

    return column


def value_at(results: Results, path: str) -> float | None:
    """Return the number at keys with dots between them, None where there is none."""
    value: Any = results
    for key in path.split("."):
        value = value.get(key) if value else None
    return value


COLUMNS: dict[str, Callable[[Sequence[Results]], str]] = {
    "validation loss": lambda results: " ".join(
        f"{result['measures']['validation']['loss']:.3f}" for result in results
    ),
    "parameters trained": mean_of("parameters.trainable", "{:,.0f}"),
    "stored": mean_of("stored_bytes", lambda mean: decimal(round(mean))),
    "seconds": mean_of("seconds", "{:.0f}"),
    "tokens a second": mean_of("per_second.tokens", "{:,.0f}"),
    "CPU-seconds": mean_of("cpu_s", "{:.0f}"),
    "peak memory": mean_of("peak_memory_bytes", lambda mean: decimal(round(mean))),
    "forgetting: token perplexity before → after": forgetting,
    "steps": mean_of("seen.steps", "{:.0f}"),
    "tokens": mean_of("cost.tokens", lambda mean: f"{mean / 1e6:.2f}M"),
    "TFLOP": mean_of("cost.flops", lambda mean: f"{mean / 1e12:.2f}"),
    "own measure": pretraining_measure,
}
"""What a table can show of the finished runs of a row, besides errors."""


def table(
    by_row: Mapping[str, Sequence[Results]], columns: Sequence[str], seeds: int, reference: str = ""
) -> str:
    """Return the Markdown table of the finished runs of each row."""
    base, rows = by_row.get(reference, ()), []
    for name, results in by_row.items():
        cells = [name]
        for column in columns:
            if column.endswith(" error, %"):
                cells.append(error_cell(results, column.split()[0], seeds))
            elif column.startswith("over "):
                cells.append("" if name == reference else difference(results, base))
            else:
                cells.append(COLUMNS[column](results))
        rows.append(cells)
    return markdown(["", *columns], rows)


def difference(results: Sequence[Results], reference: Sequence[Results]) -> str:
    """Return how far a row is above the reference: errors seed by seed, or the mean of losses."""
    if not results or not reference:
        return ""
    if "test" in results[0]["measures"]:
        # Those that share a seed have the same labels.
        ours, base = (
            {result["seed"]: result["measures"]["test"]["error_rate"] for result in of}
            for of in (results, reference)
        )
        gaps = [ours[seed] - base[seed] for seed in ours.keys() & base.keys()]
        return mean_std(gaps, "+") if gaps else ""
    loss, base = (
        statistics.mean(result["measures"]["validation"]["loss"] for result in of)
        for of in (results, reference)
    )
    return f"{loss - base:+.3f}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; all columns but the first are aligned on the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


# ---------------------------------------------------------------------------- one kind of run


def grid_runs(
    comparison: Comparison, rows: Sequence[str], seeds: Sequence[int], rates: Sequence[float] = ()
) -> dict[str, list[Run]]:
    """Return the runs of each table of a grid."""
    grid, tables = comparison.grid, dict[str, list[Run]]()
    for title, table_words in grid.get("tables", {"": []}).items():
        runs = []
        for row in rows:
            row_words = grid["rows"][row]
            row_words = row_words[title] if isinstance(row_words, dict) else row_words
            words = comparison.words([*grid["words"], *table_words, *row_words])
            settings = [(f"{row} lr={rate:g}", [f"optimizer.lr={rate:g}"]) for rate in rates]
            for name, more in settings or [(row, [])]:
                runs += [comparison.run(name, _file_name(title), n, [*words, *more]) for n in seeds]
        tables[title] = runs
    return tables


def compare(comparison: Comparison, args: argparse.Namespace) -> Iterator[str]:
    """Run what is missing and print a table for each of the grid's; yield what went wrong."""
    tables = grid_runs(comparison, args.rows, args.seeds, args.rates)
    yield from comparison.run_missing(run for runs in tables.values() for run in runs)
    columns = ["validation error, %", "seconds"] if args.rates else comparison.grid["columns"]
    for title, runs in tables.items():
        by_row: dict[str, list[Results]] = {run.row: [] for run in runs}
        for run in runs:
            by_row[run.row] += [results] if (results := comparison.results(run)) else []
        reference = comparison.grid.get("reference", "")
        shown = table(by_row, columns, len(args.seeds), reference)
        print(f"\n### {title or 'All'}, seeds {', '.join(map(str, args.seeds))}\n\n{shown}")
        if FAILED_MARK in shown:
            print(f"\n{FAILED_MARK} learnt next to nothing (results.json: failed); counted as well")


# --------------------------------------------------------------------- pretraining, and then


@dataclass(frozen=True)
class Chain:
    """Pretrainings of equal cost, each of which is fine-tuned as `then` of the grid says."""

    comparison: Comparison
    seeds: Sequence[int]

    def pretraining(self, row: str, steps: int, seed: int = 0) -> Run:
        """Return a pretraining of so many steps."""
        grid = self.comparison.grid
        words = self.comparison.words([*grid["words"], *grid["rows"][row], f"loop.steps={steps}"])
        return self.comparison.run(row, f"pretraining-{steps}", seed, words)

    def train(self, runs: Iterable[Run]) -> None:
        """Train what is not done.

        Raises:
            RuntimeError: Nothing came of a run.
        """
        if reasons := self.comparison.run_missing(runs):
            raise RuntimeError(reasons[0])

    def value(self, run: Run, path: str) -> float:
        """Return a value of a finished run's results."""
        value = value_at(self.comparison.results(run), path)
        if value is None:
            raise RuntimeError(f"{run.folder}: has no {path}")
        return value

    def equal_flops_runs(self, rows: Sequence[str], steps: int) -> dict[str, list[Run]]:
        """Return the runs that take the operations of `steps` of the reference."""
        taken = {}
        for row in rows:
            first, short = (
                self.value(self.pretraining(row, number), "cost.flops") for number in (FIRST, SHORT)
            )
            taken[row] = short - first
        base = taken[self.comparison.grid["reference"]]
        return self._runs_of_seeds({row: round(steps * base / taken[row]) for row in rows})

    def equal_time_runs(
        self, by_row: Mapping[str, Sequence[Run]], steps: int
    ) -> dict[str, list[Run]]:
        """Return the runs that take the CPU time of the reference, given those of equal flops."""
        per_step, done = {}, {}
        for row, runs in by_row.items():
            short = self.value(self.pretraining(row, SHORT), "cpu_s")
            done[row] = round(self.value(runs[0], "seen.steps"))
            long = statistics.mean(self.value(run, "cpu_s") for run in runs)
            per_step[row] = (long - short) / (done[row] - SHORT)
        base = per_step[self.comparison.grid["reference"]]
        wanted = {row: steps * base / per_step[row] for row in by_row}
        return self._runs_of_seeds({
            row: done[row] if abs(number / done[row] - 1) <= SAME else round(number)
            for row, number in wanted.items()
        })  # fmt: skip

    def _runs_of_seeds(self, steps: Mapping[str, int]) -> dict[str, list[Run]]:
        return {
            row: [self.pretraining(row, number, seed) for seed in self.seeds]
            for row, number in steps.items()
        }

    def starts(self, by_row: Mapping[str, Sequence[Run]]) -> dict[str, tuple[str, Sequence[Run]]]:
        """Return what is fine-tuned by the names of rows: fresh weights, then what was learnt."""
        scratch = self.comparison.grid["then"]["scratch"]
        fresh = {name: ("scratch", by_row[row]) for name, row in scratch.items() if row in by_row}
        return fresh | {row: ("pretrained", runs) for row, runs in by_row.items()}

    def fine_tuning(self, name: str, kind: str, start: Run, labels: str, rate: float) -> Run:
        """Return a fine-tuning of one start."""
        then, comparison = self.comparison.grid["then"], self.comparison
        words = comparison.words(
            [*then["words"], *then["tables"][labels]], start=comparison.out / start.folder
        )
        words += [f"optimizer.lr={rate:g}", *(["init=scratch"] if kind == "scratch" else [])]
        # Fresh weights do not depend on what was learnt, so not on its steps either.
        place = "scratch" if kind == "scratch" else start.folder.partition("/")[0]
        place = f"{_file_name(labels)}/{place}/lr-{rate:g}"
        return comparison.run(name, place, start.seed, words, then["command"])

    def tune(
        self, starts: Mapping[str, tuple[str, Sequence[Run]]], labels: str
    ) -> dict[str, tuple[float, list[Run]]]:
        """Try each rate with the first seed; return the runs of all seeds at the best one."""
        rates, best = list(map(float, self.comparison.grid["then"]["rates"])), {}
        measure = "measures.validation.error_rate"
        tried = {
            (name, rate): self.fine_tuning(name, kind, runs[0], labels, rate)
            for name, (kind, runs) in starts.items()
            for rate in rates
        }
        self.train(tried.values())
        for name, (kind, runs) in starts.items():
            by = {rate: self.value(tried[name, rate], measure) for rate in rates}
            rate = min(rates, key=by.__getitem__)
            best[name] = rate, [self.fine_tuning(name, kind, run, labels, rate) for run in runs]
        self.train(run for _, runs in best.values() for run in runs)
        return best

    def table(self, by_row: Mapping[str, Sequence[Run]]) -> str:
        """Fine-tune all; return the Markdown table."""
        grid, starts = self.comparison.grid, self.starts(by_row)
        reference, head = grid["reference"], ["start", *grid["columns"]]
        cells = {}
        for name, (kind, runs) in starts.items():
            results = [self.comparison.results(run) for run in runs] if kind != "scratch" else []
            cells[name] = [
                COLUMNS[column](results) if results else "" for column in grid["columns"]
            ]
        for labels in grid["then"]["tables"]:
            head += [f"error, {labels}", f"over {reference}", "rate"]
            best = self.tune(starts, labels)
            errors = {
                name: [self.value(run, "measures.test.error_rate") for run in runs]
                for name, (_, runs) in best.items()
            }
            for name, values in errors.items():
                # Seed by seed: those that share one have the same labels.
                gaps = [one - base for one, base in zip(values, errors[reference], strict=True)]
                shown = "" if name == reference else mean_std(gaps)
                cells[name] += [mean_std(values), shown, f"{best[name][0]:g}"]
        return markdown(head, [[name, *values] for name, values in cells.items()])


def run_chain(comparison: Comparison, args: argparse.Namespace) -> Iterator[str]:
    """Pretrain at equal cost, fine-tune, and print the table; yield what went wrong."""
    chain = Chain(comparison, args.seeds)
    reference = comparison.grid["reference"]
    rows = list(dict.fromkeys((reference, *args.rows)))
    steps = int({**comparison.grid["with"], **comparison.placeholders}["steps"])
    try:
        # Alone, since it makes the tokenizer and encodes the text for the others.
        chain.train([chain.pretraining(reference, FIRST)])
        # The time of the short ones counts, so nothing is left to encode for them.
        for number in (FIRST, SHORT):
            chain.train(chain.pretraining(row, number) for row in rows)
        by_row = chain.equal_flops_runs(rows, steps)
        chain.train(run for runs in by_row.values() for run in runs)
        if args.equal == "time":
            by_row = chain.equal_time_runs(by_row, steps)
            chain.train(run for runs in by_row.values() for run in runs)
        print(f"\n### At equal {args.equal}\n\n{chain.table(by_row)}")
    except RuntimeError as error:
        yield str(error)


# -------------------------------------------------------------------------------- command line


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("grid", help="one of scripts/grids, or a file")
    parser.add_argument("out", type=whole_path, help="folder for the run directories")
    parser.add_argument("--data-dir", type=whole_path, help="where data sets lie")
    parser.add_argument("--with", nargs="+", default=[], dest="placeholders", metavar="KEY=VALUE")
    parser.add_argument("--rows", nargs="+", help="of the grid; by default all")
    parser.add_argument("--seeds", type=int, nargs="+", help="by default those of the grid")
    parser.add_argument("--rates", type=float, nargs="+", default=[], help="to choose among")
    parser.add_argument("--equal", choices=("flops", "time"), default="flops")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    args = parser.parse_args(words)
    file = GRIDS / f"{args.grid}.yaml"
    file = file if file.exists() else Path(args.grid)
    if not file.is_file():
        parser.error(f"{args.grid} is neither a grid of {GRIDS} nor a file")
    args.grid = yaml.safe_load(file.read_text("utf-8"))
    if broken := [word for word in args.placeholders if "=" not in word]:
        parser.error(f"--with {broken[0]}: type it as KEY=VALUE")
    args.placeholders = dict(word.split("=", 1) for word in args.placeholders)
    args.rows = args.rows or list(args.grid["rows"])
    args.seeds = args.seeds or args.grid["seeds"]
    if unknown := [row for row in args.rows if row not in args.grid["rows"]]:
        parser.error(f"no row is called {unknown[0]!r}; there are {', '.join(args.grid['rows'])}")
    if missing := [key for key in args.grid.get("needs", ()) if key not in args.placeholders]:
        parser.error(f"--with {missing[0]}=... is missing")
    cut = [args.data_dir / name for name in args.grid.get("cut", ()) if args.data_dir]
    if missing := [path for path in cut if not path.is_file()]:
        parser.error(f"--data-dir: there is no {missing[0]}")
    return args


def whole_path(word: str) -> Path:
    """Return a path that means the same in every folder."""
    return Path(word).expanduser().resolve()


def main(words: Sequence[str] | None = None) -> int:
    """Run what is missing and print the tables; return 1 where a run came to nothing."""
    args = parse_arguments(words)
    placeholders = {**args.placeholders, **({"data": args.data_dir} if args.data_dir else {})}
    for key in {"start", "forgetting", "text"} & placeholders.keys():
        placeholders[key] = whole_path(placeholders[key])
    comparison = Comparison(args.grid, args.out, placeholders, args.jobs)
    if cut := comparison.cut_data(args.data_dir):
        comparison = replace(comparison, placeholders={**placeholders, "cut": cut})
    broken = list((run_chain if "then" in args.grid else compare)(comparison, args))
    for reason in broken:
        print(f"nothing came of {reason}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
