"""A wheel works anywhere: in another environment, in an empty folder."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from transfer_cli.config.conf_folder import conf_dir
from transfer_cli.config.describe import options

PROJECT = conf_dir().parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (PROJECT / "pyproject.toml").is_file(), reason="needs the project's own folder"
    ),
]


def run(*words, **settings):
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False, **settings
    )


FILES = (
    "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md",
    "SECURITY.md", "constraints.txt", "docs", "conf", "transfer_cli",
)  # fmt: skip


def built(folder, *words):
    """Build from a copy, as setuptools leaves its traces in what it builds; return the wheel."""
    copy = folder / "project"
    copy.mkdir()
    assert run("cp", "-r", *(PROJECT / name for name in FILES), copy).returncode == 0
    done = run(sys.executable, "-m", "build", "--no-isolation", *words, "--outdir", folder, copy)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(tmp_path_factory.mktemp("wheel"), "--wheel")


def test_an_sdist_makes_the_same_wheel_and_a_page_without_links_into_a_clone(wheel, tmp_path):
    of_sdist, of_tree = zipfile.ZipFile(built(tmp_path)), zipfile.ZipFile(wheel)

    assert {name: of_sdist.read(name) for name in of_sdist.namelist()} == {
        name: of_tree.read(name) for name in of_tree.namelist()
    }
    (metadata,) = (name for name in of_tree.namelist() if name.endswith("/METADATA"))
    page = of_tree.read(metadata).decode().partition("\n\n")[2]
    assert page.startswith("# transfer\n\n**transfer** ")
    assert "](" not in page.replace("](https://", "")
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as sdist:
        assert {"CHANGELOG.md", "LICENSE"} <= {Path(name).name for name in sdist.getnames()}


@pytest.fixture(scope="module")
def transfer(wheel, tmp_path_factory):
    """Install the wheel beside the packages of this environment; return how to run it."""
    folder = tmp_path_factory.mktemp("installed")
    site = folder / "site"
    installed = run(
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
        "--target", site, wheel,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    empty = folder / "empty"
    empty.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(site), "TRANSFER_DATA": str(folder / "data")}

    def call(*words, program=site / "bin" / "transfer"):
        return run(program, *words, cwd=empty, env=environment)

    return call


def test_the_wheel_holds_every_config_and_module(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())

    for file in conf_dir().rglob("*.yaml"):
        assert f"transfer_cli/conf/{file.relative_to(conf_dir()).as_posix()}" in names
    for file in (PROJECT / "transfer_cli").rglob("*.py"):
        assert file.relative_to(PROJECT).as_posix() in names
    assert "transfer_cli/py.typed" in names
    assert not any(name.startswith(("conf/", "tests/")) for name in names)


def test_the_installed_command_lists_the_presets_in_an_empty_folder(transfer):
    done = transfer("finetune", "init=scratch", "--help", "all")

    assert done.returncode == 0, done.stderr
    for option in options():
        if option.group in ("model", "adaptation", "optimizer"):
            assert option.name in done.stdout


def test_the_installed_command_uses_its_own_configs(transfer):
    words = "from transfer_cli.config.conf_folder import conf_dir; print(conf_dir())"
    done = transfer("-c", words, program=sys.executable)

    assert done.returncode == 0, done.stderr
    assert str(Path("site", "transfer_cli", "conf")) in done.stdout


def test_the_installed_command_composes_and_refuses(transfer):
    done = transfer("pretrain", "model=tinny")

    assert done.returncode == 2
    assert done.stderr.startswith("transfer pretrain: model=tinny: no such option.")


def test_the_installed_command_trains(transfer, tmp_path):
    run_dir = tmp_path / "run"

    done = transfer(
        "pretrain", "data=sample_text", "tokenizer.size=500", "model=tiny", "model.width=16",
        "model.heads=2", "model.depth=1", "model.feedforward=32", "loop.steps=2", "loop.batch=2",
        "device=cpu", f"run.dir={run_dir}",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert (run_dir / "results.json").is_file()
