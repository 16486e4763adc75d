"""Compare a pretraining step of `transfer` with those of others on the same work.

    python scripts/bench/pretrain.py

Causal and masked language modelling at the size of the tutorial's model, 8 x 256 tokens a step:
`transfer pretrain` with engine, records and progress bar; bare matrix products; a plain loop; the
tutorial's model; Hugging Face. All of them live at the same time and take turns, which needs about
18 GiB of memory. In `shipped` the peers are as they come: they drop attention probabilities, for
which torch has no fast attention on a CPU, and GPT-2 has its own GELU. At last what the loss over a
vocabulary takes of memory, by its size.
"""

import argparse
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import measuring
import product
from measuring import Figure, Gate, Goal, Report, Variant, ratio_goal

OURS = "transfer"
PRODUCTS = "matrix products of the linear layers"
ATTENTION = "matrix products of the attention"
PLAIN = "nanoGPT-style loop"
TUTORIALS = "the tutorial's model"
GPT2 = "Hugging Face GPT-2, Trainer"
BERT = "Hugging Face BertForMaskedLM, plain loop"

LIMITS = {PLAIN: 0.70, TUTORIALS: 0.55, GPT2: 0.62, BERT: 0.65, PRODUCTS: 1.12}
"""The goals: our time over that of a peer."""
MEMORY_LIMIT = 0.42

AS_THEY_COME = {"attention_dropout": 0.1}
Peers = Mapping[str, tuple[str, Mapping[str, Any]]]
SETS: dict[str, tuple[str, str, Peers]] = {
    "clm": ("causal language modelling, the same work for all", "clm", {
        PRODUCTS: ("products", {}), ATTENTION: ("attention_products", {}),
        PLAIN: ("plain_loop", {}), TUTORIALS: ("tutorial", {}), GPT2: ("gpt2_trainer", {}),
    }),
    "shipped": ("causal language modelling, the peers as they come", "clm", {
        PLAIN: ("plain_loop", AS_THEY_COME), TUTORIALS: ("tutorial", AS_THEY_COME),
        GPT2: ("gpt2_trainer", {**AS_THEY_COME, "activation": "gelu_new"}),
    }),
    "mlm": ("masked language modelling", "mlm", {
        TUTORIALS: ("tutorial", {"causal": False}), BERT: ("bert_loop", {}),
    }),
}  # fmt: skip
"""Of each: its title, our objective, and the peers, their functions and options."""

LOSS_ROWS, LOSS_WIDTH = 2048, 410
LOSS_VOCABULARIES = (8_192, 28_996, 100_000, 250_000)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Measure steps, and the loss over a vocabulary."""
    yield from (compare_steps(name, args, folder) for name in SETS)
    yield loss_memory(args)


def compare_steps(name: str, args: argparse.Namespace, folder: Path) -> Report:
    """Compare a step of ours with those of the peers of a set."""
    title, objective, peers = SETS[name]
    size = product.TRIAL if args.quick else product.TUTORIAL
    words, material = product.sized_run(size, folder)
    variants = [material.worker([f"objective={objective}", *words])]
    for peer, (function, options) in peers.items():
        python = args.peers if peer in (GPT2, BERT) else ""
        if python is not None:
            worker_options = {"size": size, **options}
            variants.append(Variant(peer, "peers", function, worker_options, python))
    figures = {
        figure.name: figure
        for figure in measuring.take_turns(variants, rounds=args.rounds, threads=args.threads)
    }
    ours = figures[OURS]
    goals = [
        ratio_goal(f"{name}: time over that of {peer}", ours, figures[peer], LIMITS[peer])
        for peer in figures
        if peer in LIMITS and (name, peer) != ("mlm", TUTORIALS)
    ]
    notes = [] if args.peers else [measuring.NO_PEERS]
    if GPT2 in figures:
        text = f"{name}: memory over that of {GPT2}"
        goals.append(ratio_goal(text, ours, figures[GPT2], MEMORY_LIMIT, of="peak_mib"))
    if ATTENTION in figures:
        both = (figures[kind].samples for kind in (PRODUCTS, ATTENTION))
        ratio = statistics.median(
            step.wall_s / (linear.wall_s + attention.wall_s)
            for step, linear, attention in zip(ours.samples, *both, strict=True)
        )
        notes.append(f"Over both kinds of products: {ratio:.3g} x their time.")
    if name == "mlm":
        notes.append(f"Over the tutorial's model: {measuring.ratio(ours, figures[TUTORIALS]):.3g}.")
    title = f"A step of {title}, {product.size_title(size)}"
    return Report(title, list(figures.values()), goals, notes=notes)


# ------------------------------------------------------------- the loss over a vocabulary, alone


def repeat_loss(arrive: Gate, vocabulary: int, *, chunked: bool) -> None:
    """Repeat a loss and its gradients; the base of memory has all that they are made from."""
    import torch
    import torch.nn.functional as F

    from transfer_cli.model.vocabulary_loss import summed_cross_entropy

    def loss_steps(rows: int, entries: int) -> Iterator[None]:
        h = torch.randn(rows, LOSS_WIDTH, requires_grad=True)
        table = (torch.randn(entries, LOSS_WIDTH) * 0.02).requires_grad_()
        targets = torch.randint(0, entries, (rows,))
        while True:
            yield
            h.grad = table.grad = None
            if chunked:
                summed_cross_entropy(h, table, None, targets).backward()
            else:
                F.cross_entropy(F.linear(h, table), targets, reduction="sum").backward()

    # Threads and the library's own workspaces are no part of the loss.
    warm = loss_steps(256, 1024)
    next(warm), next(warm)
    losses = loss_steps(LOSS_ROWS, vocabulary)
    next(losses)
    arrive.rebase()
    while True:
        arrive()
        next(losses)


def loss_memory(args: argparse.Namespace) -> Report:
    """Measure what the loss over a vocabulary takes of memory, by its size."""
    vocabularies = LOSS_VOCABULARIES[:2] if args.quick else LOSS_VOCABULARIES
    rows, figures = [["vocabulary", "the project's loss, MiB", "all logits, MiB"]], list[Figure]()
    ours = []
    for vocabulary in vocabularies:
        loss_mib = []
        for chunked in (True, False):
            options = {"vocabulary": vocabulary, "chunked": chunked}
            variant = Variant(f"loss {options}", "pretrain", "repeat_loss", options)
            # One after the other: with all logits, the largest take gigabytes.
            figures += measuring.take_turns([variant], rounds=1, unmeasured=0, threads=args.threads)
            gradient = vocabulary * LOSS_WIDTH * 4 / 2**20
            loss_mib.append(figures[-1].peak_mib - figures[-1].samples[0].base_mib - gradient)
        rows.append([f"{vocabulary:,}", *(f"{mib:,.0f}" for mib in loss_mib)])
        ours.append(loss_mib[0])
    text = f"loss memory, {vocabularies[-1]:,} tokens of vocabulary over {vocabularies[0]:,}"
    goal = Goal(text, ours[-1] / max(1.0, ours[0]), 1.5)
    notes = [
        f"{LOSS_ROWS:,} rows of width {LOSS_WIDTH}, forward and backward: the peak beyond what was "
        "there before, less the gradient of the table."
    ]
    return Report("Memory of the loss over a vocabulary", figures, [goal], rows, notes)


if __name__ == "__main__":
    measuring.main(__doc__, measure, rounds=2)
