"""Compare LoRA on conversations with transformers and peft: seconds of a step, memory, losses.

    python scripts/bench/chat.py --model FOLDER --peers PYTHON

A chat model learns the conversations of `data=sample_chat` in batches of 16, on the answers' tokens
alone: by `transfer finetune`, and by a plain loop around peft. Both take the same batches, the same
updates of the same matrices (drawn by each), AdamW with the same numbers. Losses are those of each
step, before it.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import measuring
import product
from measuring import Gate, Goal, Report, Variant

BATCH, RATE, RANK, CLIP = 16, 1e-3, 8, 1.0
PEER, OURS = "transformers and peft", "transfer finetune"
MAX_LOSS_DIFFERENCE = 0.05
"""How far the mean losses of two runs may lie apart, in nats, whose updates are drawn anew."""


def run_ours(arrive: Gate, words: Sequence[str], batches: str, steps: int) -> None:
    """Take steps of `transfer finetune WORDS`; write their batches for the peer before."""
    import torch

    def body(step: Any, loader: Any) -> None:
        torch.save([loader.load(number)[0]["main"] for number in range(steps)], batches)
        for number in range(steps):
            arrive()
            arrive.note(loss=float(step(number).total))
        arrive()

    product.replace_engine(words, body)


def run_peer(arrive: Gate, model: str, batches: str) -> None:
    """Take the same steps by a plain loop around a model of peft."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    lora = LoraConfig(
        r=RANK, lora_alpha=2 * RANK, lora_dropout=0.0, target_modules=["q_proj", "v_proj"],
        task_type="CAUSAL_LM",
    )  # fmt: skip
    learner = get_peft_model(base, lora).train()
    weights = [weight for weight in learner.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, RATE, weight_decay=0.01, fused=True)
    for batch in torch.load(batches):
        arrive()
        # Theirs are targets of the token itself, ours of the token before it.
        labels = torch.full_like(batch["tokens"], -100)
        labels[:, 1:] = batch["next_tokens"][:, :-1]
        loss = learner(batch["tokens"], attention_mask=batch["mask"].long(), labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, CLIP)
        optimizer.step()
        optimizer.zero_grad()
        arrive.note(loss=float(loss.detach()))
    arrive()


def measure(args: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Let both take turns, a step each."""
    measuring.require_peers(args.peers)
    steps, batches = args.rounds + 1, str(folder / "batches.pt")
    words = [
        f"init_from={args.model}", "data=sample_chat", "objective=sft", "adaptation=lora",
        f"adaptation.edits.lora.rank={RANK}", f"adaptation.edits.lora.alpha={2 * RANK}",
        "adaptation.edits.lora.dropout=0", f"optimizer.lr={RATE}", "schedule=constant",
        f"loop.clip={CLIP}", f"loop.batch={BATCH}", f"run.root={folder / 'runs'}",
        *product.ENDLESS_ON_CPU,
    ]  # fmt: skip
    options = {"words": words, "batches": batches, "steps": steps + 1}
    peer_options = {"model": str(args.model), "batches": batches}
    variants = [
        Variant(OURS, "chat", "run_ours", options),
        Variant(PEER, "chat", "run_peer", peer_options, python=args.peers),
    ]
    ours, peer = figures = measuring.take_turns(
        variants, rounds=steps, unmeasured=0, threads=args.threads
    )
    losses = [[turn.notes["loss"] for turn in figure.samples] for figure in figures]
    difference = abs(statistics.fmean(losses[0]) - statistics.fmean(losses[1]))
    goals = [
        Goal("time of a step over the peer's", measuring.ratio(ours, peer), 0.8),
        Goal("peak memory over the peer's", measuring.ratio(ours, peer, "peak_mib"), 0.8),
        Goal("mean losses apart, in nats", difference, MAX_LOSS_DIFFERENCE),
    ]
    curves = [f"{figure.name}: {' '.join(f'{x:.3f}' for x in loss)}"
              for figure, loss in zip(figures, losses, strict=True)]  # fmt: skip
    yield Report(f"LoRA on conversations, {steps} steps of {BATCH}", figures, goals, notes=curves)


if __name__ == "__main__":
    measuring.main(__doc__, measure, measuring.MODEL, rounds=11)
