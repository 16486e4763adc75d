"""Compare `transfer predict` with the pipeline of transformers, on the same weights and texts.

    python scripts/bench/predict.py [--weights FOLDER]

The peers' interpreter writes a folder of `BertForSequenceClassification`: 6 blocks of width 384
with random weights (speed does not depend on them) and a vocabulary of the words that are asked
about, or the backbone and the vocabulary of `--weights`, a folder of a published BERT; the head is
random either way. Both label the test questions of TREC. A turn is all questions once: ours is the
command without the start of a process and the reading of weights, from lines of text to JSON lines;
theirs goes from a list to a list. Before the first turn the probabilities are compared.
"""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import measuring
import product
from measuring import BenchmarkError, Gate, Report, Variant

SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
         "max_position_embeddings")  # fmt: skip
SIZE = dict(zip(SHAPE, (384, 6, 12, 1536, 128), strict=True))
TRIAL = dict(zip(SHAPE, (32, 2, 2, 64, 64), strict=True))
BATCH, LABELS = 32, 6
TOLERANCE = 1e-4
"""How far two probabilities may be apart."""

OURS = "transfer predict"
THEIRS = {f"pipeline, batch_size={BATCH}": BATCH, "pipeline as it comes, batch_size=1": 1}


def write_model(texts: str, size: str, weights: str, folder: str) -> None:
    """Write the model and its tokenizer with transformers; run by the peers' interpreter."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertTokenizer

    torch.manual_seed(0)
    if weights:
        model = BertForSequenceClassification.from_pretrained(weights, num_labels=LABELS)
        tokenizer = AutoTokenizer.from_pretrained(weights)
    else:
        vocabulary = _vocabulary(Path(texts).read_text("utf-8").splitlines())
        tokenizer = BertTokenizer(vocab={piece: n for n, piece in enumerate(vocabulary)})
        config = BertConfig(vocab_size=len(vocabulary), num_labels=LABELS, **json.loads(size))
        model = BertForSequenceClassification(config)
    # A head fresh from its initialisation gives all labels nearly the same probability.
    torch.nn.init.normal_(model.classifier.weight, std=1.0)
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _vocabulary(texts: Sequence[str]) -> list[str]:
    """Return special tokens, characters and words of the questions."""
    words = {word for text in texts for word in text.lower().split() if word.isalnum()}
    letters = sorted({letter for text in texts for letter in text.lower() if not letter.isspace()})
    pieces = [*product.SPECIALS, *letters, *(f"##{letter}" for letter in letters)]
    return [*pieces, *sorted(words - set(pieces))]


# ------------------------------------------------------------------------------------- workers


def run_ours(arrive: Gate, folder: str, texts: str, answers: str, device: str) -> None:
    """Run `transfer predict` again and again in this process; its model is read once."""
    from unittest.mock import patch

    import torch

    from transfer_cli.assembly.finished_run import open_trained
    from transfer_cli.commands.predict import predict
    from transfer_cli.config import compose, flags
    from transfer_cli.engine.precision import Precision

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    words = [f"run={folder}", f"input={texts}", "format=text", "output_format=jsonl",
             f"batch={BATCH}", f"device={device}", "precision=fp32"]  # fmt: skip
    first, others = (
        compose.load_config("predict", flags.parse_request([*words, f"output={path}"], "predict"))
        for path in (answers, os.devnull)
    )
    trained = open_trained(folder, Precision("fp32", torch.device(device)))
    with patch.object(predict, "open_trained", lambda *_: trained):
        predict.predict(first)
        while True:
            arrive()
            predict.predict(others)


def run_peer(arrive: Gate, folder: str, texts: str, answers: str, device: str, batch: int) -> None:
    """Label the questions by the pipeline of transformers, with a batch."""
    import torch
    from transformers import pipeline

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    questions = Path(texts).read_text("utf-8").splitlines()
    label = pipeline("text-classification", model=folder, device=device)
    shares = [
        {"probabilities": {one["label"]: one["score"] for one in answer}}
        for answer in label(questions, batch_size=batch, top_k=None)
    ]
    Path(answers).write_text("".join(f"{json.dumps(answer)}\n" for answer in shares), "utf-8")
    while True:
        arrive()
        label(questions, batch_size=batch)


# ----------------------------------------------------------------------------------- who compares


def measure(args: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Measure a pass over the questions by each."""
    measuring.require_peers(args.peers)
    questions = [question for _, question in product.read_trec(args.data_dir)["test"]]
    texts, model = folder / "texts.txt", folder / "model"
    texts.write_text("".join(f"{question}\n" for question in questions), "utf-8")
    size = json.dumps(TRIAL if args.quick else SIZE)
    code = measuring.call_code("predict", "write_model")
    measuring.run_python(args.peers, code, texts, size, args.weights or "", model)

    def variant(name: str, function: str, python: str = "", **options: Any) -> Variant:
        worker_options = {"folder": str(model), "texts": str(texts), "answers": str(folder / name)}
        worker_options |= {"device": args.device, **options}
        env = {"RAYON_NUM_THREADS": str(args.threads)}
        return Variant(name, "predict", function, worker_options, python, env)

    variants = [variant(OURS, "run_ours")]
    variants += [variant(name, "run_peer", args.peers, batch=n) for name, n in THEIRS.items()]
    figures = measuring.take_turns(variants, rounds=args.rounds, threads=args.threads)
    ours, *peers = figures
    difference = max(largest_difference(folder / OURS, folder / peer.name) for peer in peers)
    goals = [
        measuring.ratio_goal(f"time over that of {peer.name}", ours, peer, 1.0) for peer in peers
    ]
    rows = measuring.figure_rows(figures, {
        "texts a second": lambda figure: f"{len(questions) / figure.wall_s:,.0f}",
        "its wall over ours": lambda figure: f"{measuring.ratio(figure, ours):.3g}",
    })  # fmt: skip
    notes = [f"{len(questions)} questions of TREC; probabilities {difference:.1g} apart at most."]
    weights = f"weights of {args.weights.name}" if args.weights else "random weights"
    title = f"A BertForSequenceClassification, {weights}, {args.threads} threads"
    yield Report(title, figures, goals, rows, notes)


def largest_difference(ours: Path, peer: Path) -> float:
    """Return how far the probabilities are apart at most."""
    shares = [
        [json.loads(line)["probabilities"] for line in path.read_text("utf-8").splitlines()]
        for path in (ours, peer)
    ]
    pairs = list(zip(*shares, strict=True))
    if any(mine.keys() != other.keys() for mine, other in pairs):
        raise BenchmarkError(f"{peer.name}: gives other labels than we do")
    largest: float = max(abs(mine[label] - other[label]) for mine, other in pairs for label in mine)
    if largest > TOLERANCE:
        raise BenchmarkError(f"{peer.name}: probabilities are up to {largest:.2g} from ours")
    return largest


if __name__ == "__main__":
    weights = {"type": Path, "help": "folder of a published BERT"}
    measuring.main(__doc__, measure, {"--weights": weights}, rounds=7)
