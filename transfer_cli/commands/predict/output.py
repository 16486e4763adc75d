"""Where the answers of `predict` go: standard output, or a file that grows beside its place.

While it grows, a file is called `NAME.DIGEST.partial`; the digest is that of the models. However
the command ends, the answers in it stay, and `resume=true` goes on behind them.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

from transfer_cli.commands.predict.reading import Row
from transfer_cli.commands.predict.writing import Answers
from transfer_cli.data.readers import MAX_LINE_BYTES
from transfer_cli.errors import ConfigError, RunError, StoppedError
from transfer_cli.runs.atomic import check_inside, flush, writing
from transfer_cli.runs.locks import Lock
from transfer_cli.terminal import STOP_SIGNALS, handling

log = logging.getLogger(__name__)

_MOST_RECORD = 16 * MAX_LINE_BYTES
"""Bytes of an answer that is read again: its text, its columns, and six for a control character."""


@contextmanager
def opened(
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
    with writing(path):
        if path.exists() and not path.is_file():  # a device or a pipe
            with path.open("w", encoding="utf-8", newline="") as out:
                yield out, None
            return
        partial = path.with_name(f"{path.name}.{digest()}.partial")
        check_inside(path.parent, [partial], "output")
        if resume:
            _check_same(path, partial)
        with _held(partial), partial.open("a+", encoding="utf-8", newline="") as out:
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


def check_resume(output: str) -> None:
    """Refuse to go on in what cannot be read again."""
    path = Path(output).expanduser()
    if output == "-" or (path.exists() and not path.is_file()):
        raise ConfigError("resume: only the answers in a file can be gone on with; name output=")


def _check_same(path: Path, partial: Path) -> None:
    others = sorted(path.parent.glob(f"{_quoted(path.name)}.{'[0-9a-f]' * 8}.partial"))
    if not partial.exists() and others:
        raise RunError(
            f"resume: {others[0]} is of another model; give its run, or remove it to begin anew"
        )
    if not partial.exists():
        log.info("there is no %s: from the beginning", partial)


def _quoted(name: str) -> str:
    return "".join(f"[{each}]" if each in "*?[" else each for each in name)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made."""
    lock = Lock(path)
    if not lock.take():
        raise RunError(f"output: another command is writing {path}; wait for it")
    try:
        yield
    finally:
        lock.release()


class Earlier:
    """The answers that an earlier command has left, compared with the rows that they are for.

    Args:
        partial: The file; None: there is none.
        answers: Writes its format.
        name: Of the input, for messages.
    """

    def __init__(self, partial: Path | None, answers: Answers, name: str) -> None:
        self._partial = partial
        self._answers = answers
        self._name = name
        self._records = self._whole_records()
        self._count = self._read = self._end = 0
        self._over = False

    def _whole_records(self) -> Iterator[str]:
        """Yield the records that have an end, the names of columns first where there are any."""
        if self._partial is None:
            return
        record, is_open = "", False
        with self._partial.open("rb") as file:
            while (line := file.readline(_MOST_RECORD)).endswith(b"\n"):
                self._read += len(line)
                # What is no UTF-8 is then equal to no text of ours.
                record += line.decode(errors="surrogateescape")
                is_open ^= self._answers.spans_lines and line.count(b'"') % 2 == 1
                if not is_open:
                    yield record
                    record = ""
                elif len(record) > _MOST_RECORD:
                    return

    def has(self, window: Sequence[Row]) -> bool:
        """Return whether the next answers are those of this window, all of it.

        Else they are cut off: windows are answered whole, since what is in a batch together decides
        the last digit.
        """
        names = "" if self._read else self._answers.names()
        if names and next(self._records, names) != names:
            self._refuse(f"is not of line {window[0].line} of {self._name}")
        for row in window:
            record = None if self._over else next(self._records, None)
            if record is None:
                self._cut()
                return False
            if not self._answers.is_for(row, record):
                self._refuse(f"is not of line {row.line} of {self._name}")
            self._count += 1
        self._end = self._read
        return True

    def close(self) -> None:
        """Refuse answers that are left when there are no more rows."""
        if not self._over and next(self._records, None) is not None:
            self._refuse(f"is beyond the end of {self._name}")
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


class Stop:
    """Ends the command at a signal, but never while answers are being written."""

    def __init__(self) -> None:
        self.place = "before the first answer"
        self._received = 0
        self._writes = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen within the block.

        Raises:
            KeyboardInterrupt: After Ctrl-C. A second signal of any kind does not wait.
        """
        with handling((*STOP_SIGNALS, signal.SIGINT), self._note):
            yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let the block come to its end first."""
        self._writes = True
        try:
            yield
        finally:
            self._writes = False
        if self._received:
            self._end()

    def _note(self, number: int, frame: FrameType | None) -> None:
        again, self._received = self._received, number
        if again or not self._writes:
            self._end()

    def _end(self) -> None:
        number = signal.Signals(self._received)
        text = f"{number.name}: stopped {self.place}"
        raise KeyboardInterrupt(text) if number == signal.SIGINT else StoppedError(text)
