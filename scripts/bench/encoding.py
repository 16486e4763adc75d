"""Measure how fast, and in how much memory, `transfer prepare` encodes a corpus of many files.

    python scripts/bench/encoding.py [--megabytes 64] [--files 8] [--only speed|memory]

Speed: the whole command, from its start to its end, with an empty cache and as many processes as
`--threads`; in turns with Python scripts that read the same files and call `encode_batch` or
`encode_batch_fast` of the tokenizers library with as many threads, a megabyte of lines at a time,
and throw away what comes. All have the same tokenizer, WordPiece and byte-level BPE.

Memory: the peak of anonymous resident memory, which is all that is not a file's, of the largest
process and of all together: of the command, and of one that reads blocks of the encoded corpus in
random order, for corpora of growing size.

The text is what lies in DIR of the English Wikipedia (`enwiki-2015/train.txt.xz`) or of WikiText-2,
else one of made-up words; repeated where more is asked for than there is.
"""

import argparse
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import measuring
import product
from measuring import Command, Goal, Report, ratio_goal

from transfer_cli.data.tokenizer_file import load_tokenizer

MB = 10**6
RECIPES = {"WordPiece": "wordpiece", "byte-level BPE": "bpe"}
LIBRARY_FUNCTIONS = ("encode_batch_fast", "encode_batch")

MULTIPLES = (1, 4)
"""Corpora whose memory is measured, in multiples of `--megabytes`."""

_LIBRARY_SCRIPT = """
import sys
import tokenizers
function, path, *files = sys.argv[1:]
tokenizer = tokenizers.Tokenizer.from_file(path)
tokenizer.encode_special_tokens = True
encode = getattr(tokenizer, function)
for file in files:
    with open(file, encoding="utf-8") as text:
        while lines := text.readlines(1_000_000):
            encode([line[:-1] for line in lines], add_special_tokens=False)
"""

_TEXT_FILES = ("enwiki-2015/train.txt.xz", "wikitext-2/train.txt", "wikitext-2/wiki.train.tokens")


def write_text(path: Path, megabytes: float, source: Path) -> None:
    """Write so much text, and not less."""
    left, opened = int(megabytes * MB), lzma.open if source.suffix == ".xz" else open
    with path.open("wb") as file:
        while left > 0:
            with opened(source, "rb") as lines:
                for line in lines:
                    file.write(line)
                    left -= len(line)
                    if left <= 0:
                        break
                if lines.tell() == 0:
                    raise SystemExit(f"{source} is empty; delete it")


