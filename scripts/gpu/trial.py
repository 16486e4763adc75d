"""One large GPU: whether all of it works there, how well and how large. `ab.py` says how fast.

    python scripts/gpu/trial.py --stage check|recipe|reproduce|scale [--out DIR]
        [--data-dir DIR] [--model FOLDER] [--wheels DIR] [--minutes 11] [--dry]

Each stage fits into fifteen minutes, the start of the machine included.

Needs the repository, a folder of data sets, and Python 3.11 or later with torch for CUDA; what else
is missing is installed from DIR of `--wheels`, which `wheels.sh` fills, into OUT. A stage is a list
of jobs, the most telling first. Each has its own time, and none begins that the stage's has run out
for: typed again, the command goes on with the next one. OUT/STAGE.jsonl gets a line for each job,
OUT/STAGE.md a table, OUT/logs/STAGE/JOB.log what it printed. `--model` is a published BERT
(`scripts/minilm.sh minilm`), without which some jobs are left out.

`--dry` tries all of it on the CPU at the smallest sizes, in less than two minutes a stage; its
figures mean nothing.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages import ROOT, STAGES, Job, Trial

NEEDED = {
    "ignite": "pytorch-ignite", "hydra": "hydra-core", "omegaconf": "omegaconf",
    "antlr4": "antlr4-python3-runtime", "yaml": "PyYAML", "tokenizers": "tokenizers",
    "tensorboard": "tensorboard", "safetensors": "safetensors", "numpy": "numpy", "tqdm": "tqdm",
    "zstandard": "zstandard", "rich": "rich", "jinja2": "jinja2", "pytest": "pytest",
    "pytest_timeout": "pytest-timeout", "hypothesis": "hypothesis",
}  # fmt: skip
"""What has to be importable besides torch, and the package that it comes in."""

LEAST_S = 20.0
"""No job begins with less than this left."""


def install_missing(wheels: Path | None, folder: Path) -> str | None:
    """Install what is missing from wheels into a folder; return why that cannot be done."""
    missing = [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]
    if not missing or folder.exists():
        return None
    if wheels is None:
        return f"missing: {', '.join(missing)}; fill a folder with wheels.sh and name it --wheels"
    words = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    found = [str(each) for each in sorted(wheels.glob("*.whl"))]
    ended = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, *words, "--target", str(folder), *found], check=False
    )
    return None if ended.returncode == 0 else f"pip could not install the wheels of {wheels}"


def environment(folder: Path, trial: Trial) -> dict[str, str]:
    """Return the environment of jobs: the repository, not installed, and what was missing."""
    paths = [str(ROOT), str(ROOT / "scripts" / "bench"), str(folder)]
    paths += [each for each in (os.environ.get("PYTHONPATH"),) if each]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "TRANSFER_DATA": str(trial.data_dir),
        "TRANSFER_CACHE": str(trial.out / "cache"),
    }


def run(job: Job, limit_s: float, folder: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """Run a job; return a record of it."""
    folder.mkdir(parents=True, exist_ok=True)
    log, began = folder / f"{job.name}.log", time.monotonic()
    with log.open("wb") as out:
        try:
            code: int | None = subprocess.run(  # noqa: S603 - our own words
                job.words, stdout=out, stderr=subprocess.STDOUT, cwd=folder, timeout=limit_s,
                env={**env, **job.env}, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = None
    record = {
        "job": job.name, "words": job.words, "code": code,
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip
    try:
        record["figures"] = job.figures(folder, log.read_text("utf-8", errors="replace"))
    except (OSError, ValueError, KeyError, IndexError) as error:
        record["figures"] = {"no figures": f"{type(error).__name__}: {error}"}
    return record


def machine() -> dict[str, Any]:
    """Return what everything was measured on."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "gpu": gpu, "torch": torch.__version__, "cuda": torch.version.cuda,
        "python": platform.python_version(), "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def go_on(stage: str, trial: Trial, seconds: float) -> tuple[list[dict[str, Any]], int]:
    """Run the jobs of a stage that have not run; return all records, and how many jobs wait."""
    began = time.monotonic()
    path = trial.out / f"{stage}.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {record["job"] for record in records}
    waiting = [job for job in STAGES[stage](trial) if job.name not in done]
    env = environment(trial.out / "site", trial)
    while waiting:
        left = seconds - (time.monotonic() - began)
        if left < LEAST_S:
            break
        job = waiting.pop(0)
        record = run(job, min(job.seconds, left), trial.out / "logs" / stage, env)
        records.append(record)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(f"{job.name}: exit {record['code']}, {record['seconds']} s {record['figures']}")
    return records, len(waiting)


def text_of(stage: str, records: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """Return a stage's figures as a page."""
    said = ", ".join(f"{key} {value}" for key, value in facts.items())
    lines = [f"# {stage}", "", said, "", "| job | figure | value |", "|---|---|---|"]
    for record in records:
        code = {0: "", None: "ran out of time"}.get(record["code"], f"exit {record['code']}")
        lines.append(f"| {record['job']} | seconds | {record['seconds']} {code} |")
        lines += [
            f"| | {name} | {' '.join(str(value).split())} |"
            for name, value in record["figures"].items()
        ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a stage from the command line; return 1 if a job failed, 3 if some have to wait."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", required=True, choices=STAGES)
    parser.add_argument("--out", type=Path, default=Path("gpu-trial"))
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("TRANSFER_DATA"))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--minutes", type=float, default=11.0)
    parser.add_argument("--dry", action="store_true")
    asked = parser.parse_args(argv)
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    problem = install_missing(asked.wheels, out / "site")
    facts = machine()
    if facts["gpu"] is None and not asked.dry:
        problem = "there is no CUDA device here; --dry tries a stage on the CPU"
    elif asked.data_dir is None and not asked.dry:
        problem = "name the folder of data sets: --data-dir DIR, or TRANSFER_DATA"
    if problem is not None:
        print(f"trial.py: {problem}", file=sys.stderr)
        return 2
    data_dir, model = (each and Path(each).resolve() for each in (asked.data_dir, asked.model))
    trial = Trial(out, data_dir, model, dry=asked.dry)
    records, waiting = go_on(asked.stage, trial, 60 * asked.minutes)
    page = text_of(asked.stage, records, facts)
    (out / f"{asked.stage}.md").write_text(page, encoding="utf-8")
    (out / f"{asked.stage}.machine.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    if waiting:
        print(f"out of time: {waiting} job(s) wait for the same command, typed again")
        return 3
    return int(any(record["code"] != 0 for record in records))


if __name__ == "__main__":
    sys.exit(main())
