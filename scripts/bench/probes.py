"""Compare `transfer analyze analysis=probes` with a loop over transformers and scikit-learn.

    python scripts/bench/probes.py --model FOLDER

Whole commands, from a published model such as all-MiniLM-L6-v2 (`scripts/minilm.sh`) and tables of
TREC's questions to the accuracy of each layer on the test questions, in turns: ours, and `plain` on
the same splits with the same grid of L2 penalties, which are chosen by the loss on validation. A
third command stops in its grid where ours does. A fourth is ours with all controls and the learnt
mix, which has a goal of its own.
"""

import argparse
import csv
import json
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import measuring
import product
from measuring import BenchmarkError, Command, Goal, Report

SPLITS = ("train", "validation", "test")
STRENGTHS = (1e3, 1e2, 1e1, 1.0, 1e-1, 1e-2, 1e-3, 1e-4)
BATCH = 32
MOST_SECONDS, MOST_MIB, MOST_RATIO, MOST_POINTS = 90.0, 2048.0, 0.5, 0.5


def states(name: str, texts: list[str]) -> Any:
    """Return the mean state of each text at each layer, `[texts, layers, width]`."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(name), AutoModel.from_pretrained(name).eval()
    pooled = []
    for start in range(0, len(texts), BATCH):
        batch = tokenizer(
            texts[start : start + BATCH], padding=True, truncation=True, return_tensors="pt"
        )
        with torch.no_grad():
            layers = model(**batch, output_hidden_states=True).hidden_states
        mask = batch["attention_mask"][..., None]
        pooled.append(torch.stack([(layer * mask).sum(1) / mask.sum(1) for layer in layers], 1))
    return torch.cat(pooled).numpy()


def plain(name: str, folder: str, extent: str, out: str) -> None:
    """Probe as one does by hand: transformers' hidden states, scikit-learn's classifiers.

    Of each layer the strength with the lowest log loss on validation counts; the extent `stops`
    leaves out weaker ones once that loss has risen, as ours does. Writes the test accuracies.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from sklearn.preprocessing import StandardScaler

    inputs, labels = {}, {}
    for split in SPLITS:
        with Path(folder, f"{split}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        inputs[split] = states(name, [row["text"] for row in rows])
        labels[split] = [row["label"] for row in rows]
    accuracies = []
    for layer in range(inputs["train"].shape[1]):
        scaler = StandardScaler().fit(inputs["train"][:, layer])
        x = {split: scaler.transform(of_split[:, layer]) for split, of_split in inputs.items()}
        best, lowest = None, float("inf")
        for strength in STRENGTHS:
            probe = LogisticRegression(C=1 / strength, max_iter=10_000)
            probe.fit(x["train"], labels["train"])
            shares = probe.predict_proba(x["validation"])
            loss = log_loss(labels["validation"], shares, labels=probe.classes_)
            if loss < lowest:
                best, lowest = probe, loss
            elif extent == "stops":
                break
        accuracies.append(best.score(x["test"], labels["test"]))
    Path(out).write_text(json.dumps(accuracies))


def commands(asked: argparse.Namespace, folder: Path, peers: str) -> list[Command]:
    """Return ours, both of the peers, and ours with everything."""
    tables = [f"data.{split}={folder / split}.csv" for split in SPLITS]
    words = ["analyze", f"run={asked.model}", "device=cpu", "analysis=probes", "data=table"]
    cache = {"TRANSFER_CACHE": str(folder / "cache")}

    def analyze(name: str, to: str, *more: str) -> Command:
        clear = partial(shutil.rmtree, folder / to, ignore_errors=True)
        ours = measuring.transfer(*words, *tables, f"output={folder / to}", *more)
        return Command(name, ours, cache, before=clear)

    def theirs(name: str, extent: str) -> Command:
        files = [str(asked.model), str(folder), extent, str(folder / extent)]
        return Command(name, [peers, "-c", measuring.calling("probes", "plain"), *files])

    return [
        analyze(
            "transfer analyze", "bare", "analysis.probes.controls=[]", "analysis.probes.mix=false"
        ),
        theirs("scikit-learn, all of the grid", "all"),
        theirs("scikit-learn, stopping as ours", "stops"),
        analyze("transfer analyze, with controls and mix", "full"),
    ]


def measure(asked: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Run all commands in turns."""
    peers = asked.peers or sys.executable
    if not measuring.can_import(peers, "sklearn", "transformers"):
        raise BenchmarkError(measuring.NO_PEERS)
    for split, rows in product.trec(asked.data_dir).items():
        product.write_table(folder / f"{split}.csv", rows[:300] if asked.quick else rows)
    ours, peer, stopping, full = figures = measuring.commands_in_turns(
        commands(asked, folder, peers), rounds=asked.rounds, unmeasured=0, threads=asked.threads
    )
    entries = json.loads((folder / "bare" / "analyses" / "probes.json").read_text("utf-8"))
    our_accuracies = [entry["accuracy"] for entry in entries["probes"] if entry["control"] is None]
    their_accuracies = json.loads((folder / "all").read_text("utf-8"))
    apart = 100 * max(
        abs(one - other) for one, other in zip(our_accuracies, their_accuracies, strict=True)
    )
    goals = [
        measuring.compare("time over that of scikit-learn", ours, peer, MOST_RATIO),
        measuring.compare("CPU time", ours, peer, MOST_RATIO, of="cpu_s"),
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
