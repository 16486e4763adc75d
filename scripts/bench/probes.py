"""Compare `transfer analyze analysis=probes` with a loop over transformers and scikit-learn.

    python scripts/bench/probes.py --model FOLDER [--peers PYTHON] [--data-dir DIR]
        [--threads 2] [--rounds 1] [--quick] [--json FILE]

Whole commands, from a published model such as all-MiniLM-L6-v2 (`python
scripts/published_weights.py minilm`) and tables of TREC's questions to the accuracy of each layer
on the test questions, in turns: ours, and `plain_probes.py` on the same splits with the same grid
of L2 penalties, which are chosen by the loss on validation. A third command stops in its grid where
ours does. A fourth is ours with all controls and the learnt mix, which has a goal of its own.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measuring
from measuring import Command, Goal, Report

FOLDER = Path(__file__).resolve().parent
MOST_SECONDS, MOST_MIB, MOST_RATIO, MOST_POINTS = 90.0, 2048.0, 0.5, 0.5

_TABLES = """
import csv, sys
from pathlib import Path
from transfer_cli.tasks.trec import Trec
folder, data_dir, most = sys.argv[1:]
data = Trec().load(Path(data_dir), 0)
for split, examples in data.splits.items():
    with Path(folder, f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
        rows = [(each.text, data.labels[each.label]) for each in examples[: int(most)]]
        csv.writer(file).writerows([("text", "label"), *rows])
"""


def commands(asked: argparse.Namespace, folder: Path, peers: str) -> list[Command]:
    """Return ours, both of the peers, and ours with everything."""
    tables = [f"data.{split}={folder / split}.csv" for split in ("train", "validation", "test")]
    ours = [
        sys.executable, "-m", "transfer_cli", "analyze", f"run={asked.model}", "device=cpu",
        "analysis=probes", "data=table", *tables,
    ]  # fmt: skip
    cache = {"TRANSFER_CACHE": str(folder / "cache")}
    bare = ["analysis.probes.controls=[]", "analysis.probes.mix=false"]

    def own(name: str, to: str, words: Sequence[str]) -> Command:
        return Command(name, [*ours, f"output={folder / to}", *words], cache,
                       before=lambda: shutil.rmtree(folder / to, ignore_errors=True))  # fmt: skip

    def plain(name: str, extent: str) -> Command:
        script = f"{FOLDER / 'plain_probes.py'} {asked.model} {folder} {extent}"
        return Command(name, ["sh", "-c", f"exec {peers} {script} > {folder / extent}.json"])

    return [
        own("transfer analyze", "bare", bare),
        plain("scikit-learn, all of the grid", "all"),
        plain("scikit-learn, stopping as ours", "stops"),
        own("transfer analyze, with controls and mix", "full", []),
    ]


def accuracies(found: Path) -> list[float]:
    """Return the accuracy of each layer."""
    entries = json.loads((found / "analyses" / "probes.json").read_text("utf-8"))["probes"]
    return [each["accuracy"] for each in entries if each["control"] is None]


def measure(asked: argparse.Namespace) -> Report:
    """Run all commands in turns."""
    peers = measuring.peers_of(asked.peers) or sys.executable
    if not measuring.can_import(peers, "sklearn", "transformers"):
        raise measuring.BenchmarkError(measuring.NO_PEERS)
    with tempfile.TemporaryDirectory(prefix="probes-") as made:
        folder = Path(made)
        words = [sys.executable, "-c", _TABLES, made, str(asked.data_dir)]
        subprocess.run([*words, "300" if asked.quick else "100000"], check=True)  # noqa: S603 - ours
        own, plain, stopping, full = measuring.commands_in_turns(
            commands(asked, folder, peers), rounds=asked.rounds or 1, unmeasured=0,
            threads=asked.threads,
        )  # fmt: skip
        ours = accuracies(folder / "bare")
        theirs = json.loads((folder / "all.json").read_text("utf-8"))
    apart = 100 * max(abs(one - other) for one, other in zip(ours, theirs, strict=True))
    return Report(
        "Probes of all layers",
        [own, plain, stopping, full],
        [
            measuring.compare("time over that of scikit-learn", own, plain, MOST_RATIO),
            measuring.compare("CPU time", own, plain, MOST_RATIO, of="cpu_s"),
            Goal("points between the accuracies of a layer, at most", apart, MOST_POINTS),
            Goal("seconds with controls and mix", full.wall_s, MOST_SECONDS,
                 disturbed=full.disturbed),
            Goal("MiB of memory with controls and mix", full.peak_mib, MOST_MIB),
        ],
        notes=[
            f"over the loop that stops as ours: {measuring.ratio(own, stopping):.3g} of the time, "
            f"{measuring.ratio(own, stopping, 'cpu_s'):.3g} of the CPU time",
            f"accuracies of ours: {' '.join(f'{each:.4f}' for each in ours)}",
            f"of scikit-learn: {' '.join(f'{each:.4f}' for each in theirs)}",
            f"load of the machine: {os.getloadavg()[0]:.1f}",
        ],
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison from the command line."""
    parser: Any = measuring.parser(__doc__)
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a published model")
    measuring.add_data_dir(parser)
    asked = parser.parse_args(argv)
    measuring.show([measure(asked)], asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
