"""The notebooks run, and say what the documentation says."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "python" / "notebooks" / "presets.ipynb"


def printed(notebook):
    """What the cells print, and how many pictures they draw."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    return text, sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.skipif(not NOTEBOOK.exists(), reason="the notebook is in the repository alone")
def test_presets(tmp_path):
    for needed in ("nbclient", "ipykernel", "matplotlib"):
        pytest.importorskip(needed, reason=f"{needed} is not installed")
    import nbclient
    import nbformat

    shown = nbformat.read(NOTEBOOK, as_version=4)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    text, pictures = printed(notebook)
    assert pictures == 1
    assert printed(shown) == (text, 1), "the notebook shows what it gave before: run it anew"
    results = ROOT / "docs" / "lab" / "results.md"
    if results.exists():
        lines = results.read_text(encoding="utf-8").splitlines()
        rows = [line for line in text.splitlines() if line.startswith("| `")]
        assert len(rows) == 6 and all(row in lines for row in rows)
