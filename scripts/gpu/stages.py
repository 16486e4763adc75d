"""The jobs of each stage of `trial.py`, the most telling first."""

import importlib.util
import json
import os
import re
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "scripts" / "bench"
sys.path.insert(0, str(BENCH))
from measuring import transfer  # noqa: E402 - found by the line above

TESTS = "tests/functional/test_on_a_gpu.py"

Figures = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """What was asked for.

    Args:
        out: Where results go.
        data_dir: Where data sets lie; None: nowhere.
        model: The folder of a published BERT; None: there is none.
        dry: Whether all is tried on a CPU, at the smallest sizes.
    """

    out: Path
    data_dir: Path | None
    model: Path | None
    dry: bool

    @property
    def device(self) -> str:
        """Where jobs compute."""
        return "cpu" if self.dry else "cuda"

    def has(self, name: str) -> bool:
        """Return whether a data set is there."""
        return self.data_dir is not None and (self.data_dir / name).is_dir()


@dataclass(frozen=True)
class Job:
    """A command, and what to read of what it leaves.

    Args:
        name: Its own in its stage.
        words: The command.
        figures: Returns figures by name, of the stage's folder and of what was printed.
        seconds: How long it may take.
        env: Environment variables besides those of all jobs.
    """

    name: str
    words: list[str]
    figures: Callable[[Path, str], Figures]
    seconds: float = 120.0
    env: Mapping[str, str] = field(default_factory=dict)


# --- check ---------------------------------------------------------------------------------------

PARTS = {
    "steps": "device_computes or planted",
    "precision-and-compiler": "losses_are_those or dropout or graphs",
    "commands": "whole_commands or stopped or scores_the_same or exported",
    "processes": "processes or torchrun",
}
"""The tests of `make test-gpu`, by parts of their names."""

DRY_PARTS = {
    "steps": "edit or penalty or planted",
    "processes": "torchrun and ddp",
    "commands": "stopped",
}


def check(trial: Trial) -> list[Job]:
    """Return the parts of `make test-gpu`; pytest-xdist, where it is, runs several at once."""
    at_once = ["-n", str(min(8, os.cpu_count() or 1))] if importlib.util.find_spec("xdist") else []
    return [
        Job(
            part,
            [
                sys.executable, "-m", "pytest", str(ROOT / TESTS), "-m", "gpu", "-q", "-k", names,
                "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib",
                "-W", "default", "-o", "junit_family=xunit1", *at_once,
                f"--rootdir={ROOT}", f"--junit-xml={part}.xml",
            ],
            lambda folder, _, part=part: _tests(folder / f"{part}.xml"),
            seconds=300,
            env={"TRANSFER_TEST_DEVICE": trial.device, "TMPDIR": "/tmp"},  # noqa: S108 - pytest's own
        )
        for part, names in (DRY_PARTS if trial.dry else PARTS).items()
    ]  # fmt: skip


def _tests(path: Path) -> Figures:
    """Return how many tests passed, what failed, and what tests have noted."""
    root = ElementTree.parse(path).getroot()  # noqa: S314 - pytest has written it
    [suite] = root.iter("testsuite")
    number = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    passed = number["tests"] - number["failures"] - number["errors"] - number["skipped"]
    found: Figures = {"passed": passed, "skipped": number["skipped"]}
    for case in root.iter("testcase"):
        for problem in (*case.iter("failure"), *case.iter("error")):
            found[f"failed: {case.get('name')}"] = (problem.get("message") or "")[:300]
        for noted in case.iter("property"):
            found[f"{case.get('name')}: {noted.get('name')}"] = noted.get("value")
    return found


# --- recipe --------------------------------------------------------------------------------------

SMALL = (
    "model=toy", "data=sample_text", "data.length=32", "tokenizer.size=600", "loop.batch=8",
    "loop.steps=8",
)  # fmt: skip


def corpus(trial: Trial) -> tuple[str, ...]:
    """Return the largest text at hand, and its tokenizer."""
    if trial.dry:
        return SMALL
    assert trial.data_dir is not None  # noqa: S101 - `trial.py` has asked for it
    if (trial.data_dir / "wikitext-103" / "wiki.train.tokens").exists():
        return ("data=wikitext103", f"data_dir={trial.data_dir}", "tokenizer.size=29056")
    folder = trial.data_dir / "enwiki-2015"
    return (
        "data=text", f"data.train={folder / 'train.txt.xz'}",
        f"data.validation={folder / 'valid.txt'}", "data.length=256", "tokenizer.size=29056",
    )  # fmt: skip


