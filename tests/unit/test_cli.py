import argparse
import errno
import gc
import logging
import subprocess
import sys

import pytest
from hydra._internal.utils import get_args_parser

import transfer_cli
from transfer_cli import cli
from transfer_cli.config import commands
from transfer_cli.errors import (
    CheckpointError,
    ConfigError,
    DivergedError,
    StoppedError,
    SweepError,
)


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


def call(capsys, *words):
    code = cli.main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# --- help, version, completion -----------------------------------------------------------------


def test_the_help_names_every_command(capsys):
    code, out, err = call(capsys, "--help")

    assert (code, err) == (0, "")
    for name, command in commands.ALL.items():
        assert f"{name:<11} {command.summary}" in out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("help finetune", "transfer finetune: adapt"),
        ("--help plan finetune", "transfer plan finetune: show"),
        ("report RUN --help", "transfer report: compare"),
        ("plan -h all", "transfer plan: show"),
        ("help all", "Pretrain Transformer"),
        ("--version", f"transfer {transfer_cli.__version__}\n"),
        ("-sc query=bash", "model=\n"),
        ("completion bash", "_transfer_complete() {"),
        ("completion zsh", "_transfer_complete() {"),
        ("completion fish", "function __transfer_complete"),
        ("pretrain --cfg job --package loop loop.batch=7", "# @package loop\n"),
        ("pretrain --info defaults", "Config path"),
    ],
)
def test_what_is_asked_for_is_printed_alone(capsys, monkeypatch, line, said):
    monkeypatch.setenv("COMP_LINE", "transfer finetune mod")

    code, out, err = call(capsys, *line.split())

    assert (code, err) == (0, "")
    assert out.startswith(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Pretrain Transformer"),
        (["fintune"], "transfer: there is no command 'fintune'. Did you mean 'finetune'? See "),
    ],
)
def test_without_a_command_that_there_is_the_help_is_an_error(capsys, words, said):
    code, out, err = call(capsys, *words)

    assert (code, out) == (2, "")
    assert err.startswith(said)
    assert "transfer --help" in err or "usage: transfer COMMAND" in err


def modules_of(line):
    """Return the modules that a command line has imported at its end, and the standard error."""
    program = (
        "import sys; from transfer_cli.cli import main; code = main(sys.argv[1:]); "
        "print('modules:', *sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *line.split()], capture_output=True, text=True, check=False
    )
    return set(done.stdout.rpartition("modules:")[2].split()), done.stderr


@pytest.mark.parametrize(
    ("line", "modules"),
    [
        ("--help", {"torch", "hydra", "omegaconf", "rich"}),
        ("--version", {"torch", "hydra", "omegaconf"}),
        ("-sc query=bash", {"torch", "hydra", "omegaconf", "yaml", "rich"}),
        ("finetune --help", {"torch"}),
        ("presets", {"torch", "rich"}),
        ("evaluate run=nowhere", {"transfer_cli.sweeps.jobs"}),
        ("predict nope x.csv", {"torch", "hydra"}),
    ],
)
def test_what_a_command_does_not_need_is_not_imported(line, modules, monkeypatch):
    monkeypatch.setenv("COMP_LINE", "transfer finetune data=table adaptation=lora data.t")

    imported, err = modules_of(line)

    assert "transfer_cli.cli" in imported, err
    assert not imported & modules


@pytest.fixture
def _checked_help(monkeypatch):
    """Have argparse look at each help text when its argument is added, as from Python 3.14 on."""
    # A name of its own, since a container of arguments adds them for parsers and groups.
    add = argparse._ActionsContainer.add_argument

    def add_argument(self, *names, **options):
        action = add(self, *names, **options)
        if action.help and "%" in action.help:
            argparse.HelpFormatter("transfer")._expand_help(action)
        return action

    monkeypatch.setattr(argparse._ActionsContainer, "add_argument", add_argument)


@pytest.mark.usefixtures("_checked_help")
def test_hydras_own_command_line_dies_where_help_is_checked():
    """So the next test would find it."""
    with pytest.raises(TypeError, match="LazyCompletionHelp"):
        get_args_parser()


@pytest.mark.usefixtures("_checked_help")
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("--help", 0),
        ("pretrain --help", 0),
        ("finetune --help all", 0),
        ("pretrain --cfg job --resolve", 0),
        ("pretrain --info defaults", 0),
        ("presets --json", 0),
        ("info", 0),
        ("evaluate -m run=one,two split=test", 2),
        ("plan finetune init_from=nowhere", 2),
        ("report nowhere", 2),
        ("diff one two", 2),
        ("analyze run=nowhere --html page.html", 2),
    ],
)
def test_the_command_line_works_where_argparse_checks_help(capsys, line, code):
    status, _, err = call(capsys, *line.split())

    assert status == code, err
    assert "Traceback" not in err


