"""The notebooks of the documentation run to their end, and show a bar of what takes long."""

import os
from pathlib import Path

import pytest

from transfer_cli.config.conf_folder import conf_dir

NOTEBOOKS = sorted((conf_dir().parent / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Return how to run a notebook of some cells, which takes the package from here."""
    nbclient = pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(conf_dir().parent), prepend=os.pathsep)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")

    def run(notebook):
        resources = {"metadata": {"path": str(tmp_path)}}
        nbclient.NotebookClient(notebook, timeout=500, resources=resources).execute()
        return [output for cell in notebook.cells for output in cell.get("outputs", ())]

    return run


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_ends_with_its_chart_and_prints_no_log(path, kernel):
    nbformat = pytest.importorskip("nbformat")

    outputs = kernel(nbformat.read(path, as_version=4))

    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("widgets", [True, False])
def test_what_takes_long_has_a_bar_in_a_notebook(kernel, widgets):
    v4 = pytest.importorskip("nbformat.v4")
    hidden = "" if widgets else "import sys; sys.modules['ipywidgets'] = None"
    cell = v4.new_code_cell(
        f"{hidden}\nfrom time import sleep\nfrom transfer_cli import progress\n"
        "progress.SECONDS_UNTIL_SHOWN = 0.0\n"
        "with progress.off_terminal(), progress.progress('reading', 10, 'lines') as more:\n"
        "    more(3)\n    sleep(2)\n"
    )

    outputs = kernel(v4.new_notebook(cells=[cell]))

    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert ("application/vnd.jupyter.widget-view+json" in kinds) == widgets
    assert any("3 of 10" in output.get("text", "") for output in outputs) == (not widgets)


def test_notebooks_are_small():
    assert len(NOTEBOOKS) == 2
    assert all(Path(path).stat().st_size < 100_000 for path in NOTEBOOKS)
