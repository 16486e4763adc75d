"""Measure what a command line costs before it does anything.

    python scripts/bench/startup.py [--rounds N] [--threads 2] [--profile] [--quick] [--json FILE]

Fresh processes take turns: bare imports, help texts, and `transfer pretrain` on a corpus that is
prepared, from the command to the end of its first step. That run has the tiny model and takes one
sequence a step, so that the figure is of the start and not of the step; it is over, and killed,
when the record of its first step is in `metrics.jsonl`. An interpreter that only imports takes time
to end as well, so imports are given in two ways: to their own end, and to the end of the process.

`--profile` lists what the imports of a run take besides those of torch and Ignite.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import measuring
import product
from measuring import Command, Goal, Report, compare

VOCABULARY, TOKENS = 28_996, 1_000_000
TRIAL_VOCABULARY, TRIAL_TOKENS = 500, 20_000

HYDRA = "import hydra"
HELP = "transfer --help"
COMMAND_HELP = "transfer pretrain --help"
TORCH = "import torch"
BOTH = "import torch, ignite.engine"
BOTH_ALONE = f"{BOTH}, until they are there"
FIRST_STEP = "transfer pretrain, to the end of its first step"

_SHOWN = 20
_SLOWEST_MS = 3.0


def interpreter(name: str, code: str, folder: Path) -> Command:
    """Return a process that runs some code and ends."""
    return Command(name, [sys.executable, "-c", code], environment(folder))


def transfer(name: str, words: Sequence[str], folder: Path) -> Command:
    """Return a command of the product that runs to its end."""
    return Command(name, [sys.executable, "-m", "transfer_cli", *words], environment(folder))


def environment(folder: Path) -> dict[str, str]:
    """Return what keeps a command to the material in a folder, and lets it keep its bytecode."""
    return {**product.Material(folder).env, "PYTHONDONTWRITEBYTECODE": ""}


def imported(folder: Path) -> Command:
    """Return the imports of torch and Ignite; the time of the interpreter's end does not count."""
    sign = folder / "imported"
    code = f"{BOTH}; open({str(sign)!r}, 'w').write('x')"
    words = [sys.executable, "-c", code]
    clear = partial(sign.unlink, missing_ok=True)
    return Command(BOTH_ALONE, words, environment(folder), before=clear, until=sign)


def first_step(folder: Path, flags: Sequence[str] = ()) -> Command:
    """Return a run on the text in a folder, which is over when its first step is."""
    run = folder / "run"
    return Command(
        FIRST_STEP,
        [sys.executable, *flags, "-m", "transfer_cli", "pretrain", *run_words(folder)],
        environment(folder),
        before=partial(shutil.rmtree, run, ignore_errors=True),
        until=run / "metrics.jsonl",
    )


def run_words(folder: Path) -> list[str]:
    """Return the overrides of the run."""
    return [
        "model=tiny",
        "data=text",
        f'data.train="{folder / "text.txt"}"',
        f"run.dir={folder / 'run'}",
        "loop.batch=1",
        *product.UNDISTURBED,
    ]


def prepare(folder: Path, asked: argparse.Namespace) -> None:
    """Make a text, and its tokenizer and tokens as `transfer prepare` makes them."""
    size = (TRIAL_VOCABULARY, TRIAL_TOKENS) if asked.quick else (VOCABULARY, TOKENS)
    product.make_material(folder, *size)
    words = ["prepare", *(word for word in run_words(folder) if word.startswith("data"))]
    measuring.once(transfer("transfer prepare", words, folder), threads=asked.threads)


def report(asked: argparse.Namespace, folder: Path) -> Report:
    """Measure everything in turns."""
    prepare(folder, asked)
    commands = [
        interpreter("nothing", "pass", folder),
        interpreter(HYDRA, HYDRA, folder),
        transfer(HELP, ["--help"], folder),
        transfer(COMMAND_HELP, ["pretrain", "--help"], folder),
        interpreter(TORCH, TORCH, folder),
        interpreter(BOTH, BOTH, folder),
        imported(folder),
        first_step(folder),
    ]
    figures = measuring.commands_in_turns(
        commands, rounds=asked.rounds or (1 if asked.quick else 5), threads=asked.threads
    )
    by_name = {figure.name: figure for figure in figures}
    start, imports = by_name[FIRST_STEP], by_name[BOTH]
    goals: list[Goal] = [
        compare(f"{FIRST_STEP}, over {BOTH}: wall", start, imports, 1.3),
        compare(f"{FIRST_STEP}, over {BOTH}: CPU", start, imports, 1.3, of="cpu_s"),
        compare(f"{HELP}, over {HYDRA}: wall", by_name[HELP], by_name[HYDRA], 2.0),
        compare(f"{HELP}, over {HYDRA}: CPU", by_name[HELP], by_name[HYDRA], 2.0, of="cpu_s"),
    ]
    alone = [measuring.ratio(start, by_name[BOTH_ALONE], of) for of in ("wall_s", "cpu_s")]
    notes = [
        f"Without the end of the importing process: {alone[0]:.3g} x its wall time and "
        f"{alone[1]:.3g} x its CPU time."
    ]
    return Report("Start-up", figures, goals, notes=notes)


# -------------------------------------------------------------------------------- the profile


def profile(asked: argparse.Namespace, folder: Path) -> Report:
    """List what a run imports before its first step, besides torch, Ignite and what they need."""
    prepare(folder, asked)
    base = {name for name, _, _ in _imports([sys.executable, "-X", "importtime", "-c", BOTH])}
    run = first_step(folder, ["-X", "importtime"])
    sign = folder / "run" / "metrics.jsonl"
    words = [
        sys.executable, "-c", _KILL_AT, str(sign), *run.words,
    ]  # fmt: skip
    _imports(words, run.env)  # bytecode is written
    shutil.rmtree(folder / "run", ignore_errors=True)
    found = [each for each in _imports(words, run.env) if each[0] not in base]
    total = sum(own for _, own, _ in found)
    rows = [["module", "own ms", "with what it imports ms"]]
    for name, own, whole in sorted(found, key=lambda each: -each[1])[:_SHOWN]:
        if own >= _SLOWEST_MS:
            rows.append([name, f"{own:.1f}", f"{whole:.1f}"])
    notes = [f"{len(found):,} modules besides those of `{BOTH}`, {total:,.0f} ms in all."]
    return Report("Imports of a run, besides torch and Ignite", rows=rows, notes=notes)


_KILL_AT = """
import os, subprocess, sys, time
run = subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL)
while run.poll() is None and not (os.path.exists(sys.argv[1]) and os.path.getsize(sys.argv[1])):
    time.sleep(0.002)
run.kill()
"""


def _imports(
    words: Sequence[str], env: dict[str, str] | None = None
) -> list[tuple[str, float, float]]:
    """Return the modules that a command says it has imported, with their own and whole ms."""
    ended = subprocess.run(  # noqa: S603 - our own words
        words, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=True
    )
    found = re.findall(r"import time:\s+(\d+) \|\s+(\d+) \|\s+(\S+)", ended.stderr)
    return [(name, int(own) / 1000, int(whole) / 1000) for own, whole, name in found]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = measuring.parser(__doc__)
    parser.add_argument("--profile", action="store_true", help="list imports in place of timing")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        found = (profile if asked.profile else report)(asked, Path(folder))
    measuring.show([found], asked)


if __name__ == "__main__":
    main()
