"""One look of listings, help, plans and errors: coloured on a terminal, plain everywhere else."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from importlib import metadata

import pytest
import torch

from tests.functional.conftest import read_terminal
from transfer_cli.config.conf_folder import conf_dir

CODES = re.compile(r"\x1b\[[0-9;]*m")

PLAN = ("plan", "finetune", "experiment=sample/finetune", "init=scratch", "model=toy",
        "tokenizer=wordpiece", "tokenizer.size=300", "plan.steps=0")  # fmt: skip

SHOWN = {
    "overview": ("--help",),
    "help": ("finetune", "--help"),
    "presets": ("presets", "adaptation"),
    "plan": PLAN,
    "info": ("info",),
    "error": ("finetune", "modle=tiny"),
    "no such command": ("fintune",),
}


@pytest.fixture
def environment(monkeypatch):
    path = os.pathsep.join([str(conf_dir().parent), os.environ.get("PYTHONPATH", "")])
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("TERM", "xterm-256color")


def on_a_terminal(*words, columns=80):
    """Return the exit code of a command and all that a terminal was given."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    # Spelt out: readline, if anything here has imported it, sets COLUMNS behind Python's back.
    process = subprocess.Popen(
        [sys.executable, "-m", "transfer_cli", *words],
        stdin=theirs, stdout=theirs, stderr=theirs, env=dict(os.environ),
    )  # fmt: skip
    os.close(theirs)
    output = read_terminal(ours)
    return process.wait(), output


