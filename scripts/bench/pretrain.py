"""Compare a pretraining step of `transfer` with those of others on the same work.

    python scripts/bench/pretrain.py [--peers PYTHON] [--rounds N] [--threads 2] [--quick]
        [--only clm shipped mlm memory] [--json FILE]

Causal and masked language modelling at the size of the tutorial's model, 8 x 256 tokens a step:
`transfer pretrain` with engine, records and progress bar; bare matrix products; a plain loop; the
tutorial's model; Hugging Face. All of them live at the same time and take turns, which needs about
18 GiB of memory. Then what the loss over a vocabulary takes of memory, by its size.

The peers need an environment of their own (once, from the project's folder):

    python3 -m venv scripts/bench/.venv
    scripts/bench/.venv/bin/pip install -c constraints.txt -r scripts/bench/requirements.txt
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import measuring
import product
from measuring import Figure, Goal, Report, Variant, compare

TUTORIAL = {
    "width": 410,
    "heads": 10,
    "depth": 16,
    "feedforward": 2100,
    "vocabulary": 28_996,
    "length": 256,
    "batch": 8,
}
TRIAL = {
    "width": 32,
    "heads": 2,
    "depth": 2,
    "feedforward": 64,
    "vocabulary": 500,
    "length": 32,
    "batch": 4,
}
"""A size that is over in no time."""

CLIP = 0.25
"""The tutorial's; peers.py has the same."""

OURS = "transfer"
PRODUCTS = "matrix products of the linear layers"
ATTENTION = "matrix products of the attention"
PLAIN = "nanoGPT-style loop"
TUTORIALS = "the tutorial's model"
GPT2 = "Hugging Face GPT-2, Trainer"
BERT = "Hugging Face BertForMaskedLM, plain loop"

LOSS_ROWS, LOSS_WIDTH = 2048, 410
LOSS_VOCABULARIES = (8_192, 28_996, 100_000, 250_000)


def model_words(size: dict[str, int]) -> list[str]:
    """Return the overrides that give `transfer` the tutorial's model in some size."""
    return [
        "model=tutorial",
        f"model.width={size['width']}",
        f"model.heads={size['heads']}",
        f"model.depth={size['depth']}",
        f"model.feedforward={size['feedforward']}",
        f"model.positions={size['length']}",
        f"loop.batch={size['batch']}",
        f"loop.clip={CLIP}",
    ]


def ours(objective: str, size: dict[str, int], folder: Path) -> Variant:
    """Return `transfer pretrain` itself, with a text and a tokenizer that it makes in `folder`."""
    tokens = 40 * size["batch"] * size["length"]
    material = product.make_material(folder, size["vocabulary"], tokens)
    words = [f"objective={objective}", *model_words(size), *material.words, *product.UNDISTURBED]
    return Variant(OURS, "product", "pretrain", {"words": words}, env=material.env, terminal=True)


def _peer(
    name: str, function: str, size: dict[str, int], python: str = "", **options: Any
) -> Variant:
    return Variant(name, "peers", function, {"size": size, **options}, python)


def _turns(variants: Sequence[Variant], asked: argparse.Namespace) -> dict[str, Figure]:
    """Let variants take turns; return their figures by name."""
    rounds = asked.rounds or 2
    figures = measuring.take_turns(variants, rounds=rounds, threads=asked.threads)
    return {figure.name: figure for figure in figures}


def clm(asked: argparse.Namespace, folder: Path) -> Report:
    """Compare causal language modelling."""
    size, peers = (TRIAL if asked.quick else TUTORIAL), measuring.peers_of(asked.peers)
    variants = [
        _peer(PRODUCTS, "products", size),
        _peer(ATTENTION, "attention_products", size),
        ours("clm", size, folder),
        _peer(PLAIN, "plain_loop", size),
        _peer(TUTORIALS, "tutorial", size),
    ]
    variants += [_peer(GPT2, "gpt2_trainer", size, peers)] if peers else []
    figures = _turns(variants, asked)
    own, bare = figures[OURS], figures[PRODUCTS]
    both = measuring.together("both kinds of products", bare, figures[ATTENTION])
    goals = [compare("time over that of the products of the linear layers", own, bare, 1.12)]
    notes = [
        f"Over both kinds of products together: {measuring.ratio(own, both):.3g} x their time.",
        *([] if peers else [measuring.NO_PEERS]),
    ]
    title = f"A step of causal language modelling, the same work for all, {title_of(size)}"
    goals += _over_peers(figures, "")
    return Report(title, list(figures.values()), goals, notes=notes)


AS_THEY_COME = {"attention_dropout": 0.1}
"""What the peers do unless told otherwise."""


def shipped(asked: argparse.Namespace, folder: Path) -> Report:
    """Compare causal language modelling, the peers as they come.

    They then drop attention probabilities, for which torch has no fast attention on a CPU, and
    GPT-2 has its own GELU.
    """
    size, peers = (TRIAL if asked.quick else TUTORIAL), measuring.peers_of(asked.peers)
    variants = [
        ours("clm", size, folder),
        _peer(PLAIN, "plain_loop", size, **AS_THEY_COME),
        _peer(TUTORIALS, "tutorial", size, **AS_THEY_COME),
    ]
    if peers:
        own_form = {**AS_THEY_COME, "activation": "gelu_new"}
        variants.append(_peer(GPT2, "gpt2_trainer", size, peers, **own_form))
    figures = _turns(variants, asked)
    title = f"A step of causal language modelling, the peers as they come, {title_of(size)}"
    notes = [] if peers else [measuring.NO_PEERS]
    goals = _over_peers(figures, " as it comes")
    return Report(title, list(figures.values()), goals, notes=notes)


