"""Compare `transfer analyze analysis=probes` with a loop over transformers and scikit-learn.

    python scripts/bench/probes.py --model FOLDER

Whole commands, from a published model such as all-MiniLM-L6-v2 (`scripts/minilm.sh`) and tables of
TREC's questions to the accuracy of each layer on the test questions, in turns: ours, and
`plain_probes.py` on the same splits with the same grid of L2 penalties, which are chosen by the
loss on validation. A third command stops in its grid where ours does. A fourth is ours with all
controls and the learnt mix, which has a goal of its own.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import measuring
import product
from measuring import BenchmarkError, Command, Goal, Report

MOST_SECONDS, MOST_MIB, MOST_RATIO, MOST_POINTS = 90.0, 2048.0, 0.5, 0.5


def commands(asked: argparse.Namespace, folder: Path, peers: str) -> list[Command]:
    """Return ours, both of the peers, and ours with everything."""
    tables = [f"data.{split}={folder / split}.csv" for split in ("train", "validation", "test")]
    words = ["analyze", f"run={asked.model}", "device=cpu", "analysis=probes", "data=table"]
    cache = {"TRANSFER_CACHE": str(folder / "cache")}
    script = measuring.FOLDER / "plain_probes.py"

    def analyze(name: str, to: str, *more: str) -> Command:
        clear = partial(shutil.rmtree, folder / to, ignore_errors=True)
        ours = measuring.transfer(*words, *tables, f"output={folder / to}", *more)
        return Command(name, ours, cache, before=clear)

    def plain(name: str, extent: str) -> Command:
        files = [str(script), str(asked.model), str(folder), extent, str(folder / extent)]
        return Command(name, [peers, *files])

    return [
        analyze(
            "transfer analyze", "bare", "analysis.probes.controls=[]", "analysis.probes.mix=false"
        ),
        plain("scikit-learn, all of the grid", "all"),
        plain("scikit-learn, stopping as ours", "stops"),
        analyze("transfer analyze, with controls and mix", "full"),
    ]


def measure(asked: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Run all commands in turns.

    Raises:
        BenchmarkError: There are no peers.
    """
    peers = asked.peers or sys.executable
    if not measuring.can_import(peers, "sklearn", "transformers"):
        raise BenchmarkError(measuring.NO_PEERS)
    for split, rows in product.trec(asked.data_dir).items():
        product.write_table(folder / f"{split}.csv", rows[:300] if asked.quick else rows)
    ours, plain, stopping, full = figures = measuring.commands_in_turns(
        commands(asked, folder, peers), rounds=asked.rounds, unmeasured=0, threads=asked.threads
    )
    entries = json.loads((folder / "bare" / "analyses" / "probes.json").read_text("utf-8"))
    our_accuracies = [entry["accuracy"] for entry in entries["probes"] if entry["control"] is None]
    their_accuracies = json.loads((folder / "all").read_text("utf-8"))
    apart = 100 * max(
        abs(one - other) for one, other in zip(our_accuracies, their_accuracies, strict=True)
    )
    goals = [
        measuring.compare("time over that of scikit-learn", ours, plain, MOST_RATIO),
        measuring.compare("CPU time", ours, plain, MOST_RATIO, of="cpu_s"),
        Goal("points between the accuracies of a layer, at most", apart, MOST_POINTS),
        Goal("seconds with all", full.wall_s, MOST_SECONDS, disturbed=full.disturbed),
        Goal("MiB of memory with controls and mix", full.peak_mib, MOST_MIB),
    ]
    notes = [
        f"over the loop that stops as ours: {measuring.ratio(ours, stopping):.3g} of the time, "
        f"{measuring.ratio(ours, stopping, 'cpu_s'):.3g} of the CPU time",
        f"accuracies of ours: {' '.join(f'{accuracy:.4f}' for accuracy in our_accuracies)}",
        f"of scikit-learn: {' '.join(f'{accuracy:.4f}' for accuracy in their_accuracies)}",
    ]
    yield Report("Probes of all layers", figures, goals, notes=notes)


if __name__ == "__main__":
    measuring.main(__doc__, measure, measuring.MODEL)
