"""The files that docs/architecture.md names between the shell and the first step."""

import inspect
import sys
from pathlib import Path

import pytest

import transfer_cli
from tests.unit.test_docs import quoted, table

ROOT = Path(transfer_cli.__file__).parent
FIRST_STEP = ("engine/step.py", "TrainStep.__call__")


@pytest.fixture
def called():
    """Return what is called of the package until the first step, in order: file and name."""
    found, before = [], sys.getprofile()

    def note(frame, event, _):
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # not the body of a class
        if event == "call" and is_function and code.co_filename.startswith(f"{ROOT}/"):
            file = Path(code.co_filename).relative_to(ROOT).as_posix()
            found.append((file, code.co_qualname))
            if found[-1] == FIRST_STEP:
                sys.setprofile(before)

    sys.setprofile(note)
    yield found
    sys.setprofile(before)


def test_the_page_names_what_a_fine_tuning_with_lora_calls_in_order(transfer, adapting, called):
    transfer("finetune", *adapting("lora", "loop.steps=1", "run.dir=run")).ok()

    assert called[-1] == FIRST_STEP
    stops = [tuple(quoted(cell)[0] for cell in row[:2]) for row in table("From the shell")]
    # The first call of each, by its name or by a method.
    names = [{(file, name), (file, name.partition(".")[0])} for file, name in called]
    places = [[at for at, found in enumerate(names) if stop in found][:1] for stop in stops]
    assert [] not in places
    assert places == sorted(places)
