"""`codedgrad.record` names the place where a rank is late, under FSDP2, HSDP and DDP."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Dict, List

import pytest
from test_recorder import doctor, recorded, rows_of

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.fsdp", reason="FSDP2 came with PyTorch 2.6")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not hasattr(torch.distributed.fsdp, "fully_shard"), reason="FSDP2 came with PyTorch 2.6"
    ),
]

# Where the last rank is late, each in its own step, over and over; nowhere in the first.
PLACES = ["", "loading", "forward", "between", "loss", "backward", "optimizer"]
DELAY = 0.1
TURNS = 2

# Loops of three micro-batches a step, one after the other; rank LAST sleeps in turns at each place.
LOOPS = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
import codedgrad

folder, kinds, places, delay, turns = sys.argv[1:]
dist.init_process_group("gloo")
ranks = dist.get_world_size()
is_late = dist.get_rank() == ranks - 1
torch.set_num_threads(1)
now = ""


def pause(place):
    if is_late and place == now:
        time.sleep(float(delay))


class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        pause("backward")
        return gradient


class Block(torch.nn.Module):
    def __init__(self, is_late):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)
        self.is_late, self.calls = is_late, 0

    def forward(self, x):
        self.calls += 1
        if not self.is_late:
            return x + self.layer(x)
        if self.calls == 1:
            pause("forward")
        return x + self.layer(Late.apply(x) if self.calls == 1 else x)


class Model(torch.nn.Module):
    def __init__(self, is_checkpointed):
        super().__init__()
        self.embedding = torch.nn.Embedding(8, 16)
        self.blocks = torch.nn.ModuleList(Block(number == 1) for number in range(3))
        self.head = torch.nn.Linear(16, 8)
        self.is_checkpointed = is_checkpointed

    def forward(self, x, is_first):
        self.blocks[1].calls = 0 if is_first else 1
        x = self.embedding(x)
        for number, block in enumerate(self.blocks):
            if number == 2 and is_first:
                pause("between")
            # Where it is late, a second forward pass would be late again, or not be the first.
            if self.is_checkpointed and number != 1:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(x)


class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        pause("optimizer")
        return super().step(closure)


def built(kind):
    torch.manual_seed(0)
    model = Model("checkpointed" in kind)
    if "ddp" in kind:
        return DDP(model)
    if "tensor" in kind:
        mesh = init_device_mesh("cpu", (ranks,))
        return parallelize_module(model, mesh, {"head": ColwiseParallel()})
    shape, names = ((2, ranks // 2), ("copies", "shards")) if "hybrid" in kind else ((ranks,), None)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    if "alone" not in kind:
        for block in model.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward="kept" not in kind)
    fully_shard(model, mesh=mesh, reshard_after_forward="kept" not in kind)
    return model


for kind in kinds.split(","):
    model = built(kind)
    optimizer = Optimizer(model.parameters(), lr=0.01)
    with codedgrad.record(model, optimizer, os.path.join(folder, kind)):
        for now in [""] + places.split(",") * int(turns):
            optimizer.zero_grad()
            for micro in range(3):
                if micro == 1:
                    pause("loading")
                x = torch.zeros(2, 4, dtype=torch.int64)
                if "ddp" in kind:
                    model.require_backward_grad_sync = micro == 2
                loss = model(x, micro == 0).square().mean()
                if micro == 0:
                    pause("loss")
                loss.backward()
            optimizer.step()
dist.barrier()
os._exit(0)
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kinds = "ddp,blocks,blocks-kept-checkpointed,alone,alone-kept,tensor"
    home = tmp_path_factory.mktemp("two")
    return recorded(home, LOOPS, 2, kinds, ",".join(PLACES), str(DELAY), str(TURNS))


def own(row: Dict[str, str]) -> Dict[str, float]:
    """The seconds of each part of a step that is the rank's own."""
    parts = {name[:-2]: float(cell) for name, cell in row.items() if name.endswith("_s")}
    del parts["waiting"]
    return parts


def named(folder: Path, ranks: int) -> None:
    """The last rank, and it alone, is late by the delay, in each step at its place."""
    rows: List[List[Dict[str, float]]] = []
    for rank in range(ranks):
        read = rows_of(folder / f"rank-{rank}.csv")
        assert [int(row["step"]) for row in read] == list(range(1 + TURNS * len(PLACES)))
        rows.append([own(row) for row in read[1:]])
    # Without FSDP2's modules inside, the model is one place.
    is_whole = folder.name.startswith(("ddp", "alone"))
    for at, place in enumerate(PLACES[1:], 1):
        place = "forward" if is_whole and place == "between" else place
        # The calmest of its turns: the hosts of tests are busy.
        more = [
            {part: rows[-1][step][part] - rows[-1][step - at][part] for part in rows[-1][step]}
            for step in range(at, TURNS * len(PLACES), len(PLACES))
        ]
        calm = min(more, key=lambda parts: abs(parts[place] - DELAY))
        assert max(calm, key=calm.__getitem__) == place, (place, more)
        assert 0.85 * DELAY < calm[place] < 1.5 * DELAY, (place, more)
    medians = [statistics.median(sum(row.values()) for row in each) for each in rows]
    assert all(other < medians[-1] - 0.5 * DELAY for other in medians[:-1]), medians
    found, notes = doctor(folder)
    assert f"rank {ranks - 1}: " in notes and "rank 0: " not in notes, notes
    assert not found["not_seen"]


@pytest.mark.parametrize(
    "kind", ["ddp", "blocks", "blocks-kept-checkpointed", "alone", "alone-kept"]
)
def test_each_place_is_named(two: Path, kind: str) -> None:
    named(two / kind, 2)


def test_what_tensor_parallelism_hides_is_said(two: Path) -> None:
    text = (two / "tensor" / "rank-0.csv").read_text()
    assert "# bounded: the forward and backward pass: tensor " in text
    found, _ = doctor(two / "tensor")
    assert any("upper bounds" in gone for gone in found["not_seen"])


def test_each_place_is_named_under_hsdp(tmp_path: Path) -> None:
    home = recorded(tmp_path, LOOPS, 4, "hybrid", ",".join(PLACES), str(DELAY), str(TURNS))
    named(home / "hybrid", 4)
