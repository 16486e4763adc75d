"""The tokenizer of a published model."""

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from transfer_cli.data.chat_template import MAX_TEMPLATE_BYTES, ChatTemplate
from transfer_cli.data.tokenizer import (
    UNKNOWN,
    WORD_MARKS,
    Tokenizer,
    has_text_end,
    library_errors,
)
from transfer_cli.data.tokenizer_file import MAX_FILE_BYTES, check_file, check_numbers
from transfer_cli.errors import CheckpointError, DataError, list_names, raised_as
from transfer_cli.interop.sentence_pieces import read_unigrams
from transfer_cli.model.shape import MAX_SIZE
from transfer_cli.safe_files import read_json, read_text

log = logging.getLogger(__name__)

TOKENIZER_FILE = "tokenizer.json"
WORDPIECES = "vocab.txt"
MERGES = "merges.txt"
BYTE_PAIRS = "vocab.json"
SENTENCE_PIECES = "spiece.model"
OPTIONS = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
ADDED = "added_tokens.json"
SPECIAL = "special_tokens_map.json"

SENTINELS, MAX_SENTINELS = 100, 10_000
"""How many `<extra_id_0>` and so on a T5 has that does not say it, and at most."""

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
    if direction == "encoder_decoder":
        direction = "causal" if tokenizer.cls == tokenizer.sep else "bidirectional"
    one, two = LAYOUTS[texts, direction]
    if texts == "labelled":
        two = two.replace("A sep B", f"A{' sep' * tokenizer.separators} B")
        if direction == "causal" and tokenizer.begin is not None:
            return f"{BEGIN} A sep", f"{BEGIN} A sep B sep"
    return one, two


def read_tokenizer(folder: Path, rows: int = MAX_SIZE, text_end: str = "") -> Tokenizer:
    """Return the tokenizer of a model's folder.

    It is that of `tokenizer.json`, with the options of `tokenizer_config.json`, if there is one;
    else it is made of BERT's `vocab.txt`, of GPT-2's `vocab.json` and `merges.txt`, or of T5's
    `spiece.model`.

    Args:
        rows: How many tokens the model has; added ones behind them are left out (Gemma 3 has one).
        text_end: What is added to a tokenizer without a token that ends a text; see `Family`.
    """
    options = _options(folder)
    for file, make in (
        (folder / TOKENIZER_FILE, _tokenizer_json), (folder / WORDPIECES, _wordpieces),
        (folder / MERGES, _byte_pairs), (folder / SENTENCE_PIECES, _unigrams),
    ):  # fmt: skip
        if file.is_file():
            with library_errors(f"{file} is damaged, or no tokenizer"):
                backend = make(folder, options, rows)
                if text_end and not has_text_end(backend):
                    backend.add_special_tokens([text_end])
                return Tokenizer(_with_template(backend, options), str(file))
    raise CheckpointError(
        f"{folder} has no tokenizer: expected {TOKENIZER_FILE}, or {WORDPIECES}, or {BYTE_PAIRS} "
        f"and {MERGES}, or {SENTENCE_PIECES}"
    )


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """Return how a model reads conversations, as transformers finds it; None: it has no template.

    A file goes before the options; of several templates, the one called default is meant.
    """
    options, file = _read_object(folder / OPTIONS), folder / CHAT_TEMPLATE
    template = options.get("chat_template")
    if isinstance(template, list):
        named = {str(entry.get("name")): entry for entry in template if isinstance(entry, dict)}
        template = named.get("default", {}).get("template")
    if file.is_file():
        with raised_as(DataError, f"{file}: ", OSError, ValueError):
            template = read_text(file, MAX_TEMPLATE_BYTES)
    if not isinstance(template, str):
        return None
    parts = {**_read_object(folder / SPECIAL), **options}
    tokens = {key: _name(part) for key, part in parts.items() if key.endswith("_token")}
    return ChatTemplate(template, tokens, where=f"the chat template of {folder}")


