"""`logger=`: what trackers get of a run, and that none of them can end one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import trackers
from tests.functional.conftest import LOOP, TINY

EVERY = "logger=[tensorboard,wandb,mlflow,trackio]"
WORDS = ("pretrain", "data=sample_text", "data.length=32", *TINY, *LOOP, "schedule=constant")


@pytest.fixture
def calls_of(tmp_path, monkeypatch):
    for name in trackers.NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "packages").mkdir()
    yield trackers.put(tmp_path / "packages", monkeypatch)
    for name in trackers.NAMES:
        sys.modules.pop(name, None)


def test_trackers_get_config_curves_and_final_measures_and_the_run_is_the_same(
    transfer, calls_of, read_json
):
    transfer(*WORDS, "loop.steps=3", "run.dir=plain").ok()
    transfer(*WORDS, "loop.steps=3", "run.dir=tracked", EVERY).ok()

    for name in ("metrics.jsonl", "results.json", "model/weights.safetensors"):
        assert Path("plain", name).read_bytes() == Path("tracked", name).read_bytes()
    wanted, measures = trackers.of_records("tracked"), read_json("tracked/results.json")["measures"]
    wanted |= {
        f"weights_kept/{split}/{name}": [(3, value)]
        for split, measured in measures.items()
        for name, value in measured.items()
    }
    for name in trackers.NAMES:
        calls = calls_of(name)
        assert calls.points() == trackers.called(wanted, name)
        config = calls.of("config" if name == "mlflow" else "start")[0]["config"]
        loop = {"steps": config["loop.steps"]} if name == "mlflow" else config["loop"]
        assert loop["steps"] == 3
        assert len(calls.of("finish")) == 1
    assert calls_of("wandb").of("start")[0]["mode"] == "offline"


@pytest.mark.slow
def test_a_resumed_run_goes_on_in_the_same_run_of_each_tracker(transfer, calls_of, stopped):
    ended = stopped(3, *WORDS, "loop.steps=6", "run.dir=run", EVERY)
    assert ended.code == 75, ended.err
    transfer("pretrain", "resume=run").ok()

    for name, key in (("wandb", "id"), ("mlflow", "id"), ("trackio", "name")):
        calls = calls_of(name)
        first, then = (entry[key] for entry in calls.of("start"))
        assert then == ("m1" if name == "mlflow" else first)
        points = calls.points()
        assert [step for step, _ in points["train/loss"]] == [1, 2, 3, 4, 5, 6]
        assert [step for step, _ in points["validation/loss"]] == [3, 6]
    assert [end["status"] for end in calls_of("wandb").of("finish")] == [1, 0]
    assert [end["status"] for end in calls_of("mlflow").of("finish")] == ["FAILED", "FINISHED"]


@pytest.mark.parametrize(
    "fails",
    [
        "wandb start", "trackio log",
        *(pytest.param(f"mlflow {call}", marks=pytest.mark.slow) for call in ("config", "finish")),
    ],
)  # fmt: skip
def test_a_tracker_that_fails_is_named_once_and_the_run_goes_on(
    transfer, calls_of, monkeypatch, fails
):
    monkeypatch.setenv("TRACKER_FAILS", fails)
    name, _, call = fails.partition(" ")

    ended = transfer(*WORDS, "loop.steps=2", "run.dir=run", EVERY).ok()

    (line,) = [line for line in ended.err.splitlines() if "has failed" in line]
    assert f"logger: {name} " in line
    assert call == "finish" or len(calls_of(name).of(call)) == 1
    for other in set(trackers.NAMES) - {name}:
        assert calls_of(other).points()["train/loss"] == trackers.of_records("run")["train/loss"]
        assert len(calls_of(other).of("finish")) == 1


@pytest.mark.slow
def test_the_runs_of_a_sweep_are_a_group(transfer, calls_of):
    words = ("loop.steps=1", "-m", "seed=1,2", "sweep.isolate=false", "run.dir=seeds", EVERY)
    transfer(*WORDS, *words).ok()

    for name in trackers.NAMES:
        starts = calls_of(name).of("start")
        assert [start["group"] for start in starts] == ["seeds", "seeds"]
        assert [start["name"][:6] for start in starts] == ["seed=1", "seed=2"]


@pytest.mark.slow
def test_curves_are_for_those_alone_who_are_named(transfer, calls_of):
    ended = transfer(*WORDS, "loop.steps=1", "run.dir=run", "logger=trackio").ok()
    transfer(*WORDS, "loop.steps=1", "run.dir=silent", "logger=null").ok()

    assert not Path("run/tensorboard").exists()
    assert "tensorboard" not in ended.out
    assert len(calls_of("trackio").of("start")) == 1
    assert not Path("silent/trackers.json").exists()


@pytest.mark.slow
@pytest.mark.multiprocess
def test_of_several_processes_one_is_tracked(calls_of, shell):
    process = shell(*WORDS, "loop.steps=2", "run.dir=run", "devices=2", "logger=wandb")
    _, err = process.communicate()

    assert process.returncode == 0, err
    assert len(calls_of("wandb").of("start")) == 1
    assert [step for step, _ in calls_of("wandb").points()["train/loss"]] == [1, 2]


# --- the real ones -----------------------------------------------------------------------------

MLFLOW = """
import mlflow
client = mlflow.MlflowClient()
run = client.get_run(next(iter(noted["mlflow"])))
points = {name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
          for name in run.data.metrics}
