"""Modules that stand in for the packages of trackers, and write down how they are called."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

_ALL = """
import json, os, types
def _note(call, **values):
    with open(os.environ["TRACKED"], "a") as file:
        file.write(json.dumps([__name__, call, values], default=str) + "\\n")
    if os.environ.get("TRACKER_FAILS") == f"{__name__} {call}":
        raise SystemExit("no luck")
"""
_ONE_BY_ONE = """
def init(**values): _note("start", **values)
def log(values, step): _note("log", values=values, step=step)
def finish(exit_code=None): _note("finish", status=exit_code)
def login(**values): return False
"""
_MLFLOW = """
def set_experiment(name): pass
def start_run(run_id=None, run_name=None, tags=None):
    _note("start", id=run_id, name=run_name, group=(tags or {}).get("group"))
    return active_run()
def active_run(): return types.SimpleNamespace(info=types.SimpleNamespace(run_id="m1"))
def log_params(values): _note("config", config=values)
def log_metrics(values, step): _note("log", values=values, step=step)
def end_run(status): _note("finish", status=status)
"""
NAMES = ("wandb", "mlflow", "trackio")


@dataclass
class Calls:
    """What was called of a tracker: [call, arguments], in order."""

    every: list

    def of(self, name):
        return [values for call, values in self.every if call == name]

    def points(self):
        """Return all points by curve, each (step, value)."""
        curves = defaultdict(list)
        for entry in self.of("log"):
            for name, value in entry["values"].items():
                curves[name].append((entry["step"], value))
        return dict(curves)


def called(curves, tracker):
    """Return curves by the names that a tracker has for them."""
    if tracker != "mlflow":
        return curves
    parts = {name: name.partition("/") for name in curves}
    return {
        f"{kind}/{last.replace('/', '.')}": curves[name] for name, (kind, _, last) in parts.items()
    }


def put(folder, monkeypatch):
    """Make them importable, here and in processes to come; return how to read their calls."""
    for name in NAMES:
        text = _ALL + (_MLFLOW if name == "mlflow" else _ONE_BY_ONE)
        (folder / f"{name}.py").write_text(text)
    notes = folder / "calls.jsonl"
    monkeypatch.setenv("TRACKED", str(notes))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(str(folder))

    def calls_of(name):
        lines = map(json.loads, notes.read_text().splitlines())
        return Calls([(call, values) for of, call, values in lines if of == name])

    return calls_of


def of_records(run):
    """Return the points of a run by curve, as its own records have them."""
    curves = defaultdict(list)
    for file in ("metrics.jsonl", "speed.jsonl"):
        for record in map(json.loads, (Path(run) / file).read_text().splitlines()):
            kind, step = record.pop("kind"), record.pop("step")
            for name, value in record.items() if kind in ("train", "validation") else ():
                curves[f"{kind}/{name}"].append((step, value))
    return dict(curves)
