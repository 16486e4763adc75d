"""TensorBoard event files, written at once and by the caller.

The library's own writer hands events to a thread: when the disk is full, that thread dies with a
traceback and the run continues. Here the failing write raises the error.
"""

import socket
import struct
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]  # has none
from tensorboard.plugins.hparams.plugin_data_pb2 import (  # type: ignore[import-untyped]
    HParamsPluginData,
)
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]
from torch.utils.tensorboard import summary

from transfer_cli.runs.atomic import as_run_error

_VERSION = "brain.Event:2"

_PREFIX = "events.out.tfevents."

FINAL = "weights_kept"
"""The group of what is measured once; it comes after those of curves, `train` and `validation`."""


class SummaryWriter:
    """Writes a new event file in `folder`, which readers take after the present ones.

    Args:
        folder: The folder of the run's event files; made if it is missing.
        purge_step: Readers ignore this step and later ones in earlier files.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        # Readers take the files in the order of their names, and clocks of machines differ.
        latest = max((_stamp(path) for path in event_files(folder)), default=0.0)
        stamp = max(time.time(), latest + 1e-6)
        self._path = folder / f"{_PREFIX}{stamp:017.6f}.{socket.gethostname()}"
        with as_run_error(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            # Unbuffered: no event is lost in a crash, and none fails later than it was written.
            self._file = self._path.open("xb", buffering=0)
        self._records = RecordWriter(self._file)
        self._write(Event(file_version=_VERSION))
        if purge_step is not None:
            start = SessionLog(status=SessionLog.START)
            self._write(Event(step=purge_step, session_log=start))

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Add a point to a curve."""
        self._write(Event(step=step, summary=summary.scalar(name, value)))

    def add_text(self, name: str, text: str, step: int) -> None:
        """Show a text, in Markdown."""
        self._write(Event(step=step, summary=summary.text(name, text)))

    def add_hparams(
        self,
        hparams: Mapping[str, str | float],
        measures: Mapping[str, float],
        step: int,
        varying: Collection[str] = (),
    ) -> None:
        """List a run on the HParams page: a line with its hyper-parameters and final measures.

        The page shows those that are `varying` first, the others by name.

        The measures are curves of one point, `weights_kept/NAME`, in this very folder. The
        library's `SummaryWriter` would make a folder of its own for them: another run.
        """
        shown = {f"{FINAL}/{name}": value for name, value in measures.items()}
        for part in summary.hparams(dict(hparams), shown):
            for value in part.value:
                plugin = value.metadata.plugin_data
                data = HParamsPluginData.FromString(plugin.content)
                for info in data.experiment.hparam_infos:
                    info.differs = info.name in varying
                plugin.content = data.SerializeToString()
            self._write(Event(step=step, summary=part))
        for tag, value in shown.items():
            self.add_scalar(tag, value, step)

    def add_image(self, name: str, png: bytes, step: int) -> None:
        """Show a picture, given as the content of a PNG file."""
        # Its header begins with both sizes, 4 bytes each, behind 16 bytes that all PNGs have.
        width, height = struct.unpack(">II", png[16:24])
        rgba = 4  # as TensorBoard's protocol counts the colours of a pixel
        image = Summary.Image(encoded_image_string=png, width=width, height=height, colorspace=rgba)
        self._write(Event(step=step, summary=Summary(value=[Summary.Value(tag=name, image=image)])))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        with as_run_error(self._path):
            self._records.write(event.SerializeToString())


def event_files(folder: Path) -> list[Path]:
    """Return the event files in a folder and below it, oldest first."""
    return sorted(folder.rglob(f"{_PREFIX}*"), key=lambda path: path.name)


def _stamp(path: Path) -> float:
    seconds, _, rest = path.name.removeprefix(_PREFIX).partition(".")
    try:
        return float(f"{seconds}.{rest.partition('.')[0]}")
    except ValueError:
        return 0.0