def in_a_pipe(*words):
    done = subprocess.run(
        [sys.executable, "-m", "transfer_cli", *words], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", SHOWN.values(), ids=SHOWN)
def test_colours_are_for_terminals_that_want_them(words, environment, monkeypatch):
    code, coloured = on_a_terminal(*words, columns=200)
    monkeypatch.setenv("NO_COLOR", "1")
    plain_code, plain = on_a_terminal(*words, columns=200)
    piped_code, piped = in_a_pipe(*words)

    assert code == plain_code == piped_code
    assert CODES.search(coloured)
    assert "\x1b" not in plain
    assert "\x1b" not in piped
    # Data sets are encoded once, and then not spoken of.
    assert plain.splitlines()[-3:] == piped.splitlines()[-3:]
    assert CODES.sub("", coloured).splitlines()[-1].strip() == piped.splitlines()[-1].strip()


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("name", ["overview", "help", "presets", "plan"])
def test_texts_fit_the_terminal(name, columns, environment):
    code, shown = on_a_terminal(*SHOWN[name], columns=columns)

    assert code == 0
    # Command lines and usage are left whole, so that they can be copied.
    lines = [
        line
        for line in CODES.sub("", shown).splitlines()
        if "transfer " not in line and not line.startswith(("Making", "Encod", "  # "))
    ]
    assert max(map(len, lines)) <= columns
    # Of the words of a pipe none is lost that fits beside what it is about.
    words = {word for word in in_a_pipe(*SHOWN[name])[1].split() if len(word) < columns - 12}
    assert words <= set(CODES.sub("", shown).split())


@pytest.mark.slow
def test_warnings_stand_out(environment, tmp_path):
    words = (*PLAN[1:], "schedule.warmup=9", "loop.steps=3", "device=cpu", f"run.dir={tmp_path}/x")

    _, shown = on_a_terminal(*words)

    assert "\x1b[1;33mwarning:\x1b[0m schedule" in shown


def test_names_in_a_folder_of_own_configs_are_shown_as_they_are(environment, tmp_path):
    (tmp_path / "model").mkdir()
    hostile = "[red]x[-red] :smile: \x1b[2Jgone"
    (tmp_path / "model" / f"{hostile}.yaml").write_text("# [blink]first[/] \x1b]0;t\x07 line\n")
    words = ("presets", "model", "--config-dir", str(tmp_path))

    code, shown = on_a_terminal(*words, columns=400)

    assert code == 0
    assert r"[red]x[-red] :smile: \x1b[2Jgone" in CODES.sub("", shown)
    assert r"[blink]first[/] \x1b]0;t\x07 line" in CODES.sub("", shown)
    assert "\x1b[2J" not in shown
    assert "\x1b" not in in_a_pipe(*words)[1]


def test_own_options_stand_out_from_ours(environment, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("# My own\nwidth: 1\n")

    _, listed = on_a_terminal("presets", "model", "--config-dir", str(tmp_path))
    _, helped = on_a_terminal("pretrain", "--help", "--config-dir", str(tmp_path))

    assert "\x1b[1;35mmine\x1b[0m" in listed
    assert "\x1b[36mtiny\x1b[0m" in listed
    assert "\x1b[1;35mmine\x1b[0m" in helped


# --- info ----------------------------------------------------------------------------------------


def test_programs_get_json(transfer, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("TRANSFER_CACHE", str(tmp_path / "cache"))

    ended = transfer("info", "--json")

    assert (ended.code, ended.err) == (0, "")
    info = json.loads(ended.out)
    assert info["versions"]["torch"] == metadata.version("torch")
    assert len(info["gpus"]) == torch.cuda.device_count()
    folders = {folder["name"]: folder["path"] for folder in info["folders"]}
    assert folders["data"] == str(tmp_path / "data")
    assert folders["cache"] == str(tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []


# --- inspect -------------------------------------------------------------------------------------


def test_labelled_data_is_described(transfer, pretrained):
    ended = transfer(
        "inspect", "data=sample_questions", f"init_from={pretrained}", "samples=1"
    ).ok()

    out = ended.out
    for split, count in {"train": 144, "validation": 96, "test": 288}.items():
        assert f"{split}: {count} examples" in out
    assert "labels   animal 24  city 24  disease 24  mineral 24  person 24  river 24" in out
    assert "tokens   " in out
    assert "longest" in out
    assert "unknown  " in out
    assert "overlap: 0 texts of train stand in test, too" in out
    # The classification token ends an input of a causal model.
    samples = [line for line in out.splitlines() if line.rstrip().endswith("[CLS]")]
    assert len(samples) == 3


def test_repeats_and_overlaps_are_counted_as_a_run_counts_them(transfer, tmp_path):
    (tmp_path / "train.csv").write_text("text,label\none,a\ntwo,b\nONE ,a\nthree,b\n")
    (tmp_path / "test.csv").write_text("text,label\none,a\nOne,a\nfour,b\n")

    ended = transfer(
        "inspect", "data=table", "data.train=train.csv", "data.validation=test.csv",
        "data.test=test.csv", "tokenizer.size=300", "samples=0",
    ).ok()  # fmt: skip

    assert "repeats  1 texts stand there before" in ended.out
    assert "overlap: 2 texts of test stand in train, too" in ended.out
    assert "2 of the 3 texts of test (66.7 %) are in train, too" in ended.err


def test_both_texts_of_a_pair_are_counted(transfer, tmp_path):
    (tmp_path / "train.csv").write_text("text,other,label\none,a a a,x\ntwo,b b,y\n")
    table = ("data=table", "data.train=train.csv", "data.validation=train.csv", "samples=1")

    one = transfer("inspect", *table, "tokenizer.size=300").out
    both = transfer("inspect", *table, "tokenizer.size=300", "data.pair=other").out

    assert "longest 1" in one
    assert "tokens   3.5 on average" in both
    assert "longest 4" in both
    assert "x: one | a a a" in both


def test_text_is_described_with_its_targets(transfer, corpus):
    ended = transfer(
        "inspect", "data=text", f"data.train={corpus}", "tokenizer.size=600", "samples=1"
    ).ok()

    out = ended.out.splitlines()
    assert out[0].startswith("train: 297 lines, ")
    assert any(line.startswith("  tokens a word  ") for line in out)
    assert any(line.startswith("  unknown  0 tokens") for line in out)
    assert any(line.startswith("overlap: 0 of ") for line in out)
    tokens, targets = (
        next(line for line in out if line.startswith(f"  {what}")).split()[1:]
        for what in ("tokens   ", "targets")
    )
    assert tokens[1:] == targets[: len(tokens) - 1]


@pytest.mark.parametrize(
    ("objective", "shown"),
    [
        (["mlm"], "[MASK]"),
        (["prefix_lm", "objective.corrupt=0.15", "model=toy"], "<extra_id_0>"),
        (["seq2seq", "objective.corrupt=0.15"], "source   [CLS]"),
        (["replaced_tokens"], "[MASK]"),
    ],
    ids=str,
)
def test_what_an_objective_hides_is_shown(objective, shown, transfer, corpus):
    ended = transfer(
        "inspect", "data=text", f"data.train={corpus}", "tokenizer.size=600", "samples=1",
        "tokenizer.sentinels=10", f"objective={objective[0]}", *objective[1:],
    ).ok()  # fmt: skip

    assert shown in ended.out


def test_translations_are_shown_with_their_targets(transfer, tmp_path):
    lines = ('{"en": "one river", "de": "ein Fluss"}\n', '{"en": "one hill", "de": "ein Berg"}\n')
    (tmp_path / "train.jsonl").write_text(20 * lines[0])
    (tmp_path / "other.jsonl").write_text(lines[1])

    ended = transfer(
        "inspect", "data=text", "data.train=train.jsonl", "data.validation=other.jsonl",
        "data.field=[en,de]", "data.pairs=translation", "tokenizer.size=300", "samples=1",
    ).ok()  # fmt: skip

    assert "text     [CLS] one river [SEP] ein Fluss [SEP]" in ended.out
    assert "targets  one river [SEP] ein Fluss [SEP] ." in ended.out


def test_labelled_data_are_shown_as_a_fresh_model_sees_them(transfer):
    ended = transfer("inspect", "data=sample_questions", "model=toy", "samples=1").ok()

    assert sum(line.rstrip().endswith("[CLS]") for line in ended.out.splitlines()) == 3


def test_an_objective_of_labelled_data_is_refused_for_text(transfer, corpus):
    words = ("inspect", "data=text", f"data.train={corpus}", "objective=classification")

    transfer(*words).refusal("objective:")


# --- prepare -------------------------------------------------------------------------------------


def test_a_second_call_makes_and_encodes_nothing(transfer, corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFER_CACHE", str(tmp_path / "cache"))
    words = ("prepare", "data=text", f"data.train={corpus}", "tokenizer.size=600")

    first = transfer(*words)
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.*")}
    second = transfer(*words)

    assert "Encoding the train text" in first.ok().err
    assert second.err == ""
    assert first.out == second.out
    lines = [line.split()[0] for line in first.out.splitlines()]
    assert lines == ["tokenizer", "train", "validation"]
    assert made == {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.*")}


def test_a_run_on_prepared_data_encodes_nothing(transfer, corpus, tiny, loop):
    data = ("data=text", f"data.train={corpus}")

    transfer("prepare", *data, "tokenizer.size=600").ok()
    ended = transfer("pretrain", *data, *tiny, *loop, "loop.steps=1", "run.dir=run").ok()

    assert "Encoding" not in ended.err
    assert "Making the tokenizer" not in ended.err


def test_the_tokenizer_of_a_run_is_used(transfer, pretrained, corpus):
    ended = transfer("prepare", "data=text", f"data.train={corpus}", f"init_from={pretrained}").ok()

    assert "Making the tokenizer" not in ended.err


def test_a_task_is_checked(transfer, questions):
    data = ("data=table", f"data.train={questions}", "tokenizer.size=600")

    assert transfer("prepare", *data).ok().out.splitlines() == [
        "train      54 examples, 2 labels",
        "validation 6 examples, 2 labels",
    ]