def write_files(folder: Path, megabytes: float, files: int, source: Path) -> list[Path]:
    """Write so much text into so many files of about the same size, cut at the ends of lines."""
    whole = folder / "whole"
    write_text(whole, megabytes, source)
    shutil.rmtree(folder / "corpus", ignore_errors=True)
    (folder / "corpus").mkdir()
    size = whole.stat().st_size
    paths = [folder / "corpus" / f"part-{number:03d}.txt" for number in range(files)]
    with whole.open("rb") as text:
        for number, path in enumerate(paths, start=1):
            path.write_bytes(b"".join(text.readlines(size * number // files - text.tell())))
    whole.unlink()
    return paths


def make_tokenizer(name: str, text: Path, path: Path, args: argparse.Namespace) -> None:
    """Make a tokenizer of a text file, in a process of its own."""
    words = [RECIPES[name], 1000 if args.quick else 28_996, text, path]
    command = [sys.executable, "-c", measuring.call_code("encoding", "train"), *map(str, words)]
    measuring.run_once(Command(f"making {name}", command), threads=args.threads)


def train(recipe: str, size: str, text: str, path: str) -> None:
    """Make a tokenizer by one of our recipes."""
    from transfer_cli.data.text import whole_text
    from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece

    made = {"wordpiece": WordPiece, "bpe": BytePairs}[recipe](size=int(size))
    made.make(whole_text(text, "train").lines).save(Path(path))


def read_blocks(tokenizer: str, cache: str, files: str) -> None:
    """Read all blocks of an encoded corpus in random order."""
    import numpy as np

    from transfer_cli.data.corpus import TextBlocks, encode_text
    from transfer_cli.data.text import whole_text

    made = load_tokenizer(Path(tokenizer))
    blocks = TextBlocks(encode_text(whole_text(files, "train"), made, Path(cache)), 512, made.pad)
    order = np.random.default_rng(0).permutation(len(blocks))
    for begin in range(0, len(order), 32):
        blocks.batch(order[begin : begin + 32])


def prepare_command(folder: Path, tokenizer: Path, args: argparse.Namespace) -> Command:
    """Return `transfer prepare` of the files in a folder, with an empty cache."""
    words = [
        "prepare", "data=text", f'data.train="{folder / "corpus"}"',
        f'data.validation="{folder / "validation.txt"}"', f"data.workers={args.threads}",
        "tokenizer=file", f'tokenizer.path="{tokenizer}"',
    ]  # fmt: skip
    env = {
        "TRANSFER_CACHE": str(folder / "cache"), "TRANSFER_DATA": str(folder),
        "RAYON_NUM_THREADS": str(args.threads), "TOKENIZERS_PARALLELISM": "true",
    }  # fmt: skip
    clear = partial(shutil.rmtree, folder / "cache", ignore_errors=True)
    name = f"transfer prepare, {args.threads} processes"
    return Command(name, measuring.transfer_command(*words), env, clear)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Measure speed, once for each kind of tokenizer, and memory, or one of the two."""
    places = (args.data_dir / place for place in _TEXT_FILES)
    source = next(filter(Path.is_file, places), None)
    if source is None:
        source = product.make_material(folder, 28_996, 1_000_000).folder / "text.txt"
    megabytes, count = (0.4, 4) if args.quick else (64.0, 8)
    corpus = args.megabytes or megabytes, args.files or count
    write_text(folder / "validation.txt", 0.01, source)
    if args.only != "memory":
        files = write_files(folder, *corpus, source)
        yield from (speed(args, folder, name, files) for name in RECIPES)
    if args.only != "speed":
        yield memory(args, folder, source, *corpus)


def speed(args: argparse.Namespace, folder: Path, name: str, files: Sequence[Path]) -> Report:
    """Compare with the library, for one kind of tokenizer."""
    tokenizer = folder / f"{RECIPES[name]}.json"
    make_tokenizer(name, files[0], tokenizer, args)
    commands = [prepare_command(folder, tokenizer, args)]
    for function in LIBRARY_FUNCTIONS:
        words = [sys.executable, "-c", _LIBRARY_SCRIPT, function, str(tokenizer), *map(str, files)]
        commands.append(Command(f"tokenizers, {function}", words, commands[0].env))
    figures = measuring.run_in_turns(
        commands, rounds=args.rounds, threads=args.threads, unmeasured=0
    )
    goals = [
        ratio_goal(
            f"{name}: time of {peer.name} over ours{suffix}", peer, figures[0], 0.9, of=of,
            at_most=False,
        )
        for peer in figures[1:]
        for of, suffix in (("wall_s", ""), ("cpu_s", ", CPU"))
    ]  # fmt: skip
    megabytes = sum(path.stat().st_size for path in files) / MB
    rows = measuring.figure_rows(figures, {
        "MB/s": lambda figure: f"{megabytes / figure.wall_s:.2f}",
        "MB a CPU second": lambda figure: f"{megabytes / figure.cpu_s:.2f}",
    })  # fmt: skip
    notes = [f"{megabytes:.1f} MB in {len(files)} files; the start of each command is counted."]
    return Report(f"A corpus of many files, {name}", figures, goals, rows, notes)


# ----------------------------------------------------------------------------------- memory


def anonymous_peaks(words: Sequence[str], env: Mapping[str, str]) -> tuple[float, float]:
    """Run a command; return the peaks of anonymous memory, MiB: of one process, of all at once."""
    one = all_together = 0.0
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(list(words), env={**os.environ, **env}, stdout=log, stderr=log)
        while process.poll() is None:
            sizes = [_anonymous_mib(member) for member in _process_tree(process.pid)]
            one, all_together = max(one, *sizes), max(all_together, sum(sizes))
            time.sleep(0.05)
        if process.returncode:
            log.seek(0)
            raise measuring.BenchmarkError(log.read()[-2000:].decode(errors="replace"))
    return one, all_together


def _process_tree(process: int) -> list[int]:
    family = [process]
    for member in family:
        for children in Path(f"/proc/{member}/task").glob("*/children"):
            try:
                family += map(int, children.read_text("ascii").split())
            except OSError:  # it has ended
                continue
    return family


def _anonymous_mib(process: int) -> float:
    try:
        lines = Path(f"/proc/{process}/status").read_text("ascii").splitlines()
    except OSError:  # it has ended
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")), 0.0)


def memory(
    args: argparse.Namespace, folder: Path, source: Path, megabytes: float, count: int
) -> Report:
    """Measure the command, and who reads what it made, for corpora of growing size."""
    tokenizer, peaks = folder / "wordpiece.json", []
    command = prepare_command(folder, tokenizer, args)
    rows = [["corpus, MB", "prepare, largest process", "all processes", "reading blocks"]]
    for times in MULTIPLES:
        files = write_files(folder, megabytes * times, count * times, source)
        if not peaks:
            make_tokenizer("WordPiece", files[0], tokenizer, args)
        shutil.rmtree(folder / "cache", ignore_errors=True)
        one, together = anonymous_peaks(command.words, command.env)
        reader = [sys.executable, "-c", measuring.call_code("encoding", "read_blocks")]
        places = (str(tokenizer), str(folder / "cache"), str(folder / "corpus"))
        reading, _ = anonymous_peaks([*reader, *places], command.env)
        peaks.append((one, together, reading))
        rows.append([f"{megabytes * times:g}", *(f"{peak:.0f}" for peak in peaks[-1])])
    goals = [
        Goal(f"anonymous memory, {what}, {MULTIPLES[-1]} times the corpus", late / early, 1.2)
        for what, early, late in zip(rows[0][1:], peaks[0], peaks[-1], strict=True)
    ]
    notes = [f"MiB of anonymous memory, {args.threads} processes, WordPiece; each once."]
    return Report("Memory of a corpus of many files", (), goals, rows, notes)


if __name__ == "__main__":
    size = {"type": float, "help": "of the corpus; 64 if not given"}
    count = {"type": int, "help": "that it is cut into; 8 if not given"}
    parts = {"choices": ("speed", "memory"), "help": "one of the two parts"}
    options = {"--only": parts, "--megabytes": size, "--files": count}
    measuring.main(__doc__, measure, options, rounds=3)
