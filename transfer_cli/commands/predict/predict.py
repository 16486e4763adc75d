"""`transfer predict`: label texts from a file or a pipe; a line for each, in input order."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transfer_cli.assembly.ensemble import Ensemble
from transfer_cli.commands.paths import check_output
from transfer_cli.commands.predict import output, reading, writing
from transfer_cli.commands.predict.output import Earlier, Stop
from transfer_cli.commands.predict.reading import Columns, Row
from transfer_cli.commands.predict.writing import Answers
from transfer_cli.config.schema import PredictConfig
from transfer_cli.data import readers
from transfer_cli.data.columns import ANY, LABEL, Chosen, Wanted
from transfer_cli.data.labelled import Submission
from transfer_cli.data.layout import Layout
from transfer_cli.data.readers import OnError
from transfer_cli.data.table import OpenTable, Refuse, Skipped
from transfer_cli.engine import distributed
from transfer_cli.engine.evaluation import SHOWN
from transfer_cli.engine.precision import precision_of
from transfer_cli.errors import ConfigError, DataError, NotFiniteError, count_or_auto
from transfer_cli.progress import More, progress
from transfer_cli.tasks.base import Answer, Task
from transfer_cli.training.workers import in_process_group

WINDOW_BATCHES = 64
"""Batches of a window, at most: among so many texts, those of like length are put together."""

WINDOW_CELLS = 2**20
"""Values that the answers of a window hold, at most, beyond a batch: each takes 100 bytes."""


def predict(config: PredictConfig) -> None:
    """Write the label and the probabilities of every text."""
    _check(config)
    with in_process_group(config):
        precision = precision_of("predict", config.device, config.precision)
        ensemble = Ensemble(_paths(config.run), precision, config.base, config.batch)
        stop = Stop()
        if not distributed.is_main():
            with stop.waiting(), stop.listening():  # the first process ends all of them
                while asked := json.loads(distributed.broadcast_text("")):
                    ensemble.together([ensemble.task.example(**example) for example in asked])
            return
        write = writing.FORMATS[writing.format_of(config.output_format, config.output)]
        table_format = reading.format_of(config.format, config.input)
        is_handed_in = config.output_format == writing.SUBMITTED
        submission = ensemble.submission() if is_handed_in else None
        asked, own = _wanted(config, ensemble, table_format, submission)
        wanted = own if asked.text is None else asked
        path = _path(config, submission)
        with (
            reading.opened(config.input, table_format, _layout(config), wanted) as given,
            output.opened(path, ensemble.digest, resume=config.resume) as (out, partial),
            stop.listening(),
            _shown(config, ensemble.num_runs) as more,
        ):
            name = given.table.name
            chosen = _chosen(given.table, asked, own, ensemble.task)
            columns = Columns(chosen.text, chosen.pair, config.keep, ensemble.task, submission)
            answers = write(out, columns)
            earlier = Earlier(partial if config.resume else None, answers, name)
            skipped = Skipped()
            on_error = skipped if config.errors == "skip" else Refuse("errors")
            rows = _rows(given.table, answers, on_error)
            most = _most_rows(ensemble.batch * distributed.world_size(), ensemble.task)
            num_texts = 0
            for window in reading.windows(rows, most, given.is_there):
                found = [] if earlier.has(window) else _together(ensemble, window, name, more)
                with stop.waiting():
                    if found:
                        _write(answers, window, found, name)
                    stop.place = f"after line {window[-1].line:,} of {name}"
                num_texts += len(window)
                more(0 if found else len(window) * ensemble.num_runs)
            earlier.close()
            skipped.say(num_texts, name)
            distributed.broadcast_text("[]")
        ensemble.say_cuts()


def _most_rows(batch: int, task: Task) -> int:
    """Return the rows of a window of so large batches."""
    return max(batch, min(batch * WINDOW_BATCHES, WINDOW_CELLS // len(task.cell_names)))


def _shown(config: PredictConfig, runs: int) -> AbstractContextManager[More]:
    """Return the display of how many answers there are: one for each line and run."""

    def total() -> int | None:
        lines = readers.count_lines(Path(config.input).expanduser())
        return None if lines is None else lines * runs

    return progress(
        "predicting",
        total,
        "answers",
        # A terminal on which answers appear is no place for more.
        shown=config.output != "-" or not sys.stdout.isatty(),
    )


def _together(
    ensemble: Ensemble, window: Sequence[Row], name: str, more: More
) -> list[Answer | None]:
    examples = [row.example for row in window]
    if distributed.world_size() > 1:
        # The first process alone reads: there is one standard input.
        distributed.broadcast_text(json.dumps(list(map(asdict, examples))))
    try:
        return ensemble.together(examples, more)
    except DataError as error:
        raise DataError(f"{name}, {error}") from error


def _write(
    answers: Answers, window: Sequence[Row], found: Sequence[Answer | None], name: str
) -> None:
    """Write the answers up to the first one that is not finite."""
    finite: list[Answer] = []
    for each in found:
        if each is None:
            break
        finite.append(each)
    answers.write_window(window[: len(finite)], finite)
    if len(finite) < len(window):
        row = window[len(finite)]
        text = answers.task.texts(row.example)[0][:SHOWN]
        raise NotFiniteError(f"{name}, line {row.line}: the answer to {text!r}")


def _rows(table: OpenTable, answers: Answers, on_error: OnError) -> Iterator[Row]:
    """Yield the rows that can be read, and written when they are labelled."""
    for read in reading.rows_of(table, answers.columns, on_error):
        row = answers.renamed(read)
        problem = answers.problem_of(row)
        if problem is None:
            yield row
        else:
            on_error(DataError(f"{table.name}, line {row.line}: {problem}"))


def _wanted(
    config: PredictConfig, ensemble: Ensemble, table_format: str, submission: Submission | None
) -> tuple[Wanted, Wanted]:
    """Return the columns that are asked for, and those of the training data."""
    if table_format == "text":
        return Wanted(labelled=False, keys=""), ANY
    text, pair, *_ = (*(submission.texts if submission else ()), None, None)
    asked = Wanted(config.text or text, config.pair or pair, labelled=False, keys="")
    return asked, ensemble.columns


def _chosen(table: OpenTable, asked: Wanted, own: Wanted, task: Task) -> Chosen:
    """Return the columns to read: those that were typed, now or for training, else the task's."""
    is_typed = (asked.text or own.text) in table.names
    column = None if is_typed else task.text_column(table.names, table.name)
    return table.columns(asked, own) if column is None else Chosen(column, None, LABEL)


