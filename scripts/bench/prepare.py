"""Measure how fast `transfer prepare` turns text into tokens, and in how much memory.

    python scripts/bench/prepare.py [--data-dir DIR] [--threads 2] [--rounds N] [--large] [--quick]
        [--only speed|memory] [--json FILE]

Speed: reading, encoding, counting and writing by the product, in turns with the tokenizers library
alone, which has the lines in memory already and keeps all that it makes there. Both have the same
tokenizer, made of this very text: WordPiece and byte-level BPE.

Memory: whole commands on 10 MB and 100 MB of text, and with `--large` on 1 GB, which takes ten
minutes. Each size is prepared twice: with the making of the tokenizer, and with that one at hand.

The text is what lies in DIR of the English Wikipedia (`enwiki-2015/train.txt.xz`) or of WikiText-2,
else one of made-up words; repeated where more is asked for than there is.
"""

import argparse
import itertools
import lzma
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import measuring
from measuring import Command, Figure, Gate, Goal, Report, Variant, compare

MB = 10**6
SPEED_MB, TRIAL_MB, MEMORY_MB = 10.0, 0.2, (10, 100)
RECIPES = {"WordPiece": "wordpiece", "byte-level BPE": "bpe"}
LIBRARY = ("encode_batch_fast", "encode_batch")

_PLACES = ("enwiki-2015/train.txt.xz", "wikitext-2/train.txt", "wikitext-2/wiki.train.tokens")
_MADE_WORDS = 120_000


def write_text(path: Path, megabytes: float, source: Path | None) -> None:
    """Write so much text, and not less."""
    left = int(megabytes * MB)
    with path.open("wb") as file:
        while left > 0:
            for line in _lines(source):
                file.write(line)
                left -= len(line)
                if left <= 0:
                    break


def _lines(source: Path | None) -> Iterator[bytes]:
    if source is None:
        yield from _made_lines()
        return
    with lzma.open(source) if source.suffix == ".xz" else source.open("rb") as file:
        yield from file


def _made_lines() -> Iterator[bytes]:
    """Yield lines of words of which few are frequent and most are rare, for ever."""
    drawn = random.Random(0)  # noqa: S311 - a text, not a key
    parts = [a + b for a in "bcdfghlmnprst" for b in ("a", "e", "i", "o", "u", "an", "er")]
    words = ["".join(drawn.choices(parts, k=drawn.randint(1, 4))) for _ in range(_MADE_WORDS)]
    frequencies = list(itertools.accumulate(1 / (rank + 3) for rank in range(_MADE_WORDS)))
    while True:
        line = drawn.choices(words, cum_weights=frequencies, k=drawn.randint(20, 120))
        yield f"{' '.join(line)} .\n".encode()


def source_in(folder: Path) -> Path | None:
    """Return the largest text that lies in a folder, None where there is none."""
    return next((folder / place for place in _PLACES if (folder / place).is_file()), None)


# ----------------------------------------------------------------------------------- workers


def ours(arrive: Gate, text: str, tokenizer: str, folder: str) -> None:
    """Encode a text file into a cache that is empty, as `transfer prepare` does."""
    from transfer_cli.data.corpus import encode_text
    from transfer_cli.data.library_tokenizer import LibraryTokenizer
    from transfer_cli.data.text import whole_text

    split, made = whole_text(text, "train"), LibraryTokenizer.load(Path(tokenizer))
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        arrive()
        encode_text(split, made, Path(folder))


def library(arrive: Gate, text: str, tokenizer: str, function: str) -> None:
    """Encode the lines of a text file, all at once, with the tokenizers library alone."""
    import tokenizers

    made = tokenizers.Tokenizer.from_file(tokenizer)
    made.encode_special_tokens = True
    lines = Path(text).read_text("utf-8").split("\n")
    encode = getattr(made, function)
    while True:
        arrive()
        encode(lines, add_special_tokens=False)


def make_tokenizer(name: str, text: Path, path: Path, asked: argparse.Namespace) -> float:
    """Make a tokenizer of a text file; return the CPU seconds that this took."""
    words = [RECIPES[name], 1000 if asked.quick else 28_996, text, path]
    command = [sys.executable, "-c", _MAKE, *map(str, words)]
    return measuring.once(Command(f"making {name}", command), threads=asked.threads).cpu_s


_MAKE = """
import sys
from pathlib import Path
from transfer_cli.data.text import whole_text
from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece
recipe, size, text, path = sys.argv[1:]
made = {"wordpiece": WordPiece, "bpe": BytePairs}[recipe](size=int(size))
made.make(whole_text(text, "train").lines).save(Path(path))
"""


