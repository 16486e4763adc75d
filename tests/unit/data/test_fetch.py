"""Fetching against a real server on this machine; the network is not used."""

import hashlib
import io
import json
import re
import resource
import socket
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.hub import serving
from transfer_cli.data import catalog
from transfer_cli.data import fetch as fetching
from transfer_cli.data.fetch import RemoteFile, fetch, fetch_member
from transfer_cli.data.folders import writable_folder
from transfer_cli.data.hub_client import resolve_path
from transfer_cli.data.text import TextFiles
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.tasks.multilabel import LabelsTable
from transfer_cli.tasks.table import HubTable

CONTENT = bytes(range(256)) * 4096


class Server(ThreadingHTTPServer):
    """Serves `content`, and breaks off as many answers as `break_offs` has entries."""

    def __init__(self, content=CONTENT, break_offs=(), ranges=True, announced=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = content
        self.break_offs = list(break_offs)
        self.ranges = ranges
        self.announced = announced
        self.requests = []

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}/file"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.requests.append(dict(self.headers))
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked and server.ranges else 0
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            end = len(server.content)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
        self.send_header("Content-Length", server.announced or str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.break_offs.pop(0)] if server.break_offs else body)

    def log_message(self, *args):
        pass


@contextmanager
def serve(**settings) -> Iterator[Server]:
    with Server(**settings) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def remote(*addresses, content=CONTENT, name="file.bin"):
    return RemoteFile(name, len(content), hashlib.sha256(content).hexdigest(), addresses)


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@contextmanager
def full_disk():
    """Let no file grow beyond half a megabyte."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def zip_of(**members):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as zipped:
        for name, content in members.items():
            zipped.writestr(name, content)
    return packed.getvalue()


def test_a_good_file_is_fetched_once(tmp_path):
    with serve() as server:
        path = fetch(remote(server.address), tmp_path)
        fetch(remote(server.address), tmp_path)

    assert path.read_bytes() == CONTENT
    assert visible(tmp_path) == ["file.bin"]
    assert len(server.requests) == 1
    assert server.requests[0]["User-Agent"].startswith("transfer-cli/")


@pytest.mark.parametrize("wrong", [CONTENT[:-1], CONTENT + b"x", b"y" + CONTENT[1:]])
def test_a_wrong_file_is_removed_and_the_next_address_tried(tmp_path, wrong):
    with serve(content=wrong) as bad, serve() as good:
        path = fetch(remote(bad.address, good.address), tmp_path)

    assert path.read_bytes() == CONTENT
    assert bad.requests


def test_only_wrong_files_leave_nothing_and_say_what_to_do(tmp_path):
    with serve(content=b"y" + CONTENT[1:]) as server, pytest.raises(DataError) as caught:
        fetch(remote(server.address), tmp_path)

    message = str(caught.value)
    assert visible(tmp_path) == []
    assert server.address in message
    assert hashlib.sha256(CONTENT).hexdigest() in message
    assert str(tmp_path / "file.bin") in message
    assert "\n" not in message


@pytest.mark.parametrize("announced", ["1" * 30, "7"])
def test_a_file_of_an_announced_size_that_cannot_be_is_refused(tmp_path, announced):
    with serve(announced=announced) as server, pytest.raises(DataError, match="not the right file"):
        fetch(remote(server.address), tmp_path)

    assert visible(tmp_path) == []


@pytest.mark.parametrize("announced", ["-1", "x", "\xb2", " ", "9" * 5000])
def test_an_announced_size_that_says_nothing_is_ignored(tmp_path, announced):
    with serve(announced=announced) as server:
        assert fetch(remote(server.address), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("begun", "break_offs", "ranges", "asked"),
    [
        (b"", [500_000], True, [None, "bytes=500000-"]),
        (b"", [500_000], False, [None, "bytes=500000-"]),
        (CONTENT[:700_000], [], True, ["bytes=700000-"]),
        (CONTENT, [], True, []),
        (CONTENT + b"extra", [], True, [None]),
        (b"<html>please log in</html>", [], True, ["bytes=26-", None]),
    ],
    ids=["broken off", "without ranges", "an earlier start", "whole", "longer", "wrong"],
)
def test_whatever_has_begun_is_resumed_and_ends_as_the_right_file(
    tmp_path, begun, break_offs, ranges, asked
):
    (tmp_path / "file.bin.part").write_bytes(begun)

    with serve(break_offs=break_offs, ranges=ranges) as server:
        path = fetch(remote(server.address), tmp_path)

    assert path.read_bytes() == CONTENT
    assert [request.get("Range") for request in server.requests] == asked


@pytest.mark.slow
def test_what_was_received_is_kept_when_no_address_goes_on(tmp_path):
    with serve(break_offs=[300_000, 0, 0, 0]) as server, pytest.raises(DataError, match="300,000"):
        fetch(remote(server.address), tmp_path)

    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:300_000]


def test_the_second_address_is_used_when_the_first_is_down(tmp_path):
    with serve() as down:
        pass
    with serve() as server:
        path = fetch(remote(down.address, server.address), tmp_path)

    assert path.read_bytes() == CONTENT


def test_a_silent_server_ends_in_a_time_out(tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        with pytest.raises(DataError, match="timed out"):
            fetch(remote(address), tmp_path)


def test_addresses_that_are_not_http_are_refused(tmp_path):
    (tmp_path / "secret").write_bytes(CONTENT)

    with pytest.raises(DataError, match="not an http"):
        fetch(remote((tmp_path / "secret").as_uri()), tmp_path)


REDIRECTS = (
    "ftp://localhost/file.bin", "FTP://localhost/file.bin", "file:///etc/hostname",
    "data:text/plain,hello", "gopher://localhost/", "//[", "file.bin", "\x1b[2J://x",
)  # fmt: skip


@pytest.mark.parametrize("hops", [1, 3])
@pytest.mark.parametrize("target", REDIRECTS)
def test_a_redirect_to_anything_but_http_is_not_followed(tmp_path, target, hops):
    targets = [*(f"/{n}" for n in range(1, hops)), target]

    with redirecting(targets) as address, pytest.raises(DataError, match="Cannot fetch") as caught:
        fetch(remote(f"{address}/0"), tmp_path)

    assert "\n" not in str(caught.value)
    assert not visible(tmp_path)


def test_a_redirect_to_http_is_followed_and_a_circle_ends_in_one_line(tmp_path):
    with serve() as server, redirecting(["/1", server.address]) as address:
        assert fetch(remote(f"{address}/0"), tmp_path).read_bytes() == CONTENT
    circle = ["/1", "/0"]
    with redirecting(circle) as address, pytest.raises(DataError, match="infinite loop") as caught:
        fetch(remote(f"{address}/0", name="other.bin"), tmp_path)
    assert "\n" not in str(caught.value)


@contextmanager
def redirecting(targets: list[str]) -> Iterator[str]:
    """Serve /0, which sends to the first target, /1, which sends to the second, and so on."""

    class Redirects(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", targets[int(self.path[1:])])
            self.end_headers()

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("localhost", 0), Redirects) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()


def test_a_wrong_file_put_there_by_hand_is_named_and_kept(tmp_path):
    (tmp_path / "file.bin").write_bytes(b"something else")

    with pytest.raises(DataError, match=r"file\.bin is not the file it should be.*14 bytes"):
        fetch(remote(), tmp_path)
    assert visible(tmp_path) == ["file.bin"]


def test_a_folder_that_cannot_be_made_is_an_error_of_the_user(tmp_path):
    (tmp_path / "taken").write_text("a file")

    with pytest.raises(DataError, match="Cannot write"):
        fetch(remote(), tmp_path / "taken" / "folder")


def test_a_full_disk_is_an_error_of_the_user_and_keeps_what_came(tmp_path):
    with serve() as server:
        with full_disk(), pytest.raises(DataError, match=r"Cannot write .* Make room"):
            fetch(remote(server.address), tmp_path)
        path = fetch(remote(server.address), tmp_path)

    assert path.read_bytes() == CONTENT
    assert "Range" in server.requests[-1]


def test_two_runs_at_once_fetch_once(tmp_path):
    with serve() as server:
        wanted = remote(server.address)
        threads = [threading.Thread(target=fetch, args=(wanted, tmp_path)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(server.requests) == 1
    assert visible(tmp_path) == ["file.bin"]


def test_a_file_of_an_archive_is_unpacked_beside_what_is_there(tmp_path):
    packed = zip_of(**{"set/": "", "set/train": "new", "set/test": "new"})
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "test").write_text("mine")

    with serve(content=packed) as server:
        archive = remote(server.address, content=packed, name="set.zip")
        paths = [fetch_member(archive, f"set/{name}", tmp_path) for name in ("train", "test")]

    assert [path.read_text() for path in paths] == ["new", "mine"]
    assert visible(tmp_path) == ["set", "set.zip"]
    assert visible(tmp_path / "set") == ["test", "train"]


@pytest.mark.parametrize("place", ["set.zip", "other.zip"])
@pytest.mark.parametrize("name", ["set/train", "../evil", "/etc/evil"])
def test_no_archive_but_the_known_one_is_unpacked(tmp_path, name, place):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / place).write_bytes(zip_of(**{name: "x", "set/train": "x"}))
    known = remote(content=zip_of(**{"set/train": "y"}), name="set.zip")

    with pytest.raises(DataError, match=f"{place} is not the file it should be"):
        fetch_member(known, "set/train", inner, None if place == known.name else inner / place)

    assert visible(inner) == [place]
    assert visible(tmp_path) == ["inner"]


def test_an_archive_that_cannot_be_unpacked_to_its_end_leaves_nothing(tmp_path):
    packed = zip_of(**{"set/train": "x" * 2_000_000})
    (tmp_path / "set.zip").write_bytes(packed)
    known = remote(content=packed, name="set.zip")

    with full_disk(), pytest.raises(DataError, match=r"Cannot write .* Make room"):
        fetch_member(known, "set/train", tmp_path)

    assert visible(tmp_path / "set") == []


def test_a_folder_without_write_bits_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFER_CACHE", str(tmp_path / "cache"))
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o555)

    assert writable_folder(shared) == tmp_path / "cache"
    assert writable_folder(shared / "new") == tmp_path / "cache"
    assert writable_folder(tmp_path / "new") == tmp_path / "new"


# ---------------------------------------------------------------------------------- catalog


@pytest.fixture
def named():
    packed = zip_of(**{f"wikitext-9/wiki.{name}.tokens": name for name in ("train", "valid")})
    archive = remote(content=packed, name="wikitext-9-v1.zip")
    return catalog.NamedText(archive, "wikitext-9", ".tokens"), packed


@pytest.mark.parametrize(
    "place",
    [
        "wikitext-9/train.txt", "wikitext-9/wiki.train.tokens",
        "wikitext-9-v1/wikitext-9/wiki.train.tokens", "wikitext-9-v1/wiki.train.tokens",
    ],
)  # fmt: skip
def test_a_file_is_found_under_any_of_its_names(tmp_path, named, place):
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text("text")

    assert catalog.find_text(named[0], "train", tmp_path) == path


def test_a_zip_that_lies_there_is_unpacked_into_the_cache_of_a_read_only_folder(
    tmp_path, named, monkeypatch
):
    monkeypatch.setenv("TRANSFER_CACHE", str(tmp_path / "cache"))
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "wikitext-9-v1.zip").write_bytes(named[1])
    shared.chmod(0o555)

    paths = [catalog.find_text(named[0], "train", shared) for _ in range(2)]

    assert paths == [tmp_path / "cache" / "wikitext-9" / "wiki.train.tokens"] * 2
    assert visible(shared) == ["wikitext-9-v1.zip"]


def test_the_first_articles_are_not_taken_for_the_training_set(tmp_path, named):
    folder = tmp_path / "wikitext-9"
    folder.mkdir()
    (folder / "wiki.train.first-articles.tokens").write_text("text")

    with pytest.raises(DataError, match=r"Cannot fetch wikitext-9-v1\.zip"):
        catalog.find_text(named[0], "train", tmp_path)


def test_every_known_file_has_addresses_that_end_with_its_name():
    files = [named.archive for named in catalog.WIKITEXT.values()] + list(catalog.TREC.values())

    assert len(files) == 6
    for file in files:
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
        assert len(file.addresses) > 1
        assert all(re.fullmatch(f"https://.*/{file.name}", address) for address in file.addresses)


# --- data sets of the hub ------------------------------------------------------------------------


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
    texts = {example.text for name in ("train", "validation") for example in data.splits[name]}
    assert texts == {f"this is text number {n}" for n in range(60)}
    assert [example.label for example in data.splits["test"]] == [0, 1] * 5
    several = HubTable(name="acme/reviews", test=["test"], text="review.body").load(tmp_path, 0)
    assert several.splits["test"] == data.splits["test"]


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
        resolve_path("hf:acme/reviews/test")
    with pytest.raises(DataError, match="acme/many is not in the cache, and its server cannot be"):
        resolve_path("hf:acme/many/tags/train")
    (resolve_path("hf:acme/reviews/train") / "0001.parquet").unlink()
    with pytest.raises(DataError, match="acme/reviews is not in the cache, and its server cannot"):
        resolve_path("hf:acme/reviews/train")


def test_other_tasks_and_texts_take_splits_of_the_hub_as_files(hub, tmp_path):
    labels = LabelsTable(train="hf:acme/many/tags/train").load(tmp_path, 0)
    text = TextFiles(train="hf:acme/reviews/train", field="review.body", validation_share=0.2)

    assert labels.labels == ("bad", "good")
    assert {example.label for example in labels.splits["train"]} == {(0,), (0, 1), ()}
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
        resolve_path(given)

    assert "\n" not in str(caught.value)
    assert hub == []


def test_without_the_client_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    with pytest.raises(ConfigError, match="needs the package huggingface_hub; install it with pip"):
        resolve_path("hf:acme/reviews/train")
