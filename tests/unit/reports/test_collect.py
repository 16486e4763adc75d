"""Finding runs and reading them, whatever stands in their files, and where a sweep stands."""

import fcntl
import json
import math
import os
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.fake_runs import write_run, write_sweep
from tests.fuzzing import altered, damaged, fuzz, tried
from transfer_cli.commands.diff import diff
from transfer_cli.commands.report import report
from transfer_cli.errors import ConfigError
from transfer_cli.reports import collect as collecting
from transfer_cli.reports import formats, grouping
from transfer_cli.reports.collect import collect, sweep_progress
from transfer_cli.reports.contents import (
    FAILED,
    FINISHED,
    LEFT,
    PRUNED,
    RUNNING,
    STOPPED,
    Group,
    Run,
    Spread,
    TaskRuns,
)
from transfer_cli.reports.statistics import Estimate, Scored, bootstrap, holm, mcnemar
from transfer_cli.runs.results import Results
from transfer_cli.runs.sweep import SweepDirectory, SweepJob
from transfer_cli.safe_files import UnreadableError


def names(collection):
    return [run.name for run in collection.runs]


# --- finding


def test_runs_are_found_at_any_depth_and_each_once(tmp_path):
    write_run(tmp_path / "a" / "10")
    write_run(tmp_path / "a" / "2")
    write_run(tmp_path / "b" / "deep" / "er")
    (tmp_path / "link").symlink_to(tmp_path / "a")

    collected = collect([tmp_path, tmp_path / "a" / "2", tmp_path / "a"])

    assert names(collected) == ["a/2", "a/10", "b/deep/er"]
    assert collected.problems == []


def test_neither_folders_of_a_run_nor_hidden_ones_nor_circles_of_links_are_looked_into(tmp_path):
    run = write_run(tmp_path / "run")
    write_run(run / "checkpoints" / "inner")
    write_run(tmp_path / ".trash" / "old")
    (tmp_path / "again").symlink_to(tmp_path)

    assert names(collect([tmp_path])) == ["run"]


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


@pytest.mark.parametrize("status", [FINISHED, FAILED, STOPPED])
def test_a_run_says_why_it_ended_or_learnt_nothing(tmp_path, status):
    path = write_run(tmp_path / "run", status=status, reason="so", failed="so")

    (run,) = collect([path]).runs

    assert (run.status, run.reason) == (status, "so")
    assert (run.results == Results()) == (status != FINISHED)


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
    schemes = ("full", "lora", "nonsense", "frozen")
    overrides = [(f"adaptation={name}", "seed=0") for name in schemes]
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


def test_a_job_named_by_itself_is_still_known_as_one_and_missed_when_it_is_gone(tmp_path):
    write_sweep(tmp_path / "sweep", SweepJob(0, ("seed=0",), outcome="done"))

    collected = collect([tmp_path / "sweep"])
    write_run(tmp_path / "sweep" / "0")
    (run,) = collect([tmp_path / "sweep" / "0"]).runs

    assert "0 is gone, though the job was done" in collected.problems[0]
    assert (run.number, run.overrides) == (0, ("seed=0",))


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


def test_what_is_left_takes_as_long_as_what_was_done_and_else_nothing_is_guessed(tmp_path):
    left = SweepJob(2, ()), SweepJob(3, ())

    assert stand(tmp_path / "a", done(0, 10.0), done(1, 30.0), *left).seconds_left == 40
    assert stand(tmp_path / "b", *left).seconds_left is None
    assert stand(tmp_path / "c", done(0, 10.0)).seconds_left is None


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
    path = runs / "bad" / data.draw(st.sampled_from([name for name in FILES if "json" in name]))
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
    assert all(character.isprintable() or character == "\n" for character in shown)
    json.loads((folder / "report.json").read_text())


# --- formats -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (0, "0.00"), (8.236, "8.24"), (83.333, "83.33"), (129.94, "129.9"), (7403.68, "7,404"),
        (0.9177, "0.9177"), (0.00012345, "0.000123"), (-1.5, "\N{MINUS SIGN}1.50"),
    ],
)  # fmt: skip
def test_a_number_has_three_or_four_digits(value, wanted):
    assert formats.number(value) == wanted


def test_a_deviation_has_as_many_decimals_as_its_mean():
    assert formats.spread(Spread((8.0, 8.5), 8.25, 0.35355)) == "8.25 ± 0.35"
    assert formats.spread(Spread((8.25,), 8.25, None)) == "8.25"
    assert formats.spread(Spread((1.402, 1.405), 1.4035, 0.0021)) == "1.403 ± 0.002"
    assert formats.spread(Spread((83.3, 83.3), 83.3, 1e-14)) == "83.30 ± 0.00"


