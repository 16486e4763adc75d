#!/usr/bin/env bash
# Build the image of the Dockerfile and try it: scripts/image.sh [ARGUMENTS OF docker build]
# The demo runs in it offline and as a user without a name, then a run is read from a mounted folder.
# ENGINE=podman takes another engine; RUN_OPTIONS are given to each `run`.
set -euo pipefail
project=$(cd "$(dirname "$0")/.." && pwd)
engine=${ENGINE:-docker}
"$engine" info > /dev/null || { echo "$engine does not answer; ENGINE=podman tries another" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
say() { printf '== %s\n' "$*"; }
run() { "$engine" run --rm --network none ${RUN_OPTIONS:-} "$@"; }

say "the image"
"$engine" build --tag transfer "$@" "$project"

say "the demo, offline and as nobody"
run --user 4321:4321 --workdir /tmp --env DEMO_DIR=/tmp/runs --entrypoint bash \
  --volume "$project/scripts:/scripts:ro" transfer /scripts/demo.sh

say "a mounted folder: what is written there belongs to who runs it"
mine=(--user "$(id -u):$(id -g)" --volume "$folder:/work" transfer)
run "${mine[@]}" pretrain experiment=sample/pretrain loop.steps=20 run.dir=run
run "${mine[@]}" report run
[[ -O $folder/run/results.json ]]
"$engine" image inspect --format '== {{.Size}} bytes' transfer