def _over_peers(figures: dict[str, Figure], how: str) -> list[Goal]:
    limits = {PLAIN: 0.70, TUTORIALS: 0.55, GPT2: 0.62}
    goals = [
        compare(f"time over that of {name}{how}", figures[OURS], figures[name], limit)
        for name, limit in limits.items()
        if name in figures
    ]
    if GPT2 in figures:
        text = f"memory over that of {GPT2}{how}"
        goals.append(compare(text, figures[OURS], figures[GPT2], 0.42, of="peak_mib"))
    return goals


def mlm(asked: argparse.Namespace, folder: Path) -> Report:
    """Compare masked language modelling."""
    size, peers = (TRIAL if asked.quick else TUTORIAL), measuring.peers_of(asked.peers)
    variants = [ours("mlm", size, folder), _peer(TUTORIALS, "tutorial_masked", size)]
    variants += [_peer(BERT, "bert_loop", size, peers)] if peers else []
    figures = _turns(variants, asked)
    goals = []
    if peers:
        goals = [compare(f"time over that of {BERT}", figures[OURS], figures[BERT], 0.65)]
    notes = [
        "Time over that of the tutorial's model: "
        f"{measuring.ratio(figures[OURS], figures[TUTORIALS]):.3g}.",
        *([] if peers else [measuring.NO_PEERS]),
    ]
    title = f"A step of masked language modelling, {title_of(size)}"
    return Report(title, list(figures.values()), goals, notes=notes)


def title_of(size: dict[str, int]) -> str:
    """Return a size in words."""
    return (
        f"{size['batch']} x {size['length']} tokens, width {size['width']}, depth {size['depth']}, "
        f"vocabulary {size['vocabulary']:,}"
    )


# ------------------------------------------------------------- the loss over a vocabulary, alone


def chunked_loss(arrive: measuring.Gate, vocabulary: int) -> None:
    """Take loss and gradients with the project's own loss."""
    from transfer_cli.model.vocabulary_loss import summed_cross_entropy

    _losses(
        arrive, vocabulary, lambda h, table, wanted: summed_cross_entropy(h, table, None, wanted)
    )


def full_loss(arrive: measuring.Gate, vocabulary: int) -> None:
    """Take loss and gradients through all logits."""
    import torch.nn.functional as F

    def loss(h: Any, table: Any, wanted: Any) -> Any:
        return F.cross_entropy(F.linear(h, table), wanted, reduction="sum")

    _losses(arrive, vocabulary, loss)


def _losses(arrive: measuring.Gate, vocabulary: int, loss: Callable[..., Any]) -> None:
    """Repeat a loss and its gradients; the base of memory has all that they are made from."""
    import torch

    def material(rows: int, entries: int) -> tuple[Any, Any, Any]:
        h = torch.randn(rows, LOSS_WIDTH, requires_grad=True)
        table = (torch.randn(entries, LOSS_WIDTH) * 0.02).requires_grad_()
        return h, table, torch.randint(0, entries, (rows,))

    # Threads and the library's own workspaces are no part of the loss.
    loss(*material(256, 1024)).backward()
    h, table, wanted = material(LOSS_ROWS, vocabulary)
    arrive.rebase()
    while True:
        arrive()
        h.grad = table.grad = None
        loss(h, table, wanted).backward()


def memory(asked: argparse.Namespace, folder: Path) -> Report:
    """Measure what the loss over a vocabulary takes of memory, by its size."""
    vocabularies = LOSS_VOCABULARIES[:2] if asked.quick else LOSS_VOCABULARIES
    rows = [["vocabulary", "the project's loss, MiB", "all logits, MiB"]]
    figures, beyond = [], {}
    for vocabulary in vocabularies:
        gradient = vocabulary * LOSS_WIDTH * 4 / 2**20
        row = [f"{vocabulary:,}"]
        for function in ("chunked_loss", "full_loss"):
            name = f"{function.replace('_', ' ')}, vocabulary {vocabulary:,}"
            variant = Variant(name, "pretrain", function, {"vocabulary": vocabulary})
            # One after the other: with all logits, the largest take gigabytes.
            [figure] = measuring.take_turns(
                [variant], rounds=1, unmeasured=0, threads=asked.threads
            )
            taken = figure.peak_mib - figure.samples[0].base_mib - gradient
            beyond[function, vocabulary] = taken
            row.append(f"{taken:,.0f}")
            figures.append(figure)
        rows.append(row)
    first, last = vocabularies[0], vocabularies[-1]
    text = f"loss memory with a vocabulary of {last:,} over that with {first:,}"
    value = beyond["chunked_loss", last] / max(1.0, beyond["chunked_loss", first])
    notes = [
        f"{LOSS_ROWS:,} rows of width {LOSS_WIDTH}, forward and backward: the peak beyond what was "
        "there before, less the gradient of the table."
    ]
    title = "Memory of the loss over a vocabulary"
    return Report(title, figures, [Goal(text, value, 1.5)], rows, notes)


# ----------------------------------------------------------------------------------------- main

SETS = {"clm": clm, "shipped": shipped, "mlm": mlm, "memory": memory}


def reports(asked: argparse.Namespace) -> list[Report]:
    """Measure what was asked for."""
    found = []
    for name in asked.only:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            found.append(SETS[name](asked, Path(folder)))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = measuring.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=SETS, default=list(SETS), metavar="SET")
    asked = parser.parse_args(argv)
    measuring.show(reports(asked), asked)


if __name__ == "__main__":
    main()
