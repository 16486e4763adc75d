from pathlib import Path

import pytest

from transfer_cli.config.flags import parse, quoted


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
