"""Finding runs and reading them, whatever stands in their files, and where a sweep stands."""

import fcntl
import json
import os
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.fake_runs import write_run, write_sweep
from tests.fuzzing import altered, damaged, fuzz, tried
from transfer_cli.commands.diff import diff
from transfer_cli.commands.report import report
from transfer_cli.errors import ConfigError
from transfer_cli.report import collect as collecting
from transfer_cli.report.collect import collect, sweep_progress
from transfer_cli.report.contents import FAILED, FINISHED, LEFT, PRUNED, RUNNING, STOPPED
from transfer_cli.runs.results import Results
from transfer_cli.runs.sweep import SweepDirectory, SweepJob
from transfer_cli.safe_files import UnreadableError


def names(found):
    return [run.name for run in found.runs]


# --- finding


def test_runs_are_found_at_any_depth_and_each_once(tmp_path):
    write_run(tmp_path / "a" / "10")
    write_run(tmp_path / "a" / "2")
    write_run(tmp_path / "b" / "deep" / "er")
    (tmp_path / "link").symlink_to(tmp_path / "a")

    collected = collect([tmp_path, tmp_path / "a" / "2", tmp_path / "a"])

    assert names(collected) == ["a/2", "a/10", "b/deep/er"]
    assert collected.problems == []


def test_a_single_run_is_called_by_its_folder(tmp_path):
    assert names(collect([write_run(tmp_path / "first")])) == ["first"]


def test_folders_inside_of_a_run_and_hidden_ones_are_not_looked_into(tmp_path):
    run = write_run(tmp_path / "run")
    write_run(run / "checkpoints" / "inner")
    write_run(tmp_path / ".trash" / "old")

    assert names(collect([tmp_path])) == ["run"]


def test_a_circle_of_links_ends(tmp_path):
    write_run(tmp_path / "run")
    (tmp_path / "again").symlink_to(tmp_path)

    assert len(collect([tmp_path]).runs) == 1


def test_very_many_folders_are_not_all_looked_into(tmp_path, monkeypatch):
    monkeypatch.setattr(collecting, "MOST_FOLDERS", 5)
    write_run(tmp_path / "0")
    for number in range(1, 20):
        (tmp_path / str(number)).mkdir()

    collected = collect([tmp_path])

    assert len(collected.runs) == 1
    assert "more than 5 folders" in collected.problems[0]


def test_a_folder_without_runs_is_refused_alone_and_noted_beside_runs(tmp_path):
    (tmp_path / "empty").mkdir()
    run = write_run(tmp_path / "run")

    with pytest.raises(ConfigError, match=r"empty holds no runs"):
        collect([tmp_path / "empty"])
    collected = collect([run, tmp_path / "empty"])

    assert len(collected.runs) == 1
    assert "empty holds no runs" in collected.problems[0]


# --- reading


def test_a_finished_run_is_read_whole(tmp_path):
    path = write_run(tmp_path / "run", seed=3, adaptation="lora", wrong=range(4))

    (run,) = collect([path]).runs

    assert (run.command, run.status, run.reason, run.seed) == ("finetune", FINISHED, None, 3)
    assert run.settings["adaptation"] == "lora"
    assert run.settings["optimizer.lr"] == 0.001
    assert run.results.measures["test"]["error_rate"] == 10.0
    assert run.timing["seconds"] == 13.0
    assert run.environment["versions"]["torch"] == "2.13.0"
    assert run.typed == {"adaptation", "seed"}


def test_a_run_that_learnt_nothing_is_finished_with_a_reason(tmp_path):
    (run,) = collect([write_run(tmp_path / "run", failed="no better than HUM")]).runs

    assert (run.status, run.reason) == (FINISHED, "no better than HUM")


@pytest.mark.parametrize("status", ["failed", "stopped"])
def test_a_run_says_why_it_ended(tmp_path, status):
    (run,) = collect([write_run(tmp_path / "run", status=status, reason="so")]).runs

    assert (run.status, run.reason, run.results) == (status, "so", Results())


def test_a_run_at_work_holds_its_lock_and_a_killed_one_does_not(tmp_path):
    path = write_run(tmp_path / "run", status="running")
    handle = os.open(path / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)

    (at_work,) = collect([path]).runs
    os.close(handle)
    (killed,) = collect([path]).runs

    assert (at_work.status, at_work.reason) == (RUNNING, None)
    assert killed.status == STOPPED
    assert "killed" in killed.reason


def test_a_run_that_has_hardly_begun_is_no_problem(tmp_path):
    path = write_run(tmp_path / "run", status="running")
    for name in ("presets.json", "environment.json", "overrides.txt", "status.json"):
        (path / name).unlink()

    assert collect([path]).runs[0].status == STOPPED


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", b"a: [1"),
        ("config.yaml", b"a: \0"),
        ("config.yaml", b"a: 1\n" * 400_000),
        ("results.json", b"{"),
        ("results.json", b"[1]"),
        ("results.json", b'{"a":' * 2000),
        ("status.json", b"\xff\xfe"),
        ("presets.json", b'{"a": 1' + b"0" * 5000 + b"}"),
        ("timing.json", b" " * (17 * 2**20)),
        ("environment.json", b'{"a": 1, "a": 2}'),
        ("overrides.txt", b"\0"),
    ],
    ids=range(11),
)
def test_a_broken_run_is_named_and_the_others_are_shown(tmp_path, name, content):
    write_run(tmp_path / "good")
    bad = write_run(tmp_path / "bad")
    (bad / name).write_bytes(content)

    collected = collect([tmp_path])

    assert names(collected) == ["good"]
    (problem,) = collected.problems
    assert f"{bad} cannot be read: {name}: " in problem
    with pytest.raises(ConfigError, match=r"nothing to report: .*bad cannot be read"):
        collect([bad])


