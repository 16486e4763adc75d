"""Search what the dial's rules say: rate, batch and weight decay by depth, text and length.

    python scripts/bench/dial.py OUT.jsonl --train FILE --validation FILE [--depths 3]
        [--tokens 4e5] [--rates 4e-3 8e-3] [--batches 2048] [--decays 0.01] [--seeds 0]

Trains every combination by `transfer pretrain model=dial`, with these values typed over the rules',
and appends a line a run to OUT, in which a run that stands there already is not made again. Without
--rates (--batches, --decays) a run has what the rules say.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NEVER = "1000000 steps"
KEYS = {"rate": "optimizer.lr={}", "decay": "optimizer.weight_decay={}", "tokens": "loop.tokens={}"}


def run_words(setting: dict[str, Any], length: int) -> list[str]:
    """Return what is typed of a run."""
    words = [form.format(setting[name]) for name, form in KEYS.items() if setting[name] is not None]
    if setting["batch"]:
        words.append(f"loop.batch={int(setting['batch']) // length}")
    return [f"model.depth={setting['depth']}", f"seed={setting['seed']}", *words]


def train_run(words: Sequence[str]) -> dict[str, Any]:
    """Train a run; return what it came to."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "transfer_cli", "pretrain", *words, f"run.dir={run}"]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            return {"failed": process.stderr.strip().splitlines()[-1]}
        results = json.loads((run / "results.json").read_text())
        timing = json.loads((run / "timing.json").read_text())
    scores = results["measures"]["validation"]
    return {
        "loss": scores["loss"],
        "bits_per_byte": scores["bits_per_byte"],
        "steps": results["seen"]["steps"],
        "seen": results["seen"]["tokens"],
        "flops": results["cost"]["flops"],
        "seconds": timing["seconds"],
    }


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--train", required=True)
    parser.add_argument("--validation", required=True)
    parser.add_argument("--corpus", help="how the lines call the text; else the file's name")
    parser.add_argument("--length", type=int, default=256, help="of the dial's blocks of text")
    parser.add_argument("--depths", nargs="+", type=int, default=[3])
    parser.add_argument("--with", nargs="*", default=[], dest="more", metavar="KEY=VALUE")
    for name, default in {"tokens": ["4e5"], "rates": [None], "batches": [None],
                          "decays": [None], "seeds": ["0"]}.items():  # fmt: skip
        parser.add_argument(f"--{name}", nargs="+", type=float, default=default)
    args = parser.parse_args()
    names = ("depth", "tokens", "rate", "batch", "decay", "seed")
    lists = (args.depths, args.tokens, args.rates, args.batches, args.decays, args.seeds)
    done = [json.loads(line) for line in args.out.read_text().splitlines()] if (
        args.out.exists()
    ) else []  # fmt: skip
    shared = [
        "data=text", f"data.train={args.train}", f"data.validation={args.validation}",
        f"loop.evaluate_every={NEVER}", f"checkpoint.every={NEVER}", "logger=null", "device=cpu",
        "model=dial", *args.more,
    ]  # fmt: skip
    for values in itertools.product(*lists):
        setting = dict(zip(names, map(as_number, values), strict=True))
        setting |= {"corpus": args.corpus or Path(args.train).stem, "with": args.more}
        if any(line.items() >= setting.items() for line in done):
            continue
        began = time.strftime("%H:%M:%S")
        line = setting | train_run([*shared, *run_words(setting, args.length)])
        with args.out.open("a") as file:
            file.write(json.dumps(line | {"began": began}) + "\n")
        print(line, flush=True)


def as_number(value: str | float | None) -> float | int | None:
    """Return a whole number as one."""
    number = None if value is None else float(value)
    return int(number) if number is not None and number.is_integer() else number


if __name__ == "__main__":
    main()
