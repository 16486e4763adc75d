"""Say whether two run directories hold the same run, bit for bit.

    python tests/long/compare_runs.py RUN OTHER

Compared are the weights in `model/`, in the last and in the best checkpoint, what is said of the
model, `metrics.jsonl`, `items.jsonl`, `results.json`, `plan.txt`, and the curves as TensorBoard
reads them; speeds are left out, since no two runs are equally fast. Prints the first difference of
each file; exit code 1 when there is one.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

SPEEDS = ("per_second", "speed/")
"""What the name of a curve contains that depends on the clock."""

WHOLE = ("plan.txt", "model/model.json", "model/tokenizer.json", "model/meta.json")
"""Files of which it is enough to know whether they differ."""


def differences(run: Path, other: Path) -> list[str]:
    """Return one line for each file of `other` that is not as in `run`, and what differs first."""
    return [
        line
        for lines in (
            of_files(run, other),
            of_weights(run, other),
            of_texts(run, other),
            of_metrics(run / "metrics.jsonl", other / "metrics.jsonl"),
            of_items(run / "items.jsonl", other / "items.jsonl"),
            of_results(run / "results.json", other / "results.json"),
            of_curves(run / "tensorboard", other / "tensorboard"),
        )
        for line in lines
    ]


def of_files(run: Path, other: Path) -> Iterator[str]:
    """Yield what is in one run alone, or left half-written in `other`."""
    left, right = _names(run), _names(other)
    for name in sorted(left ^ right):
        yield f"{name}: is in {run if name in left else other} alone"
    # A lock stays, since who removes one may remove the next owner's.
    for path in sorted(other.rglob(".*")):
        if path.name != ".lock":
            yield f"{path.relative_to(other)}: was left behind"


def _names(run: Path) -> set[str]:
    paths = (*run.glob("*"), *run.glob("checkpoints/*/*"), *run.glob("model/*"))
    return {str(path.relative_to(run)) for path in paths if not path.name.startswith(".")}


def of_texts(run: Path, other: Path) -> Iterator[str]:
    """Yield what differs of what is said of a run and its model."""
    for name in WHOLE:
        paths = [path for path in (run / name, other / name) if path.exists()]
        if len({path.read_bytes() for path in paths}) > 1:
            yield f"{name}: differs"


def of_weights(run: Path, other: Path) -> Iterator[str]:
    """Yield the first tensor that differs, of each file of weights."""
    for path in sorted(run.rglob("weights.safetensors")):
        name = path.relative_to(run)
        if (other / name).is_file():
            text = _first_tensor(load_file(path), load_file(other / name))
            if text:
                yield f"{name}: {text}"


def _first_tensor(
    left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]
) -> str | None:
    if left.keys() != right.keys():
        return f"{sorted(left.keys() ^ right.keys())[0]} is in one file alone"
    for name, tensor in left.items():
        if tensor.shape != right[name].shape:
            return f"{name}: {tuple(tensor.shape)}, {tuple(right[name].shape)}"
        if not torch.equal(_bytes(tensor), _bytes(right[name])):
            most = (tensor - right[name]).abs().max().item()
            return f"{name}: differs by up to {most:.3g}"
    return None


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    # Two that are no numbers are the same here, and 0 is not -0.
    return tensor.reshape(-1).view(torch.uint8)


def of_metrics(path: Path, other: Path) -> Iterator[str]:
    """Yield the first line that differs."""
    if path.read_bytes() == other.read_bytes():
        return
    left, right = (file.read_text(encoding="utf-8").splitlines() for file in (path, other))
    for number, (line, theirs) in enumerate(zip(left, right, strict=False), start=1):
        if line != theirs:
            one, two = _record(line), _record(theirs)
            keys = [key for key in {**one, **two} if one.get(key) != two.get(key)][:1]
            key = keys[0] if "step" not in keys and "kind" not in keys else ""
            yield f"{path.name}: line {number}: {one.get(key, line)} / {two.get(key, theirs)} {key}"
            return
    yield f"{path.name}: {len(left)} lines / {len(right)} lines"


def of_items(path: Path, other: Path) -> Iterator[str]:
    """Yield the first example of which something else became, where runs have noted that."""
    if path.exists() and other.exists():
        yield from of_metrics(path, other)


def _record(line: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    return record


def of_results(path: Path, other: Path) -> Iterator[str]:
    """Yield the first key that differs."""
    if path.read_bytes() == other.read_bytes():
        return
    left, right = (dict(_leaves(json.loads(file.read_text("utf-8")))) for file in (path, other))
    for key in [*left, *(key for key in right if key not in left)]:
        if left.get(key) != right.get(key):
            yield f"{path.name}: {key}: {left.get(key)} / {right.get(key)}"
            return
    yield f"{path.name}: the same values, written differently"


def _leaves(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _leaves(value, f"{name}.{key}".strip("."))
    else:
        yield name, node


def of_curves(folder: Path, other: Path) -> Iterator[str]:
    """Yield the first curve that differs, or that has two points at one step."""
    left, right = read_curves(folder), read_curves(other)
    for name in sorted(left.keys() | right.keys()):
        points, theirs = left.get(name, []), right.get(name, [])
        twice = [step for step, count in Counter(step for step, _ in theirs).items() if count > 1]
        if twice:
            yield f"{folder.name}: {name}: two points at step {twice[0]}"
            return
        if points != theirs and not any(word in name for word in SPEEDS):
            odd = sorted(set(points) ^ set(theirs))[:2] or "in another order"
            yield f"{folder.name}: {name}: {len(points)} points / {len(theirs)}; first {odd}"
            return


def read_curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the points of each curve as TensorBoard shows them."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    return {
        name: [(event.step, event.value) for event in reader.Scalars(name)]
        for name in reader.Tags()["scalars"]
    }


def main() -> int:
    """Compare what is named on the command line."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    lines = differences(Path(sys.argv[1]), Path(sys.argv[2]))
    print("\n".join(lines) or "the same")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