def test_large_counts_times_and_sizes_are_short():
    assert [formats.count(number) for number in (950, 4614, 999_900, 11_995_786)] == [
        "950", "4.61 k", "1 M", "12 M",
    ]  # fmt: skip
    assert [formats.duration(seconds) for seconds in (1.654, 49.2, 59.7, 90, 3600, 4512)] == [
        "1.65 s", "49 s", "1 min", "1 min 30 s", "1 h", "1 h 15 min",
    ]  # fmt: skip
    assert [formats.size(2**20 * mib) for mib in (383.2, 1010)] == ["383 MiB", "1010 MiB"]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(None, "null"), (True, "true"), (1e-5, "1e-05"), ([1, "a"], "[1, a]"), ({"a": 1}, "{a: 1}")],
)  # fmt: skip
def test_a_setting_is_written_as_it_would_be_typed(value, wanted):
    assert formats.setting(value) == wanted


def test_keys_with_the_same_end_keep_their_whole_name():
    assert formats.short_keys(["optimizer.lr", "data.name", "tokenizer.name"]) == {
        "optimizer.lr": "lr", "data.name": "data.name", "tokenizer.name": "tokenizer.name",
    }  # fmt: skip


def named(*settings):
    groups = tuple(Group(f"group {at}", setting, ()) for at, setting in enumerate(settings))
    return formats.group_names(TaskRuns("", groups, tuple(settings[0]), "test/loss", ()))


def test_a_group_is_called_by_what_tells_it_from_the_others():
    assert named(
        {"adaptation": "lora", "optimizer.lr": 1e-3, "data.labelled": None},
        {"adaptation": "full", "optimizer.lr": 1e-3, "data.labelled": 100},
    ) == ("lora, lr=0.001, labelled=all", "full, lr=0.001, labelled=100")


def test_where_many_keys_vary_a_group_is_called_by_what_is_unusual_about_it():
    usual = {f"part.key{at}": 1 for at in range(9)}

    names = named(usual, usual | {"part.key3": 2}, usual | {"part.key3": 2, "part.key8": 3}, usual)

    assert names == ("the usual settings #1", "key3=2", "key3=2, key8=3", "the usual settings #4")


FULL = {
    "adaptation": "full", "adaptation/plan": "all", "adaptation.store": "all", "schedule": "linear",
}  # fmt: skip
LORA = {
    "adaptation": "lora", "adaptation/plan": "new", "adaptation.store": "trained",
    "adaptation.edits.lora.rank": 8, "schedule": "slanted",
}  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "typed", "told"),
    [
        ([FULL, LORA], (), ()),
        ([{**FULL, "schedule": "a"}, {**LORA, "schedule": "b"}], ["schedule"], ("schedule",)),
        ([{**FULL, "optimizer.lr": 1e-4}, {**LORA, "optimizer.lr": 1e-3}], (), ("optimizer.lr",)),
        ([FULL, LORA, {**LORA, "adaptation.edits.lora.rank": 16}], (),
         ("adaptation.edits.lora.rank",)),
    ],
    ids=["a preset explains what it brought", "what was typed", "the rate", "what it does not"],
)  # fmt: skip
def test_what_tells_groups_apart_is_typed_or_a_rate_or_no_preset_explains_it(groups, typed, told):
    typed = frozenset(["adaptation", *typed])
    runs = [[Run(Path("run"), "run", "finetune", FINISHED, settings=settings, typed=typed)]
            for settings in groups]  # fmt: skip

    assert grouping.varying_keys(runs) == ("adaptation", *told)


def test_settings_that_cannot_change_a_result_are_none():
    names = {"seed": 1, "run.dir": "a", "device": "cuda", "sweep.trials": 3, "checkpoint.keep": 1}
    names |= {"loop.batch": 32, "data.labelled": None}

    assert grouping.identity(names) == {"loop.batch": "32.0"}


def test_equal_values_of_other_kinds_are_equal():
    assert grouping.canonical_text(1) == grouping.canonical_text(1.0)
    assert grouping.canonical_text(True) != grouping.canonical_text(1)
    assert grouping.canonical_text([1, 2]) == grouping.canonical_text([1, 2])


