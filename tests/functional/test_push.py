"""`transfer push`: what goes to the hub, and what is refused, against a hub on this machine."""

import base64
import errno
import json
import shutil
from pathlib import Path
from tempfile import gettempdir

import pytest
import yaml

from tests import hub

constants = pytest.importorskip("huggingface_hub.constants")


@pytest.fixture
def repositories(monkeypatch):
    """Return what is on a hub that this process knows, name -> visibility and commits."""
    there = {}
    with hub.serving(there, hub.Upload) as (address, _):
        known = {"ENDPOINT": address, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}
        for name, value in known.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", hub.BEARER)
        yield there


@pytest.fixture
def left():
    """Return how to list what commands left in the folder for temporary files."""
    return lambda: [path for path in Path(gettempdir()).glob("transfer-*") if path.is_dir()]


def pushed(repository):
    """Return the files of the only commit, those of LFS by None."""
    (commit,) = repository["commits"]
    files = {}
    for line in commit:
        value = line["value"]
        if line["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"]).decode()
        elif line["key"] == "lfsFile":
            files[value["path"]] = None
    return files


def test_a_run_is_pushed_in_one_commit_with_its_measures(
    transfer, finetuned, repositories, read_json, left
):
    before = left()

    ended = transfer("push", finetuned, "owner/mine").ok()

    assert repositories["owner/mine"]["private"]
    files = pushed(repositories["owner/mine"])
    assert {"README.md", "config.json", "tokenizer.json", "model.safetensors"} <= set(files)
    assert files["model.safetensors"] is None
    head = yaml.safe_load(files["README.md"].split("---\n")[1])
    (entry,) = head["model-index"]
    measures = read_json(finetuned / "results.json")["measures"]
    told = {
        (result["dataset"]["split"], metric["type"]): metric["value"]
        for result in entry["results"]
        for metric in result["metrics"]
    }
    for split in ("validation", "test"):
        assert told[split, "error_rate"] == measures[split]["error_rate"]
    assert not any("/" in name for _, name in told)
    assert 'model="owner/mine"' in files["README.md"]
    assert "/owner/mine/commit/1" in ended.out
    assert left() == before


def test_the_index_is_read_by_the_hubs_own_client(transfer, finetuned, repositories):
    from huggingface_hub import ModelCard

    transfer("push", finetuned, "owner/mine", "private=false").ok()

    card = ModelCard(pushed(repositories["owner/mine"])["README.md"])
    assert {result.dataset_split for result in card.data.eval_results} == {"validation", "test"}
    assert not repositories["owner/mine"]["private"]


def test_what_would_go_is_shown_and_nothing_is_sent(transfer, finetuned, repositories, left):
    before = left()

    for words in (["--dry"], ["--dry-run"], ["dry=true"]):
        ended = transfer("push", finetuned, "owner/mine", *words).ok()

    assert repositories == {}
    assert "owner/mine, private" in ended.out
    assert "model.safetensors" in ended.out
    assert "model-index:" in ended.out
    assert left() == before


def test_a_folder_that_export_wrote_goes_as_it_is(transfer, finetuned, repositories):
    transfer("export", finetuned, "made").ok()
    card = Path("made/README.md")
    card.write_text(card.read_text().replace("license: other   # fill in", "license: mit"))

    transfer("push", "made", "owner/mine").ok()

    files = pushed(repositories["owner/mine"])
    assert files["README.md"] == card.read_text()
    assert set(files) == {path.name for path in Path("made").iterdir()}


def test_a_run_that_learnt_nothing_is_pushed_with_a_warning(
    transfer, finetuned, repositories, read_json
):
    run = Path(shutil.copytree(finetuned, "run"))
    results = {**read_json(run / "results.json"), "failed": "it says the same of every text"}
    (run / "results.json").write_text(json.dumps(results))

    ended = transfer("push", run, "owner/mine").ok()

    assert "it says the same of every text" in ended.err
    assert pushed(repositories["owner/mine"])


def test_a_public_repository_is_not_taken_for_a_private_one(transfer, finetuned, repositories):
    repositories["owner/mine"] = {"private": False, "commits": []}

    transfer("push", finetuned, "owner/mine").refusal("private: ", "private=false")
    assert repositories["owner/mine"]["commits"] == []
    transfer("push", finetuned, "owner/mine", "private=false").ok()
    assert pushed(repositories["owner/mine"])


@pytest.mark.parametrize(
    ("words", "token", "parts"),
    [
        (["{run}", "owner/mine"], "hf_wrong", ["repository: ", "HF_TOKEN"]),
        (["{run}", "other/mine"], hub.BEARER, ["repository: other/mine", "right to write"]),
        (["{run}", "mine"], hub.BEARER, ["repository: 'mine'", "owner/name"]),
        (["{run}", "owner/a/b"], hub.BEARER, ["repository: ", "owner/name"]),
        (["{run}", "owner/--"], hub.BEARER, ["repository: ", "owner/name"]),
        (["nope", "owner/mine"], hub.BEARER, ["run: ", "nope"]),
        (["{masked}", "owner/mine"], hub.BEARER, ["run: ", "format=onnx", "`transfer export`"]),
        (["empty", "owner/mine"], hub.BEARER, ["run: empty"]),
        (["{run}"], hub.BEARER, ["repository: "]),
    ],
)
def test_what_cannot_be_pushed_is_one_line_and_leaves_nothing(
    transfer, finetuned, masked, repositories, monkeypatch, left, words, token, parts
):
    monkeypatch.setenv("HF_TOKEN", token)
    Path("empty").mkdir()
    before = left()

    transfer("push", *(word.format(run=finetuned, masked=masked) for word in words)).refusal(*parts)

    assert repositories == {}
    assert left() == before


def test_what_goes_wrong_here_is_no_fault_of_the_hub(
    transfer, finetuned, repositories, monkeypatch, left
):
    def export(config):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("transfer_cli.commands.export.export.export", export)
    before = left()

    ended = transfer("push", finetuned, "owner/mine")

    assert (ended.code, "owner/mine" in ended.err) == (2, False)
    assert repositories == {}
    assert left() == before


@pytest.mark.parametrize("offline", [True, False])
def test_without_a_network_it_is_one_line(transfer, finetuned, monkeypatch, offline):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setenv("HF_TOKEN", hub.BEARER)

    transfer("push", finetuned, "owner/mine").refusal("repository: owner/mine")