stored = [run.data.params["loop.steps"], run.info.status, points]
"""
TRACKIO = """
from trackio.sqlite_storage import SQLiteStorage
(name,) = noted["trackio"]
assert SQLiteStorage.get_runs("transfer") == [name]
points = {}
for row in SQLiteStorage.get_logs("transfer", name):
    step, _ = row.pop("step"), row.pop("timestamp")
    for curve, value in row.items(): points.setdefault(curve, []).append((step, value))
stored = [str(SQLiteStorage.get_run_config("transfer", name)["loop"]["steps"]), "FINISHED", points]
"""
WANDB = """
from pathlib import Path
files = sorted(Path("wandb").glob("offline-run-*/*.wandb"))
(name,) = noted["wandb"]
assert [file.name for file in files] == [f"run-{name}.wandb"] * 2
content = b"".join(file.read_bytes() for file in files)
stored = [b"weights_kept/test/loss" in content and b"train/rate/head.lm" in content]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reads"),
    [("mlflow", MLFLOW), ("mlflow files", MLFLOW), ("trackio", TRACKIO), ("wandb", WANDB)],
)
def test_a_real_tracker_has_the_whole_run_after_a_resume(shell, tmp_path, monkeypatch, name, reads):
    name, _, files = name.partition(" ")
    if name == "wandb":
        pytest.importorskip(name, reason="the extra test has no wandb, a package of many megabytes")
    if files:
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    noted = []
    for words in ((*WORDS, "loop.steps=2", "run.dir=run", f"logger={name}"),
                  ("pretrain", "resume=run", "loop.steps=4")):  # fmt: skip
        process = shell(*words)
        _, err = process.communicate()
        assert process.returncode == 0, err
        assert "has failed" not in err
        noted.append((tmp_path / "run" / "trackers.json").read_text())

    assert noted[0] == noted[1]
    read = f"import json; noted = {{k: [v] for k, v in {noted[0]}.items()}}\n{reads}\n"
    ended = subprocess.run(
        [sys.executable, "-c", f"{read}\nprint(json.dumps(stored))"],
        capture_output=True, text=True, cwd=tmp_path, env=os.environ, check=True,
    )  # fmt: skip
    stored = json.loads(ended.stdout.splitlines()[-1])
    if name == "wandb":
        assert stored == [True]
        return
    steps, status, points = stored
    assert (steps, status) == ("2" if name == "mlflow" else "4", "FINISHED")
    curves = {curve: [tuple(point) for point in points[curve]] for curve in points}
    wanted = trackers.called(trackers.of_records(tmp_path / "run"), name)
    assert {curve: curves[curve] for curve in wanted} == wanted
    (final,) = trackers.called({"weights_kept/test/loss": None}, name)
    assert curves[final][-1][0] == 4
