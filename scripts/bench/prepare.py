"""Measure how fast `transfer prepare` turns text into tokens, and in how much memory.

    python scripts/bench/prepare.py [--data-dir DIR] [--threads 2] [--rounds N] [--large] [--quick]
        [--json FILE]

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
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import measuring
from measuring import Command, Figure, Gate, Goal, Report, Variant, compare

MB = 10**6
SPEED_MB, TRIAL_MB = 10.0, 0.2
MEMORY_MB, LARGE_MB = (10, 100), (10, 100, 1000)
RECIPES = {"WordPiece": "wordpiece", "byte-level BPE": "bpe"}
SIZE, TRIAL_SIZE = 28_996, 1000

_PLACES = ("enwiki-2015/train.txt.xz", "wikitext-2/train.txt", "wikitext-2/wiki.train.tokens")
_MADE_WORDS = 120_000


# ---------------------------------------------------------------------------------- the text


def write_text(path: Path, megabytes: float, source: Path | None) -> None:
    """Write so much text, and not less."""
    left = int(megabytes * MB)
    with path.open("wb") as file:
        for line in _again(source):
            file.write(line)
            left -= len(line)
            if left <= 0:
                return


def _again(source: Path | None) -> Iterator[bytes]:
    while True:
        yield from _lines(source)


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
    from transfer_cli.data.shards import encode_text
    from transfer_cli.data.text import whole_text
    from transfer_cli.data.tokenizer import Tokenizer

    split, made = whole_text(text, "train"), Tokenizer.load(Path(tokenizer))
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


def make_tokenizer(recipe: str, size: int, text: Path, path: Path) -> Command:
    """Return what makes a tokenizer of a text file and writes it."""
    words = [sys.executable, "-c", _MAKE, recipe, str(size), str(text), str(path)]
    return Command(f"making the tokenizer, {recipe}", words)


_MAKE = """
import sys
from pathlib import Path
from transfer_cli.data.text import whole_text
from transfer_cli.data.tokenizer import BytePairs, WordPiece
recipe, size, text, path = sys.argv[1:]
made = {"wordpiece": WordPiece, "bpe": BytePairs}[recipe](size=int(size))
made.make(whole_text(text, "train").lines).save(Path(path))
"""


# ---------------------------------------------------------------------------------- reports


def speed(asked: argparse.Namespace, folder: Path, name: str, source: Path | None) -> Report:
    """Compare with the library, for one kind of tokenizer."""
    text, tokenizer = folder / "text.txt", folder / f"{RECIPES[name]}.json"
    write_text(text, TRIAL_MB if asked.quick else SPEED_MB, source)
    size = TRIAL_SIZE if asked.quick else SIZE
    making = measuring.once(
        make_tokenizer(RECIPES[name], size, text, tokenizer), threads=asked.threads
    )
    env = {"RAYON_NUM_THREADS": str(asked.threads), "TOKENIZERS_PARALLELISM": "true"}
    shared = {"text": str(text), "tokenizer": str(tokenizer)}
    cache = {"folder": str(folder / "cache")}
    variants = [Variant("transfer", "prepare", "ours", shared | cache, env=env)] + [
        Variant(f"tokenizers, {function}", "prepare", "library", shared | {"function": function})
        for function in ("encode_batch_fast", "encode_batch")
    ]
    figures = measuring.take_turns(
        variants, rounds=asked.rounds or (1 if asked.quick else 3), threads=asked.threads
    )
    own, fast, _ = figures
    megabytes = text.stat().st_size / MB
    rows = [["way", "MB/s", "MB a CPU second", "peak MiB"]]
    rows += [
        [
            figure.name,
            f"{megabytes / figure.wall_s:.2f}",
            f"{megabytes / figure.cpu_s:.2f}",
            f"{figure.peak_mib:,.0f}",
        ]
        for figure in figures
    ]
    goals = [
        Goal(
            f"{name}: speed of encode_batch_fast",
            1 / measuring.ratio(own, fast),
            0.9,
            at_most=False,
            disturbed=own.disturbed or fast.disturbed,
        ),
        Goal(f"{name}: MB/s", megabytes / own.wall_s, 2.2, at_most=False, disturbed=own.disturbed),
    ]
    notes = [
        f"{megabytes:.1f} MB of {source.name if source else 'made-up words'}, {asked.threads} "
        f"threads; making the tokenizer took {making.cpu_s:.1f} CPU seconds."
    ]
    return Report(f"Text to tokens, {name}, {size:,} pieces", figures, goals, rows, notes)


def prepare_command(folder: Path, megabytes: float, *, anew: bool) -> Command:
    """Return `transfer prepare` of a text that lies in a folder.

    Args:
        folder: Where text and cache are.
        megabytes: Of the text.
        anew: Whether to make the tokenizer, too; else it is in the cache.
    """
    cache = folder / "cache"
    words = [
        *(sys.executable, "-m", "transfer_cli", "prepare", "data=text"),
        f'data.train="{folder / "text.txt"}"',
        f'data.validation="{folder / "validation.txt"}"',
    ]
    clear = partial(shutil.rmtree, cache if anew else cache / "encoded", ignore_errors=True)
    how = "with its tokenizer" if anew else "tokenizer at hand"
    env = {"TRANSFER_CACHE": str(cache), "TRANSFER_DATA": str(folder)}
    return Command(f"{megabytes:g} MB, {how}", words, env, before=clear)


def memory(asked: argparse.Namespace, folder: Path, source: Path | None) -> Report:
    """Measure whole commands on texts of growing size."""
    sizes: Sequence[float] = LARGE_MB if asked.large else MEMORY_MB
    sizes = (TRIAL_MB, 5 * TRIAL_MB) if asked.quick else sizes
    write_text(folder / "validation.txt", TRIAL_MB, source)
    figures: dict[bool, list[Figure]] = {True: [], False: []}
    for megabytes in sizes:
        write_text(folder / "text.txt", megabytes, source)
        for anew in (True, False):
            if anew and megabytes > MEMORY_MB[0] and not asked.large:
                continue  # to make a tokenizer of much text takes a minute
            command = prepare_command(folder, megabytes, anew=anew)
            turn = measuring.once(command, threads=asked.threads)
            figures[anew].append(Figure.of(command.name, [turn]))
    goals = [
        compare(
            f"peak memory, {name}, {sizes[-1]:g} MB over {sizes[0]:g} MB",
            figures[anew][-1],
            figures[anew][0],
            limit,
            of="peak_mib",
        )
        for anew, name, limit in ((False, "tokenizer at hand", 1.2), (True, "tokenizer made", 2.0))
        if len(figures[anew]) > 1
    ]
    notes = ["Each command once. Their start takes 3 to 4 CPU seconds of the time."]
    return Report("Memory of transfer prepare", [*figures[True], *figures[False]], goals, (), notes)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = measuring.parser(__doc__)
    parser.add_argument("--large", action="store_true", help="1 GB of text as well")
    show_parts(parser, argv, speed, memory)


def show_parts(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    speed: Callable[[argparse.Namespace, Path, str, Path | None], Report],
    memory: Callable[[argparse.Namespace, Path, Path | None], Report],
) -> None:
    """Measure speed, once for each kind of tokenizer, and memory, or one of the two."""
    measuring.add_data_dir(parser)
    parser.add_argument("--only", choices=("speed", "memory"), help="one of the two parts")
    asked = parser.parse_args(argv)
    source = source_in(asked.data_dir)
    found = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        if asked.only != "memory":
            found += [speed(asked, Path(folder), name, source) for name in RECIPES]
        if asked.only != "speed":
            found.append(memory(asked, Path(folder), source))
    measuring.show(found, asked)


if __name__ == "__main__":
    main()
