import re

import pytest

from transfer_cli.config import commands
from transfer_cli.config.describe import OWN, command_help, description, key_help, options
from transfer_cli.config.flags import Request

COMPOSING = [name for name, command in commands.ALL.items() if command.composes]


@pytest.fixture
def own(tmp_path):
    folder = tmp_path / "own"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "huge.yaml").write_text("# Too large for you\nwidth: 9\n")
    (folder / "model" / "tiny.yaml").write_text("# Smaller than ours\nwidth: 1\n")
    return folder


def help_of(name, **request):
    return str(command_help(name, commands.ALL[name], Request(**request)))


def test_the_description_is_the_first_comment_that_is_no_instruction(tmp_path):
    file = tmp_path / "option.yaml"
    file.write_text("# @package _global_\n#\n# What it is\nwidth: 1\n# later\n")

    assert description(file) == "What it is"


def test_a_file_without_a_comment_has_no_description(tmp_path):
    file = tmp_path / "option.yaml"
    file.write_text("width: 1\n# later\n")

    assert description(file) == ""


def test_own_options_are_listed_and_a_packaged_one_of_the_same_name_wins(own):
    found = {option.name: option for option in options(own) if option.origin == OWN}

    assert not found["huge"].shadowed
    assert found["tiny"].shadowed


@pytest.mark.parametrize("name", COMPOSING)
def test_the_help_names_every_option_that_makes_sense(name):
    command = commands.ALL[name]
    text = help_of(name)

    for option in options():
        if f"  {option.group}=" in text and not option.target.startswith(command.hidden or ("-",)):
            assert re.search(rf"^  [* ] {option.name}\b", text, re.MULTILINE), option


@pytest.mark.parametrize("name", COMPOSING)
def test_the_help_has_three_examples_and_a_meaning_for_every_key(name):
    command = commands.ALL[name]

    assert 3 <= len(command.examples) <= 4
    assert len(command.keys) <= 10
    assert all(key_help(name).get(key) for key in command.keys)


def test_the_help_hides_tasks_from_pretraining_and_texts_from_fine_tuning():
    assert "trec6 " not in help_of("pretrain")
    assert "wikitext103" not in help_of("finetune")


def test_the_help_marks_the_default_of_a_group():
    assert re.search(r"^  \* base\b", help_of("pretrain"), re.MULTILINE)


def test_the_help_lists_own_options(own):
    assert "Too large for you" in help_of("pretrain", config_dir=own)
    assert "Smaller than ours" not in help_of("pretrain", config_dir=own)


def test_the_help_shows_values_under_the_overrides_given():
    assert "loop.batch=7 " in help_of("pretrain", overrides=("loop.batch=7",))


def test_the_help_shows_in_spite_of_wrong_overrides():
    assert "transfer pretrain" in help_of("pretrain", overrides=("nonsense=1",))


@pytest.mark.parametrize("name", COMPOSING)
def test_the_help_fits_a_terminal(name):
    assert max(map(len, help_of(name).splitlines())) <= 100