def pretraining(trial: Trial, name: str, minutes: float, model: str, *words: str) -> Job:
    """Return a pretraining of a model that ends after some minutes, with its rate decayed."""
    large = (
        f"model={model}", "loop.compile=true", "loop.steps=1000000", f"loop.minutes={minutes}",
    )  # fmt: skip
    run = trial.out / name
    command = transfer(
        "pretrain", *words, *corpus(trial), *(() if trial.dry else large),
        "loop.evaluate_every=200 steps",
        "checkpoint.every=1000000 steps", f"device={trial.device}", f"run.dir={run}",
    )  # fmt: skip
    return Job(name, command, lambda *_: _pretrained(run), 60 * minutes + 90)


def _pretrained(run: Path) -> Figures:
    """Return what a pretraining reached, and the loss after each share of its time."""
    results, timing = (json.loads((run / f"{n}.json").read_text()) for n in ("results", "timing"))
    steps, seconds = results["seen"]["steps"], timing["seconds"]
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    curve = [
        f"{seconds * each['step'] / steps:.0f} s: {each['loss']:.3f}"
        for each in lines
        if each["kind"] == "validation"
    ]
    return {
        **results["measures"]["validation"], "steps": steps, "tokens": results["seen"]["tokens"],
        "tokens a second": timing["per_second"]["tokens"], "loss by seconds": "; ".join(curve),
    }  # fmt: skip


def recipe(trial: Trial) -> list[Job]:
    """Return the tutorial's settings, then the recipe at three batches and one of them again.

    Its rate grows with the root of the batch.
    """
    clm, ours = "experiment=tutorial/pretrain_clm", "experiment=recipe/clm"
    sizes = [(0.75, 64, 0), (0.75, 128, 0), (0.75, 256, 0), (1.5, 128, 1), (1.5, 128, 2)]
    jobs = [
        pretraining(
            trial, f"recipe-{batch}-{seed}", minutes, "base", ours, f"loop.batch={batch}",
            f"optimizer.lr={4e-3 * (batch / 64) ** 0.5:.3g}", f"seed={seed}",
        )
        for minutes, batch, seed in sizes
    ]  # fmt: skip
    jobs.insert(0, pretraining(trial, "tutorial-settings", 4, "tutorial-fast", clm))
    return jobs


# --- reproduce -----------------------------------------------------------------------------------

PUBLISHED = {"full": 3.6, "adapters": 4.0, "unfreezing": 5.2, "multitask": 3.4}
"""The tutorial's errors on TREC-6, in percent; one run each."""

RATES = {"full": 6.5e-5, "adapters": 6.5e-4, "unfreezing": 6.5e-5, "multitask": 6.5e-5}
"""The tutorial's rates; three times as much is tried as well, and validation chooses."""


def reproduce(trial: Trial) -> list[Job]:
    """Return the tutorial's model, causal and masked, and every scheme from each."""
    jobs = []
    for kind, minutes in (("clm", 2.0), ("mlm", 1.5)):
        words = f"experiment=tutorial/pretrain_{kind}"
        jobs.append(pretraining(trial, f"tutorial-{kind}", minutes, "tutorial-fast", words))
        # The last part has a causal loss beside the main one, which a masked model cannot have.
        some = list(PUBLISHED)[: 4 if kind == "clm" else 3]
        jobs += [fine_tuning(trial, kind, trial.out / f"tutorial-{kind}", each) for each in some]
    if trial.model:
        jobs += [fine_tuning(trial, "published", trial.model, each) for each in list(RATES)[:3]]
    return jobs


def fine_tuning(trial: Trial, start: str, source: Path, scheme: str) -> Job:
    """Return a scheme of the tutorial from a model: two rates, five seeds, five runs at once."""
    words: tuple[str, ...] = (
        f"optimizer.lr={RATES[scheme]:g},{3 * RATES[scheme]:g}", "seed=0,1,2,3,4",
        f"data_dir={trial.data_dir}", "sweep.workers=5",
    )  # fmt: skip
    if trial.dry:
        words = ("seed=0", "data=sample_questions", "loop.epochs=1", "sweep.isolate=false")
    name = f"{start}-{scheme}"
    folder = trial.out / "trec" / name
    command = transfer(
        "finetune", "-m", f"experiment=tutorial/{scheme}", *words, f"init_from={source}",
        f"device={trial.device}", f"hydra.sweep.dir={folder}",
    )  # fmt: skip
    return Job(name, command, lambda *_: _errors(folder, scheme), 150)


def _errors(folder: Path, scheme: str) -> Figures:
    """Return the test errors at each rate, and which of the rates validation prefers."""
    runs: dict[float, list[tuple[float, float]]] = {}
    for path in sorted(folder.glob("*/results.json")):
        measures = json.loads(path.read_text())["measures"]
        [rate] = re.findall(
            r"^  lr: (\S+)", (path.parent / "config.yaml").read_text(), re.MULTILINE
        )
        pair = measures["validation"]["error_rate"], measures["test"]["error_rate"]
        runs.setdefault(float(rate), []).append(pair)
    found: Figures = {"published": f"{PUBLISHED[scheme]} %"}
    for rate, pairs in runs.items():
        validation, test = ([pair[n] for pair in pairs] for n in range(2))
        listed = " ".join(f"{each:.1f}" for each in test)
        found[f"rate {rate:g}"] = (
            f"validation {_spread(validation)}, test {_spread(test)} ({listed})"
        )
    found["chosen"] = min(runs, key=lambda rate: sum(pair[0] for pair in runs[rate]))
    return found


