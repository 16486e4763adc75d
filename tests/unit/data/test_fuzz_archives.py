"""Whatever an archive holds, it is unpacked into its folder or refused, and nothing is left."""

import io
import struct
import tarfile
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import damaged, fuzz, memory_up_to
from transfer_cli.data import fetch
from transfer_cli.data.fetch import unpack
from transfer_cli.errors import DataError

MIB = 2**20
KINDS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA]
MODES = ["w", "w:gz", "w:xz"]


def zipped(packing: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", packing) as archive:
        archive.writestr("a/b.txt", "hello " * 50)
        archive.writestr("c/", "")
        archive.writestr("d.txt", b"x" * 1000)
    return stream.getvalue()


def tarred(mode: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        member = tarfile.TarInfo("a/" + "long" * 60 + "ü")
        member.size = 300
        archive.addfile(member, io.BytesIO(b"y" * 300))
        archive.addfile(tarfile.TarInfo("d"))
    return stream.getvalue()


whole = st.sampled_from([zipped(kind) for kind in KINDS] + [tarred(m) for m in MODES])


def refusal(path, folder) -> str:
    folder.mkdir()
    with pytest.raises(DataError) as caught:
        unpack(path, folder)
    assert list(folder.iterdir()) == []
    return str(caught.value)


@fuzz(300)
@given(content=whole.flatmap(damaged))
def test_fuzz_archives(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "inner").mkdir()
    (folder / "archive").write_bytes(content)
    try:
        paths = unpack(folder / "archive", folder / "inner")
    except DataError:
        paths = []
    assert {path.name for path in folder.iterdir()} == {"inner", "archive"}
    assert all(path.is_relative_to(folder / "inner") for path in paths)
    assert not [path for path in (folder / "inner").rglob("*") if path.is_symlink()]


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_that_unpacks_to_far_more_than_its_size_is_refused(tmp_path, kind):
    path = tmp_path / "archive"
    content = bytes(32 * MIB)
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("bomb", content)
    else:
        member = tarfile.TarInfo("bomb")
        member.size = len(content)
        with tarfile.open(path, "w:gz") as archive:
            archive.addfile(member, io.BytesIO(content))
    del content

    with memory_up_to(8 * MIB):
        message = refusal(path, tmp_path / "inner")

    assert message == f"{path} unpacks to more than 100 times its size; refused."


def test_an_archive_that_says_less_than_it_unpacks_to_is_refused(tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", bytes(MIB))
    content = stream.getvalue().replace(struct.pack("<I", MIB), struct.pack("<I", 10))
    (tmp_path / "archive").write_bytes(content)

    assert "cannot be unpacked" in refusal(tmp_path / "archive", tmp_path / "inner")


def test_an_archive_of_very_many_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "MAX_MEMBERS", 20)
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        for number in range(21):
            archive.writestr(str(number), "")

    assert "holds more than 20 files" in refusal(tmp_path / "archive", tmp_path / "inner")


def test_a_name_that_does_not_fit_into_memory_is_refused(tmp_path):
    member = tarfile.TarInfo("x" * (2 * fetch.MAX_HEADER_BYTES))
    with tarfile.open(tmp_path / "archive", "w:gz") as archive:
        archive.addfile(member)

    with memory_up_to(2 * MIB):
        message = refusal(tmp_path / "archive", tmp_path / "inner")

    assert "a header that is too long" in message


@pytest.mark.parametrize("names", [["a", "a"], ["a", "a/b"], ["x" * 300], ["a/" * 3000 + "b"]])
def test_names_that_cannot_all_be_files_are_refused(tmp_path, names):
    with tarfile.open(tmp_path / "archive", "w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))

    assert refusal(tmp_path / "archive", tmp_path / "inner")


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.GNUTYPE_SPARSE])
def test_a_device_in_an_archive_is_refused(tmp_path, kind):
    member = tarfile.TarInfo("member")
    member.type = kind
    with tarfile.open(tmp_path / "archive", "w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(member)

    assert refusal(tmp_path / "archive", tmp_path / "inner")
