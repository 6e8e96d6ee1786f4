"""The examples of README.md run as they are written."""

import re
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest

README = Path(__file__).resolve().parent.parent / "README.md"


def blocks(language: str) -> List[str]:
    """The blocks of code in a language."""
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_loop_on_numpy_learns() -> None:
    (example,) = [block for block in blocks("python") if "loop.join" in block]
    goal = np.array([1.0, -2.0, 3.0], "float32")
    names: Dict[str, Any] = {"weights": np.zeros(3, "float32"), "goal": goal}
    exec(example, names)
    assert np.allclose(names["weights"], goal, atol=1e-2)


def test_the_plan_is_a_recommendation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = [block for block in blocks("python") if "plan(" in block]
    monkeypatch.chdir(tmp_path)
    calm = np.random.default_rng(1).uniform(1.0, 1.01, (50, 4))
    np.savetxt("delays.csv", calm, delimiter=",")
    exec("import codedgrad\n" + example, {})
    assert capsys.readouterr().out.strip() == "uncoded"


@pytest.mark.torch
def test_the_changed_loop_learns_what_the_plain_one_does() -> None:
    import torch

    (diff,) = blocks("diff")
    lines = diff.splitlines()

    def trained(kept: str) -> torch.Tensor:
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 1)
        x = torch.randn(16, 3)
        batches = iter([(x[i : i + 4], x[i : i + 4].sum(1)) for i in range(0, 16, 4)] * 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        names = {
            "torch": torch,
            "optimizer": optimizer,
            "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 5),
            "get_batch": lambda: next(batches),
            "accum": 4,
            "max_steps": 10,
        }
        # The model itself has the parameters; what the loop calls gives the loss.
        model.forward_plain = model.forward  # type: ignore[assignment]
        model.forward = (  # type: ignore[assignment, method-assign]
            lambda x, y: ((model.forward_plain(x)[:, 0] - y) ** 2).mean()  # type: ignore[operator]
        )
        names["model"] = model
        exec("\n".join(line[1:] for line in lines if line[:1] in (" ", kept)), names)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    plain, coded = trained("-"), trained("+")
    assert torch.allclose(plain, coded, rtol=1e-4, atol=1e-6)
