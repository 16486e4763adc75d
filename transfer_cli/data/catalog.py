"""The data sets known by name: what their files are called, where they may be, where to get them.

A file found in `data_dir` is taken as it is: copies with another article order or line ends are
legitimate. Only a download has to match the published size and hash.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transfer_cli.data.fetch import RemoteFile, fetch, fetch_member
from transfer_cli.data.folders import home_cache, writable_folder

_SHORT_NAMES = {"train": "train", "validation": "valid", "test": "test"}
SPLITS = tuple(_SHORT_NAMES)

_WIKITEXT_ADDRESSES = (
    "https://wikitext.smerity.com/",
    "https://s3.amazonaws.com/research.metamind.io/wikitext/",
)
_WIKITEXT_FILES = {
    "103": (190_229_076, "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590"),
    "103-raw": (191_984_949, "91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794"),
    "2": (4_475_746, "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c"),
    "2-raw": (4_721_645, "ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11"),
}
_TREC_ADDRESSES = ("https://cogcomp.seas.upenn.edu/Data/QA/QC/", "https://cogcomp.org/Data/QA/QC/")
_TREC_FOLDERS = ("trec", "TREC", ".")


@dataclass(frozen=True)
class NamedText:
    """One form of a WikiText corpus: its zip file, the folder in it, the ending of its files."""

    archive: RemoteFile
    folder: str
    ending: str

    def member(self, split: str) -> str:
        """Return the name of a split's file in the archive."""
        return f"{self.folder}/wiki.{_SHORT_NAMES[split]}{self.ending}"

    def places(self, split: str) -> list[str]:
        """Return where a split's file may be under a data folder, likeliest first.

        Names are exact: a file that holds a part of the training set, as
        `wiki.train.first-articles.tokens`, is not the training set.
        """
        short = _SHORT_NAMES[split]
        unpacked_beside = Path(self.archive.name).stem
        folders = (self.folder, f"{unpacked_beside}/{self.folder}", unpacked_beside)
        names = (f"wiki.{short}{self.ending}", f"{short}.txt")
        return [f"{folder}/{name}" for folder in folders for name in names]


def _remote(name: str, size_bytes: int, sha256: str, folders: Sequence[str]) -> RemoteFile:
    return RemoteFile(name, size_bytes, sha256, tuple(folder + name for folder in folders))


WIKITEXT = {
    f"wikitext-{form}": NamedText(
        _remote(f"wikitext-{form}-v1.zip", size_bytes, sha256, _WIKITEXT_ADDRESSES),
        folder=f"wikitext-{form}",
        ending=".raw" if form.endswith("-raw") else ".tokens",
    )
    for form, (size_bytes, sha256) in _WIKITEXT_FILES.items()
}
"""Source: Merity et al. 2017. `-raw` has every word; the other form has `<unk>` for rare ones."""

TREC = {
    "train": _remote(
        "train_5500.label",
        335_858,
        "9e4c8bdcaffb96ed61041bd64b564183d52793a8e91d84fc3a8646885f466ec3",
        _TREC_ADDRESSES,
    ),
    "test": _remote(
        "TREC_10.label",
        23_354,
        "033f22c028c2bbba9ca682f68ffe204dc1aa6e1cf35dd6207f2d4ca67f0d0e8e",
        _TREC_ADDRESSES,
    ),
}
"""Source: Li and Roth 2002. There is no official validation set."""


def find_text(named: NamedText, split: str, data_dir: Path) -> Path:
    """Return a split's file: the one under `data_dir`, else from the archive.

    An archive in `data_dir` is unpacked, or else it is fetched. Unpacked files go into `data_dir`,
    or into the cache folder if that is read-only.
    """
    folder = writable_folder(data_dir)
    path = _first_file((data_dir, folder, home_cache()), named.places(split))
    if path is not None:
        return path
    local = _first_file((data_dir,), (named.archive.name, f"{named.folder}/{named.archive.name}"))
    return fetch_member(named.archive, named.member(split), folder, local)


def find_trec(split: str, data_dir: Path) -> Path:
    """Return the file of TREC questions of `split` (train or test), fetched if need be."""
    remote = TREC[split]
    folder = writable_folder(data_dir)
    places = [f"{place}/{remote.name}" for place in _TREC_FOLDERS]
    path = _first_file((data_dir, folder, home_cache()), places)
    return path or fetch(remote, folder / _TREC_FOLDERS[0])


def _first_file(folders: Sequence[Path], places: Sequence[str]) -> Path | None:
    candidates = (folder / place for folder in folders for place in places)
    return next((path for path in candidates if path.is_file()), None)
