"""`scripts/gpu/trial.py`: that it goes on where its time ran out, and that its stages run."""

import importlib
import json
import subprocess
import sys

import pytest

from transfer_cli.config.commands import conf_dir

pytestmark = pytest.mark.functional

FOLDER = conf_dir().parent / "scripts" / "gpu"


@pytest.fixture
def trial(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("trial")


@pytest.fixture
def call(trial, monkeypatch, tmp_path):
    """Return how to run a stage of some jobs, given as their Python code."""

    def run(codes, *words):
        def stage(_):
            return [
                trial.Job(
                    name, [sys.executable, "-c", code], lambda _, said: {"said": said.strip()}
                )
                for name, code in codes.items()
            ]

        monkeypatch.setattr(trial, "STAGES", {"check": stage})
        return trial.main(["--stage", "check", "--dry", "--out", str(tmp_path / "out"), *words])

    return run


def records(folder):
    return [json.loads(line) for line in (folder / "out" / "check.jsonl").read_text().splitlines()]


def test_a_stage_goes_on_where_its_time_ran_out(call, trial, monkeypatch, tmp_path):
    jobs = {"first": "print(1)", "second": "print(2)"}
    clock = iter([0.0, 0.0, 0.0, 1.0, 650.0, *[0.0] * 20])  # the first job takes all of it
    monkeypatch.setattr(trial.time, "monotonic", lambda: next(clock))
    assert call(jobs) == 3
    assert [each["job"] for each in records(tmp_path)] == ["first"]

    assert call(jobs) == 0
    found = records(tmp_path)
    assert [(each["job"], each["code"], each["figures"]) for each in found] == [
        ("first", 0, {"said": "1"}), ("second", 0, {"said": "2"}),
    ]  # fmt: skip
    page = (tmp_path / "out" / "check.md").read_text()
    assert "| | said | 2 |" in page


def test_a_job_that_fails_is_written_down_and_the_next_one_runs(call, tmp_path):
    assert call({"bad": "print('why'); raise SystemExit(4)", "good": "print(2)"}) == 1
    assert [each["code"] for each in records(tmp_path)] == [4, 0]
    assert (tmp_path / "out" / "logs" / "check" / "bad.log").read_text() == "why\n"


def test_what_is_missing_is_named_with_the_cure(call, trial, monkeypatch, capsys):
    monkeypatch.setitem(trial.NEEDED, "not_there", "not-there")
    assert call({}) == 2
    assert "missing: not-there; fill a folder with wheels.sh" in capsys.readouterr().err


@pytest.mark.skipif(importlib.import_module("torch").cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_only_a_dry_run_runs(trial, tmp_path, capsys):
    assert trial.main(["--stage", "scale", "--out", str(tmp_path)]) == 2
    assert "no CUDA device here; --dry" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["check", "recipe", "reproduce", "scale"])
def test_each_stage_runs_dry(trial, stage, tmp_path):
    assert trial.main(["--stage", stage, "--dry", "--out", str(tmp_path)]) == 0
    found = [json.loads(line) for line in (tmp_path / f"{stage}.jsonl").read_text().splitlines()]
    assert all("no figures" not in each["figures"] for each in found)
    assert all(each["figures"] for each in found)


@pytest.mark.slow
def test_the_comparison_with_a_commit_before_runs_dry(tmp_path):
    words = ["--before", conf_dir().parent, "--device", "cpu", "--quick", "--out", tmp_path]
    command = [sys.executable, FOLDER / "ab.py", *words]
    assert subprocess.run(command, check=False).returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "ab.jsonl").read_text().splitlines()]
    ways = {line["way"]: line["ms"] for line in lines if "way" in line}
    assert ways.keys() >= {"before", "now", "plain loop"}
    assert min(ways.values()) > 0
