"""What `init`, `info` and `presets` list and copy."""

import itertools
import json
import re
from pathlib import Path

import pytest
import yaml

from transfer_cli.commands.info import info
from transfer_cli.commands.presets import chosen_by, copy, presets
from transfer_cli.config.describe import Option, description, options

EVERY = {f"{option.group}={option.name}": option for option in options()}


@pytest.mark.parametrize("option", EVERY.values(), ids=EVERY)
def test_a_copy_holds_the_values_of_its_original(option):
    inside, text = copy(option, "mine", Path("configs"))

    assert inside == Path(option.group) / "mine.yaml"
    assert yaml.safe_load(text) == yaml.safe_load(option.file.read_text())


@pytest.mark.parametrize("option", EVERY.values(), ids=EVERY)
def test_a_copy_keeps_every_comment_of_its_original(option):
    _, text = copy(option, "mine", Path("configs"))

    flat = " ".join(re.sub(r"^ *#", "", text, flags=re.MULTILINE).split())
    for line in option.file.read_text().splitlines():
        _, _, comment = line.partition("# ")
        if comment and not comment.startswith("@package"):
            assert " ".join(comment.split()) in flat


def test_every_line_of_every_copy_is_explained():
    bare = []
    for source, option in EVERY.items():
        if option.group == "model" and option.name != "base":
            continue  # `base`, which they extend, explains every key
        lines = copy(option, "mine", Path("configs"))[1].splitlines()
        for above, line in itertools.pairwise(lines):
            said = " # " in line or above.lstrip().startswith("# ") or line.startswith("# ")
            if line.strip() and not said:
                bare.append(f"{source}: {line.strip()}")

    assert [line for line in bare if not line.startswith("sweep=schemes: adapters,")] == []


def test_a_copy_says_what_other_files_say_of_a_line():
    text = copy(EVERY["adaptation=dora"], "mine", Path("configs"))[1]

    assert EVERY["adaptation=lora"].line in text
    assert EVERY["adaptation/edits=dora"].line in text
    text = copy(EVERY["experiment=sample/pretrain"], "mine", Path("configs"))[1]
    assert "steps: 400                     # optimizer steps. Wins over `epochs`" in text


@pytest.mark.parametrize("option", EVERY.values(), ids=EVERY)
def test_no_comment_of_ours_makes_a_line_longer_than_a_screen(option):
    _, text = copy(option, "mine", Path("configs"))

    longest = max(map(len, option.file.read_text().splitlines()))
    assert max(map(len, text.splitlines())) <= max(100, longest)


def test_the_first_line_is_the_description(tmp_path):
    for source in ("model=tiny", "experiment=sample/finetune", "adaptation/edits=lora"):
        file = tmp_path / "copy.yaml"
        file.write_text(copy(EVERY[source], "mine", Path("configs"))[1])

        assert description(file) == f"Mine, begun as {source}"


def test_a_part_that_lies_under_its_own_name_gets_the_new_one():
    option = EVERY["adaptation/edits=lora"]

    _, text = copy(option, "my_lora", Path("configs"))

    assert text.startswith("# @package adaptation.edits.my_lora\n")
    assert chosen_by(option, "my_lora") == "'adaptation/edits=[my_lora]'"


def test_a_folder_with_a_strange_name_breaks_no_comment(tmp_path):
    file = tmp_path / "tiny.yaml"
    file.write_text("# It\nwidth: 1\n")
    option = Option("model", "tiny", "It", file)

    _, text = copy(option, "mine", Path("a\nwidth: 2\x1b[2J\u2028b"))

    assert yaml.safe_load(text) == {"width": 1}
    assert "\x1b" not in text


@pytest.fixture
def facts(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRANSFER_DATA", str(tmp_path))
    monkeypatch.delenv("TRANSFER_CACHE", raising=False)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "tokens").write_bytes(b"x" * 2048)
    info(["--json"])
    return json.loads(capsys.readouterr().out)


def test_versions_are_listed(facts):
    assert facts["versions"]["torch"].startswith("2.")
    assert facts["versions"]["hydra-core"].startswith("1.3.")


def test_caches_are_listed_with_their_sizes(facts, tmp_path):
    folders = {folder["name"]: folder for folder in facts["folders"]}

    assert folders["cache"]["path"] == str(tmp_path / "cache")
    assert folders["cache"]["size_bytes"] == 2048


def test_people_get_lines(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFER_DATA", str(tmp_path / "nothing"))

    info([])

    out = capsys.readouterr().out
    assert "torch" in out
    assert "not there yet" in out


def test_every_option_is_listed_with_its_line(capsys):
    presets([])

    out = capsys.readouterr().out
    for option in options():
        assert option.line in out


def test_groups_can_be_named(capsys):
    presets(["adaptation"])

    out = capsys.readouterr().out
    assert "adaptation=" in out
    assert "adaptation/plan=" in out
    assert "optimizer=" not in out


def test_a_program_can_read_the_list(capsys):
    presets(["--json"])

    records = json.loads(capsys.readouterr().out)
    assert len(records) == len(options())
    base = next(each for each in records if (each["group"], each["option"]) == ("model", "base"))
    assert base["origin"] == "packaged"
    assert base["target"] == "transfer_cli.model.backbone.BackboneShape"


def test_own_options_say_where_they_lie(capsys, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("# My own\nwidth: 1\n")
    (tmp_path / "model" / "tiny.yaml").write_text("# Hidden by ours\nwidth: 1\n")

    presets(["model", "--config-dir", str(tmp_path)])

    out = capsys.readouterr().out
    assert f"My own  ({tmp_path}/model/mine.yaml)" in out
    assert "not used: a packaged option has this name" in out
