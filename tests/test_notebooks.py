"""Every notebook runs from top to bottom."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
# More than a minute each, with several maps or runs.
LONG = ("02_phase_diagrams", "04_lottery", "05_full_model")


def marked(path: Path):
    marks = pytest.mark.slow if path.stem in LONG else ()
    return pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.filterwarnings("default")  # the kernel's own machinery warns
@pytest.mark.parametrize("path", [marked(path) for path in NOTEBOOKS])
def test_notebook_runs(path):
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    ran = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in ran)
    assert any("image/png" in out.get("data", {}) for cell in ran for out in cell.outputs)