# --- what goes wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (ConfigError("x"), "x", 2),
        (CheckpointError("x"), "x", 2),
        (DivergedError("x"), "x", 4),
        (SweepError("x"), "x", 5),
        (StoppedError("x"), "x", 75),
        (ConfigError("a\n  b"), "a b", 2),
        *(
            (OSError(number, "reason", "/some/file"), "/some/file: reason", 2)
            for number in (errno.ENOSPC, errno.EACCES, errno.EROFS)
        ),
        (ValueError("x"), None, 1),
        (OSError(errno.EBADF, "x"), None, 1),
        (RuntimeError("x"), None, 1),
    ],
)
def test_what_a_user_can_fix_is_one_line_and_all_else_our_fault(error, line, code):
    assert cli.cause_and_cure(error) == (line, code)


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"),
    ],
)
def test_out_of_memory_names_the_keys_to_turn(error):
    line, code = cli.cause_and_cure(error)

    assert code == 2
    assert "loop.micro_batch" in line
    assert "loop.batch" in line


def test_a_traceback_is_shown_when_asked_for(capsys, monkeypatch):
    _, _, plain = call(capsys, "finetune", "nonsense=1")
    _, _, by_flag = call(capsys, "finetune", "nonsense=1", "--debug")
    monkeypatch.setenv("TRANSFER_DEBUG", "1")
    _, _, by_environment = call(capsys, "finetune", "nonsense=1")

    assert "Traceback" not in plain
    assert "Traceback" in by_flag
    assert "Traceback" in by_environment
    assert by_flag.rstrip().endswith(plain.rstrip())


def test_the_package_logs_to_standard_error_while_a_command_runs(capsys):
    log = logging.getLogger("transfer_cli.somewhere")

    with cli._console_log():
        log.info("a message")
        log.warning("mind this")
    log.info("not shown")

    assert capsys.readouterr().err == "a message\nwarning: mind this\n"


# --- imports -----------------------------------------------------------------------------------


def test_garbage_is_looked_for_again_when_a_commands_imports_are_done(tmp_path, monkeypatch):
    (tmp_path / "looks_for_garbage.py").write_text("import gc\nfound = gc.isenabled()\n")
    (tmp_path / "cannot_be_imported.py").write_text("raise ImportError('not today')\n")
    (tmp_path / "another_module.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)

    assert cli._import_module("looks_for_garbage").found is False
    assert gc.isenabled()
    with pytest.raises(ImportError, match="not today"):
        cli._import_module("cannot_be_imported")
    assert gc.isenabled()
    monkeypatch.setattr(gc, "isenabled", lambda: False)  # by whoever has called us
    monkeypatch.setattr(gc, "enable", None)
    cli._import_module("another_module")


# --- standard streams --------------------------------------------------------------------------


def in_bash(line):
    return subprocess.run(["/bin/bash", "-c", line], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", commands.ALL)
def test_no_command_works_for_a_closed_output(capsys, monkeypatch, name):
    monkeypatch.setattr(sys, "stdout", None)

    code = cli.main([name])

    assert code == 2
    said = f"transfer {name}: standard output is closed; send it to a file, or to /dev/null\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("presets >&-", 2, "transfer presets: standard output is closed"),
        ("presets >/dev/full", 2, "transfer presets: standard output cannot be written: No space"),
        ("presets 1</dev/null", 2, "transfer presets: standard output is closed"),
        ("completion bash >/dev/full", 2, "transfer completion: standard output cannot be written"),
        ("nonsense 2>/dev/full", 2, ""),
        ("presets <&- 2>&- >/dev/null", 0, ""),
        ("presets <&- >&- 2>&-", 2, ""),
        ("presets 2>/dev/full | head -1 >/dev/null; exit ${PIPESTATUS[0]}", 0, ""),
        ("presets | true; exit ${PIPESTATUS[0]}", 0, ""),
    ],
)
def test_closed_and_full_streams_end_in_a_line(line, code, said):
    done = in_bash(f"{sys.executable} -m transfer_cli {line}")

    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == bool(said)


def test_no_file_gets_the_number_of_a_closed_stream():
    program = (
        "import os, sys; from transfer_cli.cli import main; main(['presets', 'nonsense']); "
        "sys.exit(min(os.open('/dev/null', 0), 3) - 3)"
    )

    assert in_bash(f'{sys.executable} -c "{program}" <&- 2>&-').returncode == 0


def test_windows_is_refused_in_one_line():
    program = "import runpy, sys; sys.platform = 'win32'; runpy.run_module('transfer_cli.__main__')"

    done = in_bash(f'{sys.executable} -c "{program}"')

    assert done.returncode == 2
    assert done.stderr.startswith("transfer: Windows is not supported; use WSL")
    assert done.stderr.count("\n") == 1
