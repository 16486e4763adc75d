"""The data sets known by name: what their files are called, where they may lie, where to get them.

A file found in `data_dir` is taken as it is: copies with another article order or line ends are
legitimate. Only what is fetched has to match the published size and hash.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transfer_cli.data.fetch import RemoteFile, fetch, fetch_archive
from transfer_cli.data.folders import home_cache, writable_folder

SPLITS = ("train", "validation", "test")

_SHORT_NAMES = {"train": "train", "validation": "valid", "test": "test"}

_WIKITEXT_ADDRESSES = (
    "https://wikitext.smerity.com/",
    "https://s3.amazonaws.com/research.metamind.io/wikitext/",
)
_TREC_ADDRESSES = (
    "https://cogcomp.seas.upenn.edu/Data/QA/QC/",
    "https://cogcomp.org/Data/QA/QC/",
)


@dataclass(frozen=True)
class NamedText:
    """One form of one WikiText corpus: its zip file, the folder in it, what its files end with."""

    archive: RemoteFile
    folder: str
    ending: str

    def member(self, split: str) -> str:
        """Return the name of a split's file in the archive."""
        return f"{self.folder}/wiki.{_SHORT_NAMES[split]}{self.ending}"

    def places(self, split: str) -> list[str]:
        """Return where a split's file may lie under a data folder, likeliest first.

        Names are exact: a file that holds a part of the training set, as
        `wiki.train.first-articles.tokens`, is not the training set.
        """
        short = _SHORT_NAMES[split]
        unpacked_beside = Path(self.archive.name).stem
        folders = (self.folder, f"{unpacked_beside}/{self.folder}", unpacked_beside)
        names = (f"wiki.{short}{self.ending}", f"{short}.txt")
        return [f"{folder}/{name}" for folder in folders for name in names]


def _wikitext(version: str, form: str, size_bytes: int, sha256: str) -> NamedText:
    name = f"wikitext-{version}{form}-v1.zip"
    addresses = tuple(address + name for address in _WIKITEXT_ADDRESSES)
    return NamedText(
        archive=RemoteFile(name, size_bytes, sha256, addresses),
        folder=f"wikitext-{version}{form}",
        ending=".raw" if form else ".tokens",
    )


WIKITEXT = {
    "wikitext-103": _wikitext(
        "103",
        "",
        190_229_076,
        "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
    ),
    "wikitext-103-raw": _wikitext(
        "103",
        "-raw",
        191_984_949,
        "91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794",
    ),
    "wikitext-2": _wikitext(
        "2",
        "",
        4_475_746,
        "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
    ),
    "wikitext-2-raw": _wikitext(
        "2",
        "-raw",
        4_721_645,
        "ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11",
    ),
}
"""Source: Merity et al. 2017. `-raw` has every word; the other form has `<unk>` for rare ones."""


def _trec(name: str, size_bytes: int, sha256: str) -> RemoteFile:
    addresses = tuple(address + name for address in _TREC_ADDRESSES)
    return RemoteFile(name, size_bytes, sha256, addresses)


TREC = {
    "train": _trec(
        "train_5500.label",
        335_858,
        "9e4c8bdcaffb96ed61041bd64b564183d52793a8e91d84fc3a8646885f466ec3",
    ),
    "test": _trec(
        "TREC_10.label",
        23_354,
        "033f22c028c2bbba9ca682f68ffe204dc1aa6e1cf35dd6207f2d4ca67f0d0e8e",
    ),
}
"""Source: Li and Roth 2002. There is no official validation set."""

_TREC_FOLDERS = ("trec", "TREC", ".")


def find_text(named: NamedText, split: str, data_dir: Path) -> Path:
    """Return a split's file: where it lies under `data_dir`, else from the archive.

    An archive that lies in `data_dir` is unpacked; otherwise it is fetched. What is unpacked goes
    into `data_dir`, or into the cache folder if that is read-only.
    """
    member = named.member(split)
    folder = writable_folder(data_dir)
    found = _first_file((data_dir, folder, home_cache()), named.places(split))
    if found is not None:
        return found
    local = _first_file((data_dir,), (named.archive.name, f"{named.folder}/{named.archive.name}"))
    fetch_archive(named.archive, folder, [member], local=local)
    return folder / member


def find_trec(split: str, data_dir: Path) -> Path:
    """Return the file of TREC questions of `split` (train or test), fetched if need be."""
    remote = TREC[split]
    folder = writable_folder(data_dir)
    places = [f"{place}/{remote.name}" for place in _TREC_FOLDERS]
    found = _first_file((data_dir, folder, home_cache()), places)
    return found or fetch(remote, folder / _TREC_FOLDERS[0])


def _first_file(folders: Sequence[Path], places: Sequence[str]) -> Path | None:
    candidates = (folder / place for folder in folders for place in places)
    return next((path for path in candidates if path.is_file()), None)
