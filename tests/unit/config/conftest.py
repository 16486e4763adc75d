"""A folder of configs of one's own, as `--config-dir` takes it."""

import pytest


@pytest.fixture
def own(tmp_path):
    """Return a folder with a model of a new name, and one of the name of one of ours."""
    folder = tmp_path / "own"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "huge.yaml").write_text("# Too large for you\nwidth: 9\n")
    (folder / "model" / "tiny.yaml").write_text("# Smaller than ours\nwidth: 1\n")
    return folder
