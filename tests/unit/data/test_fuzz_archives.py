"""Whatever an archive holds, it is unpacked into its folder or refused, and nothing is left."""

import io
import stat
import struct
import warnings
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


def zipped(packing: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", packing) as archive:
        archive.writestr("a/b.txt", "hello " * 50)
        archive.writestr("c/", "")
        archive.writestr("d.txt", b"x" * 1000)
    return stream.getvalue()


whole = st.sampled_from([zipped(kind) for kind in KINDS])


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


def test_an_archive_that_unpacks_to_far_more_than_its_size_is_refused(tmp_path):
    path = tmp_path / "archive"
    content = bytes(32 * MIB)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", content)
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


@pytest.mark.parametrize("names", [["a", "a"], ["a", "a/b"], ["x" * 300], ["a/" * 3000 + "b"]])
def test_names_that_cannot_all_be_files_are_refused(tmp_path, names):
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a name that comes twice
        for name in names:
            archive.writestr(name, "")

    assert refusal(tmp_path / "archive", tmp_path / "inner")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO])
def test_a_link_or_device_in_an_archive_is_refused(tmp_path, kind):
    member = zipfile.ZipInfo("member")
    member.external_attr = kind << 16
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        archive.writestr(member, "")

    assert "link or special file" in refusal(tmp_path / "archive", tmp_path / "inner")
