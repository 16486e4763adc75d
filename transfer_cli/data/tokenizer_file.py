"""A `tokenizer.json`: read, written, and what is refused of a stranger's.

The library takes memory for all that a file says, so that is looked at before.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from transfer_cli.data.text_growth import UNMEASURED, chain_growth, chain_parts, max_growth
from transfer_cli.data.tokenizer import Tokenizer, library_errors
from transfer_cli.errors import DataError
from transfer_cli.runs.atomic import replaced_file
from transfer_cli.safe_files import UnreadableError, parse_json, read_text

MAX_FILE_BYTES = 64 * 2**20
"""Twice the largest `tokenizer.json` in use, of 256,000 tokens."""

MAX_VOCABULARY = 2**22
"""Sixteen times the largest vocabulary in use. The library takes memory for all numbers up to the
largest, so that one token of number 4,294,967,295 would end the process."""

MAX_PARTS = 100
"""Of a chain of normalizers, of pre-tokenizers, of decoders, of a template."""

MAX_CHAIN_GROWTH = 4096
"""What the parts of a chain may make of one character together: those of ALBERT's, 648, if there
were a letter that all of them lengthen."""


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a `tokenizer.json`, ours or another's."""
    with library_errors(f"{path} is damaged, or no `tokenizer.json` of the library"):
        try:
            text = read_text(path, MAX_FILE_BYTES)
        except OSError as error:
            raise DataError(f"Cannot read the tokenizer {path}: {error.strerror}.") from error
        check_file(parse_json(text))
        return Tokenizer(tokenizers.Tokenizer.from_str(text), str(path))


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Write the `tokenizer.json` of the tokenizers library, complete or not at all."""
    with replaced_file(path) as temporary:
        temporary.write_text(tokenizer.to_json(), encoding="utf-8")


def check_file(data: Mapping[str, Any]) -> None:
    """Refuse the content of a `tokenizer.json` that would make the library take all memory."""
    check_numbers(data)
    chains = {
        name: list(chain_parts(data.get(name)))
        for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor")
    }
    # How many characters a part may put in place of one. The longest that Unicode has are 18.
    max_step = 64
    for name, nodes in chains.items():
        if len(nodes) > MAX_PARTS:
            raise UnreadableError(f"its {name} has {len(nodes):,} parts, the most is {MAX_PARTS}")
        most = chain_growth(nodes)
        if most > MAX_CHAIN_GROWTH or max(map(max_growth, nodes), default=1) > max_step:
            raise UnreadableError(
                f"its {name} makes up to {most:,} characters of one; no text is encoded with it"
            )
    kinds = [node.get("type") for node in (*chains["normalizer"], *chains["pre_tokenizer"])]
    max_byte_levels = 2  # one makes characters of bytes, which are bytes again to the next one
    if kinds.count("ByteLevel") > max_byte_levels:
        raise UnreadableError("it makes bytes of a text more than twice")
    for node in chains["post_processor"]:
        for kind in ("single", "pair"):
            _check_template(node.get(kind))
    added = data.get("added_tokens") or ()
    names = [token for token in added if isinstance(token, dict) and token.get("normalized")]
    size = sum(len(str(token.get("content"))) for token in names)
    if size * chain_growth(chains["normalizer"]) > UNMEASURED:
        raise UnreadableError("its normalizers make too much of its added tokens")


def _check_template(pieces: Any) -> None:
    if not isinstance(pieces, list):
        return
    parts = [piece.get("Sequence") for piece in pieces if isinstance(piece, dict)]
    names = [str(piece.get("id")) for piece in parts if isinstance(piece, dict)]
    if len(pieces) > MAX_PARTS or len(set(names)) < len(names):
        raise UnreadableError(
            f"its post_processor repeats the text, or has more than {MAX_PARTS} parts"
        )


def check_numbers(data: Mapping[str, Any]) -> None:
    """Raise for numbers of tokens for which the library would take too much memory."""
    model, added = data.get("model"), data.get("added_tokens") or []
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict | list) or not isinstance(added, list):
        raise UnreadableError("it has no vocabulary")
    numbers: list[Any] = [token.get("id") for token in added if isinstance(token, dict)]
    numbers += vocabulary.values() if isinstance(vocabulary, dict) else [len(vocabulary)]
    for number in numbers:
        if not isinstance(number, int) or not 0 <= number <= MAX_VOCABULARY:
            raise UnreadableError(
                f"a token has the number {number}, expected one up to {MAX_VOCABULARY:,}"
            )
