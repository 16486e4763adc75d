"""`transfer fill`: fill gaps in a text with a masked language model."""

from collections.abc import Sequence
from dataclasses import asdict

import torch

from transfer_cli.assembly.language_models import open_language_model
from transfer_cli.commands.paths import STANDARD_OUTPUT, check_output, write_json_lines
from transfer_cli.config.literal import text_of
from transfer_cli.config.schema import FillConfig
from transfer_cli.engine.precision import device_and_precision
from transfer_cli.errors import ConfigError, at_least
from transfer_cli.generation import filling
from transfer_cli.generation.filling import Candidate
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.terminal import BLANK, Column, Line, Page, Piece, Pieces, TextTable, print_out


def fill_gaps(config: FillConfig) -> None:
    """Print the likeliest words for each gap; write them to `output` if there is one."""
    text = text_of(config.text, "text")
    check_output(config.output)
    at_least("top:", config.top, 1, ConfigError)
    if not text.strip():
        raise ConfigError("text: is empty; give one with a gap, such as text='Once [MASK] a time'")
    precision = device_and_precision(config.device, config.precision)
    trained = open_language_model(config.run, precision, config.base, MaskedLM)
    tokenizer = trained.start.tokenizer
    tokens = filling.encode_with_gaps(text, tokenizer, trained.start.around)
    positions = trained.start.description.shape.positions
    if tokenizer.mask not in tokens:
        raise ConfigError("text: has no gap; write [MASK] where a word is missing")
    if len(tokens) > positions:
        raise ConfigError(
            f"text: is {len(tokens)} tokens long, and the model has {positions} positions; "
            "shorten it"
        )
    with torch.inference_mode(), precision.context():
        fillings = filling.fill_gaps(trained.model, tokenizer, tokens, config.top)
    best = filling.insert_candidates(text, tokenizer, [candidates[0] for candidates in fillings])
    if config.output != STANDARD_OUTPUT:
        print_out(_page(fillings, best))
    if config.output is not None:
        gaps = [[asdict(candidate) for candidate in candidates] for candidates in fillings]
        write_json_lines(config.output, [{"text": text, "gaps": gaps, "filled": best}])


def _page(fillings: Sequence[Sequence[Candidate]], best: str) -> Page:
    several = len(fillings) > 1
    columns = [Column("word"), Column("probability", right=True)]
    rows: list[Pieces] = []
    for number, candidates in enumerate(fillings, 1):
        for place, candidate in enumerate(candidates):
            name = Piece(candidate.text or candidate.token, "name" if place == 0 else "")
            gap = [str(number) if place == 0 else ""] if several else []
            rows.append([*gap, name, f"{candidate.probability:.4f}"])
    table = TextTable([Column("gap", right=True), *columns] if several else columns, rows)
    return Page(table, BLANK, Line(Piece(" ".join(best.splitlines()))))
