"""`RUN/analyses/NAME.json`: what was found out about a run after it had ended, with pictures.

The file is a JSON object. A report shows four of its keys, each may be missing; the others
belong to whoever wrote it:

```
{
  "title":   "Length against error",
  "summary": "one sentence or two",
  "values":  {"examples": 500, "longest": 37},
  "table":   {"columns": ["tokens", "error"], "rows": [["1 to 8", 12.5], ["9 to 16", 20.0]]}
}
```

Pictures are PNGs beside it, called `NAME-WHAT_IT_SHOWS.png`. There may be other files, called
`NAME-WHAT_IT_HOLDS.ENDING`, or in folders called `NAME-WHAT_THEY_HOLD`, which no report reads.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transfer_cli.errors import RunError, raised_as
from transfer_cli.runs.atomic import as_run_error, check_inside, replaced_file, write_text
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.stored_analyses import MOST_BYTES, MOST_PICTURES, NAME, check_picture
from transfer_cli.safe_files import UnreadableError, parse_json

_OTHER = re.compile(rf"({NAME.pattern}/)?{NAME.pattern}\.[a-z0-9]{{1,9}}")


def write_analysis(
    run: Path,
    name: str,
    content: Mapping[str, Any],
    pictures: Mapping[str, bytes] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """Write an analysis of a run and return its file; one of that name is replaced.

    Args:
        name: Lower-case letters, digits and underscores, a letter first.
        content: The JSON object; see the top of this module.
        pictures: The bytes of PNGs by what each shows, named like `name`.
        files: The bytes of other files by what each holds, and its ending: `maps.npz`; of several
            in a folder by its name, too: `projector/tensors.tsv`.
    """
    pictures, files = pictures or {}, files or {}
    text = _checked_text(run, name, content, pictures)
    for ending in files:
        if not _OTHER.fullmatch(ending) or ending.endswith(".png"):
            raise RunError(f"analysis {name!r}: {ending!r} cannot be the end of a file's name")
    folder = RunDirectory(run).analyses
    check_inside(run, [folder], "run")
    with as_run_error(folder):
        folder.mkdir(exist_ok=True)
    others = {f"{shows}.png": picture for shows, picture in pictures.items()} | dict(files)
    for end, data in others.items():
        place = folder / f"{name}-{end}"
        with as_run_error(place):
            place.parent.mkdir(exist_ok=True)
            with replaced_file(place) as temporary:
                temporary.write_bytes(data)
    # After its pictures, since there is no analysis without it.
    path = folder / f"{name}.json"
    write_text(path, text)
    for end, old in _beside(folder, name).items():
        if end not in others:
            old.unlink(missing_ok=True)
            if old.parent != folder and not any(old.parent.iterdir()):
                old.parent.rmdir()
    return path


def _beside(folder: Path, name: str) -> dict[str, Path]:
    """Return the pictures and other files of an analysis, by the ends of their names."""
    beside = (path for pattern in ("*", "*/*") for path in folder.glob(f"{name}-{pattern}"))
    ends = {path.relative_to(folder).as_posix().removeprefix(f"{name}-"): path for path in beside}
    return {end: path for end, path in ends.items() if path.is_file() and _OTHER.fullmatch(end)}


def _checked_text(
    run: Path, name: str, content: Mapping[str, Any], pictures: Mapping[str, bytes]
) -> str:
    """Return the text of the file, if it can be read back."""
    if not RunDirectory.holds_run(run):
        raise RunError(f"analysis {name!r}: there is no run at {run}")
    for word in (name, *pictures):
        if not NAME.fullmatch(word):
            raise RunError(
                f"analysis {name!r}: {word!r} cannot be a file's name; take up to 50 lower-case "
                "letters, digits and underscores, a letter first"
            )
    with raised_as(RunError, f"analysis {name!r} cannot be written: ", TypeError, ValueError):
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        parse_json(text)
        if len(text.encode()) > MOST_BYTES:
            raise UnreadableError(
                f"it is larger than {MOST_BYTES // 2**10:,} KiB, the most that a report reads; ask "
                "for less by its options"
            )
        for shows, picture in pictures.items():
            check_picture(picture, shows)
        if len(pictures) > MOST_PICTURES:
            raise UnreadableError(f"more than {MOST_PICTURES} pictures")
    return text
