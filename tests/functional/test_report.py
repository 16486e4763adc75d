"""`transfer report` as people type it."""

import csv
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from dataclasses import asdict

import pytest

from tests.fake_runs import labelled, write_run, write_sweep
from tests.functional.conftest import read_terminal
from transfer_cli.config.conf_folder import conf_dir
from transfer_cli.metrics import Metric
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.sweep import SweepDirectory, SweepJob

pytestmark = pytest.mark.functional

HOSTILE = "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>|`[x](http://evil)\u202e=1+1"


@pytest.fixture
def six(tmp_path):
    """Return a folder of six runs: two schemes, three seeds each."""
    for seed in range(3):
        for name, wrong in (("full", 3 + seed), ("lora", 9 + seed)):
            typed = (f"adaptation={name}", f"seed={seed}")
            path = tmp_path / "runs" / f"{name}-{seed}"
            write_run(path, seed=seed, adaptation=name, wrong=range(wrong), typed=typed)
    return tmp_path / "runs"


def test_a_table_says_what_is_best_and_how_sure_that_is(transfer, six):
    done = transfer("report", "runs")

    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert lines[0] == (
        "finetune on sample_questions: 6 runs in 2 groups, sorted by validation/error_rate"
    )
    head, best, other = lines[1:4]
    assert head.split() == [
        "group", "validation/error_rate", "(%)", "test/error_rate", "(%)", "difference", "p",
        "trained", "seconds", "memory", "runs", "folder",
    ]  # fmt: skip
    assert best.startswith("* adaptation=full")
    assert "10.00 ± 2.50" in best
    assert "baseline" in best
    assert other.startswith("  adaptation=lora")
    assert "25.00 ± 2.50" in other
    assert "+15.00 [" in other
    assert "80" in other
    assert "3.00 MiB" in other or "3 MiB" in other
    assert "McNemar" not in done.out
    assert "bootstrap over items and seeds, paired on the same 40 items" in done.out
    assert "question 0 ?" in done.out


def test_two_single_runs_are_compared_by_mcnemars_test(transfer, six):
    out = transfer("report", "runs/full-0", "runs/lora-0").out

    assert "McNemar's exact test" in out
    assert "0.031" in out  # six items that one run alone gets right


def test_the_same_as_csv_markdown_and_json(transfer, six):
    files = ("--csv", "out.csv", "--markdown", "out.md", "--json", "out.json")

    done = transfer("report", "runs", *files)

    folder = six.parent
    full, lora = csv.DictReader(io.StringIO((folder / "out.csv").read_text()))
    assert (full["group"], full["best"], full["baseline"]) == ("adaptation=full", "true", "true")
    assert float(lora["test/error_rate"]) == 25.0
    assert float(lora["test/error_rate deviation"]) == 2.5
    assert float(lora["against difference"]) == 15.0
    assert (lora["setting adaptation"], lora["seeds"], lora["trained"]) == ("lora", "0 1 2", "80")
    table = [line for line in (folder / "out.md").read_text().splitlines() if line[:1] == "|"]
    assert table[2].startswith(
        "| **`adaptation=full`** \\* | 10.00 ± 2.50 | 10.00 ± 2.50 | baseline |"
    )
    assert len({line.count(" | ") for line in table}) == 1
    content = json.loads((folder / "out.json").read_text())
    assert content["tasks"][0]["groups"][0]["runs"][0]["settings"]["seed"] == 0
    assert "test/error_rate" in done.out
    assert done.err.count("\n") == 3
    alone = json.loads(transfer("report", "runs", "--json", "-").out)
    assert alone["tasks"] == content["tasks"]


def test_a_run_that_is_still_being_written_is_one_line_alone_and_a_row_among_others(transfer, six):
    run = RunDirectory(write_run(six / "new", seed=5, status="running", typed=("adaptation=full",)))
    run.lock("run.dir")

    alone, among = transfer("report", "runs/new"), transfer("report", "runs")
    run.unlock()
    killed = transfer("report", "runs/new")

    assert (alone.code, alone.out, alone.err.count("\n")) == (2, "", 1)
    assert "nothing to report yet: runs/new is still being written" in alone.err
    assert "3 of 4 (1 running)" in among.out
    assert "stopped: ended without a word" in killed.out


def test_a_running_sweep_says_where_it_stands(transfer, tmp_path):
    sweep = write_sweep(
        tmp_path / "sweep",
        SweepJob(0, ("seed=0",), outcome="done", seconds=60.0),
        SweepJob(1, ("seed=1",), outcome="running"),
        SweepJob(2, ("seed=2",)),
        SweepJob(3, ("seed=3",), outcome="failed", reason="no memory"),
    )
    write_run(tmp_path / "sweep" / "0")

    with SweepDirectory(sweep.path).claim(1):
        out = transfer("report", "sweep").out
    killed = transfer("report", "sweep").out

    assert out.startswith("sweep sweep: 1 done, 1 running, 1 left, 1 failed; about ")
    assert "    3  seed=3  failed: no memory" in out
    assert "job 3" not in out
    assert "finetune on sample_questions: 3 runs in 1 group" in out
    assert "0 running, 2 left, 1 failed, and nobody is at work on it" in killed