# ---------------------------------------------------------------------------------- reports


def measure(asked: argparse.Namespace, folder: Path) -> Iterator[Report]:
    """Measure speed, once for each kind of tokenizer, and memory, or one of the two."""
    source = source_in(asked.data_dir)
    if asked.only != "memory":
        yield from (speed(asked, folder, name, source) for name in RECIPES)
    if asked.only != "speed":
        yield memory(asked, folder, source)


def speed(asked: argparse.Namespace, folder: Path, name: str, source: Path | None) -> Report:
    """Compare with the library, for one kind of tokenizer."""
    text, tokenizer = folder / "text.txt", folder / f"{RECIPES[name]}.json"
    write_text(text, TRIAL_MB if asked.quick else SPEED_MB, source)
    making = make_tokenizer(name, text, tokenizer, asked)
    env = {"RAYON_NUM_THREADS": str(asked.threads), "TOKENIZERS_PARALLELISM": "true"}
    shared = {"text": str(text), "tokenizer": str(tokenizer)}
    cache = {"folder": str(folder / "cache")}
    variants = [Variant("transfer", "prepare", "ours", shared | cache, env=env)] + [
        Variant(f"tokenizers, {function}", "prepare", "library", shared | {"function": function})
        for function in LIBRARY
    ]
    figures = measuring.take_turns(variants, rounds=asked.rounds, threads=asked.threads)
    transfer, fast, _ = figures
    megabytes = text.stat().st_size / MB
    goals = [
        compare(f"{name}: time of encode_batch_fast over ours", fast, transfer, 0.9, at_most=False),
        Goal(
            f"{name}: MB/s",
            megabytes / transfer.wall_s,
            2.2,
            at_most=False,
            disturbed=transfer.disturbed,
        ),
    ]
    rows = measuring.rows_of(figures, speeds(megabytes))
    said = source.name if source else "made-up words"
    notes = [f"{megabytes:.1f} MB of {said}; making the tokenizer took {making:.1f} CPU seconds."]
    return Report(f"Text to tokens, {name}, {asked.threads} threads", figures, goals, rows, notes)


def speeds(megabytes: float) -> dict[str, measuring.Cell]:
    """Return the columns of who encodes so much text."""
    return {
        "MB/s": lambda figure: f"{megabytes / figure.wall_s:.2f}",
        "MB a CPU second": lambda figure: f"{megabytes / figure.cpu_s:.2f}",
    }


def memory(asked: argparse.Namespace, folder: Path, source: Path | None) -> Report:
    """Measure whole commands on texts of growing size."""
    sizes = (*MEMORY_MB, *([1000] if asked.large else []))
    sizes = (TRIAL_MB, 5 * TRIAL_MB) if asked.quick else sizes
    write_text(folder / "validation.txt", TRIAL_MB, source)
    cache = folder / "memory"
    env = {"TRANSFER_CACHE": str(cache), "TRANSFER_DATA": str(folder)}
    texts = [f'data.{s}="{folder / f}.txt"' for s, f in (("train", "text"), ("validation",) * 2)]
    figures: dict[bool, list[Figure]] = {True: [], False: []}
    for megabytes in sizes:
        write_text(folder / "text.txt", megabytes, source)
        for anew, clear in ((True, cache), (False, cache / "encoded")):
            if anew and megabytes > MEMORY_MB[0] and not asked.large:
                continue  # to make a tokenizer of much text takes a minute
            name = f"{megabytes:g} MB, {'with its tokenizer' if anew else 'tokenizer at hand'}"
            shutil.rmtree(clear, ignore_errors=True)
            command = Command(name, measuring.transfer("prepare", "data=text", *texts), env)
            turn = measuring.once(command, threads=asked.threads)
            figures[anew].append(Figure.of(name, [turn]))
    goals = [
        compare(f"memory of {on[-1].name} over {on[0].name}", on[-1], on[0], limit, of="peak_mib")
        for on, limit in ((figures[False], 1.2), (figures[True], 2.0))
        if len(on) > 1
    ]
    notes = ["Each command once. Their start takes 3 to 4 CPU seconds of the time."]
    both = [*figures[True], *figures[False]]
    return Report("Memory of transfer prepare", both, goals, notes=notes)


PARTS = {"choices": ("speed", "memory"), "help": "one of the two parts"}

if __name__ == "__main__":
    large = {"action": "store_true", "help": "1 GB of text as well"}
    measuring.main(__doc__, measure, {"--large": large, "--only": PARTS}, rounds=3)
