"""The README's commands, run as they stand there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from transfer_cli.config import compose
from transfer_cli.config.check import check
from transfer_cli.config.flags import Request

README = Path(__file__).parents[2] / "README.md"


def blocks() -> list[str]:
    return re.findall(r"```bash\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.functional
def test_the_readme_opens_with_demo_and_test():
    first = [line.split("#")[0].strip() for line in blocks()[0].splitlines()]

    assert first == ["make demo", "make test"]


@pytest.mark.functional
def test_every_training_of_the_readme_composes():
    script = "".join(blocks()[1:]).replace("\\\n", " ")
    typed = [shlex.split(line, comments=True) for line in script.splitlines()]
    trained = [words[1:] for words in typed if words[1:2] in (["pretrain"], ["finetune"])
               and not {"-m", "--help"} & {*words}]  # fmt: skip
    assert len(trained) > 2

    for command, *words in trained:
        overrides = tuple(word for word in words if "=" in word)
        check(compose.compose(command, Request(overrides=overrides)), command)


@pytest.mark.slow
@pytest.mark.functional
def test_every_command_of_the_readme_runs(tmp_path):
    tool = tmp_path / "bin" / "transfer"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m transfer_cli "$@"\n')
    tool.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tool.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(README.parent),
        "TRANSFER_DATA": str(tmp_path / "data"),
        "TRANSFER_CACHE": str(tmp_path / "cache"),
    }
    script = "set -e\n" + "".join(blocks()[1:])

    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert '"label"' in done.stdout
    assert (tmp_path / "runs" / "questions" / "results.json").is_file()