def longest_input(folder: Path) -> int | None:
    """Return the longest input in tokens that `tokenizer_config.json` states; None: none."""
    length = _read_object(folder / OPTIONS).get("model_max_length")
    # Some files say "no limit" by a number of a hundred bits.
    return length if type(length) is int and 1 <= length <= MAX_SIZE else None


def _tokenizer_json(folder: Path, options: Mapping[str, Any], rows: int) -> tokenizers.Tokenizer:
    """Return the tokenizer of a `tokenizer.json`, as `tokenizer_config.json` changes it."""
    data = read_json(folder / TOKENIZER_FILE, MAX_FILE_BYTES)
    check_file(data)
    added = {token.get("content"): token for token in data.get("added_tokens") or []}
    added |= {token["content"]: token for token in _added_tokens(folder)}
    data["added_tokens"] = _tokens_with_rows(added.values(), rows, folder)
    vocabulary = data["model"]["vocab"]
    if isinstance(vocabulary, dict):
        for name in added.keys() - {token["content"] for token in data["added_tokens"]}:
            vocabulary.pop(name, None)
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

_WORDPIECE_CLASSES = ("Bert", "DistilBert", "Electra", "MobileBert", "PreTrained", "Tokenizers")


def _wordpieces(folder: Path, options: Mapping[str, Any], rows: int) -> tokenizers.Tokenizer:
    """Return BERT's tokenizer: a line of the file is a token, its number that of the line."""
    path = folder / WORDPIECES
    kind = str(options.get("tokenizer_class") or "Bert")
    if kind.removesuffix("Fast").removesuffix("Tokenizer") not in _WORDPIECE_CLASSES or any(
        key in options for key in ("word_tokenizer_type", "subword_tokenizer_type")
    ):
        raise DataError(
            f"{path} belongs to a {kind[:100]}, which cannot be made of it; take a folder with a "
            f"{TOKENIZER_FILE}."
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
    lowercase = options.get("do_lower_case")
    if lowercase is None:
        lowercase = not _has_capitals(vocabulary)
        if not lowercase:
            log.warning(
                "%s holds capitals, and no do_lower_case in %s says what becomes of them: read "
                "with case and accents", path, OPTIONS,
            )  # fmt: skip
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=options.get("tokenize_chinese_chars", True),
        strip_accents=options.get("strip_accents"),
        lowercase=lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    _add_tokens(backend, folder, rows)
    return backend


def _has_capitals(vocabulary: Iterable[str]) -> bool:
    """Return whether one in a hundred tokens has some; special ones (`[MASK]`) do not count."""
    words = [piece for piece in vocabulary if not piece.startswith("[")]
    return sum(piece != piece.lower() for piece in words) * 100 >= max(1, len(words))


_WORD_END = "</w>"


def _byte_pairs(folder: Path, options: Mapping[str, Any], rows: int) -> tokenizers.Tokenizer:
    """Return the tokenizer of GPT-2 or RoBERTa, or of the first GPT."""
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
    # Byte-level pieces begin with the space before a word; those of the first GPT end words.
    if not any(piece.startswith(WORD_MARKS[0]) for piece in vocabulary) and any(
        piece.endswith(_WORD_END) for piece in vocabulary
    ):
        backend = tokenizers.Tokenizer(
            models.BPE(vocabulary, merges, unk_token=UNKNOWN, end_of_word_suffix=_WORD_END)
        )
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.BPEDecoder(suffix=_WORD_END)
    else:
        backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
        spaced = options.get("add_prefix_space", False)
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
        backend.decoder = decoders.ByteLevel()
    _add_tokens(backend, folder, rows)
    return backend


def _unigrams(folder: Path, options: Mapping[str, Any], rows: int) -> tokenizers.Tokenizer:
    """Return the tokenizer of T5, with its sentinels behind the pieces."""
    path = folder / SENTENCE_PIECES
    kind = str(options.get("tokenizer_class") or "T5Tokenizer")
    if kind.removesuffix("Fast").removesuffix("Tokenizer") not in ("T5", "MT5"):
        raise DataError(
            f"{path} belongs to a {kind[:100]}, which cannot be made of it; take a folder with a "
            f"{TOKENIZER_FILE}."
        )
    sentinels = _read_object(folder / OPTIONS).get("extra_ids", SENTINELS)
    if type(sentinels) is not int or not 0 <= sentinels <= MAX_SENTINELS:
        raise DataError(f"{folder / OPTIONS}: extra_ids is {str(sentinels)[:100]!r}.")
    backend = read_unigrams(path, sentinels)
    _add_tokens(backend, folder, rows)
    return backend


def _add_tokens(backend: tokenizers.Tokenizer, folder: Path, rows: int) -> None:
    """Add the tokens that stand beside the vocabulary."""
    for token in _tokens_with_rows(_added_tokens(folder), rows, folder):
        flags = {key: value for key, value in token.items() if key != "id"}
        backend.add_tokens([tokenizers.AddedToken(**flags)])
        if backend.token_to_id(token["content"]) != token["id"]:
            raise DataError(
                f"{folder}: the added token {token['content']!r} has a number that does not follow "
                "the vocabulary's."
            )


_FLAGS = ("special", "normalized", "lstrip", "rstrip", "single_word")


def _added_tokens(folder: Path) -> list[dict[str, Any]]:
    """Return the added tokens that stand outside of `tokenizer.json`, as they would stand there.

    `tokenizer_config.json` describes them, or in older folders `added_tokens.json` has their
    numbers; then those that have a part, such as `pad_token`, are special.
    """
    options = _read_object(folder / OPTIONS)
    described = options.get("added_tokens_decoder")
    if described is None:
        numbers = _read_object(folder / ADDED)
        parts = {**options, **_read_object(folder / SPECIAL)}.items()
        values = [v for key, v in parts if key.endswith(("_token", "special_tokens"))]
        special = {_name(e) for v in values for e in (v if isinstance(v, list) else [v])}
        described = {n: {"content": c, "special": c in special} for c, n in numbers.items()}
    if not isinstance(described, dict):
        raise DataError(f"{folder / OPTIONS}: added_tokens_decoder is no mapping.")
    return [_checked_token(number, token, folder) for number, token in described.items()]


def _checked_token(number: Any, token: Any, folder: Path) -> dict[str, Any]:
    is_number = type(number) is int or (isinstance(number, str) and number.isdecimal())
    options = token if isinstance(token, dict) else {}
    flags = {key: options[key] for key in _FLAGS if key in options}
    is_sound = isinstance(options.get("content"), str) and options["content"]
    if not is_number or not is_sound or not all(type(flag) is bool for flag in flags.values()):
        raise DataError(f"{folder}: the added token {str(token)[:100]!r} is damaged.")
    usual = {"normalized": not flags.get("special", False)}
    return {**dict.fromkeys(_FLAGS, False), **usual, **flags,
            "content": options["content"], "id": int(number)}  # fmt: skip


def _name(token: Any) -> str | None:
    name = token.get("content") if isinstance(token, dict) else token
    return name if isinstance(name, str) else None


def _tokens_with_rows(
    tokens: Iterable[Mapping[str, Any]], rows: int, folder: Path
) -> list[Mapping[str, Any]]:
    """Return the added tokens that the model has a row for, by number; the others are named."""
    by_number = sorted(tokens, key=lambda token: int(token["id"]))
    without = [str(token["content"]) for token in by_number if not 0 <= int(token["id"]) < rows]
    if without:
        log.warning("%s is read without the tokens that its model has no row for: %s",
                    folder, list_names(without))  # fmt: skip
    return [token for token in by_number if 0 <= int(token["id"]) < rows]


def _options(folder: Path) -> dict[str, Any]:
    options = _read_object(folder / OPTIONS)
    return {key: value for key, value in options.items() if isinstance(value, str | bool)}


def _read_object(path: Path) -> dict[str, Any]:
    """Return the object in a file; nothing where there is no file."""
    if not path.is_file():
        return {}
    try:
        # Not `read_json`: see `longest_input`.
        content = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is no JSON object.")
    return content
