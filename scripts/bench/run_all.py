"""Run every benchmark of this folder that needs no GPU; print what came of all goals in one table.

    python scripts/bench/run_all.py [--peers PYTHON] [--only pretrain engine ...] [--threads 2]
        [--data-dir DIR] [--quick] [--json FILE]

Meant to take a quarter of an hour on two cores; takes about 18 GiB of memory. Close everything
else: where other processes took more than a twentieth of the machine, a line says that it was
disturbed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import measuring

SCRIPTS = ("pretrain", "engine", "growth", "finetune", "predict", "prepare", "startup")
WITH_DATA = ("finetune", "predict", "prepare")
"""Those that read data sets, and take `--data-dir`."""


def run(name: str, asked: argparse.Namespace, folder: Path) -> dict[str, Any] | None:
    """Run a script, which prints what it finds; return that as data, or none where it failed."""
    found = folder / f"{name}.json"
    words = [sys.executable, str(measuring.FOLDER / f"{name}.py"), "--json", str(found)]
    words += ["--threads", str(asked.threads)]
    words += ["--peers", asked.peers] if asked.peers else []
    words += ["--data-dir", str(asked.data_dir)] if asked.data_dir and name in WITH_DATA else []
    words += ["--rounds", str(asked.rounds)] if asked.rounds else []
    words += ["--quick"] if asked.quick else []
    print(f"## {name}\n", flush=True)
    began = time.perf_counter()
    ended = subprocess.run(words, check=False)  # noqa: S603 - our own words
    seconds = time.perf_counter() - began
    print(f"({name}: {seconds:.0f} s)\n", flush=True)
    if ended.returncode != 0 or not found.exists():
        return None
    return {**json.loads(found.read_text("utf-8")), "seconds": round(seconds, 1)}


def goal_rows(found: Mapping[str, Mapping[str, Any] | None]) -> list[list[str]]:
    """Return a table of all goals, its header first."""
    rows = [["benchmark", "goal", "value", "limit", "", ""]]
    for name, content in found.items():
        if content is None:
            rows.append([name, "(failed)", "", "", "", ""])
            continue
        for report in content["reports"]:
            rows += [_goal_row(name, goal) for goal in report["goals"]]
    return rows


def _goal_row(name: str, goal: Mapping[str, Any]) -> list[str]:
    side = "at most" if goal["at_most"] else "at least"
    return [
        name,
        goal["text"],
        f"{goal['value']:.3g}",
        f"{side} {goal['limit']:g}",
        "met" if goal["met"] else "missed",
        "disturbed" if goal["disturbed"] else "",
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks from the command line; return 1 if one of them failed."""
    parser = measuring.parser(__doc__)
    names = [name for name in SCRIPTS if (measuring.FOLDER / f"{name}.py").exists()]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="SCRIPT")
    parser.add_argument("--data-dir", type=Path, help="where data sets lie or are fetched to")
    asked = parser.parse_args(argv)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        found = {name: run(name, asked, Path(folder)) for name in asked.only}
    minutes = (time.perf_counter() - began) / 60
    print(f"## All goals, in {minutes:.1f} minutes\n\n{measuring.table(goal_rows(found))}")
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if None in found.values() else 0


if __name__ == "__main__":
    sys.exit(main())
