"""Compare generation with that of transformers, from the same weights, with a cache on both sides.

    python scripts/bench/generate.py --model FOLDER

FOLDER is a published causal model such as SmolLM2-135M. A turn makes the likeliest tokens after one
prompt, or after several prompts of 8 to 64 tokens at once, or looks for the likeliest texts by four
beams; a prompt is drawn tokens, whose values decide nothing. The first token after each must be the
same on both sides; later on rounding decides between some that are nearly as likely, and so all
that follow.
"""

import argparse
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import measuring
from measuring import BenchmarkError, Gate, Goal, Report, Variant

TOKENS, PEER = 32, "transformers"
LIMITS = {(1, 1): 1.3, (8, 1): 1.5, (1, 4): 1.0, (8, 4): 1.0}
"""The goals by how many prompts there are at once, and beams: tokens a second over the peer's."""


def draw_prompts(texts: int, vocabulary: int) -> list[list[int]]:
    """Return drawn prompts; a single one has 20 tokens."""
    generator = random.Random(0)  # noqa: S311 - draws prompts, the same each time
    lengths = [20] if texts == 1 else [generator.randint(8, 64) for _ in range(texts)]
    return [[generator.randrange(20, vocabulary) for _ in range(length)] for length in lengths]


def run_ours(arrive: Gate, folder: str, texts: int, beams: int, device: str, path: str) -> None:
    """Make tokens after each prompt, as text to text and dialogs do."""
    import torch

    from transfer_cli.assembly.finished_run import open_trained
    from transfer_cli.engine.precision import Precision
    from transfer_cli.objectives.beam_search import BeamSearch
    from transfer_cli.objectives.replies import Continued

    trained = open_trained(folder, Precision("fp32", torch.device(device)))
    prompts = draw_prompts(texts, trained.start.description.vocabulary)
    rows = [torch.tensor(prompt, device=device) for prompt in prompts]
    tokens_RT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    begin_R = torch.tensor([len(row) for row in rows], device=device)
    segments_RT = torch.zeros_like(tokens_RT)
    allowed_V = torch.ones(trained.start.description.vocabulary, dtype=torch.bool)
    allowed_V[trained.start.tokenizer.sep] = False  # as many tokens are made as the peer makes

    def generate() -> list[list[int]]:
        reader = Continued(trained.model, tokens_RT, segments_RT, begin_R, max_tokens=TOKENS)
        if beams == 1:
            return reader.pick_tokens(lambda logits: logits.argmax(1)).tolist()
        search = BeamSearch(beams)
        with torch.inference_mode():
            return search(
                reader.first(), reader.next, max_tokens=TOKENS, end_tokens=[], allowed_V=allowed_V
            )

    _repeat(arrive, generate, path)


def run_peer(arrive: Gate, folder: str, texts: int, beams: int, device: str, path: str) -> None:
    """Make them by `generate` of transformers, with padding on the left."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    prompts = draw_prompts(texts, model.config.vocab_size)
    longest = max(map(len, prompts))
    tokens = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=device)
    real = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)

    def generate() -> list[list[int]]:
        return model.generate(
            tokens, attention_mask=real, max_new_tokens=TOKENS, min_new_tokens=TOKENS,
            do_sample=False, pad_token_id=0, num_beams=beams,
        )[:, longest:].tolist()  # fmt: skip

    _repeat(arrive, generate, path)


def _repeat(arrive: Gate, generate: Callable[[], list[list[int]]], path: str) -> None:
    Path(path).write_text(json.dumps(generate()))
    while True:
        arrive()
        generate()


def _beams_suffix(beams: int) -> str:
    return "" if beams == 1 else f", {beams} beams"


def measure(args: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Measure one prompt, and several at once."""
    measuring.require_peers(args.peers)
    options = {"folder": str(args.model.resolve()), "device": args.device}
    variants = [
        Variant(
            name := f"{who}, {texts} at once{_beams_suffix(beams)}", "generate", function,
            {**options, "texts": texts, "beams": beams, "path": str(folder / name)}, python,
        )
        for texts, beams in LIMITS
        for who, function, python in (("ours", "run_ours", ""), (PEER, "run_peer", args.peers))
    ]  # fmt: skip
    figures = measuring.take_turns(variants, rounds=args.rounds, threads=args.threads)
    notes, goals, speeds = list[str](), list[Goal](), dict[str, str]()
    pairs = zip(figures[::2], figures[1::2], strict=True)
    for ((texts, beams), limit), pair in zip(LIMITS.items(), pairs, strict=True):
        transfer, peer = pair
        case = f"{texts} at once{_beams_suffix(beams)}"
        speeds |= {figure.name: f"{texts * TOKENS / figure.wall_s:,.1f}" for figure in pair}
        outputs = [json.loads((folder / figure.name).read_text()) for figure in pair]
        if any(one[0] != other[0] for one, other in zip(*outputs, strict=True)):
            raise BenchmarkError(f"{peer.name}: begins with other tokens than we do")
        same = [a == b for rows in zip(*outputs, strict=True) for a, b in zip(*rows, strict=True)]
        notes.append(f"{case}: {sum(same) / len(same):.0%} of the tokens are the same.")
        for text, of in (("wall", "wall_s"), ("CPU", "cpu_s")):
            name = f"{case}: its {text} time over ours"
            goals.append(measuring.ratio_goal(name, peer, transfer, limit, of=of, at_most=False))
    rows = measuring.figure_rows(figures, {"tokens a second": lambda figure: speeds[figure.name]})
    title = f"Making {TOKENS} tokens with {args.model.name}, {args.threads} threads"
    yield Report(title, figures, goals, rows, notes)


if __name__ == "__main__":
    measuring.main(__doc__, measure, measuring.MODEL, rounds=5)
