"""`transfer predict`: label texts from a file or a pipe; a line for each, in input order.

While it grows, a file is called `NAME.DIGEST.partial`; the digest is that of the models. However
the command ends, the answers in it stay, and `resume=true` goes on behind them.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, replace
from glob import escape, has_magic
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from transfer_cli.assembly.ensemble import Ensemble
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.commands.closing import AnswerSummary
from transfer_cli.commands.paths import check_not_read, check_output
from transfer_cli.commands.predict import reading, writing
from transfer_cli.commands.predict.reading import Columns, Input, Row
from transfer_cli.commands.predict.writing import Answers
from transfer_cli.config.check_beams import typed_beams
from transfer_cli.config.schema import PredictConfig
from transfer_cli.config.stored import plain_values
from transfer_cli.data import readers
from transfer_cli.data.documents import TABLE_SUFFIXES, files_of_one_format
from transfer_cli.data.labelled import Submission
from transfer_cli.data.layout import Layout
from transfer_cli.data.readers import MAX_LINE_BYTES, OnError
from transfer_cli.data.table import OpenTable, Refuse, Skipped, warn_of_skipped
from transfer_cli.data.wanted import ANY, Chosen, Wanted, parse_columns
from transfer_cli.engine import distributed
from transfer_cli.engine.evaluation import SHOWN_CHARACTERS
from transfer_cli.engine.precision import device_and_precision
from transfer_cli.errors import (
    ConfigError,
    DataError,
    NotFiniteError,
    RunError,
    StoppedError,
    count_or_auto,
    raised_as,
)
from transfer_cli.progress import Advance, progress
from transfer_cli.runs import atomic
from transfer_cli.runs.atomic import check_inside, flush
from transfer_cli.runs.locks import Lock
from transfer_cli.tasks.base import Answer, Task
from transfer_cli.terminal import STOP_SIGNALS, handle_signals
from transfer_cli.training.process_group import in_process_group

log = logging.getLogger(__name__)

WINDOW_BATCHES = 64
"""Batches of a window, at most: among so many texts, those of like length are put together."""

MOST_CELLS = 2**20
"""Values that the answers of a window hold, at most, beyond a batch: each takes 100 bytes."""


def predict(config: PredictConfig) -> None:
    """Write the label and the probabilities of every text."""
    files = _input_files(config)
    _check_config(config, files)
    with in_process_group(plain_values(config)):
        ensemble = _open_ensemble(config)
        stop = SignalStop()
        if not distributed.is_main():
            with stop.deferred(), stop.handling_signals():  # the first process ends all of them
                while examples := json.loads(distributed.broadcast_text("")):
                    ensemble.answers([ensemble.task.example(**fields) for fields in examples])
            return
        write = writing.FORMATS[writing.format_of(config.output_format, config.output)]
        is_handed_in = config.output_format == writing.SUBMITTED
        submission = ensemble.submission() if is_handed_in else None
        open_one, choose = _opener_and_chooser(config, files[0], ensemble, submission)
        path = _output_path(config, files[0], submission)
        batch = ensemble.batch * distributed.world_size()
        most = min(batch * WINDOW_BATCHES, MOST_CELLS // len(ensemble.task.cell_names))
        summary = AnswerSummary(ensemble.task, *ensemble.first.training_labels)
        tables: list[Skipped] = []
        with (
            reading.open_inputs(files, open_one, choose) as (chosen, inputs),
            _open_output(path, ensemble.digest, resume=config.resume) as (out, partial),
            stop.handling_signals(),
            _progress(config, files, ensemble.num_runs) as more,
        ):
            answers = write(out, Columns(chosen, config.keep, ensemble.task, submission))
            earlier = EarlierAnswers(partial if config.resume else None, answers)
            for opened_input in inputs:
                name = opened_input.table.name
                answers.file = name if len(files) > 1 else None
                tables.append(Skipped(name))
                on_error = tables[-1] if config.errors == "skip" else Refuse("errors")
                rows = _writable_rows(opened_input.table, answers, on_error)
                for window in reading.windows(rows, max(batch, most), opened_input.is_ready):
                    is_done = earlier.has(window, name)
                    results = [] if is_done else _answer_window(ensemble, window, name, more)
                    with stop.deferred():
                        if results:
                            _write_window(answers, window, results, name, summary)
                        stop.place = f"after line {window[-1].line:,} of {name}"
                    tables[-1].answered += len(window)
                    more(0 if results else len(window) * ensemble.num_runs)
            earlier.close(files[-1])
            warn_of_skipped(tables)
            distributed.broadcast_text("[]")
        ensemble.warn_of_texts()
        summary.log_summary()


def _open_ensemble(config: PredictConfig) -> Ensemble:
    precision = device_and_precision(config.device, config.precision)
    beams, paths = typed_beams(vars(config)), _run_paths(config.run)
    runs = (open_trained(path, precision, config.base, beams) for path in paths)
    return Ensemble(runs, precision, config.batch)


def _input_files(config: PredictConfig) -> list[str]:
    """Return the files of `input`, as `data.train` names them; - for standard input."""
    given = config.input if isinstance(config.input, list) else [config.input]
    if len(given) == 1 and isinstance(name := given[0], str):
        path = Path(name).expanduser()
        if name == "-" or not (path.is_dir() or (has_magic(name) and not path.exists())):
            return [name]  # also a pipe, which can be looked at only once
    if not given or not all(isinstance(name, str) and name != "-" for name in given):
        raise ConfigError(f"input: expected files, a folder, a glob, or -, got {config.input}")
    with raised_as(DataError, "input: ", DataError):
        paths = files_of_one_format(given, (*TABLE_SUFFIXES, ".txt"), config.format)
    return list(map(str, paths))


def _opener_and_chooser(
    config: PredictConfig, first: str, ensemble: Ensemble, submission: Submission | None
) -> tuple[
    Callable[[str], AbstractContextManager[Input]], Callable[[OpenTable, Wanted | None], Chosen]
]:
    """Return what opens a file, and what chooses its columns."""
    table_format = reading.format_of(config.format, first)
    typed, trained_on = _wanted_columns(config, ensemble, table_format, submission)
    columns = typed if typed.text or typed.texts else replace(trained_on, keys="")

    def open_one(name: str) -> AbstractContextManager[Input]:
        return reading.open_input(name, table_format, _layout(config), columns)

    def choose(table: OpenTable, first: Wanted | None) -> Chosen:
        return reading.columns_for(table, typed, first or trained_on, ensemble.task)

    return open_one, choose


def _progress(
    config: PredictConfig, files: Sequence[str], runs: int
) -> AbstractContextManager[Advance]:
    """Return the display of how many answers there are: one for each line and run."""

    def total() -> int | None:
        lines = [readers.count_lines(Path(name).expanduser()) for name in files]
        return None if None in lines else sum(filter(None, lines)) * runs

    # A terminal on which answers appear is no place for more.
    shown = config.output != "-" or not sys.stdout.isatty()
    return progress("predicting", total, "answers", shown=shown)


def _answer_window(
    ensemble: Ensemble, window: Sequence[Row], name: str, more: Advance
) -> list[Answer | None]:
    examples = [row.example for row in window]
    if distributed.world_size() > 1:
        # The first process alone reads: there is one standard input.
        distributed.broadcast_text(json.dumps(list(map(asdict, examples))))
    with raised_as(DataError, f"{name}, ", DataError):
        return ensemble.answers(examples, more)


def _write_window(
    answers: Answers,
    window: Sequence[Row],
    results: Sequence[Answer | None],
    name: str,
    summary: AnswerSummary,
) -> None:
    """Write the answers up to the first one that is not finite."""
    finite: list[Answer] = []
    for result in results:
        if result is None:
            break
        finite.append(result)
    answers.write_window(window[: len(finite)], finite)
    for row, answer in zip(window, finite, strict=False):
        if label := answers.task.said(answer):
            summary.add(*label, answers.task.texts(row.example)[0], row.line, answers.file)
    if len(finite) < len(window):
        row = window[len(finite)]
        text = answers.task.texts(row.example)[0][:SHOWN_CHARACTERS]
        raise NotFiniteError(f"{name}, line {row.line}: the answer to {text!r}")


def _writable_rows(table: OpenTable, answers: Answers, on_error: OnError) -> Iterator[Row]:
    """Yield the rows that can be read, and written when they are labelled."""
    for read in reading.read_rows(table, answers.columns, on_error):
        row = answers.with_place(read)
        problem = answers.problem_of(row)
        if problem is None:
            yield row
        else:
            on_error(DataError(f"{table.name}, line {row.line}: {problem}"))


def _wanted_columns(
    config: PredictConfig, ensemble: Ensemble, table_format: str, submission: Submission | None
) -> tuple[Wanted, Wanted]:
    """Return the columns that are asked for, and those of the training data."""
    if table_format == "text":
        return Wanted(labelled=False, keys=""), ANY
    text, pair, *_ = (*(submission.texts if submission else ()), None, None)
    trained_on = ensemble.first.columns
    columns = parse_columns(config.text or text, config.pair or pair, None)
    return replace(columns, join=trained_on.join, labelled=False, keys=""), trained_on


def _output_path(config: PredictConfig, test: str, submission: Submission | None) -> str:
    """Return where answers go; those to a benchmark have their own name in an existing folder."""
    folder = Path(config.output).expanduser()
    if submission is not None and config.output != "-" and folder.is_dir():
        return str(folder / submission.answers_file_name(test))
    check_output(config.output)
    return config.output


def _layout(config: PredictConfig) -> Layout:
    is_test = config.output_format == writing.SUBMITTED  # nothing to recognise: text may hold all
    delimiter = config.delimiter or ("tab" if is_test else None)
    header = True if is_test and config.header is None else config.header
    with raised_as(ConfigError, ""):
        return Layout(delimiter, config.encoding, header, config.quotes, config.sheet)


def _check_config(config: PredictConfig, files: Sequence[str]) -> None:
    if config.pair is not None and reading.format_of(config.format, files[0]) == "text":
        raise ConfigError(
            f"pair: plain text has no column {config.pair!r}; for a table say format=csv, tsv "
            "or jsonl"
        )
    if config.keep and config.output_format == writing.SUBMITTED:
        raise ConfigError("keep: output_format=glue has no columns but its own two; leave it out")
    if len(files) > 1 and config.output_format == writing.SUBMITTED:
        raise ConfigError("input: output_format=glue hands in the answers to one file; name one")
    output = Path(config.output).expanduser()
    if config.resume and (config.output == "-" or (output.exists() and not output.is_file())):
        raise ConfigError("resume: only the answers in a file can be gone on with; name output=")
    check_not_read(config.output, files)
    writing.format_of(config.output_format, config.output)
    _layout(config)
    count_or_auto("batch", config.batch)
    _run_paths(config.run)


def _run_paths(run: Any) -> list[str]:
    named = run if isinstance(run, list) else [run]
    wrong = [path for path in named if isinstance(path, bool) or not isinstance(path, str | int)]
    if wrong or not named:
        raise ConfigError(
            f"run: expected a run directory, or several as [RUN,RUN], got {(wrong or named)!r}"
        )
    return [str(path) for path in named]


_MOST_RECORD_BYTES = 16 * MAX_LINE_BYTES
"""Bytes of an answer that is read again: its text, its columns, and six for a control character."""


@contextmanager
def _open_output(
    name: str, digest: Callable[[], str], *, resume: bool
) -> Iterator[tuple[TextIO, Path | None]]:
    """Open what is written, and return the partial file, if it is one.

    A file that is there stays until all is written.

    Args:
        name: A file; `-` for standard output.
        digest: Of the models.
        resume: Whether to keep what an earlier command has written.
    """
    path = Path(name).expanduser()
    if name == "-":
        yield sys.stdout, None
        return
    with atomic.as_run_error(path):
        if path.exists() and not path.is_file():  # a device or a pipe
            with path.open("w", encoding="utf-8", newline="") as out:
                yield out, None
            return
        partial = path.with_name(f"{path.name}.{digest()}.partial")
        check_inside(path.parent, [partial], "output")
        if resume:
            _check_same_models(path, partial)
        with _hold_lock(partial), partial.open("a+", encoding="utf-8", newline="") as out:
            before = os.fstat(out.fileno()).st_size
            if before and not resume:
                log.warning("%s, of an earlier command, is begun anew; see resume=true", partial)
                before = out.truncate(0)
            try:
                yield out, partial
                out.flush()
                flush(partial)
                replaces = ", in place of what was there" if path.exists() else ""
                partial.replace(path)
                flush(path.parent)
                log.info("the answers are in %s%s", path, replaces)
            except BaseException:
                with suppress(OSError):
                    out.flush()
                after = os.fstat(out.fileno()).st_size
                if after == 0:
                    partial.unlink(missing_ok=True)
                elif after != before:
                    log.info("the answers so far are in %s; resume=true goes on there", partial)
                raise


def _check_same_models(path: Path, partial: Path) -> None:
    others = sorted(path.parent.glob(f"{escape(path.name)}.{'[0-9a-f]' * 8}.partial"))
    if not partial.exists() and others:
        raise RunError(
            f"resume: {others[0]} is of another model; give its run, or remove it to begin anew"
        )
    if not partial.exists():
        log.info("there is no %s: from the beginning", partial)


@contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made."""
    lock = Lock(path)
    if not lock.take():
        raise RunError(f"output: another command is writing {path}; wait for it")
    try:
        yield
    finally:
        lock.release()


