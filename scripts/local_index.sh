#!/usr/bin/env bash
# Install the package as from an index: scripts/local_index.sh [PYTHON]
# Builds an sdist, and of that a wheel; serves both, with what they need in the versions of
# constraints.txt, as an index of this machine; and takes them from there into empty environments,
# with pip and, where it is there, with uvx. Then runs the commands of the demo in an empty folder.
# PYTHON (python3) has the extra `test`; what it needs comes from pip's own index and folders.
set -euo pipefail
project=$(cd "$(dirname "$0")/.." && pwd)
python=${1:-python3}
python=$(command -v "$python") || { echo "there is no $python" >&2; exit 2; }
uvx=$(command -v "$(dirname "$python")/uvx" || command -v uvx || true)
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
say() { printf '== %s\n' "$*"; }

say "an sdist, and a wheel of it"
mkdir "$folder/source" "$folder/empty"
(cd "$project" && cp -r pyproject.toml setup.py MANIFEST.in ./*.md LICENSE constraints.txt conf docs \
  transfer_cli "$folder/source")
"$python" -m build --no-isolation --outdir "$folder/dist" "$folder/source" > "$folder/build.log" 2>&1 ||
  { tail -20 "$folder/build.log" >&2; exit 1; }

say "the index: a folder for each package"
"$python" -m pip wheel --quiet --constraint "$project/constraints.txt" \
  --wheel-dir "$folder/files" "$folder"/dist/*.whl
cp "$folder"/dist/*.tar.gz "$folder/files"
"$python" - "$folder" <<'PY'
import re
import sys
from pathlib import Path

folder = Path(sys.argv[1])
for file in (folder / "files").iterdir():
    name = file.name.rpartition("-")[0] if file.name.endswith(".tar.gz") else file.name.split("-")[0]
    place = folder / "simple" / re.sub(r"[-_.]+", "-", name).lower()
    place.mkdir(parents=True, exist_ok=True)
    file.rename(place / file.name)
PY
"$python" -u -m http.server --bind 127.0.0.1 --directory "$folder" 0 > "$folder/served.log" 2>&1 &
until address=$(grep -o -m 1 'http://[0-9.:]*' "$folder/served.log"); do sleep 0.1; done

# Nothing of this machine: no folder of wheels, no other index, no settings, no checkout.
alone() {
  (cd "$folder/empty" && env -i HOME="$folder/home" PATH="$folder/venv/bin:/usr/bin:/bin" \
    PIP_CONFIG_FILE=/dev/null PIP_INDEX_URL="$address/simple" PIP_DISABLE_PIP_VERSION_CHECK=1 \
    UV_DEFAULT_INDEX="$address/simple" UV_NO_CONFIG=1 UV_PYTHON_DOWNLOADS=never "$@")
}

say "pip install transfer-cli"
"$python" -m venv "$folder/venv"
alone pip install --quiet transfer-cli
alone transfer --version
alone python -m transfer_cli presets model
alone env DEMO_DIR=runs bash "$project/scripts/demo.sh"
if [[ -n $uvx ]]; then
  say "uvx --from transfer-cli transfer --version"
  alone "$uvx" --python "$python" --from transfer-cli transfer --version
fi
