"""The tokenizer of a published model."""

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from transfer_cli.data.tokenizer import MAX_FILE_BYTES, Tokenizer
from transfer_cli.errors import CheckpointError, DataError
from transfer_cli.safe_files import read_json, read_text

FILE = "tokenizer.json"
WORDPIECES = "vocab.txt"
MERGES = "merges.txt"
BYTE_PAIRS = "vocab.json"
OPTIONS = "tokenizer_config.json"


def read_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a model's folder.

    `tokenizer.json` is taken where it is there, else it is made of BERT's `vocab.txt` or of GPT-2's
    `vocab.json` and `merges.txt`.

    Raises:
        CheckpointError: There is none.
        DataError: It is damaged, or lacks a special token.
    """
    if (folder / FILE).is_file():
        return Tokenizer.load(folder / FILE)
    try:
        if (folder / WORDPIECES).is_file():
            return Tokenizer(_wordpieces(folder), str(folder / WORDPIECES))
        if (folder / BYTE_PAIRS).is_file() and (folder / MERGES).is_file():
            return Tokenizer(_byte_pairs(folder), str(folder / BYTE_PAIRS))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: the tokenizer cannot be read ({error}).") from error
    raise CheckpointError(
        f"{folder} has no tokenizer: expected {FILE}, or {WORDPIECES}, or {BYTE_PAIRS} and {MERGES}"
    )


def _wordpieces(folder: Path) -> tokenizers.Tokenizer:
    """Return BERT's tokenizer: a line of the file is a token, its number that of the line."""
    path = folder / WORDPIECES
    text = read_text(path, MAX_FILE_BYTES)
    # Not `splitlines`: some tokens are other kinds of line ends.
    lines = text.removesuffix("\n").split("\n")
    vocabulary = {line.rstrip("\r"): number for number, line in enumerate(lines)}
    if len(vocabulary) < len(lines):
        raise DataError(f"{path}: a token is there twice.")
    unknown = next((name for name in ("[UNK]", "<unk>") if name in vocabulary), None)
    if unknown is None:
        raise DataError(f"{path} has no token [UNK].")
    options = _options(folder)
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(options.get("tokenize_chinese_chars", True)),
        strip_accents=options.get("strip_accents"),
        lowercase=bool(options.get("do_lower_case", True)),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend


def _byte_pairs(folder: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer of GPT-2 or RoBERTa."""
    vocabulary: Any = read_json(folder / BYTE_PAIRS, MAX_FILE_BYTES)
    merges = []
    lines = read_text(folder / MERGES, MAX_FILE_BYTES).split("\n")
    for number, line in enumerate(lines, start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2:
            raise DataError(f"{folder / MERGES}, line {number}: expected two tokens.")
        merges.append((pair[0], pair[1]))
    options = _options(folder)
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    spaced = bool(options.get("add_prefix_space", False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    backend.decoder = decoders.ByteLevel()
    return backend


def _options(folder: Path) -> dict[str, Any]:
    path = folder / OPTIONS
    return read_json(path) if path.is_file() else {}
