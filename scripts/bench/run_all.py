"""Run the benchmarks that need neither GPU nor server; print all goals in one table.

    python scripts/bench/run_all.py [--only pretrain engine ...]

Meant to take a quarter of an hour on two cores; takes about 18 GiB of memory. Close everything
else: where other processes took more than a twentieth of the machine, a line says that it was
disturbed. Exit code 1 where a benchmark failed.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import measuring
from measuring import Goal, Report

FAILED = "(failed)"
CASES = ("pretrain", "engine", "finetune", "predict", "encoding", "startup")


def measure(args: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Run the cases; report what they found, and at last all goals."""
    rows = [["benchmark", "goal", "value", "limit", "", "s"]]
    for name in args.only:
        words = ["--json", folder / f"{name}.json", "--threads", args.threads]
        words += ["--data-dir", args.data_dir]
        words += ["--peers", args.peers] if args.peers else []
        words += ["--quick"] if args.quick else []
        print(f"running {name}", flush=True)
        began = time.perf_counter()
        case = [sys.executable, measuring.FOLDER / f"{name}.py", *words]
        ended = subprocess.run(list(map(str, case)), check=False, stdout=subprocess.DEVNULL)
        seconds = f"{time.perf_counter() - began:.0f}"
        if ended.returncode:
            rows.append([name, FAILED, "", "", "", seconds])
            continue
        reports = json.loads((folder / f"{name}.json").read_text("utf-8"))["reports"]
        for goal in (goal for report in reports for goal in report["goals"]):
            rows.append([name, *Goal(**goal).cells(), seconds])
            seconds = ""
        for report in reports:
            del report["figures"]
            yield Report(**{**report, "title": f"{name}: {report['title']}", "goals": ()})
    yield Report("All goals", rows=rows)


if __name__ == "__main__":
    only = {"nargs": "+", "choices": CASES, "default": CASES, "metavar": "CASE"}
    *_, goals = measuring.main(__doc__, measure, {"--only": only})
    sys.exit(any(FAILED in row for row in goals.rows))
