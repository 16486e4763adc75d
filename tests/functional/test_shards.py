"""A corpus of many files, from `prepare` to a run: killed, shared by processes, weighted."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import several
from tests.records import read_metrics

SYLLABLES = ["".join(pair) for pair in itertools.product("bdfglmnprst", "aeiou")]


def text(seed: int, lines: int) -> str:
    """Return made-up lines, of which no two files have the same."""
    words = [f"{one}{SYLLABLES[(seed + place) % 55]}" for place, one in enumerate(SYLLABLES)]
    return "".join(
        " ".join(words[(line * 7 + place * (seed + 1)) % 55] for place in range(12)) + " .\n"
        for line in range(lines)
    )


@pytest.fixture
def folder(tmp_path):
    for number, name in enumerate(("wiki/0", "books/1", "books/2")):
        path = tmp_path / "corpus" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(number, 200))
    return tmp_path / "corpus"


def start(*words, cache):
    """Start a command in a process of its own, with a cache of its own."""
    environment = {
        **os.environ, "PYTHONPATH": str(several.ROOT), "OMP_NUM_THREADS": "1",
        "TRANSFER_CACHE": str(cache),
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "transfer_cli", *map(str, words)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def entries(cache):
    return {path.parent.name: path.stat().st_mtime_ns for path in cache.glob("*/[!.]*/seal.json")}


def test_prepare_says_how_many_files_came_and_a_run_takes_them(transfer, folder, tiny, loop):
    data = ("data=text", f"data.train={folder}")

    prepared = transfer("prepare", *data, "tokenizer.size=600").ok()
    ended = transfer("pretrain", *data, *tiny, *loop, "loop.steps=1", "run.dir=run").ok()

    assert "3 files in " in prepared.out
    assert "Encoding" not in ended.err


def test_weights_say_what_an_epoch_is_made_of(transfer, folder, tiny, loop):
    data = ("data=text", f"data.train=[{folder}/wiki,{folder}/books]", "data.weights=[2,1]")

    ended = transfer("pretrain", *data, *tiny, *loop, "loop.steps=2", "run.dir=run").ok()

    said = [line for line in ended.err.splitlines() if "data.weights: " in line]
    assert len(said) == 2
    assert "wiki, which has" in said[0]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_after_a_kill_what_is_whole_is_kept_and_the_rest_is_made(tmp_path):
    folder, cache = tmp_path / "corpus", tmp_path / "cache"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.txt").write_text(text(number, 30_000))
    (tmp_path / "validation.txt").write_text("the end\n")
    words = (
        "prepare", "data=text", f"data.train={folder}", "tokenizer.size=400", "data.workers=2",
        f"data.validation={tmp_path / 'validation.txt'}",
    )  # fmt: skip
    killed = start(*words, cache=cache)
    deadline = time.monotonic() + 120
    while not list(cache.glob("encoded/*/seal.json")) and time.monotonic() < deadline:
        time.sleep(0.005)
    workers = children(killed.pid)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    while any(Path(f"/proc/{child}").exists() for child in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    kept = entries(cache)

    ended = start(*words, cache=cache)
    out, err = ended.communicate(timeout=240)

    assert ended.returncode == 0, err
    assert len(workers) >= 2
    assert not any(Path(f"/proc/{child}").exists() for child in workers)
    assert 0 < len(kept) < 8  # with that of the tokenizer
    assert {name: entries(cache)[name] for name in kept} == kept
    assert not [path for path in cache.glob("encoded/.*") if path.is_dir()]
    whole = start(*words, "data.workers=1", cache=tmp_path / "other")
    assert whole.communicate(timeout=240)[0].replace("other", "cache") == out


def children(process):
    processes = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        processes += map(int, path.read_text().split())
    return processes


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_encode_a_corpus_together_and_train_as_one_does(folder, tiny, loop, tmp_path):
    words = (
        "pretrain", "data=text", f"data.train=[{folder}/wiki,{folder}/books]", *tiny, *loop,
        "data.weights=[1,2]", "data.documents=separate", "loop.steps=6", "model.dropout=0",
    )  # fmt: skip
    metrics = {}
    for devices in (1, 2):
        run = start(
            *words, f"devices={devices}", f"run.dir={tmp_path}/{devices}",
            cache=tmp_path / f"cache{devices}",
        )  # fmt: skip
        _, err = run.communicate(timeout=240)
        assert run.returncode == 0, err
        metrics[devices] = [
            value
            for record in read_metrics(tmp_path / str(devices) / "metrics.jsonl")
            for value in record.values()
            if isinstance(value, float)
        ]

    assert metrics[2] == pytest.approx(metrics[1], rel=1e-4, abs=1e-6)
    goes_on = (*words, f"run.dir={tmp_path}/1", "resume=auto", "loop.steps=7", "data.workers=3")
    longer = start(*goes_on, cache=tmp_path / "cache1")
    assert longer.communicate(timeout=240)[1].count("Encoding") == 0
    assert longer.returncode == 0
    assert entries(tmp_path / "cache2").keys() == entries(tmp_path / "cache1").keys()


MEASURE = """
import json, resource, sys
from pathlib import Path
import numpy as np
from transfer_cli.data.corpus import TextBlocks, encode_text
from transfer_cli.data.text import whole_text
from transfer_cli.data.tokenizer_recipes import WordPiece
folder, cache = sys.argv[1:]
tokenizer = WordPiece(400).make(lambda: iter([Path(folder, "0.txt").read_text()[:100_000]]))
def held():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
blocks = TextBlocks(encode_text(whole_text(folder, "train"), tokenizer, Path(cache)), 128, 0)
before = held()
for first in range(0, len(blocks), 64):
    blocks.batch(np.arange(first, min(first + 64, len(blocks))))
size = len(blocks.text.tokens) * 2 / 2**20
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"tokens": size, "grown": held() - before, "peak": peak}))
"""


@pytest.mark.slow
@pytest.mark.multiprocess
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    sizes = []
    for count in (2, 16):
        folder = tmp_path / f"of{count}"
        folder.mkdir()
        for number in range(count):
            (folder / f"{number}.txt").write_text(text(number, 30_000))
        words = [sys.executable, "-c", MEASURE, str(folder), str(tmp_path / "cache")]
        environment = {**os.environ, "PYTHONPATH": str(several.ROOT), "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        sizes.append(json.loads(ended.stdout))

    small, large = sizes
    assert large["tokens"] > 7 * small["tokens"] > 7
    assert large["grown"] < large["tokens"] / 4
    assert large["peak"] < small["peak"] + large["tokens"]
