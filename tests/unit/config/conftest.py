"""A folder of configs of one's own, as `--config-dir` takes it."""

import pytest

from transfer_cli.config.editor_schema import editor_schema


@pytest.fixture
def own_folder(tmp_path):
    """Return a folder with a model of a new name, and one of the name of one of ours."""
    folder = tmp_path / "own"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "huge.yaml").write_text("# Too large for you\nwidth: 9\n")
    (folder / "model" / "tiny.yaml").write_text("# Smaller than ours\nwidth: 1\n")
    return folder


@pytest.fixture(scope="session")
def schema():
    """Return the JSON schema of files of keys, which is one itself."""
    made = editor_schema()
    pytest.importorskip("jsonschema").Draft7Validator.check_schema(made)
    return made


@pytest.fixture(scope="session")
def mistakes_in(schema):
    """Return how to list what an editor would mark in the values of a file."""
    jsonschema = pytest.importorskip("jsonschema")
    checked = jsonschema.Draft7Validator(schema)
    return lambda values: [error.message for error in checked.iter_errors(values)]
