"""`transfer embed`: write a vector for each text of a file or a pipe, in input order.

Legend: N texts, A and B texts of two portions, D width.
"""

import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from numpy.lib import format as npy
from torch import Tensor

from transfer_cli.assembly.finished_run import open_for_analysis
from transfer_cli.assembly.sentence_vectors import SentenceVectors
from transfer_cli.commands.paths import STANDARD_OUTPUT, check_ending, check_not_read, check_output
from transfer_cli.commands.predict import reading
from transfer_cli.commands.predict.predict import WINDOW_BATCHES
from transfer_cli.commands.predict.reading import Row
from transfer_cli.config.schema import EmbedConfig
from transfer_cli.data.encoded_task import warn_of_cuts
from transfer_cli.data.labelled import Example
from transfer_cli.data.layout import Layout
from transfer_cli.data.records import Record, text_of
from transfer_cli.data.table import Refuse, Skipped, sound_rows, warn_of_skipped
from transfer_cli.data.wanted import TEXT, Chosen, parse_columns
from transfer_cli.engine.precision import device_and_precision
from transfer_cli.errors import (
    ConfigError,
    NotFiniteError,
    at_least,
    count_or_auto,
    pip_install,
    raised_as,
)
from transfer_cli.progress import progress
from transfer_cli.runs.atomic import as_run_error, replaced_file
from transfer_cli.terminal import Column, TextTable, print_out

log = logging.getLogger(__name__)

_PORTION_ROWS = 2048
_SHOWN_CHARACTERS = 60

Write = Callable[[Sequence[str], npt.NDArray[np.float32]], object]
"""Writes texts and their vectors, `[N, D]`."""


def embed(config: EmbedConfig) -> None:
    """Write the vector of every text, and show the nearest ones if they are asked for."""
    table_format, layout = _check_config(config)
    precision = device_and_precision(config.device, config.precision)
    opened = open_for_analysis(config.run, precision, config.base)
    vectors = SentenceVectors(
        opened, precision, config.pooling, normalize=config.normalize, batch=config.batch
    )
    length = "of length 1" if vectors.normalize else "as long as they come"
    log.info("vectors: %d numbers, pooling=%s, %s", vectors.width, vectors.pooling, length)
    columns = replace(parse_columns(config.text, None, None), labelled=False, keys="")
    with (
        reading.open_input(config.input, table_format, layout, columns) as opened_input,
        _open_output(config.output, vectors.width) as write,
        tempfile.TemporaryFile() as unit_vectors,
        progress("embedding", None, "texts", shown=config.output != STANDARD_OUTPUT) as more,
    ):
        table, places = opened_input.table, []
        chosen = Chosen(TEXT, None, "")
        if table_format != "text":
            chosen = table.columns(columns, replace(opened.columns, pair=None))
        skipped = Skipped(table.name)
        on_error = skipped if config.errors == "skip" else Refuse("errors")
        texts = {*(chosen.texts or (chosen.text,))}
        rows = sound_rows(table, texts, lambda record: _row(record, chosen, table.name), on_error)
        for window in reading.windows(rows, vectors.batch * WINDOW_BATCHES, opened_input.is_ready):
            states_ND = vectors.encode([row.example for row in window])
            for row, is_finite in zip(window, states_ND.isfinite().all(1), strict=True):
                if not is_finite:
                    raise NotFiniteError(f"{table.name}, line {row.line}: the vector")
            write([row.example.text for row in window], states_ND.numpy())
            if config.nearest:
                unit_vectors.write(F.normalize(states_ND, dim=1).numpy().tobytes())
                places += [(row.line, row.example.text[:_SHOWN_CHARACTERS]) for row in window]
            skipped.answered += len(window)
            more(len(window))
        warn_of_skipped([skipped])
        warn_of_cuts(vectors.num_cut, skipped.answered, *vectors.kept)
        if config.nearest and len(places) > 1:
            unit_vectors.flush()
            shape = (len(places), vectors.width)
            units_ND = np.memmap(unit_vectors, np.float32, "r", shape=shape)
            _show(nearest_pairs(units_ND, config.nearest), places)
    log.info("%s vectors in %s", f"{skipped.answered:,}", config.output)


def _check_config(config: EmbedConfig) -> tuple[str, Layout]:
    check_output(config.output)
    check_ending("output", config.output, [*_FORMATS])
    check_not_read(config.output, [config.input])
    count_or_auto("batch", config.batch)
    at_least("nearest:", config.nearest, 0, ConfigError)
    if config.pair is not None:
        raise ConfigError(
            "pair: a vector is of one text; for two columns as one text type text=[A,B]"
        )
    if config.nearest and config.output == STANDARD_OUTPUT:
        raise ConfigError("nearest: its table would stand among the vectors; name output=FILE")
    if config.output.lower().endswith(".parquet") and find_spec("pyarrow") is None:
        raise ConfigError(f"output: Parquet needs pyarrow: {pip_install('tables')}")
    with raised_as(ConfigError, ""):
        layout = Layout(
            config.delimiter, config.encoding, config.header, config.quotes, config.sheet
        )
    return reading.format_of(config.format, config.input), layout


