"""An analysis of our own: are long texts harder? `python -m mylab.token_lengths RUN ...`."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from tokenizers import Tokenizer

from mylab.length_section import NAME
from transfer_cli.runs.analyses import write_analysis
from transfer_cli.runs.items import read_items

BINS = ((1, 4), (5, 8), (9, 16), (17, 32), (33, 512))


def analyse(run: Path) -> Path:
    """Write how many of a run's test texts of each length it gets wrong; return the file."""
    tokenizer = Tokenizer.from_file(str(run / "model" / "tokenizer.json"))
    items = [item for item in read_items(run / "items.jsonl", "test") if item.text]
    lengths = [len(tokenizer.encode(item.text).tokens) for item in items]
    wrong = [item.predicted != item.label for item in items]
    rows = []
    for low, high in BINS:
        found = [bad for bad, length in zip(wrong, lengths, strict=True) if low <= length <= high]
        if found:
            rows.append([f"{low} to {high}", len(found), 100 * sum(found) / len(found)])
    content = {
        "title": "Length against error",
        "summary": "Test texts by their number of tokens, and how many of them are wrong.",
        "values": {"texts": len(items), "longest": max(lengths, default=0)},
        "table": {"columns": ["tokens", "texts", "error rate (%)"], "rows": rows},
    }
    return write_analysis(run, NAME, content, {"error_by_length": drawn(rows)})


def drawn(rows: Sequence[Sequence[object]]) -> bytes:
    """Return the table as a picture."""
    figure = Figure(figsize=(5, 2.5), layout="constrained")
    axes = figure.subplots()
    axes.bar([row[0] for row in rows], [row[2] for row in rows])
    axes.set_xlabel("tokens")
    axes.set_ylabel("error rate (%)")
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


if __name__ == "__main__":
    for word in sys.argv[1:]:
        sys.stdout.write(f"{analyse(Path(word))}\n")
