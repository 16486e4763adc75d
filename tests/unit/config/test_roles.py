import dataclasses

import pytest

from transfer_cli.config.roles import LEARNS, ROLES, Role, role_of
from transfer_cli.config.schema import FinetuneConfig, PretrainConfig


def keys_of(kind, above=""):
    """Yield the full key of every value of a config."""
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(field.type):
            yield from keys_of(field.type, f"{above}{field.name}.")
        else:
            yield f"{above}{field.name}"


def with_role(role):
    return {key for key in ROLES if role in role_of(key)}


def test_every_key_of_a_run_has_a_role_and_no_other_has():
    keys = {*keys_of(PretrainConfig), *keys_of(FinetuneConfig)}

    assert [key for key in sorted(keys) if not {key, key.partition(".")[0]} & ROLES.keys()] == []
    others = [role for role in ROLES if not any(f"{k}.".startswith(f"{role}.") for k in keys)]
    assert others == ["data.workers"]  # of a part, whose keys its class decides


def test_a_key_below_another_has_its_role():
    assert role_of("sweep.trials") == Role.OTHERS
    assert role_of("loop.log_every") == Role.HYPERPARAMETER | Role.EXTENDS


@pytest.mark.parametrize("key", ["model.width", "streams.a.batch", "own", "own.below", "run"])
def test_what_is_not_known_may_change_what_a_run_learns(key):
    assert role_of(key) == LEARNS


def test_what_a_resume_changes_names_no_run_and_is_no_other_commands():
    assert not with_role(Role.EXTENDS) & with_role(Role.NAMES_RUN)
    assert not with_role(Role.EXTENDS) & with_role(Role.OTHERS)
    assert with_role(Role.NAMES_RUN) == {
        "resume", "run.dir", "run.root", "data_changed", "resume_strict"
    }  # fmt: skip
