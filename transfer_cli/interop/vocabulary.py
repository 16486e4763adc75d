"""The tokenizer of a published model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from transfer_cli.data.tokenizer import (
    MAX_FILE_BYTES,
    Tokenizer,
    check_file,
    check_numbers,
    library_errors,
)
from transfer_cli.errors import CheckpointError, DataError
from transfer_cli.model.shape import MAX_SIZE
from transfer_cli.safe_files import read_json, read_text

FILE = "tokenizer.json"
WORDPIECES = "vocab.txt"
MERGES = "merges.txt"
BYTE_PAIRS = "vocab.json"
OPTIONS = "tokenizer_config.json"
ADDED = "added_tokens.json"

SPECIAL_TOKENS = ("pad", "unk", "cls", "sep", "mask")

BEGIN = "begin"
"""What layouts call the token `Tokenizer.begin`."""

LAYOUTS = {
    ("labelled", "causal"): ("A cls", "A sep B cls"),
    ("labelled", "bidirectional"): ("cls A sep", "cls A sep B sep"),
    ("lines", "causal"): ("sep A", "sep A sep B"),
    ("lines", "bidirectional"): ("sep A sep", "sep A sep B sep"),
}
"""A text A among its special tokens, and two texts, by what the model was trained on last (see
`data.encoded_task` and `data.corpus`) and its direction."""


def special_numbers(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the special tokens by kind; `BEGIN` is among them where the tokenizer has it."""
    numbers = {kind: int(getattr(tokenizer, kind)) for kind in SPECIAL_TOKENS}
    return numbers if tokenizer.begin is None else {**numbers, BEGIN: tokenizer.begin}


def layouts_of(
    texts: Literal["lines", "labelled"], direction: str, tokenizer: Tokenizer
) -> tuple[str, str]:
    """Return the layout of a text, and that of two; see `LAYOUTS`."""
    if texts == "lines" and tokenizer.sep == tokenizer.cls:
        return "A", "A B"  # its one special token is between documents
    one, two = LAYOUTS[texts, direction]
    if texts == "labelled":
        two = two.replace("A sep B", f"A{' sep' * tokenizer.separators} B")
        if direction == "causal" and tokenizer.begin is not None:
            return f"{BEGIN} A sep", f"{BEGIN} A sep B sep"
    return one, two


def read_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a model's folder.

    It is that of `tokenizer.json`, with the options of `tokenizer_config.json`, if there is one;
    else it is made of BERT's `vocab.txt` or of GPT-2's `vocab.json` and `merges.txt`.

    Raises:
        CheckpointError: There is none.
        DataError: It is damaged, of a kind that cannot be made here, or lacks a special token.
    """
    options = _options(folder)
    for file, make in (
        (folder / FILE, _whole), (folder / WORDPIECES, _wordpieces), (folder / MERGES, _byte_pairs)
    ):  # fmt: skip
        if file.is_file():
            with library_errors(f"{file} is damaged, or no tokenizer"):
                return Tokenizer(_with_template(make(folder, options), options), str(file))
    raise CheckpointError(
        f"{folder} has no tokenizer: expected {FILE}, or {WORDPIECES}, or {BYTE_PAIRS} and {MERGES}"
    )


def longest_input(folder: Path) -> int | None:
    """Return how many tokens of a text `tokenizer_config.json` says that a model reads; None: all.

    Raises:
        DataError: It is damaged.
    """
    found = _all_options(folder).get("model_max_length")
    # Some files say "no limit" by a number of a hundred bits.
    return found if type(found) is int and 1 <= found <= MAX_SIZE else None


def _whole(folder: Path, options: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Return the tokenizer of a `tokenizer.json`, as `tokenizer_config.json` changes it."""
    data = read_json(folder / FILE, MAX_FILE_BYTES)
    check_file(data)
    normalizer, splitter = data.get("normalizer") or {}, data.get("pre_tokenizer") or {}
    if normalizer.get("type") == "BertNormalizer":
        for ours, theirs in _BERT_OPTIONS.items():
            if options.get(theirs) is not None:
                normalizer[ours] = options[theirs]
    if splitter.get("type") == "ByteLevel" and options.get("add_prefix_space") is not None:
        splitter["add_prefix_space"] = options["add_prefix_space"]
    return tokenizers.Tokenizer.from_str(json.dumps(data))