@pytest.mark.parametrize(
    ("key", "values", "shown"),
    [
        ("optimizer.lr", [1e-3, 3e-3], ["0.001", "0.003"]),
        ("optimizer.lr", [0.0012345, 0.0012346], ["0.001234", "0.001235"]),
        ("optimizer.lr", [0.1, None], ["0.1", "null"]),
        ("optimizer.lr", [0.1, 0.1 + 2e-17], ["0.10000000000000001", "0.10000000000000002"]),
        ("init_from", ["runs/a/best", "runs/b/best"], ["a/best", "b/best"]),
        ("init_from", ["runs/a", None], ["a", "null"]),
        ("adaptation", ["lora", "full"], ["lora", "full"]),
        ("experiment", ["a/finetune", "b/finetune"], ["a/finetune", "b/finetune"]),
        ("objective.hidden", [[50], []], ["[50]", "[]"]),
        ("loop.bucket", [True, False], ["true", "false"]),
        ("init_from", ["one/runs/1", "two/runs/1"], ["one/runs/1", "two/runs/1"]),
    ],
)
def test_values_are_as_short_as_leaves_them_different(key, values, shown):
    assert grouping.shown_values(key, values) == shown


def test_a_label_leaves_out_what_a_group_does_not_have():
    keys = ("adaptation", "adaptation.edits.lora.rank", "data.labelled")
    settings = [{**FULL, "data.labelled": 100}, {**LORA, "data.labelled": None}]

    assert grouping.group_labels(keys, settings) == [
        "adaptation=full data.labelled=100",
        "adaptation=lora adaptation.edits.lora.rank=8 data.labelled=null",
    ]


def test_labels_are_never_alike_however_long():
    keys = [f"key{number}" for number in range(30)]
    groups = [
        {key: "x" * 500 + str(place * (key == "key29")) for key in keys} for place in range(3)
    ]

    names = grouping.group_labels(keys, groups)

    assert len(set(names)) == 3
    assert all(len(label) < 700 for label in names)


def test_a_label_holds_nothing_that_steers_a_terminal():
    (names,) = grouping.group_labels(["a\x1b[2J"], [{"a\x1b[2J": "b\x1b]0;title\x07\nc"}])

    assert names.isprintable()


def as_it_is(values):
    return values


def scored(ours, theirs):
    ours, theirs = np.atleast_2d(np.array(ours, float)), np.atleast_2d(np.array(theirs, float))
    return Scored(ours, theirs, np.ones(ours.shape[1]))


def estimate(ours, theirs, *, same_seeds=True, **more):
    return bootstrap([scored(ours, theirs)], as_it_is, same_seeds=same_seeds, **more)


# --- McNemar


@pytest.mark.parametrize(
    ("ours", "theirs", "p"),
    [
        (1, 9, 0.021484375),  # 2 (1 + 10) / 2^10
        (0, 5, 0.0625),
        (3, 3, 1.0),
        (0, 0, 1.0),
        (2, 8, 2 * (1 + 10 + 45) / 1024),
    ],
)
def test_mcnemar_is_the_two_sided_binomial_test(ours, theirs, p):
    assert mcnemar(ours, theirs) == p
    assert mcnemar(theirs, ours) == p


def test_mcnemar_of_many_items_comes_near_the_normal_distribution():
    z = (10_300 - 9_700 - 1) / math.sqrt(20_000)

    assert mcnemar(9_700, 10_300) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=0.03)


@given(ours=st.integers(0, 60), theirs=st.integers(0, 60))
def test_mcnemar_is_a_probability_and_falls_as_one_side_gains(ours, theirs):
    p = mcnemar(ours, theirs)

    assert 0 < p <= 1
    assert mcnemar(max(ours, theirs) + 1, min(ours, theirs)) <= p


# --- several comparisons


def test_holm_multiplies_the_smallest_by_all_and_never_turns_the_order_round():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


# --- bootstrap


def test_the_same_numbers_give_the_same_answer_and_swapping_sides_turns_it_round():
    draw = np.random.default_rng(3)
    ours, theirs = draw.random((3, 50)), draw.random((3, 50))

    first, again, swapped = estimate(ours, theirs), estimate(ours, theirs), estimate(theirs, ours)

    assert first == again
    assert swapped.difference == pytest.approx(-first.difference)


def test_groups_that_are_equal_do_not_differ():
    errors = np.array([[0, 1, 1, 0, 1], [1, 1, 0, 0, 1]])

    assert estimate(errors, errors) == Estimate(0.0, 0.0, 0.0, 1.0)


