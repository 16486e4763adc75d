#!/usr/bin/env bash
# Fill a folder with the wheels that the project needs where no index can be reached.
#
#   scripts/gpu/wheels.sh FOLDER [PYTHON]     the other machine's Python, such as 3.12 (the default)
#   python -m pip install --no-index --no-deps FOLDER/*.whl                  # on the other machine
#
# Torch and numpy have to be there already; name packages in SKIP that are there as well.
set -euo pipefail
folder=${1:?name a folder}
python=${2:-3.12}
here=$(cd "$(dirname "$0")/../.." && pwd)
names=(pytorch-ignite hydra-core omegaconf antlr4-python3-runtime PyYAML tokenizers tensorboard
  safetensors tqdm zstandard rich jinja2 pytest pytest-timeout hypothesis)
# What those need of others.
names+=(packaging typing-extensions iniconfig pluggy pygments sortedcontainers markdown-it-py mdurl
  markupsafe werkzeug protobuf absl-py markdown tensorboard-data-server huggingface-hub)
mkdir -p "$folder"
platforms=()
for glibc in 28 27 24 17; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
platforms+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64 --platform any)
for name in "${names[@]}"; do
  [[ " ${SKIP:-} " == *" $name "* ]] && continue
  if [[ $name == antlr4-python3-runtime ]]; then # comes as source alone, and is pure Python
    python3 -m pip wheel --quiet --no-deps -c "$here/constraints.txt" -w "$folder" "$name"
  else
    python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version "$python" \
      --implementation cp "${platforms[@]}" -c "$here/constraints.txt" -d "$folder" "$name"
  fi
done
du -sh "$folder"