def _with_template(
    backend: tokenizers.Tokenizer, options: Mapping[str, Any]
) -> tokenizers.Tokenizer:
    """Return a tokenizer of RoBERTa's kind with a template for its two separators between texts.

    `Tokenizer` reads templates. The runs of earlier versions have none, so they keep the one
    separator that they were trained with.
    """
    kind = type(backend.post_processor)
    is_bare = backend.post_processor is None and "Roberta" in str(options.get("tokenizer_class"))
    if kind is not processors.RobertaProcessing and not is_bare:
        return backend
    first, last = "<s>", "</s>"
    numbers = [(name, backend.token_to_id(name)) for name in (first, last)]
    if None not in dict(numbers).values():
        backend.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            pair=f"{first} $A {last} {last} $B {last}",
            special_tokens=numbers,
        )
    return backend


_BERT_OPTIONS = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "handle_chinese_chars": "tokenize_chinese_chars",
}
"""What a normalizer calls its options, and what `tokenizer_config.json` does."""

_OF_BERT = ("Bert", "DistilBert", "Electra", "MobileBert", "PreTrained", "Tokenizers")


def _wordpieces(folder: Path, options: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Return BERT's tokenizer: a line of the file is a token, its number that of the line."""
    path = folder / WORDPIECES
    kind = str(options.get("tokenizer_class") or "Bert")
    if kind.removesuffix("Fast").removesuffix("Tokenizer") not in _OF_BERT or any(
        key in options for key in ("word_tokenizer_type", "subword_tokenizer_type")
    ):
        raise DataError(
            f"{path} belongs to a {kind[:100]}, which cannot be made of it; take a folder with a "
            f"{FILE}."
        )
    text = read_text(path, MAX_FILE_BYTES)
    # Not `splitlines`: some tokens are other kinds of line ends.
    lines = text.removesuffix("\n").split("\n")
    vocabulary = {line.rstrip("\r"): number for number, line in enumerate(lines)}
    if len(vocabulary) < len(lines):
        raise DataError(f"{path}: a token is there twice.")
    unknown = next((name for name in ("[UNK]", "<unk>") if name in vocabulary), None)
    if unknown is None:
        raise DataError(f"{path} has no token [UNK].")
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=options.get("tokenize_chinese_chars", True),
        strip_accents=options.get("strip_accents"),
        lowercase=options.get("do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    _add_tokens(backend, folder)
    return backend


def _byte_pairs(folder: Path, options: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Return the tokenizer of GPT-2 or RoBERTa."""
    vocabulary: Any = read_json(folder / BYTE_PAIRS, MAX_FILE_BYTES)
    check_numbers({"model": {"vocab": vocabulary}})
    merges = []
    lines = read_text(folder / MERGES, MAX_FILE_BYTES).split("\n")
    for number, line in enumerate(lines, start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2:
            raise DataError(f"{folder / MERGES}, line {number}: expected two tokens.")
        merges.append((pair[0], pair[1]))
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    spaced = options.get("add_prefix_space", False)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    backend.decoder = decoders.ByteLevel()
    _add_tokens(backend, folder)
    return backend


def _add_tokens(backend: tokenizers.Tokenizer, folder: Path) -> None:
    """Add the tokens that stand beside the vocabulary."""
    path = folder / ADDED
    if not path.is_file():
        return
    added = read_json(path)
    check_numbers({"model": {"vocab": added}})
    for name in sorted(added, key=lambda each: int(added[each])):
        backend.add_special_tokens([name])
        if backend.token_to_id(name) != added[name]:
            raise DataError(f"{path}: {name!r} has a number that does not follow the vocabulary's.")


def _options(folder: Path) -> dict[str, Any]:
    found = _all_options(folder)
    return {key: value for key, value in found.items() if isinstance(value, str | bool)}


def _all_options(folder: Path) -> dict[str, Any]:
    path = folder / OPTIONS
    if not path.is_file():
        return {}
    try:
        # Not `read_json`: see `longest_input`.
        found = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} is no JSON object.")
    return found
