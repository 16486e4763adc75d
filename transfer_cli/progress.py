"""The progress of work that may take long: how much is done, the time left, the memory in use.

On a terminal this is one line that goes when the work is done; elsewhere it is a line of the log
now and then. A thread draws: the work itself only counts, and nothing is drawn of what is short.
"""

import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from transfer_cli.errors import DataError

log = logging.getLogger(__name__)

SECONDS_UNTIL_SHOWN = 2.0
SECONDS_BETWEEN_DRAWINGS = 0.5
SECONDS_BETWEEN_LINES = 30.0

_LINE = "{desc}: {n_fmt} of {total_fmt}{unit}, {elapsed} gone, {remaining} left{postfix}"
_COUNT = "{desc}: {n_fmt}{unit}, {elapsed} gone, {rate_fmt}{postfix}"
_TIME = "{desc}: {elapsed} gone{postfix}"

More = Callable[[int], None]
"""Notes that so many more are done."""

Total = int | None | Callable[[], int | None]


@contextmanager
def progress(
    what: str, total: Total = None, unit: str = "", *, shown: bool = True
) -> Iterator[More]:
    """Show the progress of the work inside, if it takes more than two seconds.

    Of several processes the first one speaks for all.

    Args:
        what: The work in a word or two.
        total: How much there is to do, or a function that finds out beside the work, called once
            and only for work that is shown; None: that is not known, and no time left is shown.
        unit: What is counted; "B" for bytes. Empty: nothing is, time alone passes.
        shown: False where something else is written to the same terminal.

    Yields:
        A function that notes that so many more are done.
    """
    done = 0

    def more(count: int = 1) -> None:
        nonlocal done
        done += count

    if not shown or os.environ.get("RANK", "0") != "0":
        yield more
        return
    ended = threading.Event()
    drawing = threading.Thread(
        target=_show, args=(ended, what, total, unit, lambda: done), daemon=True
    )
    drawing.start()
    try:
        yield more
    finally:
        ended.set()
        drawing.join()


def _show(
    ended: threading.Event, what: str, total: Total, unit: str, done: Callable[[], int]
) -> None:
    began = time.perf_counter()
    if ended.wait(SECONDS_UNTIL_SHOWN):
        return
    with suppress(OSError, ValueError, DataError):  # a terminal that has gone, a closed stream
        whole = (total() if callable(total) else total) or 0
        is_terminal = sys.stderr.isatty()

        def line(width: int | None = None) -> str:
            form = _TIME if not unit else _COUNT if not whole else None if is_terminal else _LINE
            text: str = tqdm.format_meter(
                done(),
                max(done(), whole) if whole else 0,  # some are only about so many
                time.perf_counter() - began,
                ncols=width,
                prefix=what,
                unit=unit if unit == "B" else f" {unit}",
                unit_scale=unit == "B",
                bar_format=form,  # None: that of tqdm
                postfix=memory(),
            )
            return text

        (_draw if is_terminal else _write_lines)(ended, line)


def _draw(ended: threading.Event, line: Callable[[int | None], str]) -> None:
    with (
        logging_redirect_tqdm([logging.getLogger("transfer_cli")]),
        # For its place below other bars, and to be cleared by what is logged.
        tqdm(bar_format="{desc}", file=sys.stderr, leave=False, dynamic_ncols=True) as bar,
    ):
        while True:
            bar.set_description_str(line(bar.ncols))
            if ended.wait(SECONDS_BETWEEN_DRAWINGS):
                return


def _write_lines(ended: threading.Event, line: Callable[[], str]) -> None:
    while not ended.wait(SECONDS_BETWEEN_LINES):
        log.info("%s", line())


def memory() -> str:
    """Return the memory that this process has, and what it has of a GPU."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        held = pages * resource.getpagesize()
    except OSError:  # not on Linux: the most that it has had, there in bytes
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    torch = sys.modules.get("torch")  # whoever has not imported it uses no GPU
    text = f"{held / 2**20:,.0f} MiB"
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        text += f", GPU {torch.cuda.memory_reserved() / 2**20:,.0f} MiB"
    return text
