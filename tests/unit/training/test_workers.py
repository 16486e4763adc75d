"""How many processes there may be, and what those that are started are told."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from transfer_cli.errors import RunError
from transfer_cli.training import workers


def test_started_processes_get_what_was_typed_and_the_directory_of_their_job():
    typed = ["seed=1", "run.dir=all"]

    assert workers.overrides(typed, None) == typed
    assert workers.overrides(typed, "all/job 3") == ["seed=1", "run.dir='all/job 3'"]


@pytest.mark.parametrize("folder", ["it's", 'say "hi"', "a,b=[c]", "tail\\", "two\nlines", "ü%$x"])
def test_the_processes_of_a_job_read_its_folder_as_it_is(folder):
    [word] = workers.overrides([], folder)

    assert OverridesParser.create().parse_override(word).value() == folder


@pytest.mark.parametrize(("world", "wanted"), [(None, [False, True]), ("2", [False, False])])
def test_only_a_process_that_no_torchrun_has_started_starts_others(monkeypatch, world, wanted):
    monkeypatch.setattr(workers.distributed, "started_by_torchrun", lambda: world is not None)

    assert [workers.wanted(devices) for devices in (1, 2)] == wanted


def test_processes_with_other_configs_are_refused(monkeypatch):
    monkeypatch.setattr(workers.distributed, "all_gather_text", lambda own: [own, own])
    workers._check_alike("seed: 0")

    monkeypatch.setattr(workers.distributed, "all_gather_text", lambda own: [own, "another"])
    with pytest.raises(RunError, match=r"^process 1 of 2 has another config or version"):
        workers._check_alike("seed: 0")
