"""Measure what a command line costs before it does anything.

    python scripts/bench/startup.py

Fresh processes take turns: bare imports, help texts, and `transfer pretrain` on a corpus that is
prepared, from the command to the end of its first step. That run has the tiny model and takes one
sequence a step, so that the figure is of the start and not of the step; it is over, and killed,
when the record of its first step is in `metrics.jsonl`. An interpreter that only imports takes time
to end as well, so imports are given in two ways: to their own end, and to the end of the process.
"""

import argparse
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import measuring
import product
from measuring import Command, Report, ratio_goal

HYDRA = "import hydra"
HELP = "transfer --help"
COMMAND_HELP = "transfer pretrain --help"
TORCH = "import torch"
BOTH = "import torch, ignite.engine"
BOTH_ALONE = f"{BOTH}, until they are there"
FIRST_STEP = "transfer pretrain, to the end of its first step"


def measure(args: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Make a text, prepare it, and measure everything in turns."""
    size = (500, 20_000) if args.quick else (28_996, 1_000_000)
    material = product.make_material(folder, *size)
    env = {**material.env, "PYTHONDONTWRITEBYTECODE": ""}
    data = ["data=text", f'data.train="{folder / "text.txt"}"']
    run, marker = folder / "run", folder / "imported"
    pretrain = ["model=tiny", *data, f"run.dir={run}", "loop.batch=1", *product.ENDLESS_ON_CPU]
    measuring.run_once(Command("prepare", measuring.transfer_command("prepare", *data), env))
    step = Command(
        FIRST_STEP, measuring.transfer_command("pretrain", *pretrain), env,
        partial(shutil.rmtree, run, ignore_errors=True), run / "metrics.jsonl",
    )  # fmt: skip

    def import_command(name: str, code: str, until: Path | None = None) -> Command:
        clear = partial(marker.unlink, missing_ok=True)
        return Command(name, [sys.executable, "-c", code], env, clear, until)

    commands = [
        import_command("nothing", "pass"),
        import_command(HYDRA, HYDRA),
        Command(HELP, measuring.transfer_command("--help"), env),
        Command(COMMAND_HELP, measuring.transfer_command("pretrain", "--help"), env),
        import_command(TORCH, TORCH),
        import_command(BOTH, BOTH),
        import_command(BOTH_ALONE, f"{BOTH}; open({str(marker)!r}, 'w').write('x')", marker),
        step,
    ]
    figures = measuring.run_in_turns(commands, rounds=args.rounds, threads=args.threads)
    by_name = {figure.name: figure for figure in figures}
    goals = [
        ratio_goal(f"{name}, over {other}: {text}", by_name[name], by_name[other], limit, of=of)
        for name, other, limit in ((FIRST_STEP, BOTH, 1.3), (HELP, HYDRA, 2.0))
        for text, of in (("wall", "wall_s"), ("CPU", "cpu_s"))
    ]
    wall, cpu = (
        measuring.ratio(by_name[FIRST_STEP], by_name[BOTH_ALONE], of) for of in ("wall_s", "cpu_s")
    )
    notes = [f"Without the end of the importing process: wall {wall:.3g} x, CPU {cpu:.3g} x."]
    yield Report("Start-up", figures, goals, notes=notes)


if __name__ == "__main__":
    measuring.main(__doc__, measure, rounds=5)