def test_a_sweep_of_which_nothing_came_is_reported_too(transfer, tmp_path):
    write_sweep(tmp_path / "sweep", SweepJob(0, ("a=1",), outcome="failed", reason="no such key"))

    done = transfer("report", "sweep")

    assert done.code == 0
    assert "job 0   a=1  failed: no such key" in done.out


def test_a_report_may_lie_beside_the_runs_it_is_of_and_be_made_again(transfer, six):
    for _ in range(2):
        done = transfer("report", "runs/full-0", "--json", "runs/full-0/report.json",
                        "--markdown", "runs/full-0/notes.md")  # fmt: skip
        assert done.code == 0
    assert transfer("report", "runs").code == 0


def test_a_hostile_run_is_shown_as_text(transfer, tmp_path):
    for name in ("a", "b"):
        write_run(
            tmp_path / "runs" / name, wrong=[0], failed=HOSTILE, adaptation=name,
            objective__pooling=HOSTILE + name, typed=(f"objective.pooling={HOSTILE}",),
            items=[
                type(item)(**{**vars(item), "text": HOSTILE, "predicted": HOSTILE})
                for item in labelled([0])
            ],
        )  # fmt: skip
    write_run(tmp_path / "runs" / "c", status="failed", reason=HOSTILE)

    files = ("--csv", "out.csv", "--markdown", "out.md", "--json", "out.json")
    done = transfer("report", "runs", *files).ok()

    for text in (done.out, (tmp_path / "out.csv").read_text(), (tmp_path / "out.md").read_text()):
        assert all(character.isprintable() or character == "\n" for character in text)
    markdown = (tmp_path / "out.md").read_text()
    assert "](http" not in markdown.replace("\\](http", "")
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 1


def test_a_terminal_gets_colours_and_a_narrow_one_fewer_columns_and_a_pipe_neither(transfer, six):
    write_run(six / "long", objective__pooling="x" * 55, seed=1)
    piped = transfer("report", "runs").out
    shutil.rmtree(six / "long")
    wide, narrow = (_on_terminal(six.parent, columns) for columns in (200, 74))

    assert "\x1b" not in piped
    assert "x" * 55 in piped

    assert "\x1b[" in wide
    assert "trained" in wide
    assert "not shown here, for want of room: memory, trained, seconds" in " ".join(narrow.split())
    assert all(len(line) <= 74 for line in _plain(narrow).splitlines()[1:4])


def _on_terminal(folder, columns):
    """Return what a terminal so wide would be sent."""
    ours, theirs = pty.openpty()
    project = str(conf_dir().parent)
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    kept |= {"COLUMNS": str(columns), "TERM": "xterm-256color", "PYTHONPATH": project}
    words = [sys.executable, "-m", "transfer_cli", "report", "runs"]
    with subprocess.Popen(words, cwd=folder, stdout=theirs, env=kept) as process:
        os.close(theirs)
        output = read_terminal(ours)
    assert process.returncode == 0
    return output


def _plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_reporting_never_imports_torch(six):
    code = (
        "import sys; from transfer_cli.cli import main; code = main(['report', 'runs']); "
        "code = code or main(['diff', 'runs/full-0', 'runs/lora-0']); "
        "sys.exit(code or any(name in sys.modules for name in ('torch', 'hydra', 'omegaconf')))"
    )
    project = str(conf_dir().parent)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=six.parent, env={**os.environ, "PYTHONPATH": project},
        capture_output=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr.decode()


def test_runs_that_really_ran_are_reported(transfer, pretrained, finetuned):
    done = transfer("report", str(pretrained), str(finetuned))

    assert done.code == 0
    assert "pretrain on sample_text: 1 run" in done.out
    assert "finetune on sample_questions: 1 run" in done.out
    assert "test/error_rate" in done.out
    assert "test/word_perplexity" in done.out


def test_slices_are_those_of_evaluate(transfer, finetuned, read_json):
    word = "short.length=[0,7]"
    assert transfer("evaluate", str(finetuned), f"slices.{word}", "output=whole.json").code == 0

    done = transfer("report", str(finetuned), "--slice", word, "--json", "report.json")

    assert done.code == 0, done.err
    measured = read_json("whole.json")["measures"]["test"]
    (task,) = read_json("report.json")["tasks"]
    (group,) = task["groups"]
    for name in ("accuracy/slice/short", "count/slice/short"):
        assert group["measures"][f"test/{name}"]["mean"] == pytest.approx(measured[name])
    assert "test/accuracy/slice/short (%)" in done.out


