"""The diffs of docs/frameworks.md, applied and run where they are installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from test_ddp import Processes, coded, hashes  # noqa: E402

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "frameworks.md"


def diff_of(word: str) -> Tuple[str, str]:
    """A script before and after the diff of the page that has this word."""
    blocks = [block.split("```")[0] for block in PAGE.read_text().split("```diff\n")[1:]]
    lines = next(block for block in blocks if word in block).splitlines()
    sides = ["".join(f"{line[1:]}\n" for line in lines if line[:1] in (" ", s)) for s in "-+"]
    return sides[0], sides[1]


# What the page leaves out.
BEFORE = """
import hashlib
import torch
from accelerate import Accelerator
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset
import codedgrad.torch as coded

torch.manual_seed(1)
torch.set_num_threads(1)
rows = torch.randn(64, 3)
loader = DataLoader(TensorDataset(rows, rows[:, :2]), batch_size=2, shuffle=True)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
"""
AFTER = """
content = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
print("steps", scheduler.scheduler.last_epoch)
print("sha256", hashlib.sha256(content).hexdigest())
"""


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="no Accelerate")
def test_accelerates_diff(tmp_path: Path) -> None:
    before, after = diff_of("accelerator.prepare")
    script = tmp_path / "plain.py"
    script.write_text(BEFORE.replace("import codedgrad.torch as coded\n", "") + before + AFTER)
    found: Dict[str, List[str]] = {}
    twin = tmp_path / "twin.py"
    twin.write_text(BEFORE + after + AFTER)
    # 64 samples, in batches of 2 and steps of so many units of 2 batches, twice.
    for scheme, workers, units in (("uncoded", 2, 2), ("ring:reach=2", 2, 2)):
        told: Dict[str, Any] = dict(units=units, unit_samples=4, length=8, steps=16)
        found[scheme] = coded(twin, scheme, workers, told)
        assert all("steps 16\n" in out for out in found[scheme])
    assert len(set(hashes(found["uncoded"] + found["ring:reach=2"]))) == 1
    with Processes() as processes:
        processes.start([str(script)])
        assert "steps 32\n" in processes.outputs()[0]


def test_accelerates_loader_is_refused() -> None:
    accelerate = pytest.importorskip("accelerate")
    import codedgrad.torch as coded_torch

    data = torch.utils.data.TensorDataset(torch.randn(8, 3))
    try:
        accelerator = accelerate.Accelerator(cpu=True)
        loader = accelerator.prepare(torch.utils.data.DataLoader(data, 2, shuffle=True))
        with pytest.raises(TypeError, match="accelerator.prepare.*everything but the loader"):
            coded_torch.prepare(torch.nn.Linear(3, 2), loader, epochs=1)
    finally:
        accelerate.state.AcceleratorState._reset_state(True)
        accelerate.state.GradientState._reset_state()


def test_what_accelerate_divides_by_is_what_a_unit_has() -> None:
    accelerate = pytest.importorskip("accelerate")
    import codedgrad.torch as coded_torch

    model = torch.nn.Linear(3, 2)
    try:
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
        with pytest.raises(TypeError, match="prepare accumulate=4"):
            coded_torch.prepare(model, steps=1, accumulate=2)
        kind = accelerate.state.GradientState
        wrapped = coded_torch.prepare(model, steps=1, accumulate=4)
        for _ in wrapped.run.iterations():
            for part in range(4):
                with accelerator.accumulate(wrapped):
                    accelerator.backward(wrapped(torch.ones(1, 3)).sum())
                    assert kind().sync_gradients is wrapped.run.sync_gradients is (part == 3)
        assert "sync_gradients" not in kind.__dict__
    finally:
        accelerate.state.AcceleratorState._reset_state(True)
        accelerate.state.GradientState._reset_state()


# What the page leaves out.
TRAINER = """
import hashlib
import os
import torch
from transformers import TrainingArguments

torch.manual_seed(1)
torch.set_num_threads(1)
output_dir = os.path.dirname(__file__)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 2)

    def forward(self, x, y):
        return {"loss": torch.nn.functional.mse_loss(self.inner(x), y)}

model = Model()
rows = torch.randn(64, 3)
dataset = [{"x": x, "y": x[:2]} for x in rows]
more = dict(num_train_epochs=2, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True)
"""
TRAINED = """
content = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
print("steps", trainer.state.global_step)
print("sha256", hashlib.sha256(content).hexdigest())
"""


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="no Transformers")
def test_hugging_faces_diff(tmp_path: Path) -> None:
    before, after = diff_of("import Trainer")
    plain, twin = tmp_path / "plain.py", tmp_path / "twin.py"
    plain.write_text(TRAINER + before + TRAINED)
    twin.write_text(TRAINER + after + TRAINED)
    # 64 samples, of which a step has two units of 4; alone, as before, one.
    told: Dict[str, Any] = dict(units=2, unit_samples=4, length=8, steps=16)
    found = coded(twin, "groups:s=1", 2, told)
    with Processes() as processes:
        for script in (twin, plain):
            processes.start([str(script)])
        alone, as_before = processes.outputs()
    assert len(set(hashes([*found, alone]))) == 1
    assert all("steps 16\n" in out for out in [*found, alone]) and "steps 32\n" in as_before


def test_the_trainer_itself_is_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    import codedgrad.torch as coded_torch

    model = coded_torch.prepare(torch.nn.Linear(3, 2), steps=1)
    try:
        args = transformers.TrainingArguments(
            str(tmp_path), use_cpu=True, report_to=[], remove_unused_columns=False
        )
        rows = [{"input": row} for row in torch.randn(8, 3)]
        with pytest.raises(RuntimeError, match="outside of the loop.*CodedTrainer"):
            transformers.Trainer(model=model, args=args, train_dataset=rows).train()
    finally:
        model.run.close()
