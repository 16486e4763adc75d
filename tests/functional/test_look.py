"""One look of listings, help, plans and errors: coloured on a terminal, plain everywhere else."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from transfer_cli.config.locate import conf_dir

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

SHORT = ("overview", "help", "presets")


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
    found = b""
    # At the end Linux reports an error where others return nothing.
    while part := _read(ours):
        found += part
    os.close(ours)
    return process.wait(), found.decode().replace("\r\n", "\n")


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def in_a_pipe(*words):
    done = subprocess.run(
        [sys.executable, "-m", "transfer_cli", *words], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            words, id=name, marks=[] if name in ("overview", "error") else [pytest.mark.slow]
        )
        for name, words in SHOWN.items()
    ],
)
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
@pytest.mark.parametrize(
    "columns", [40, *(pytest.param(n, marks=pytest.mark.slow) for n in (80, 200))]
)
@pytest.mark.parametrize("name", [*SHORT, pytest.param("plan", marks=pytest.mark.slow)])
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
