"""`scripts/bench`: that workers take turns, what is made of their numbers, and that scripts run."""

import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from transfer_cli.config.conf_folder import conf_dir

FOLDER = conf_dir().parent / "scripts" / "bench"


@pytest.fixture(autouse=True)
def _folder(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture
def measuring():
    return importlib.import_module("measuring")


@pytest.fixture
def turn(measuring):
    return measuring.Turn(wall_s=2.0, cpu_s=3.0, foreign=0.0, peak_mib=100.0)


def test_a_figure_is_the_median_of_its_undisturbed_turns(measuring, turn):
    turns = [turn, replace(turn, wall_s=40.0, foreign=0.5), replace(turn, wall_s=3.0)]

    figure = measuring.Figure.of("work", turns)

    assert (figure.wall_s, figure.cpu_s, figure.disturbed) == (2.5, 3.0, False)


def test_where_most_turns_are_disturbed_all_count_and_it_is_said(measuring, turn):
    busy = replace(turn, wall_s=4.0, foreign=0.5)

    figure = measuring.Figure.of("work", [turn, busy, busy])

    assert (figure.wall_s, figure.disturbed) == (4.0, True)


def test_a_ratio_compares_turns_of_the_same_round(measuring, turn):
    # Whatever slows the machine down from round to round slows both.
    product = measuring.Figure.of("own", [replace(turn, wall_s=s) for s in (1.0, 5.0, 9.0)])
    peer = measuring.Figure.of("peer", [replace(turn, wall_s=s) for s in (2.0, 10.0, 18.0)])

    assert measuring.ratio(product, peer) == 0.5


def test_a_goal_says_whether_it_is_met(measuring):
    assert str(measuring.Goal("x their time", 0.5, 0.62)) == (
        "x their time: 0.5 (goal: at most 0.62)  met"
    )
    assert not measuring.Goal("speed", 0.5, 0.9, at_most=False).met


def test_workers_take_turns_and_stop_at_each_step(measuring, monkeypatch, tmp_path):
    (tmp_path / "counting.py").write_text(
        "def count(arrive, path, name):\n"
        "    while True:\n"
        "        arrive()\n"
        "        arrive.note(written=1)\n"
        "        open(path, 'a').write(name)\n"
    )
    written = tmp_path / "written"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    variants = [
        measuring.Variant(name, "counting", "count", {"path": str(written), "name": name})
        for name in "ABC"
    ]

    figures = measuring.take_turns(variants, rounds=2, steps=2, unmeasured=0)

    assert written.read_text() == "AABBCCCCBBAA"
    assert [len(figure.samples) for figure in figures] == [2, 2, 2]
    assert [figure.median_note("written") for figure in figures] == [2, 2, 2]


def test_a_worker_that_fails_is_named_with_what_it_said(measuring, monkeypatch, tmp_path):
    (tmp_path / "failing.py").write_text(
        "def fail(arrive):\n    raise ValueError('no such luck')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with pytest.raises(measuring.BenchmarkError, match=r"(?s)the worst: .*no such luck"):
        measuring.take_turns([measuring.Variant("the worst", "failing", "fail")], rounds=1)


def test_flops_are_those_that_a_count_product_by_product_comes_to():
    gpu = importlib.import_module("gpu")

    names = ("width", "heads", "depth", "feedforward", "vocabulary", "length")
    flops = gpu.flops_per_token(dict(zip(names, (768, 12, 12, 3072, 50257, 1024), strict=True)))

    # nanoGPT's transformer_sizing.ipynb, for GPT-2 of 124M and a sequence of 1,024.
    assert 1024 * flops == 874_944_921_600


def run(script, *words):
    return subprocess.run(
        [sys.executable, FOLDER / script, *words, "--quick", "--threads", "1"],
        env={**os.environ, "PYTHONPATH": str(conf_dir().parent)},
        capture_output=True, text=True, timeout=550, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_script_measures_steps_of_the_product(tmp_path):
    path = tmp_path / "found.json"

    ended = run("engine.py", "--rounds", "1", "--json", str(path))

    assert ended.returncode == 0, ended.stdout + ended.stderr
    tutorial, tiny = json.loads(path.read_text())["reports"]
    for report in (tutorial, tiny):
        assert [row[0] for row in report["rows"][1:]] == ["step", "batch", "engine", "engine_cpu"]
        assert all(float(row[1]) > 0 for row in report["rows"][1:])


def test_a_script_says_where_probabilities_are_further_apart_than_rounding(tmp_path):
    predict = importlib.import_module("predict")
    for name, share in (("own", 0.25), ("like", 0.250_04), ("unlike", 0.26)):
        (tmp_path / name).write_text(json.dumps({"probabilities": {"a": share, "b": 1 - share}}))
    (tmp_path / "others").write_text(json.dumps({"probabilities": {"a": 0.25, "c": 0.75}}))

    assert predict.largest_difference(tmp_path / "own", tmp_path / "like") == pytest.approx(4e-5)
    for name, problem in (("unlike", "up to 0.01 from ours"), ("others", "other labels")):
        with pytest.raises(predict.BenchmarkError, match=problem):
            predict.largest_difference(tmp_path / "own", tmp_path / name)


def test_a_text_is_cut_into_files_at_the_ends_of_lines(tmp_path):
    encoding = importlib.import_module("encoding")
    (tmp_path / "source.txt").write_text("".join(f"{'x' * (n % 90)}\n" for n in range(3000)))

    files = encoding.write_files(tmp_path, 0.1, 4, tmp_path / "source.txt")

    parts = [path.read_bytes() for path in files]
    assert (tmp_path / "source.txt").read_bytes().startswith(b"".join(parts))
    assert sum(map(len, parts)) >= 100_000
    assert all(part.endswith(b"\n") and 24_000 < len(part) < 27_000 for part in parts)


def test_a_corpus_of_an_empty_file_is_refused(tmp_path):
    (tmp_path / "source.txt").touch()

    with pytest.raises(SystemExit, match=r"source\.txt is empty"):
        importlib.import_module("encoding").write_text(
            tmp_path / "corpus", 0.1, tmp_path / "source.txt"
        )


@pytest.mark.slow
def test_a_script_compares_the_product_with_others(tmp_path):
    path = tmp_path / "found.json"

    ended = run("run_all.py", "--only", "pretrain", "engine", "--json", str(path))

    assert ended.returncode == 0, ended.stdout + ended.stderr
    *reports, goals = json.loads(path.read_text())["reports"]
    assert "transfer" in [row[0] for row in reports[0]["rows"]]
    assert [row[0] for row in goals["rows"][-3:]] == ["pretrain", "engine", "engine"]
    assert re.search(r"time over that of nanoGPT-style loop .* (met|missed)", ended.stdout)


@pytest.mark.slow
def test_the_comparison_with_a_commit_before_runs_on_a_cpu(tmp_path):
    words = ["--before", FOLDER.parents[1], "--device", "cpu", "--quick", "--out", tmp_path]
    command = [sys.executable, FOLDER.parent / "gpu" / "ab.py", *words]
    assert subprocess.run(command, check=False).returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "ab.jsonl").read_text().splitlines()]
    ways = {line["way"]: line["ms"] for line in lines if "way" in line}
    assert ways.keys() >= {"before", "now", "plain loop"}
    assert min(ways.values()) > 0


@pytest.mark.slow
def test_short_passes_are_timed_on_a_cpu(tmp_path, masked, pretrained):
    (tmp_path / "trec").mkdir()
    labels = ("ABBR:abb", "DESC:def", "ENTY:food", "HUM:ind", "LOC:city", "NUM:date")
    lines = [f"{label} Who was {label[0]} {n} ?\n" for n in range(12) for label in labels]
    for name in ("train_5500.label", "TREC_10.label"):
        (tmp_path / "trec" / name).write_text("".join(lines))
    ways = ["step", "step, no graphs", "token, fp32, 8"]
    words = [
        "--bert",
        masked,
        "--causal",
        pretrained,
        "--data-dir",
        tmp_path,
        "--quick",
        "--seconds=200",
    ]
    command = [sys.executable, FOLDER.parent / "gpu" / "short.py", *words, "--device", "cpu"]

    ended = subprocess.run([*command, "--ways", *ways], capture_output=True, text=True, check=True)

    measured = {k: v for line in ended.stdout.splitlines() for k, v in json.loads(line).items()}
    assert list(measured) == ways
    assert min(measured.values()) > 0
