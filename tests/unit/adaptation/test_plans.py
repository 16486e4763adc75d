import pytest

from tests import tiny
from transfer_cli.adaptation.plans import AllAtOnce, Only, Stage
from transfer_cli.lengths import Length
from transfer_cli.model.transfer_model import layer_groups

GROUPS = layer_groups(tiny.model(), set())


def test_all_at_once_is_one_stage_of_everything():
    assert AllAtOnce()(GROUPS) == [Stage(("*",), Length(None))]


def test_only_is_one_stage_of_what_is_named():
    assert Only(["head.*", "block.2"])(GROUPS) == [Stage(("head.*", "block.2"), Length(None))]


def test_only_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one pattern"):
        Only(())
