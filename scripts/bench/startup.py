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
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import measuring
import product
from measuring import Command, Report, compare

HYDRA = "import hydra"
HELP = "transfer --help"
COMMAND_HELP = "transfer pretrain --help"
TORCH = "import torch"
BOTH = "import torch, ignite.engine"
BOTH_ALONE = f"{BOTH}, until they are there"
FIRST_STEP = "transfer pretrain, to the end of its first step"

_SHOWN, _SLOWEST_MS = 20, 3.0


def measure(asked: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Make a text, prepare it, and measure everything in turns, or list imports."""
    made = product.make_material(folder, *((500, 20_000) if asked.quick else (28_996, 1_000_000)))
    env = {**made.env, "PYTHONDONTWRITEBYTECODE": ""}
    data = ["data=text", f'data.train="{folder / "text.txt"}"']
    run, sign = folder / "run", folder / "imported"
    pretrain = ["model=tiny", *data, f"run.dir={run}", "loop.batch=1", *product.UNDISTURBED]
    measuring.once(Command("prepare", measuring.transfer("prepare", *data), env))
    step = Command(
        FIRST_STEP, measuring.transfer("pretrain", *pretrain), env,
        partial(shutil.rmtree, run, ignore_errors=True), run / "metrics.jsonl",
    )  # fmt: skip
    if asked.profile:
        yield profile(step, env)
        return

    def imports(name: str, code: str, until: Path | None = None) -> Command:
        clear = partial(sign.unlink, missing_ok=True)
        return Command(name, [sys.executable, "-c", code], env, clear, until)

    commands = [
        imports("nothing", "pass"),
        imports(HYDRA, HYDRA),
        Command(HELP, measuring.transfer("--help"), env),
        Command(COMMAND_HELP, measuring.transfer("pretrain", "--help"), env),
        imports(TORCH, TORCH),
        imports(BOTH, BOTH),
        imports(BOTH_ALONE, f"{BOTH}; open({str(sign)!r}, 'w').write('x')", sign),
        step,
    ]
    figures = measuring.commands_in_turns(commands, rounds=asked.rounds, threads=asked.threads)
    by_name = {figure.name: figure for figure in figures}
    goals = [
        compare(f"{name}, over {other}: {text}", by_name[name], by_name[other], limit, of=of)
        for name, other, limit in ((FIRST_STEP, BOTH, 1.3), (HELP, HYDRA, 2.0))
        for text, of in (("wall", "wall_s"), ("CPU", "cpu_s"))
    ]
    wall, cpu = (
        measuring.ratio(by_name[FIRST_STEP], by_name[BOTH_ALONE], of) for of in ("wall_s", "cpu_s")
    )
    notes = [
        f"Without the end of the importing process: {wall:.3g} x its wall time and {cpu:.3g} x its "
        "CPU time."
    ]
    yield Report("Start-up", figures, goals, notes=notes)


def profile(step: Command, env: dict[str, str]) -> Report:
    """List what a run imports before its first step, besides torch, Ignite and what they need."""
    base = {name for name, _, _ in _imports([sys.executable, "-X", "importtime", "-c", BOTH], env)}
    python, *words = step.words
    watched = [python, "-c", _KILL_AT, str(step.until), python, "-X", "importtime", *words]
    _imports(watched, env)  # bytecode is written
    if step.before is not None:
        step.before()  # clears the run
    modules = [line for line in _imports(watched, env) if line[0] not in base]
    rows = [["module", "own ms", "with what it imports ms"]]
    for name, alone, whole in sorted(modules, key=lambda line: -line[1])[:_SHOWN]:
        if alone >= _SLOWEST_MS:
            rows.append([name, f"{alone:.1f}", f"{whole:.1f}"])
    total = sum(alone for _, alone, _ in modules)
    notes = [f"{len(modules):,} modules besides those of `{BOTH}`, {total:,.0f} ms in all."]
    return Report("Imports of a run, besides torch and Ignite", rows=rows, notes=notes)


_KILL_AT = """
import os, subprocess, sys, time
run = subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL)
while run.poll() is None and not (os.path.exists(sys.argv[1]) and os.path.getsize(sys.argv[1])):
    time.sleep(0.002)
run.kill()
"""


def _imports(words: Sequence[str], env: dict[str, str]) -> list[tuple[str, float, float]]:
    """Return the modules that a command says it has imported, with their own and whole ms."""
    ended = subprocess.run(  # noqa: S603 - our own words
        words, env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    lines = re.findall(r"import time:\s+(\d+) \|\s+(\d+) \|\s+(\S+)", ended.stderr)
    return [(name, int(alone) / 1000, int(whole) / 1000) for alone, whole, name in lines]


if __name__ == "__main__":
    listing = {"action": "store_true", "help": "list imports in place of timing"}
    measuring.main(__doc__, measure, {"--profile": listing}, rounds=5)
