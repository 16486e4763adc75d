from pathlib import Path

import pytest

from transfer_cli.config.flags import parse, quoted
from transfer_cli.config.variables import check_variables
from transfer_cli.errors import ConfigError


def test_overrides_keep_their_order_around_flags():
    request = parse(["a=1", "-m", "b=2", "--config-dir", "own", "c=3"])

    assert request.overrides == ("a=1", "b=2", "c=3")
    assert request.multirun
    assert request.config_dir == Path("own")


def test_what_is_to_be_shown_is_named():
    request = parse(["--cfg", "job", "--resolve", "--package", "loop"])

    assert (request.shows, request.resolve, request.package) == ("config", True, "loop")
    assert parse(["--info"]).shows == parse(["--info", "defaults"]).shows == "defaults"


def test_plugins_may_be_named_more_than_once():
    assert parse(["--plugin", "one", "--plugin=two"]).plugins == ("one", "two")


def test_the_last_value_of_a_key_counts():
    request = parse(["run.dir=a", "run.dir=b", "run.director=c"])

    assert request.value_of("run.dir") == "b"
    assert request.value_of("run") is None


def test_whether_a_resume_is_strict_is_typed_below_resume():
    words = parse(["resume.strict=true", "resume=run"]).overrides

    assert words == ("resume_strict=true", "resume=run")


@pytest.mark.parametrize("word", ["hydra.mode=MULTIRUN", "+hydra.mode=RunMode.MULTIRUN"])
def test_hydras_own_mode_makes_a_sweep_as_our_flag_does(word):
    assert parse([word]).multirun
    assert not parse(["hydra.mode=RUN"]).multirun


@pytest.mark.parametrize("override", ["a=b=c", "a='b=c'", 'a="b=c"'])
def test_a_value_is_quoted_for_the_shell(override):
    assert quoted(override) == """'a="b=c"'"""


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