def _path(config: PredictConfig, submission: Submission | None) -> str:
    """Return where answers go; those to a benchmark have their own name in an existing folder."""
    folder = Path(config.output).expanduser()
    if submission is not None and config.output != "-" and folder.is_dir():
        return str(folder / submission.name_of(config.input))
    check_output(config.output)
    return config.output


def _layout(config: PredictConfig) -> Layout:
    is_test = config.output_format == writing.SUBMITTED  # nothing to recognise: text may hold all
    delimiter, header = ("tab", True) if is_test else (None, None)
    try:
        return Layout(
            config.delimiter or delimiter,
            config.encoding,
            header if config.header is None else config.header,
            config.quotes,
            config.sheet,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _check(config: PredictConfig) -> None:
    if config.pair is not None and reading.format_of(config.format, config.input) == "text":
        raise ConfigError(
            f"pair: plain text has no column {config.pair!r}; for a table say format=csv, tsv "
            "or jsonl"
        )
    if config.keep and config.output_format == writing.SUBMITTED:
        raise ConfigError("keep: output_format=glue has no columns but its own two; leave it out")
    if config.resume:
        output.check_resume(config.output)
    files = [Path(name).expanduser().resolve() for name in (config.input, config.output)]
    if "-" not in (config.input, config.output) and files[0] == files[1]:
        raise ConfigError(f"output: {config.output} is the input, and would be lost; name another")
    writing.format_of(config.output_format, config.output)
    _layout(config)
    count_or_auto("batch", config.batch)
    _paths(config.run)


def _paths(run: Any) -> list[str]:
    """Return the run directories that `run` names: one, or a list of them."""
    named = run if isinstance(run, list) else [run]
    wrong = [each for each in named if isinstance(each, bool) or not isinstance(each, str | int)]
    if wrong or not named:
        raise ConfigError(
            f"run: expected a run directory, or several as [RUN,RUN], got {(wrong or named)!r}"
        )
    return [str(each) for each in named]
