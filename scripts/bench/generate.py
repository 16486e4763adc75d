"""Compare generation with that of transformers, from the same weights, with a cache on both sides.

    python scripts/bench/generate.py --model FOLDER [--peers PYTHON] [--threads 2] [--device cpu]
        [--tokens 32] [--texts 8] [--rounds N] [--quick] [--json FILE]

FOLDER is a published causal model (`python scripts/published_weights.py smollm2`). A turn makes the
likeliest tokens after one prompt, or after several prompts of 8 to 64 tokens at once; a prompt is
drawn tokens, whose values decide nothing. The first token after each must be the same on both
sides; later on rounding decides between some that are nearly as likely, and so all that follow.
"""

import argparse
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import measuring
from measuring import BenchmarkError, Report, Variant

SHORTEST, LONGEST = 8, 64
"""Tokens of a prompt."""
ONE, SEVERAL = 1.3, 1.5
"""The goals: tokens a second over the peer's, for one prompt and for several."""


def prompts_of(texts: int, vocabulary: int) -> list[list[int]]:
    """Return drawn prompts; a single one has 20 tokens."""
    draw = random.Random(0)  # noqa: S311 - no secret
    lengths = [20] if texts == 1 else [draw.randint(SHORTEST, LONGEST) for _ in range(texts)]
    return [[draw.randrange(20, vocabulary) for _ in range(length)] for length in lengths]


def ours(
    arrive: Callable[[], None], folder: str, texts: int, tokens: int, device: str, said: str
) -> None:
    """Make tokens after each prompt, as text to text and dialogs do.

    Args:
        arrive: The gate.
        folder: The model.
        texts: How many prompts.
        tokens: How many to make.
        device: cpu or cuda.
        said: Where to write the first answers.
    """
    import torch

    from transfer_cli.assembly.finished_run import open_trained
    from transfer_cli.engine.precision import Precision
    from transfer_cli.objectives.replies import replies

    trained = open_trained(folder, Precision("fp32", torch.device(device)))
    prompts = prompts_of(texts, trained.start.description.vocabulary)
    rows = [torch.tensor(prompt, device=device) for prompt in prompts]
    tokens_RT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    begin_R = torch.tensor([len(row) for row in rows], device=device)

    def once() -> list[list[int]]:
        found = replies(
            trained.model, tokens_RT, torch.zeros_like(tokens_RT), begin_R, most=tokens,
            pick=lambda logits: logits.argmax(1),
        )  # fmt: skip
        answers: list[list[int]] = found.tolist()
        return answers

    Path(said).write_text(json.dumps(once()))
    while True:
        arrive()
        once()


def theirs(
    arrive: Callable[[], None], folder: str, texts: int, tokens: int, device: str, said: str
) -> None:
    """Make them by `generate` of transformers, as `ours`, with padding on the left."""
    import os

    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    prompts = prompts_of(texts, model.config.vocab_size)
    longest = max(map(len, prompts))
    given = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    read, real = (torch.tensor(each, device=device) for each in (given, mask))

    def once() -> list[list[int]]:
        found = model.generate(
            read, attention_mask=real, max_new_tokens=tokens, min_new_tokens=tokens,
            do_sample=False, pad_token_id=0,
        )  # fmt: skip
        answers: list[list[int]] = found[:, longest:].tolist()
        return answers

    Path(said).write_text(json.dumps(once()))
    while True:
        arrive()
        once()


def compare(asked: argparse.Namespace, folder: Path) -> Report:
    """Measure one prompt, and several at once.

    Raises:
        BenchmarkError: The answers differ.
    """
    title = f"Making {asked.tokens} tokens with {asked.model.name}"
    peers = measuring.peers_of(asked.peers)
    if peers is None:
        return Report(title, notes=[measuring.NO_PEERS])
    variants = []
    for texts in (1, asked.texts):
        for name, function, python in (("ours", "ours", ""), ("transformers", "theirs", peers)):
            whole = f"{name}, {texts} at once"
            options = {"folder": str(asked.model.resolve()), "texts": texts}
            options |= {"tokens": asked.tokens, "device": asked.device}
            options["said"] = str(folder / whole)
            variants.append(Variant(whole, "generate", function, options, python))
    rounds = asked.rounds or (1 if asked.quick else 5)
    figures = measuring.take_turns(variants, rounds=rounds, threads=asked.threads)
    notes = list[str]()
    goals, rows = [], [["variant", "tokens a second", "wall s", "CPU s", ""]]
    for number, texts in enumerate((1, asked.texts)):
        own, peer = figures[2 * number : 2 * number + 2]
        said = [json.loads((folder / each.name).read_text()) for each in (own, peer)]
        pairs = [pair for rows in zip(*said, strict=True) for pair in zip(*rows, strict=True)]
        equal = sum(one == other for one, other in pairs) / len(pairs)
        if any(one[0] != other[0] for one, other in zip(*said, strict=True)):
            raise BenchmarkError(f"{peer.name}: begins with other tokens than we do")
        notes.append(f"{texts} at once: {equal:.0%} of the tokens are the same.")
        for figure in (own, peer):
            speed = f"{texts * asked.tokens / figure.wall_s:,.1f}"
            times = [f"{figure.wall_s:.4g}", f"{figure.cpu_s:.4g}"]
            rows.append([figure.name, speed, *times, "disturbed" if figure.disturbed else ""])
        limit = ONE if texts == 1 else SEVERAL
        for text, of in (("wall", "wall_s"), ("CPU", "cpu_s")):
            name = f"{texts} at once: its {text} time over ours"
            goals.append(measuring.compare(name, peer, own, limit, of=of, at_most=False))
    return Report(f"{title}, {asked.threads} threads", figures, goals, rows, notes)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = measuring.parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of a causal model")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--tokens", type=int, default=32, help="tokens to make")
    parser.add_argument("--texts", type=int, default=8, help="prompts at once")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        found = compare(asked, Path(folder))
    measuring.show([found], asked)


if __name__ == "__main__":
    main()