class EarlierAnswers:
    """The answers that an earlier command has left, compared with the rows that they are for.

    Args:
        partial: The file; None: there is none.
    """

    def __init__(self, partial: Path | None, answers: Answers) -> None:
        self._partial = partial
        self._answers = answers
        self._records = self._whole_records()
        self._count = self._read = self._end = 0
        self._over = False

    def _whole_records(self) -> Iterator[str]:
        """Yield the records that have an end, the names of columns first where there are any."""
        if self._partial is None:
            return
        record, is_open = "", False
        with self._partial.open("rb") as file:
            while (line := file.readline(_MOST_RECORD_BYTES)).endswith(b"\n"):
                self._read += len(line)
                # What is no UTF-8 is then equal to no text of ours.
                record += line.decode(errors="surrogateescape")
                is_open ^= self._answers.spans_lines and line.count(b'"') % 2 == 1
                if not is_open:
                    yield record
                    record = ""
                elif len(record) > _MOST_RECORD_BYTES:
                    return

    def has(self, window: Sequence[Row], name: str) -> bool:
        """Return whether the next answers are those of this window of a file, all of it.

        Else they are cut off: windows are answered whole, since what is in a batch together decides
        the last digit.
        """
        names = "" if self._read else self._answers.header()
        if names and next(self._records, names) != names:
            self._refuse(f"is not of line {window[0].line} of {name}")
        for row in window:
            record = None if self._over else next(self._records, None)
            if record is None:
                self._cut()
                return False
            if not self._answers.is_for(row, record):
                self._refuse(f"is not of line {row.line} of {name}")
            self._count += 1
        self._end = self._read
        return True

    def close(self, name: str) -> None:
        """Refuse answers that are left when there are no more rows."""
        if not self._over and next(self._records, None) is not None:
            self._refuse(f"is beyond the end of {name}")
        self._cut()

    def _cut(self) -> None:
        if not self._over and self._partial is not None:
            self._answers.out.truncate(self._end)
            self._answers.begun = self._end > 0
            if self._end:
                log.info("going on in %s, at byte %s", self._partial, f"{self._end:,}")
        self._over = True

    def _refuse(self, what: str) -> None:
        raise RunError(
            f"resume: answer {self._count + 1:,} in {self._partial} {what}, or has other columns; "
            "type the command that wrote it, or leave resume out to begin anew"
        )


class SignalStop:
    """Ends the command at a signal, but never while answers are being written."""

    def __init__(self) -> None:
        self.place = "before the first answer"
        self._received = 0
        self._writes = False

    def handling_signals(self) -> AbstractContextManager[None]:
        """Listen within a block, which a second signal of any kind ends without waiting."""
        return handle_signals((*STOP_SIGNALS, signal.SIGINT), self._receive)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let the block come to its end first."""
        self._writes = True
        try:
            yield
        finally:
            self._writes = False
        if self._received:
            self._end()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        again, self._received = self._received, number
        if again or not self._writes:
            self._end()

    def _end(self) -> None:
        number = signal.Signals(self._received)
        text = f"{number.name}: stopped {self.place}"
        raise KeyboardInterrupt(text) if number == signal.SIGINT else StoppedError(text)
