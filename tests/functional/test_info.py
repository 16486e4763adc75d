"""`transfer info`: what it runs on and where it keeps things."""

import json
from importlib import metadata

import pytest
import torch

pytestmark = pytest.mark.functional


def test_programs_get_json(transfer, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("TRANSFER_CACHE", str(tmp_path / "cache"))

    ended = transfer("info", "--json")

    assert (ended.code, ended.err) == (0, "")
    found = json.loads(ended.out)
    assert found["versions"]["torch"] == metadata.version("torch")
    assert len(found["gpus"]) == torch.cuda.device_count()
    folders = {folder["name"]: folder["path"] for folder in found["folders"]}
    assert folders["data"] == str(tmp_path / "data")
    assert folders["cache"] == str(tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []


def test_people_get_lines(transfer):
    ended = transfer("info")

    assert (ended.code, ended.err) == (0, "")
    assert {"versions", "devices", "folders"} <= set(ended.out.splitlines())