def test_nobody_waits_for_a_pipe(tmp_path):
    path = write_run(tmp_path / "run", status="running")
    for name in (".lock", "status.json", "timing.json"):
        (path / name).unlink(missing_ok=True)
        os.mkfifo(path / name)

    with pytest.raises(ConfigError, match=r"a pipe"):
        collect([path])


@pytest.mark.parametrize("content", ['{"status": 3}', '{"status": ["running"]}', '{"reason": {}}'])
def test_a_status_of_another_kind_is_none(tmp_path, content):
    path = write_run(tmp_path / "run", status="running")
    (path / "status.json").write_text(content)

    assert collect([path]).runs[0].status == STOPPED


# --- sweeps


def test_a_sweep_gives_its_runs_and_the_jobs_that_have_none(tmp_path):
    overrides = [
        (f"adaptation={name}", "seed=0") for name in ("full", "lora", "nonsense", "frozen")
    ]
    write_sweep(
        tmp_path / "sweep",
        SweepJob(0, overrides[0], outcome="done", seconds=5.0),
        SweepJob(1, overrides[1], outcome="pruned", reason="worse than the median"),
        SweepJob(2, overrides[2], outcome="failed", reason="no such preset"),
        SweepJob(3, overrides[3]),
    )
    write_run(tmp_path / "sweep" / "0")
    write_run(tmp_path / "sweep" / "1", adaptation="lora", status="stopped")

    collected = collect([tmp_path / "sweep"])

    runs = sorted(collected.runs, key=lambda run: run.number)
    assert [(run.number, run.status, run.reason) for run in runs] == [
        (0, FINISHED, None),
        (1, PRUNED, "worse than the median"),
        (2, FAILED, "no such preset"),
        (3, LEFT, None),
    ]
    assert runs[2].settings["adaptation"] == "nonsense"
    assert runs[0].overrides == ("adaptation=full", "seed=0")
    (standing,) = collected.standings
    assert (standing.done, standing.pruned, standing.left) == (1, 1, 1)


def test_a_job_named_by_itself_is_still_known_as_one(tmp_path):
    write_sweep(tmp_path / "sweep", SweepJob(0, ("seed=0",), outcome="done"))
    write_run(tmp_path / "sweep" / "0")

    (run,) = collect([tmp_path / "sweep" / "0"]).runs

    assert (run.number, run.overrides) == (0, ("seed=0",))


def test_a_job_whose_directory_is_gone_is_a_problem(tmp_path):
    write_sweep(tmp_path / "sweep", SweepJob(0, ("seed=0",), outcome="done"))

    collected = collect([tmp_path / "sweep"])

    assert "0 is gone, though the job was done" in collected.problems[0]


def test_a_broken_sweep_is_named_and_its_runs_are_shown(tmp_path):
    write_run(tmp_path / "sweep" / "0")
    (tmp_path / "sweep" / "sweep.json").write_text("{")

    collected = collect([tmp_path / "sweep"])

    assert len(collected.runs) == 1
    assert "sweep.json: line 1 is not JSON" in collected.problems[0]


def stand(tmp_path, *jobs, trials=None):
    sweep = write_sweep(tmp_path / "sweep", *jobs, trials=trials)
    return sweep_progress(sweep, sweep.read_request(), jobs)


def done(number, seconds):
    return SweepJob(number, (f"seed={number}",), outcome="done", seconds=seconds)


def test_the_jobs_are_counted_and_the_failed_ones_named(tmp_path):
    failed = SweepJob(1, ("seed=1", "a=b"), outcome="failed", reason="out of memory")

    progress = stand(
        tmp_path, done(0, 10.0), failed, SweepJob(2, ()), SweepJob(3, (), outcome="stopped")
    )

    assert (progress.done, progress.running, progress.left, progress.pruned) == (1, 0, 2, 0)
    assert progress.failed == ((1, "seed=1 a=b", "out of memory"),)
    assert progress.command == "transfer finetune -m adaptation=full,lora"


def test_what_is_left_takes_as_long_as_what_was_done(tmp_path):
    assert (
        stand(tmp_path, done(0, 10.0), done(1, 30.0), SweepJob(2, ()), SweepJob(3, ())).seconds_left
        == 40
    )


