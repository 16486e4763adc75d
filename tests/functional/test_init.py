"""`transfer init`: a folder of one's own configs."""

import json
import os
import re
import subprocess
import sys

import pytest

from transfer_cli.commands import presets as init_module
from transfer_cli.commands.presets import STARTERS


@pytest.fixture
def configs(transfer, tmp_path):
    """Return a folder that `transfer init` has made."""
    ended = transfer("init", "configs")
    assert (ended.code, ended.err) == (0, "")
    return tmp_path / "configs"


def test_a_folder_holds_a_copy_for_each_group_and_how_to_use_it(transfer, tmp_path):
    ended = transfer("init", "configs")

    assert (ended.code, ended.err) == (0, "")
    made = {path.relative_to(tmp_path / "configs").as_posix()
            for path in (tmp_path / "configs").rglob("*") if path.is_file()}  # fmt: skip
    assert made == {"README.md", *(f"{path}.yaml" for path in STARTERS)}
    assert "next: transfer presets --config-dir configs\n" in ended.out
    assert all(f"{path}.yaml" in ended.out for path in STARTERS)
    readme = (tmp_path / "configs" / "README.md").read_text()
    assert "transfer presets --config-dir configs" in readme
    assert [path.name for path in tmp_path.iterdir()] == ["configs"]


def test_presets_mark_what_is_ones_own(transfer, configs):
    ended = transfer("presets", "--config-dir", "configs", "--json")

    presets = {f"{preset['group']}/{preset['option']}": preset for preset in json.loads(ended.out)
               if preset["origin"] == "yours"}  # fmt: skip
    assert presets.keys() == STARTERS.keys()
    assert all(preset["used"] for preset in presets.values())
    listed = transfer("presets", "model", "--config-dir", "configs").out
    assert "Mine, begun as model=tiny  (configs/model/mine.yaml)" in listed


def test_the_copies_make_a_plan(transfer, configs, pretrained, questions):
    words = ("plan", "finetune", "--config-dir", "configs", f"init_from={pretrained}")

    sample = transfer(*words, "experiment=mine", "adaptation=mine", "schedule=mine")
    table = transfer(*words, "data=mine", f"data.train={questions}")

    assert (sample.code, table.code) == (0, 0), sample.err + table.err
    assert "added.0" in sample.out
    assert "of 32 sequences" in sample.out
    assert "steps of 16 sequences" in table.out


@pytest.mark.slow
def test_the_copies_for_pretraining_make_a_plan(transfer, configs, corpus):
    words = ("model=mine", "data=my_text", f"data.train={corpus}", "tokenizer.size=300")

    ended = transfer("plan", "pretrain", "--config-dir", "configs", *words).ok()

    assert "embeddings ... head.lm" in ended.out


@pytest.mark.slow
def test_the_copy_of_a_sweep_makes_its_jobs(transfer, configs, pretrained):
    ended = transfer(
        "plan", "finetune", "--config-dir", "configs", "experiment=mine", "sweep=mine",
        f"init_from={pretrained}",
    ).ok()  # fmt: skip

    assert ended.out.count("tensors: ") == 7
    assert len(set(re.findall(r"job \d+: optimizer.lr=(\S+)", ended.err))) == 7


def test_the_line_to_type_next_works(transfer, pretrained):
    out = transfer("init", "configs").out
    line = re.search(r"transfer (plan finetune .*)$", out, re.MULTILINE)[1]

    transfer(*line.replace("=RUN", f"={pretrained}").split()).ok()


def test_chosen_options_alone_are_copied(transfer, tmp_path):
    words = ("--from", "model=small", "--from", "experiment=sample/frozen", "--from=data=text")

    transfer("init", "configs", *words).ok()

    files = {path.relative_to(tmp_path / "configs").as_posix()
             for path in (tmp_path / "configs").rglob("*.yaml")}  # fmt: skip
    assert files == {"model/my_small.yaml", "experiment/sample/my_frozen.yaml", "data/my_text.yaml"}


@pytest.mark.slow
def test_a_copied_experiment_composes_with_what_it_builds_on(transfer, pretrained):
    transfer("init", "configs", "--from", "experiment=sample/frozen")

    ended = transfer("plan", "finetune", "--config-dir", "configs",
                     "experiment=sample/my_frozen", f"init_from={pretrained}").ok()  # fmt: skip

    assert "head.class: " in ended.out


def test_a_copied_edit_can_be_chosen(transfer, pretrained):
    out = transfer("init", "configs", "--from", "adaptation/edits=lora").out
    assert "'adaptation/edits=[my_lora]'" in out

    transfer("plan", "finetune", "--config-dir", "configs", "experiment=sample/finetune",
             "adaptation=lora", "adaptation/edits=[my_lora]",
             "adaptation.edits.my_lora.rank=3", f"init_from={pretrained}").ok()  # fmt: skip


def test_torch_is_not_imported(tmp_path):
    program = (
        "import sys; from transfer_cli.cli import main; code = main(['init', sys.argv[1]]); "
        "sys.exit(code or ('torch' in sys.modules and 'torch was imported'))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "configs"], capture_output=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_an_empty_folder_is_filled(transfer, tmp_path):
    (tmp_path / "configs").mkdir(mode=0o755)

    transfer("init", "configs").ok()
    assert (tmp_path / "configs" / "model" / "mine.yaml").is_file()
    assert not [path for path in (tmp_path / "configs").iterdir() if path.name.startswith(".")]


def test_the_folder_that_one_stands_in_can_be_it(transfer, tmp_path):
    transfer("init", ".").ok()
    assert (tmp_path / "model" / "mine.yaml").is_file()
    assert transfer("presets", "model", "--config-dir", ".").out.count("begun as") == 1


@pytest.mark.parametrize("is_there", [False, True])
def test_what_ends_in_the_middle_leaves_nothing_half_written(
    transfer, tmp_path, monkeypatch, is_there
):
    if is_there:
        (tmp_path / "configs").mkdir()
    files = init_module._file_texts

    def and_one_that_cannot_be(*given):
        # A name that no disk takes, last.
        return {**files(*given), init_module.Path("x" * 300): ""}

    monkeypatch.setattr(init_module, "_file_texts", and_one_that_cannot_be)

    ended = transfer("init", "configs")

    assert ended.code == 2
    assert ended.err.startswith("transfer init: configs cannot be written: File name too long. ")
    assert [path.name for path in tmp_path.rglob("*")] == (["configs"] if is_there else [])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_cannot_be_written_is_one_line(transfer, tmp_path):
    tmp_path.chmod(0o500)
    try:
        ended = transfer("init", "configs")
    finally:
        tmp_path.chmod(0o700)

    assert ended.err == "transfer init: configs: Permission denied\n"