def _spread(errors: list[float]) -> str:
    deviation = statistics.stdev(errors) if len(errors) > 1 else 0.0
    return f"{statistics.fmean(errors):.1f} +- {deviation:.1f} % ({len(errors)} seeds)"


# --- scale ---------------------------------------------------------------------------------------

BILLION = (
    "model=modern", "model.width=2048", "model.heads=32", "model.depth=16",
    "model.feedforward=8192", "model.positions=512",
)  # fmt: skip


def scale(trial: Trial) -> list[Job]:
    """Return a billion parameters with LoRA, then batch, length and depth until memory ends."""
    jobs = []
    big = SMALL if trial.dry else (*BILLION, *corpus(trial), "data.length=256")
    run, lora = trial.out / "billion", trial.out / "billion-lora"
    on = (f"device={trial.device}", "checkpoint.every=1000000 steps")
    short = () if trial.dry else ("loop.batch=8", "loop.steps=4")
    jobs.append(_sized("billion", transfer("pretrain", *big, *short, *on, f"run.dir={run}"), run))
    tune = transfer(
        "finetune", "adaptation=lora", "data=sample_questions", f"init_from={run}", "loop.steps=20",
        *(() if trial.dry else ("precision=bf16",)), *on, f"run.dir={lora}",
    )  # fmt: skip
    jobs.append(_sized("billion-lora", tune, lora))
    sizes = {f"batch-{n}": [f"loop.batch={n}"] for n in (64, 256, 1024, 4096)}
    for length in (1024, 4096, 16384):
        sizes[f"length-{length}"] = [
            f"data.length={length}", f"model.positions={length}", "loop.batch=8",
        ]  # fmt: skip
    sizes |= {f"depth-{n}": [f"model.depth={n}", "loop.batch=64"] for n in (44, 176)}
    if trial.dry:
        sizes = {"batch-8": ["loop.batch=8"]}
    again = "loop.activation_checkpointing=true"
    both = [
        pair
        for name, words in sizes.items()
        for pair in ((name, words), (f"{name}-recomputed", [*words, again]))
    ]
    given = SMALL if trial.dry else ("model=base", *corpus(trial), "data.length=256")
    for name, of_size in both:
        words = (*given, "loop.steps=6", *of_size, *on)
        run = trial.out / "sizes" / name
        jobs.append(_sized(name, transfer("pretrain", *words, f"run.dir={run}"), run))
        eight = (*words, "devices=8", "parallel=fsdp")
        for title, asked in ((f"{name}-planned", words), (f"{name}-planned-on-eight", eight)):
            planned = transfer("plan", "pretrain", *asked, "plan.steps=0")
            jobs.append(Job(title, planned, _planned, 60))
    sharded = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1",
        *transfer("pretrain", *given, "loop.steps=6", "parallel=fsdp", *on)[1:],
    ]  # fmt: skip
    run = trial.out / "sizes" / "fsdp"
    jobs.append(_sized("fsdp", [*sharded, f"run.dir={run}"], run))
    return jobs


def _sized(name: str, words: list[str], run: Path) -> Job:
    return Job(name, words, lambda _, said: _size(run, said), 120)


def _size(run: Path, said: str) -> Figures:
    """Return the memory and speed of a run, or that there was too little."""
    if not (run / "results.json").exists():
        ended = re.findall(r".*(?:out of memory|memory).*", said, re.IGNORECASE)
        return {"ended": ended[-1][:300] if ended else said[-300:]}
    timing = json.loads((run / "timing.json").read_text())
    parameters = json.loads((run / "results.json").read_text())["parameters"]
    return {
        "parameters": parameters["total"], "trained": parameters["trainable"],
        "peak MiB": round(timing["peak_memory_bytes"] / 2**20),
        "tokens a second": timing["per_second"]["tokens"],
    }  # fmt: skip


def _planned(_: Path, said: str) -> Figures:
    """Return what `transfer plan` says of memory."""
    lines = [" ".join(line.split()) for line in said.splitlines() if "memory" in line.lower()]
    return {"planned": "; ".join(lines)[:300]}


STAGES: dict[str, Callable[[Trial], list[Job]]] = {
    "check": check, "recipe": recipe, "reproduce": reproduce, "scale": scale,
}  # fmt: skip
