"""Data sets of the hub by name: found, fetched once, and used without a network."""

import io
import json
import sys

import pytest

from tests.hub import serving
from transfer_cli.data.hub_client import located
from transfer_cli.data.text import TextFiles
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.tasks.multilabel import LabelsTable
from transfer_cli.tasks.table import HubTable

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
constants = pytest.importorskip("huggingface_hub.constants")

CLASS = {"names": ["bad", "good"], "_type": "ClassLabel"}


def table(rows, **features):
    """Return a Parquet file as the hub makes them: labels are numbers, their names are beside."""
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    made = pyarrow.table(columns)
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    out = io.BytesIO()
    parquet.write_table(made.replace_schema_metadata(metadata), out)
    return out.getvalue()


def reviews(first, last):
    return table(
        [{"review": {"body": f"this is text number {n}"}, "label": n % 2}
         for n in range(first, last)], label=CLASS)  # fmt: skip


TAGS = table(
    [{"text": f"this is text number {n}", "tags": [[0], [0, 1], []][n % 3]} for n in range(60)],
    tags={"feature": CLASS, "_type": "List"},
)
REPOSITORIES = {
    "acme/reviews": {
        "default/train/0000.parquet": reviews(0, 30),
        "default/train/0001.parquet": reviews(30, 60),
        "default/test/0000.parquet": reviews(60, 70),
    },
    "acme/many": {f"{name}/train/0000.parquet": TAGS for name in ("tags", "topics")},
}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Point the client at a hub on this machine; return what is fetched from it."""
    with serving(REPOSITORIES) as (address, fetched):
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
        yield fetched


def test_a_data_set_is_read_by_its_name_with_the_names_of_its_classes(hub, tmp_path):
    data = HubTable(name="acme/reviews", test="test", text="review.body").load(tmp_path, 0)

    assert data.labels == ("bad", "good")
    texts = {each.text for name in ("train", "validation") for each in data.splits[name]}
    assert texts == {f"this is text number {n}" for n in range(60)}
    assert [each.label for each in data.splits["test"]] == [0, 1] * 5


def test_only_the_splits_that_are_asked_for_are_fetched_and_only_once(hub, tmp_path):
    for _ in range(2):
        HubTable(name="acme/reviews", text="review.body").load(tmp_path, 0)

    assert sorted(hub) == ["default/train/0000.parquet", "default/train/0001.parquet"]


def test_what_is_in_the_cache_needs_no_network(hub, tmp_path, monkeypatch):
    before = HubTable(name="acme/reviews", text="review.body").load(tmp_path, 0)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    after = HubTable(name="acme/reviews", text="review.body").load(tmp_path, 0)

    assert after.splits == before.splits
    with pytest.raises(DataError, match="there is no split 'test', but train"):
        located("hf:acme/reviews/test")
    with pytest.raises(DataError, match="acme/many is not in the cache, and its server cannot be"):
        located("hf:acme/many/tags/train")


def test_other_tasks_and_texts_take_splits_of_the_hub_as_files(hub, tmp_path):
    labels = LabelsTable(train="hf:acme/many/tags/train").load(tmp_path, 0)
    text = TextFiles(train="hf:acme/reviews/train", field="review.body", validation_share=0.2)

    assert labels.labels == ("bad", "good")
    assert {each.label for each in labels.splits["train"]} == {(0,), (0, 1), ()}
    lines = [line for split in text.splits(tmp_path, 0).values() for line in split.lines()]
    assert sorted(lines) == sorted(f"this is text number {n}" for n in range(60))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("hf:acme/many/train", r"it has the configs tags, topics; name one \(data=hub"),
        ("hf:acme/many/tag/train", "no config 'tag', but tags, topics. Did you mean 'tags'"),
        ("hf:acme/reviews/trian", "no split 'trian', but test, train. Did you mean 'train'"),
        ("hf:acme/nothing/train", "there is no data set 'acme/nothing', or it is private"),
        ("hf:acme/reviews", "expected hf:owner/name/split or"),
        ("hf:a b/c/train", "'a b/c' is no name of a data set; expected owner/name"),
    ],
)
def test_what_is_not_there_is_said_in_a_line(hub, given, said):
    with pytest.raises(DataError, match=said) as caught:
        located(given)

    assert "\n" not in str(caught.value)
    assert hub == []


def test_without_the_client_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    with pytest.raises(ConfigError, match="needs the package huggingface_hub; install it with pip"):
        located("hf:acme/reviews/train")