def test_a_single_run_differs_as_the_deviation_over_items_says():
    draw = np.random.default_rng(4)
    theirs = draw.normal(2.0, 1.0, 400)
    ours = theirs + draw.normal(0.1, 1.0, 400)
    error = (ours - theirs).std() / math.sqrt(400)

    difference = estimate(ours, theirs)

    assert difference.difference == pytest.approx((ours - theirs).mean())
    assert difference.high - difference.low == pytest.approx(2 * 1.96 * error, rel=0.05)


def test_seeds_that_go_apart_widen_the_interval_by_students_t():
    # Items say nothing at all here: each seed has one difference everywhere.
    ours, theirs = np.array([[1.0] * 50, [2.0] * 50, [3.0] * 50]), np.zeros((3, 50))

    difference = estimate(ours, theirs)

    half = 4.303 / math.sqrt(3)  # t of two degrees of freedom, at 97.5 %
    assert difference.difference == pytest.approx(2.0)
    assert difference.high - difference.low == pytest.approx(2 * half, rel=0.1)
    assert difference.p == pytest.approx(0.0742, abs=0.02)  # the paired t-test of 1, 2, 3


def test_groups_of_other_seeds_are_not_paired():
    apart = np.repeat([[1.0], [5.0], [9.0]], 50, axis=1)

    paired = estimate(apart + 1, apart)
    unpaired = estimate(apart + 1, apart, same_seeds=False)

    assert paired.p < 0.01
    assert unpaired.p > 0.5


def test_items_of_each_seed_may_be_others():
    draw = np.random.default_rng(5)
    parts = [scored(draw.random(size) + 0.5, draw.random(size)) for size in (80, 90, 100)]

    difference = bootstrap(parts, as_it_is, same_seeds=True)

    assert difference.difference == pytest.approx(
        np.mean([part.ours.mean() - part.theirs.mean() for part in parts])
    )
    assert difference.low < 0.5 < difference.high


def test_a_perplexity_is_made_of_the_mean_over_all_targets():
    ours, theirs, targets = np.array([[20.0, 30.0]]), np.array([[10.0, 30.0]]), np.array([10, 20])

    difference = bootstrap([Scored(ours, theirs, targets.astype(float))], np.exp, same_seeds=True)

    assert difference.difference == pytest.approx(math.exp(50 / 30) - math.exp(40 / 30))


@pytest.mark.parametrize("items", [60, 3000])
def test_many_items_are_drawn_by_their_kinds_with_the_same_result(items):
    """Few and many items go two ways; both must give the deviation of the mean."""
    ours = (np.arange(items) % 3 == 0).astype(float)

    difference = estimate(ours, np.zeros(items))

    error = ours.std() / math.sqrt(items)
    assert difference.high - difference.low == pytest.approx(2 * 1.96 * error, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 3, 5])
@pytest.mark.parametrize("seed_deviation", [0.0, 0.1, 1.0])
def test_without_a_difference_no_more_than_one_in_twenty_is_called_one(seeds, seed_deviation):
    draw = np.random.default_rng(6)
    items, trials = 100, 300
    false = covered = 0
    deviation = seed_deviation if seeds > 1 else 0.0
    for _ in range(trials):
        hard = draw.normal(0, 1, items)
        ours, theirs = (
            hard + draw.normal(0, 1, (seeds, items)) + draw.normal(0, deviation, (seeds, 1))
            for _ in range(2)
        )
        difference = estimate(ours, theirs)
        false += difference.p < 0.05
        covered += difference.low <= 0 <= difference.high

    assert false / trials < 0.08
    assert covered / trials > 0.92


@pytest.mark.parametrize("same_seeds", [True, False])
def test_no_interval_leaves_what_an_error_rate_can_be(same_seeds):
    """Seeds that differ wildly, beside a baseline that is nearly always right or wrong."""
    ours = [[1.0] * 20, [0.0] * 20, [0.0] * 20]
    right, wrong = [[0.0] * 20] * 3, [[1.0] * 20] * 3

    free = estimate(ours, right, same_seeds=same_seeds)
    above = estimate(ours, right, same_seeds=same_seeds, bounds=(0, 1))
    below = estimate(ours, wrong, same_seeds=same_seeds, bounds=(0, 1))

    assert free.low < 0
    assert free.high > 1
    assert 0 <= above.low < above.difference < above.high <= 1
    assert -1 <= below.low < below.difference < below.high <= 0


def test_bounds_change_nothing_that_is_far_from_them():
    rng = np.random.default_rng(5)
    ours, theirs = (rng.random((3, 200)) < 0.5 for _ in range(2))

    assert estimate(ours, theirs, bounds=(0, 1)) == estimate(ours, theirs)