@pytest.mark.parametrize(
    ("word", "count"),
    [("regex=[13579] ", 20), ('regex="[13579] "', 20), ("regex=n: 1", 0), ("word=no", 0),
     ("length=[2,2]", 40), ("length=[3, null]", 0)],
)  # fmt: skip
def test_what_a_slice_says_is_taken_as_it_is_typed(transfer, six, read_json, word, count):
    done = transfer("report", "runs/full-0", "--slice", f"a.{word}", "--json", "out.json")

    assert done.code == 0, done.err
    (group,) = read_json("out.json")["tasks"][0]["groups"]
    assert group["measures"]["test/count/slice/a"]["mean"] == count


def test_a_reader_that_goes_away_is_no_error(six):
    reading, writing = os.pipe()
    os.close(reading)
    project = str(conf_dir().parent)
    done = subprocess.run(
        [sys.executable, "-m", "transfer_cli", "report", "runs"], cwd=six.parent, stdout=writing,
        stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": project}, check=False,
    )  # fmt: skip
    os.close(writing)

    assert (done.returncode, done.stderr) == (0, b"")


# --- two runs side by side -----------------------------------------------------------------------


@pytest.fixture
def two(tmp_path):
    """Return two runs: of other schemes, rates and versions."""
    write_run(tmp_path / "a", wrong=[0, 1, 2], data__labelled=100)
    other = write_run(
        tmp_path / "b", seed=1, adaptation="lora", optimizer__lr=0.01, wrong=[2, *range(10, 19)]
    )
    (other / "environment.json").write_text(
        json.dumps({"command": "finetune", "versions": {"torch": "2.14.0"}, "gpus": ["one"]})
    )
    return tmp_path


def rows(out):
    """Return the lines of a table by their first word."""
    return {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}


def test_what_differs_stands_side_by_side(transfer, two):
    done = transfer("diff", "a", "b")

    table = rows(done.out)
    assert (done.code, done.err) == (0, "")
    assert table["seed"] == ["0", "1"]
    assert table["adaptation"] == ["full", "lora"]
    assert table["optimizer.lr"] == ["0.001", "0.01"]
    assert table["adaptation.edits.lora.rank"] == ["-", "8"]
    assert table["data.labelled"] == ["100", "null"]
    assert table["versions"] == ["torch", "2.13.0", "2.14.0"]
    assert table["gpus"] == ["-", '["one"]']
    assert "b - a +17.50" in done.out
    assert "p 0.065 by McNemar on 40 items" in done.out  # 2 against 9 items
    assert any(line.split() == ["parameters", "trained", "1,000", "80", "-920"]
               for line in done.out.splitlines())  # fmt: skip
    assert "objective" not in done.out


def test_a_tested_share_is_in_percent_as_in_the_table(transfer, two):
    words = {"unit": "fraction", "headline": True, "per_example": True}
    accuracy = Metric("accuracy", higher_is_better=True, **words)
    for name in ("a", "b"):
        file = two / name / "results.json"
        results = json.loads(file.read_text()) | {"metrics": [asdict(accuracy)]}
        file.write_text(json.dumps(results))

    out = transfer("diff", "a", "b").out

    assert "b - a \N{MINUS SIGN}17.50 points" in out


def test_measures_that_are_left_out_are_counted(transfer, two):
    file = two / "a" / "results.json"
    results = json.loads(file.read_text())
    shown = len(results["measures"]["test"]) + len(results["measures"]["validation"])
    results["measures"]["test"] |= {f"accuracy/{n}": 0.5 for n in range(45)}
    file.write_text(json.dumps(results))

    assert f"and {shown + 5} more" in transfer("diff", "a", "b").out
    assert "more" not in transfer("diff", "b", "b").out


def test_a_run_against_itself_differs_in_nothing(transfer, two):
    out = transfer("diff", "a", "a").out

    for part in ("config: no difference", "data: no difference", "environment: no difference"):
        assert part in out
    assert "p 1.00" in out


def test_the_same_as_json(transfer, two):
    changes = json.loads(transfer("diff", "a", "b", "--json").out)["difference"]

    rate = {"name": "optimizer.lr", "ours": "0.001", "theirs": "0.01", "change": None}
    assert rate in changes["config"]
    (test,) = changes["tests"]
    assert (test["difference"], test["test"]) == (17.5, "McNemar")


def test_runs_that_cannot_be_tested_or_did_not_end_are_compared_as_far_as_it_goes(transfer, two):
    write_run(two / "c", status="failed", reason="out of memory")
    (two / "b" / "items.jsonl").unlink()

    out = transfer("diff", "a", "c").out

    assert "failed: out of memory" in out
    assert "data.labelled" in out
    assert "no test on the items of test: without items.jsonl" in transfer("diff", "a", "b").out


def test_runs_of_other_commands_are_compared_as_far_as_it_makes_sense(
    transfer, pretrained, finetuned
):
    done = transfer("diff", str(pretrained), str(finetuned)).ok()

    table = rows(done.out)
    assert table["command"] == ["pretrain", "finetune"]
    assert table["test/error_rate"][:2] == ["(%)", "-"]
    share = json.loads((finetuned / "results.json").read_text())["measures"]["test"]["accuracy"]
    assert table["test/accuracy"] == ["(%)", "-", f"{100 * share:.6g}"]
