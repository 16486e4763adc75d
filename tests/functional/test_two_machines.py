"""Two machines: network namespaces with an address each, joined by a cable, and a shared disk."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.functional.conftest import LOOP, TINY
from tests.several import ROOT, torchrun

pytestmark = pytest.mark.multiprocess

# In a user namespace, whoever started it may make networks; `ip netns` keeps their names in /run.
CABLE = """
set -e
mount -t tmpfs none /run
printf '127.0.0.1 localhost\n10.73.0.1 one\n10.73.0.2 two\n' > /run/hosts
mount --bind /run/hosts /etc/hosts
ip link add one type veth peer name two
for machine in one two; do
    ip netns add $machine
    ip link set $machine netns $machine
    ip -n $machine link set lo up
done
ip -n one address add 10.73.0.1/24 dev one
ip -n two address add 10.73.0.2/24 dev two
ip -n one link set one up
ip -n two link set two up
"""

START = """
start() {
    machine=$1 number=$2
    shift 2
    GLOO_SOCKET_IFNAME=$machine ip netns exec $machine unshare --uts bash -c 'hostname $0; "$@"' \\
        $machine "$PYTHON" -m torch.distributed.run \\
        --nnodes 2 --node-rank $number --nproc-per-node 1 \\
        --rdzv-backend c10d --rdzv-endpoint one:29400 --rdzv-id test -m transfer_cli "$@"
}
start one 0 "$@" 2> one.txt & first=$!
start two 1 "$@" 2> two.txt & second=$!
set +e
"""

WORDS = (
    "pretrain", "data=sample_text", "data.length=32", *TINY, *LOOP, "checkpoint.every=5 steps",
    "timeout_minutes=0.5",
)  # fmt: skip

COMPARED = ("model/weights.safetensors", "metrics.jsonl", "results.json")


def in_namespaces(script, folder, *words):
    environment = {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--fork",
         "--kill-child", "bash", "-c", script, "-", *words],
        cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _rights(tmp_path_factory):
    for program in ("unshare", "ip"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no program {program!r} here")
    tried = in_namespaces(CABLE, tmp_path_factory.mktemp("rights"))
    if tried.returncode != 0:
        pytest.skip(f"no right to make networks here: {tried.stderr.strip()}")


@pytest.mark.slow
def test_two_machines_train_what_two_processes_train(tmp_path):
    words = (*WORDS, "loop.steps=12", "loop.evaluate_every=6 steps", "run.dir=run")
    for name in ("machines", "processes"):
        (tmp_path / name).mkdir()

    script = CABLE + START + "wait $first && wait $second"
    apart = in_namespaces(script, tmp_path / "machines", *words)
    assert apart.returncode == 0, (tmp_path / "machines" / "one.txt").read_text()
    together = torchrun(2, "-m", "transfer_cli", *words, cwd=tmp_path / "processes")
    assert together.returncode == 0, together.stderr

    for name in COMPARED:
        left, right = (tmp_path / folder / "run" / name for folder in ("machines", "processes"))
        assert left.read_bytes() == right.read_bytes(), name


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 1000], ids=["scoring", "training"])
def test_two_machines_that_are_cut_off_from_each_other_both_end(tmp_path, every):
    script = (
        CABLE
        + START
        + """
        while ! grep -qs '"step": 5,' run/metrics.jsonl; do sleep 0.1; done
        ip -n two link set two down
        wait $first
        while ! grep -q "process 0, over which" two.txt; do sleep 0.1; done
        exit 75
        """
    )

    words = (*WORDS, "loop.steps=100000", f"loop.evaluate_every={every} steps", "run.dir=run")
    ended = in_namespaces(script, tmp_path, *words)

    said = (tmp_path / "one.txt").read_text()
    assert ended.returncode == 75, said
    assert (
        "process 1 of 2 has not come within 30 s" in said
        or "process 1 of 2 cannot be reached from process 0" in said
    )
