"""Measure how fast, and in how much memory, `transfer prepare` encodes a corpus of many files.

    python scripts/bench/encoding.py [--data-dir DIR] [--megabytes 64] [--files 8] [--threads 2]
        [--rounds N] [--only speed|memory] [--quick] [--json FILE]

Speed: the whole command, from its start to its end, with an empty cache and as many processes as
`--threads`; in turns with Python scripts that read the same files and call `encode_batch` or
`encode_batch_fast` of the tokenizers library with as many threads, a megabyte of lines at a time,
and throw away what comes. All have the same tokenizer, WordPiece and byte-level BPE.

Memory: the peak of anonymous resident memory, which is all that is not a file's, of the largest
process and of all together: of the command, and of one that reads blocks of the encoded corpus in
random order, for corpora of growing size.

The text is that of `prepare.py`.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import measuring
from measuring import Command, Goal, Report
from prepare import MB, RECIPES, SIZE, TRIAL_SIZE, make_tokenizer, show_parts, write_text

SIZES = (1, 4)
"""Corpora whose memory is measured, in multiples of `--megabytes`."""

_LIBRARY = """
import sys
import tempfile
from pathlib import Path
import tokenizers
function, tokenizer, *files = sys.argv[1:]
made = tokenizers.Tokenizer.from_file(tokenizer)
made.encode_special_tokens = True
encode = getattr(made, function)
for file in files:
    lines, size = [], 0
    with open(file, encoding="utf-8") as text:
        for line in text:
            lines.append(line[:-1])
            size += len(line)
            if size > 1_000_000:
                encode(lines, add_special_tokens=False)
                lines, size = [], 0
    encode(lines, add_special_tokens=False)
"""

_READER = """
import sys
import tempfile
from pathlib import Path
import numpy as np
from transfer_cli.data.corpus import TextBlocks
from transfer_cli.data.shards import encode_text
from transfer_cli.data.text import whole_text
from transfer_cli.data.tokenizer import Tokenizer
tokenizer, cache, files = sys.argv[1:]
made = Tokenizer.load(Path(tokenizer))
blocks = TextBlocks(encode_text(whole_text(files, "train"), made, Path(cache)), 512, made.pad)
order = np.random.default_rng(0).permutation(len(blocks))
for begin in range(0, len(order), 32):
    blocks.batch(order[begin : begin + 32])
