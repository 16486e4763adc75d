"""Short names of published models."""

import re

import pytest

from transfer_cli.config.models import listed_models, place_of


@pytest.mark.parametrize("name", listed_models())
def test_a_short_name_stands_for_a_commit_of_the_hub(name):
    model = listed_models()[name]

    assert re.fullmatch(r"hf:[\w-]+/[\w.-]+@[0-9a-f]{40}", place_of(name))
    assert model.kind in ("encoder", "decoder")
    assert re.fullmatch(r"\d+(\.\d)?M", model.size)
    assert model.sha256 is None or re.fullmatch("[0-9a-f]{64}", model.sha256)
    # What is read back is text, also where YAML knows another word for it.
    assert all(isinstance(word, str) for word in (model.languages, model.licence))


def test_a_folder_of_the_same_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "minilm").mkdir()

    assert place_of("minilm") == "minilm"
    assert place_of("./gpt2") == "./gpt2"
    assert place_of("gpt2").startswith("hf:openai-community/gpt2@")
