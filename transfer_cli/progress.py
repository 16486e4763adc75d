"""The progress of work that may take long: how much is done, the time left, the memory in use.

On a terminal this is one line that goes when the work is done, in a notebook a bar; elsewhere it is
a line of the log now and then. A thread draws: the work itself only counts, and nothing is drawn of
what is short.
"""

import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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

Advance = Callable[[int], None]
"""Notes that so many more are done."""

Total = int | None | Callable[[], int | None]

_WITHOUT_TERMINAL_BARS = ContextVar("without_terminal_bars", default=False)


@contextmanager
def without_terminal_bars() -> Iterator[None]:
    """Draw on no terminal within the block: where there is no notebook, the log has lines."""
    token = _WITHOUT_TERMINAL_BARS.set(True)
    try:
        yield
    finally:
        _WITHOUT_TERMINAL_BARS.reset(token)


def new_bar(**settings: Any) -> Any:
    """Return a bar of tqdm, of a notebook or of the terminal; None where there is neither."""
    kind: Any = tqdm
    if _is_notebook():
        if find_spec("ipywidgets"):
            from tqdm.notebook import tqdm as kind
    elif _WITHOUT_TERMINAL_BARS.get() or not sys.stderr.isatty():
        return None  # a hidden one begins a thread, too, which stays
    return kind(file=sys.stderr, leave=False, **settings)


def _is_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


@contextmanager
def progress(
    what: str, total: Total = None, unit: str = "", *, shown: bool = True
) -> Iterator[Advance]:
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
    # In this context: it says where to draw, to a notebook in which cell.
    show = (_show, ended, what, total, unit, lambda: done)
    drawing = threading.Thread(target=copy_context().run, args=show, daemon=True)
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
        # For its place below other bars, and to be cleared by what is logged.
        drawn = new_bar(total=whole or None, bar_format="{desc}", dynamic_ncols=True)
        has_meter = drawn is not None and not _is_notebook()  # within the line

        def line() -> str:
            form = _TIME if not unit else _COUNT if not whole else None if has_meter else _LINE
            text: str = tqdm.format_meter(
                done(),
                max(done(), whole) if whole else 0,  # some are only about so many
                time.perf_counter() - began,
                ncols=drawn.ncols if has_meter else None,
                prefix=what,
                unit=unit if unit == "B" else f" {unit}",
                unit_scale=unit == "B",
                bar_format=form,  # None: that of tqdm
                postfix=memory_text(),
            )
            return text

        if drawn is None:
            while not ended.wait(SECONDS_BETWEEN_LINES):
                log.info("%s", line())
            return
        with logging_redirect_tqdm([logging.getLogger("transfer_cli")]), drawn:
            is_over = False
            while not is_over:
                drawn.n = done()
                drawn.set_description_str(line())
                is_over = ended.wait(SECONDS_BETWEEN_DRAWINGS)


def resident_bytes() -> int:
    """Return the memory that this process has."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize()
    except OSError:  # not on Linux: the most that it has had, there in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def memory_text() -> str:
    """Return the memory that this process has, and what it has of a GPU."""
    torch = sys.modules.get("torch")  # whoever has not imported it uses no GPU
    text = f"{resident_bytes() / 2**20:,.0f} MiB"
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        text += f", GPU {torch.cuda.memory_reserved() / 2**20:,.0f} MiB"
    return text
