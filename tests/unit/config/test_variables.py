import pytest

from transfer_cli.config.variables import check_variables
from transfer_cli.errors import ConfigError

TORCHRUN = {
    "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
    "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
}  # fmt: skip


SLURM = {name: value for name, value in TORCHRUN.items() if name != "LOCAL_WORLD_SIZE"}


@pytest.mark.parametrize(
    "variables", [{}, TORCHRUN, SLURM, {"OMP_NUM_THREADS": "4,2"}, {"RANK": "7"}]
)
def test_what_launchers_set_is_taken(variables):
    check_variables(variables)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in TORCHRUN if name != "MASTER_ADDR" for value in ("x", "-1", "")),
        ("RANK", "2"), ("LOCAL_RANK", "2"), ("WORLD_SIZE", "0"), ("WORLD_SIZE", "1" + 30 * "0"),
        ("MASTER_PORT", "0"), ("MASTER_PORT", "65536"), ("OMP_NUM_THREADS", "abc"),
        ("OMP_NUM_THREADS", "0"), ("OMP_NUM_THREADS", "2,x"), ("OMP_NUM_THREADS", "100000"),
        ("MKL_NUM_THREADS", "2.5"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"^{name}: "):
        check_variables({**TORCHRUN, name: value})


def test_a_number_that_is_none_is_refused_without_the_others():
    with pytest.raises(ConfigError, match=r"^RANK: 'x' in the environment is no number"):
        check_variables({"RANK": "x"})