"""


def write_files(folder: Path, megabytes: float, files: int, source: Path | None) -> list[Path]:
    """Write so much text into so many files of about the same size, cut at the ends of lines."""
    whole = folder / "whole"
    write_text(whole, megabytes, source)
    shutil.rmtree(folder / "corpus", ignore_errors=True)
    (folder / "corpus").mkdir()
    paths = [folder / "corpus" / f"part-{number:03d}.txt" for number in range(files)]
    most = whole.stat().st_size / files
    with whole.open("rb") as text:
        for path in paths:
            with path.open("wb") as part:
                while part.tell() < most and (line := text.readline()):
                    part.write(line)
            most = (whole.stat().st_size - text.tell()) / max(1, files - 1 - paths.index(path))
    whole.unlink()
    return paths


def prepare_words(folder: Path, tokenizer: Path, workers: int) -> list[str]:
    """Return the command that encodes the files in a folder."""
    return [
        *(sys.executable, "-m", "transfer_cli", "prepare", "data=text"),
        f'data.train="{folder / "corpus"}"',
        f'data.validation="{folder / "validation.txt"}"',
        f"data.workers={workers}",
        *("tokenizer=file", f'tokenizer.path="{tokenizer}"'),
    ]


def environment(folder: Path, threads: int) -> dict[str, str]:
    """Return what all commands have in common."""
    return {
        "TRANSFER_CACHE": str(folder / "cache"),
        "TRANSFER_DATA": str(folder),
        "RAYON_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "true",
    }


def speed(asked: argparse.Namespace, folder: Path, name: str, source: Path | None) -> Report:
    """Compare with the library, for one kind of tokenizer."""
    files = write_files(folder, *corpus_of(asked), source)
    write_text(folder / "validation.txt", 0.01, source)
    tokenizer = folder / f"{RECIPES[name]}.json"
    size = TRIAL_SIZE if asked.quick else SIZE
    measuring.once(make_tokenizer(RECIPES[name], size, files[0], tokenizer), threads=asked.threads)
    env = environment(folder, asked.threads)
    clear = partial(shutil.rmtree, folder / "cache", ignore_errors=True)
    words = prepare_words(folder, tokenizer, asked.threads)
    commands = [Command(f"transfer prepare, {asked.threads} processes", words, env, before=clear)]
    for function in ("encode_batch_fast", "encode_batch"):
        script = [sys.executable, "-c", _LIBRARY, function, str(tokenizer), *map(str, files)]
        commands.append(Command(f"tokenizers, {function}, {asked.threads} threads", script, env))
    figures = measuring.commands_in_turns(
        commands,
        rounds=asked.rounds or (1 if asked.quick else 3),
        unmeasured=0,
        threads=asked.threads,
    )
    own, *peers = figures
    megabytes = sum(path.stat().st_size for path in files) / MB
    rows = [["way", "MB/s", "MB a CPU second", "largest process, MiB"]]
    rows += [
        [
            each.name,
            f"{megabytes / each.wall_s:.2f}",
            f"{megabytes / each.cpu_s:.2f}",
            f"{each.peak_mib:,.0f}",
        ]
        for each in figures
    ]
    goals = [
        Goal(
            f"{name}: speed of {peer.name.split(', ')[1]}{said}",
            1 / measuring.ratio(own, peer, of),
            0.9,
            at_most=False,
            disturbed=own.disturbed or peer.disturbed,
        )
        for peer in peers
        for of, said in (("wall_s", ""), ("cpu_s", ", by CPU second"))
    ]
    notes = [f"{megabytes:.1f} MB in {len(files)} files; the start of each command is counted."]
    return Report(f"A corpus of many files, {name}, {size:,} pieces", figures, goals, rows, notes)


# ----------------------------------------------------------------------------------- memory


def anonymous_peaks(words: Sequence[str], env: Mapping[str, str]) -> tuple[float, float]:
    """Run a command; return its peaks of anonymous memory in MiB: of one process, of all at once.

    Raises:
        BenchmarkError: It failed.
    """
    one = all_together = 0.0
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603 - our own words
            list(words), env={**os.environ, **env}, stdout=log, stderr=log
        )
        while process.poll() is None:
            found = [_anonymous_mib(each) for each in _with_children(process.pid)]
            one, all_together = max(one, *found), max(all_together, sum(found))
            time.sleep(0.05)
        if process.returncode:
            log.seek(0)
            raise measuring.BenchmarkError(log.read()[-2000:].decode(errors="replace"))
    return one, all_together


def _with_children(process: int) -> list[int]:
    found = [process]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += map(int, children.read_text("ascii").split())
            except OSError:  # it has ended
                continue
    return found


def _anonymous_mib(process: int) -> float:
    try:
        lines = Path(f"/proc/{process}/status").read_text("ascii").splitlines()
    except OSError:  # it has ended
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")), 0.0)


def memory(asked: argparse.Namespace, folder: Path, source: Path | None) -> Report:
    """Measure the command, and who reads what it made, for corpora of growing size."""
    tokenizer = folder / "wordpiece.json"
    write_text(folder / "validation.txt", 0.01, source)
    env = environment(folder, asked.threads)
    rows = [["corpus, MB", "prepare, largest process", "all processes", "reading blocks"]]
    found = []
    megabytes, count = corpus_of(asked)
    for number, times in enumerate(SIZES):
        files = write_files(folder, megabytes * times, count * times, source)
        if number == 0:
            size = TRIAL_SIZE if asked.quick else SIZE
            making = make_tokenizer(RECIPES["WordPiece"], size, files[0], tokenizer)
            measuring.once(making, threads=asked.threads)
        shutil.rmtree(folder / "cache", ignore_errors=True)
        one, together = anonymous_peaks(prepare_words(folder, tokenizer, asked.threads), env)
        reader = [sys.executable, "-c", _READER, str(tokenizer), str(folder / "cache")]
        reading, _ = anonymous_peaks([*reader, str(folder / "corpus")], env)
        rows.append([f"{megabytes * times:g}", f"{one:.0f}", f"{together:.0f}", f"{reading:.0f}"])
        found.append((one, together, reading))
    last, first = found[-1], found[0]
    goals = [
        Goal(f"anonymous memory, {what}, {SIZES[-1]} times the corpus", value, 1.2)
        for what, value in zip(
            ("one process", "all processes", "reading"),
            (late / early for late, early in zip(last, first, strict=True)),
            strict=True,
        )
    ]
    notes = [f"MiB of anonymous memory, {asked.threads} processes, WordPiece; each once."]
    return Report("Memory of a corpus of many files", (), goals, rows, notes)


def corpus_of(asked: argparse.Namespace) -> tuple[float, int]:
    """Return the megabytes of a corpus, and of how many files it is."""
    megabytes, files = (0.4, 4) if asked.quick else (64.0, 8)
    return asked.megabytes or megabytes, asked.files or files


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = measuring.parser(__doc__)
    parser.add_argument("--megabytes", type=float, help="of the corpus; 64 if not given")
    parser.add_argument("--files", type=int, help="that it is cut into; 8 if not given")
    show_parts(parser, argv, speed, memory)


if __name__ == "__main__":
    main()