def test_jobs_side_by_side_share_what_is_left(tmp_path):
    running = [SweepJob(number, (), outcome="running") for number in (1, 2)]
    jobs = (done(0, 100.0), *running, *(SweepJob(number, ()) for number in (3, 4)))
    sweep = write_sweep(tmp_path / "sweep", *jobs)
    begun = time.time() - 60
    for job in running:
        os.utime(sweep.path / f"job-{job.number}.json", (begun, begun))

    progress = sweep_progress(sweep, sweep.read_request(), jobs)

    assert progress.seconds_left == pytest.approx((40 + 40 + 200) / 2, abs=20)


def test_a_job_that_takes_longer_than_others_has_nothing_left(tmp_path):
    jobs = (done(0, 1.0), SweepJob(1, (), outcome="running"))
    sweep = write_sweep(tmp_path / "sweep", *jobs)
    os.utime(sweep.path / "job-1.json", (1e9, 1e9))

    assert sweep_progress(sweep, sweep.read_request(), jobs).seconds_left == 0


def test_nothing_is_guessed_before_a_job_is_done_and_after_all_are(tmp_path):
    assert stand(tmp_path / "a", SweepJob(0, ()), SweepJob(1, ())).seconds_left is None
    assert stand(tmp_path / "b", done(0, 10.0)).seconds_left is None


def test_a_search_has_trials_left_that_are_not_known_yet(tmp_path):
    progress = stand(tmp_path, done(0, 10.0), trials=5)

    assert (progress.left, progress.seconds_left) == (4, 40.0)


def test_numbers_of_another_kind_are_not_believed(tmp_path):
    sweep = write_sweep(tmp_path / "sweep", SweepJob(0, (), outcome="done", seconds="long"))
    text = (sweep.path / "sweep.json").read_text()
    (sweep.path / "sweep.json").write_text(text.replace('"trials": null', '"trials": "many"'))

    with pytest.raises(UnreadableError, match="trials"):
        sweep.read_request()
    (sweep.path / "sweep.json").write_text(text)
    progress = sweep_progress(sweep, sweep.read_request(), SweepDirectory(sweep.path).jobs())

    # A file of which one value cannot be is no job's at all.
    assert (progress.done, progress.left, progress.seconds_left) == (0, 0, None)


FILES = (
    "config.yaml", "presets.json", "environment.json", "status.json", "results.json",
    "timing.json", "overrides.txt", "items.jsonl",
)  # fmt: skip
JOBS = ("sweep.json", "job-0.json", "job-1.json")


@pytest.fixture
def runs(tmp_path):
    """Return a folder of two runs, one of which is going to be damaged."""
    write_run(tmp_path / "good", adaptation="lora", wrong=range(3))
    write_run(tmp_path / "bad", wrong=range(6))
    return tmp_path


@pytest.mark.slow
@fuzz(60)
@given(data=st.data())
def test_fuzz_bytes_of_a_run(runs, capsys, data):
    path = runs / "bad" / data.draw(st.sampled_from(FILES))
    with_content(path, data.draw(damaged(path.read_bytes())), lambda: look_at(runs, capsys))


@pytest.mark.slow
@fuzz(100)
@given(data=st.data())
def test_fuzz_values_of_a_run(runs, capsys, data):
    path = runs / "bad" / data.draw(st.sampled_from([each for each in FILES if "json" in each]))
    values = [json.loads(line) for line in path.read_text().splitlines()]
    content = "".join(f"{json.dumps(value)}\n" for value in data.draw(altered(values)))
    with_content(path, content.encode(), lambda: look_at(runs, capsys))


@pytest.mark.slow
@fuzz(60)
@given(data=st.data())
def test_fuzz_settings(runs, capsys, data):
    path = runs / "bad" / "config.yaml"
    config = data.draw(altered(yaml.safe_load(path.read_text())))
    # YAML reads JSON, in which every text is in quotes.
    with_content(path, json.dumps(config).encode(), lambda: look_at(runs, capsys))


@pytest.mark.slow
@fuzz(60)
@given(data=st.data())
def test_fuzz_sweeps(tmp_path, capsys, data):
    sweep = tmp_path / "sweep"
    if not sweep.exists():
        done = SweepJob(0, ("seed=0",), outcome="done", seconds=2.0)
        write_sweep(sweep, done, SweepJob(1, ("seed=1",), outcome="failed", reason="so"), trials=4)
        write_run(sweep / "0")
        write_run(sweep / "1", seed=1)
    path = sweep / data.draw(st.sampled_from(JOBS))
    values = data.draw(altered(json.loads(path.read_text())))
    with_content(path, json.dumps(values).encode(), lambda: look_at(sweep, capsys, ("0", "1")))


def with_content(path, content, look):
    """Look while a file holds something else."""
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        look()
    finally:
        path.write_bytes(before)


def look_at(folder, capsys, runs=("good", "bad")):
    """Report on a folder in every form, and on how its two runs differ."""
    files = ("--csv", "out.csv", "--markdown", "out.md", "--json", "report.json")
    words = [word if word.startswith("--") else str(folder / word) for word in files]
    report([str(folder), *words])
    tried(lambda: diff([str(folder / name) for name in runs]))
    shown = capsys.readouterr().out + (folder / "out.csv").read_text()
    assert all(each.isprintable() or each == "\n" for each in shown)
    json.loads((folder / "report.json").read_text())