def _row(record: Record, chosen: Chosen, name: str) -> Row:
    text = text_of(chosen.join_texts(record, name), chosen.text, name)
    return Row(record.line, Example(text), {}, len(text))


# --- formats -------------------------------------------------------------------------------------


@contextmanager
def _open_output(output: str, width: int) -> Iterator[Write]:
    if output == STANDARD_OUTPUT:
        yield lambda texts, vectors_ND: sys.stdout.write(_json_lines(texts, vectors_ND))
        return
    path = Path(output).expanduser()
    kind = _FORMATS.get(path.suffix.lower(), _json_file)
    with as_run_error(path), replaced_file(path) as temporary, kind(temporary, width) as write:
        yield write


def _json_lines(texts: Sequence[str], vectors_ND: npt.NDArray[np.float32]) -> str:
    # Nine digits are enough to read a float32 as it was; `tolist` would write its seventeen.
    rows = (", ".join(map("{:.9g}".format, vector)) for vector in vectors_ND.tolist())
    both = zip(texts, rows, strict=True)
    return "".join(
        f'{{"text": {json.dumps(text, ensure_ascii=False)}, "vector": [{row}]}}\n'
        for text, row in both
    )


@contextmanager
def _json_file(path: Path, width: int) -> Iterator[Write]:
    with path.open("w", encoding="utf-8") as file:
        yield lambda texts, vectors_ND: file.write(_json_lines(texts, vectors_ND))


@contextmanager
def _array_file(path: Path, width: int) -> Iterator[Write]:
    count = 0
    with path.open("wb") as file:

        def write_header(count: int) -> None:
            # NumPy leaves room for a first size of any digits, so that it can be written again.
            header = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
            npy.write_array_header_1_0(file, header)

        def write(texts: Sequence[str], vectors_ND: npt.NDArray[np.float32]) -> None:
            nonlocal count
            count += len(texts)
            file.write(vectors_ND.astype("<f4").tobytes())

        write_header(count)
        yield write
        file.seek(0)
        write_header(count)


@contextmanager
def _parquet_file(path: Path, width: int) -> Iterator[Write]:
    arrow, parquet = map(import_module, ("pyarrow", "pyarrow.parquet"))
    vector = arrow.list_(arrow.float32(), width)
    schema = arrow.schema([("text", arrow.string()), ("vector", vector)])
    with parquet.ParquetWriter(path, schema) as file:

        def write(texts: Sequence[str], vectors_ND: npt.NDArray[np.float32]) -> None:
            flat = arrow.FixedSizeListArray.from_arrays(vectors_ND.ravel(), type=vector)
            file.write_table(arrow.table([arrow.array(texts), flat], schema=schema))

        yield write


_FORMATS: dict[str, Callable[[Path, int], AbstractContextManager[Write]]] = {
    ".npy": _array_file, ".parquet": _parquet_file, ".jsonl": _json_file, ".ndjson": _json_file,
}  # fmt: skip


# --- the nearest ---------------------------------------------------------------------------------


def nearest_pairs(units_ND: npt.NDArray[np.float32], count: int) -> list[tuple[float, int, int]]:
    """Return the pairs of vectors of length 1 that are nearest, as (cosine, row, row).

    Two portions are compared at a time, so memory does not grow with the number of vectors.
    """
    cosines, pairs = torch.empty(0), torch.empty(0, 2, dtype=torch.long)
    starts = range(0, len(units_ND), _PORTION_ROWS)
    with progress("comparing", len(starts), "portions") as more:
        for i in starts:
            rows_AD = _portion(units_ND, i)
            for j in range(i, len(units_ND), _PORTION_ROWS):
                cosines_AB = rows_AD @ _portion(units_ND, j).T
                if i == j:  # a pair once, and no text with itself
                    cosines_AB.masked_fill_(torch.ones_like(cosines_AB).tril().bool(), -2)
                best = cosines_AB.flatten().topk(min(count, cosines_AB.numel()))
                width = cosines_AB.shape[1]
                nearest = torch.stack([i + best.indices // width, j + best.indices % width], dim=1)
                cosines, pairs = torch.cat([cosines, best.values]), torch.cat([pairs, nearest])
                order = cosines.argsort(descending=True, stable=True)[:count]
                cosines, pairs = cosines[order], pairs[order]
            more(1)
    both = zip(cosines.tolist(), pairs.tolist(), strict=True)
    return [(cosine, a, b) for cosine, (a, b) in both if cosine >= -1.5]


def _portion(units_ND: npt.NDArray[np.float32], start: int) -> Tensor:
    return torch.from_numpy(np.array(units_ND[start : start + _PORTION_ROWS]))


def _show(pairs: Sequence[tuple[float, int, int]], places: Sequence[tuple[int, str]]) -> None:
    columns = [Column("cosine", right=True), Column("line", right=True), Column("text")]
    rows = []
    for cosine, *two in pairs:
        for number, (line, text) in enumerate(places[row] for row in two):
            shown = " ".join(text.split())
            rows.append(["" if number else f"{cosine:.4f}", f"{line:,}", shown])
    print_out(TextTable(columns, rows))
