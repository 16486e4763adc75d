"""Passes too short for a host: a step of fine-tuning, a token of generation, and transformers'.

    python scripts/gpu/short.py --bert FOLDER --causal FOLDER --data-dir DATA [--seconds N]

Folders of published models, such as MiniLM and SmolLM2-135M; their weights decide nothing. Each
figure, in milliseconds, is a process of its own and a line of JSON. `--quick --device cpu` tries
all of it; its figures mean nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

# In place of this folder, whose `kernels` transformers would take for a package of that name.
sys.path[0] = str(Path(__file__).resolve().parents[2])

BATCH = 32
WAYS = (
    "step", "step, no graphs", "step, Trainer",
    *(f"token, {kind}, {rows}{way}" for kind in ("bf16", "fp32") for rows in (1, 8)
      for way in ("", ", no graphs", ", transformers")),
)  # fmt: skip


class Clock:
    """Takes the time of some calls behind the first."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._first, self._calls = (2, 3) if args.quick else (80, 150)
        self._is_gpu, self._count, self._began = args.device == "cuda", 0, 0.0
        self.total = self._first + self._calls + 1
        self.ms = 0.0

    def __call__(self) -> None:
        """Count a call; wait for the device where the time begins and ends."""
        import torch

        if self._count in (self._first, self.total - 1):
            if self._is_gpu:
                torch.cuda.synchronize()
            self.ms = 1000 * (time.perf_counter() - self._began) / self._calls
            self._began = time.perf_counter()
        self._count += 1


def train(args: argparse.Namespace, clock: Clock, words: Sequence[str], folder: str) -> None:
    """Run `transfer finetune` on TREC-6; the clock is called before each step."""
    from transfer_cli.cli import main
    from transfer_cli.engine.step import TrainStep

    step = TrainStep.__call__

    def timed(*parts: Any) -> Any:
        clock()
        return step(*parts)

    with mock.patch.object(TrainStep, "__call__", timed):
        code = main([
            "finetune", "data=trec6", f"init_from={args.bert}", f"device={args.device}",
            f"loop.batch={BATCH}", f"loop.steps={clock.total}", "loop.evaluate_every=9999 steps",
            "checkpoint.every=9999 steps", "logger=null", f"run.dir={folder}/run", *words,
        ])  # fmt: skip
    if code:
        sys.exit(code)


def train_peer(args: argparse.Namespace, clock: Clock, folder: str) -> None:
    """Run Hugging Face's `Trainer` on the same questions."""
    import transformers

    file = Path(os.environ["TRANSFER_DATA"], "trec", "train_5500.label")
    lines = [line.split(" ", 1) for line in file.read_text("latin-1").splitlines()]
    names = sorted({label.partition(":")[0] for label, _ in lines})
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.bert)
    rows = [
        {**tokenizer(text, truncation=True), "labels": names.index(label.partition(":")[0])}
        for label, text in lines
    ]
    kind = transformers.AutoModelForSequenceClassification
    model = kind.from_pretrained(args.bert, num_labels=len(names))

    class AtEachStep(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            clock()

    fast = {"bf16": True, "dataloader_num_workers": 2} if args.device == "cuda" else {"use_cpu": 1}
    arguments = transformers.TrainingArguments(
        folder, per_device_train_batch_size=BATCH, max_steps=clock.total, save_strategy="no",
        report_to="none", **fast,
    )  # fmt: skip
    collate, callbacks = transformers.DataCollatorWithPadding(tokenizer), [AtEachStep()]
    transformers.Trainer(model, arguments, collate, rows, callbacks=callbacks).train()


def write(args: argparse.Namespace, clock: Clock, kind: str, rows: int, *, graphs: bool) -> None:
    """Write tokens by `transfer_cli.generation`; the clock is called before each."""
    import torch

    from transfer_cli.assembly.finished_run import open_trained
    from transfer_cli.engine.precision import Precision
    from transfer_cli.generation import token_graph
    from transfer_cli.generation.decoding import Sampling, TokenSampler, generate

    token_graph.FEWEST_TOKENS = 1 if graphs else 10**9
    precision = Precision(kind, torch.device(args.device))
    trained = open_trained(args.causal, precision)
    allowed_V = torch.ones(trained.start.description.vocabulary, dtype=torch.bool)
    with torch.inference_mode(), precision.context():
        for _ in generate(
            trained.model, list(range(20, 40)), rows=rows, max_new_tokens=clock.total,
            use_cache=True, sampling=Sampling(0), sampler=TokenSampler(0, rows),
            allowed_V=allowed_V,
        ):  # fmt: skip
            clock()


def write_peer(args: argparse.Namespace, clock: Clock, kind: str, rows: int) -> None:
    """Write them by `generate` of transformers."""
    import torch
    import transformers

    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(args.causal, dtype=dtype)
    tokens = torch.tensor([list(range(20, 40))] * rows, device=args.device)

    class AtEachToken(transformers.LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            clock()
            return scores

    model.to(args.device).generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=clock.total, do_sample=False,
        min_new_tokens=clock.total, logits_processor=[AtEachToken()],
    )  # fmt: skip


def measure(args: argparse.Namespace, way: str) -> float:
    """Return the milliseconds of a step, or of a token, in this process."""
    clock, graphs = Clock(args), not way.endswith("no graphs")
    what, *parts = way.split(", ")
    with tempfile.TemporaryDirectory() as folder:
        if way == "step, Trainer":
            train_peer(args, clock, folder)
        elif what == "step":
            train(args, clock, [] if graphs else ["loop.cuda_graphs=false"], folder)
        elif way.endswith("transformers"):
            write_peer(args, clock, parts[0], int(parts[1]))
        else:
            write(args, clock, parts[0], int(parts[1]), graphs=graphs)
    return clock.ms


def main(argv: Sequence[str] | None = None) -> int:
    """Measure from the command line; return 1 if something failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bert", required=True)
    parser.add_argument("--causal", required=True)
    parser.add_argument("--data-dir", default=os.environ.get("TRANSFER_DATA"))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a way at most")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--here", action="store_true", help="in this process")
    args = parser.parse_args(argv)
    os.environ["TRANSFER_DATA"] = str(args.data_dir)
    if args.here:
        print(json.dumps({way: round(measure(args, way), 3) for way in args.ways}))
        return 0
    failed = False
    given = sys.argv[1:] if argv is None else argv
    for way in args.ways:
        words = [sys.executable, __file__, *given, "--ways", way, "--here"]
        try:
            ended = subprocess.run(
                words, capture_output=True, text=True, timeout=args.seconds, check=True
            )
            print(ended.stdout.splitlines()[-1], flush=True)
        except subprocess.SubprocessError as error:
            failed = True
            reason = f"failed: {getattr(error, 'stderr', error)}"[-500:]
            print(json.dumps({way: reason}), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
