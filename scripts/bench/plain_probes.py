"""Probes as one writes them by hand: transformers' hidden states, scikit-learn's classifiers.

    python plain_probes.py MODEL FOLDER all|stops OUT

`FOLDER` holds `train.csv`, `validation.csv` and `test.csv` with a text and a label. Of each layer
the strength with the lowest log loss on validation counts; `stops` leaves out weaker ones once that
loss has risen, as `transfer analyze analysis=probes` does. Writes the test accuracies as JSON.
"""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler
from transformers import AutoModel, AutoTokenizer

STRENGTHS = (1e3, 1e2, 1e1, 1.0, 1e-1, 1e-2, 1e-3, 1e-4)
BATCH = 32


def states(name: str, texts: list[str]) -> np.ndarray:
    """Return the mean state of each text at each layer, `[texts, layers, width]`."""
    tokenizer, model = AutoTokenizer.from_pretrained(name), AutoModel.from_pretrained(name).eval()
    found = []
    for start in range(0, len(texts), BATCH):
        batch = tokenizer(
            texts[start : start + BATCH], padding=True, truncation=True, return_tensors="pt"
        )
        with torch.no_grad():
            layers = model(**batch, output_hidden_states=True).hidden_states
        mask = batch["attention_mask"][..., None]
        pooled = [(layer * mask).sum(1) / mask.sum(1) for layer in layers]
        found.append(torch.stack(pooled, 1).numpy())
    return np.concatenate(found)


def main(name: str, folder: str, extent: str, out: str) -> None:
    """Probe every layer."""
    texts, labels = {}, {}
    for split in ("train", "validation", "test"):
        with Path(folder, f"{split}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        texts[split], labels[split] = ([row[key] for row in rows] for key in ("text", "label"))
    every = {split: states(name, own) for split, own in texts.items()}
    accuracies = []
    for layer in range(every["train"].shape[1]):
        scaler = StandardScaler().fit(every["train"][:, layer])
        x = {split: scaler.transform(own[:, layer]) for split, own in every.items()}
        best, lowest = None, np.inf
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


if __name__ == "__main__":
    main(*sys.argv[1:])
