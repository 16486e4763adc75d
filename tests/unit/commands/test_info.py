import json

import pytest

from transfer_cli.commands.info import info


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
