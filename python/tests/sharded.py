"""A small language model under FSDP2, and what a rank of a worker does with it in tests."""

from __future__ import annotations

import hashlib
import math
import os
import signal
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

import codedgrad.torch as coded
import cut
from codedgrad._torch import announcer
from codedgrad._torch.cell import vector
from codedgrad._torch.cell.worker import CellWorker
from codedgrad.loop import unit_seed

UNITS, UNIT_SAMPLES, STEPS = 4, 8, 6
WORDS, WIDTH, LENGTH = 11, 16, 6


class Block(nn.Module):
    def __init__(self, plan: Dict[str, Any]) -> None:
        super().__init__()
        # Rows that no even number of ranks cuts alike.
        hidden = 2 * WIDTH + (3 if plan.get("uneven") else 0)
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, hidden), nn.Linear(hidden, WIDTH)
        self.drop = nn.Dropout(plan.get("dropout", 0.0))

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    """Embedding, two blocks and a head."""

    def __init__(self, plan: Dict[str, Any]) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(plan) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        # Of one number: other ranks than the first have nothing of it.
        self.scale = nn.Parameter(torch.ones(1)) if plan.get("uneven") else None
        if plan.get("tied"):
            self.head.weight = self.embed.weight
        if plan.get("frozen"):
            self.blocks[0].requires_grad_(False)
            self.register_buffer("shift", torch.full((WIDTH,), 0.125))
        if plan.get("plain head"):
            # All that is trained is whole on every rank, and what is frozen is cut.
            self.requires_grad_(False)
            self.head.requires_grad_(True)
        self.fill()

    @torch.no_grad()
    def fill(self) -> None:
        """The same numbers each time."""
        generator = torch.Generator().manual_seed(3)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)

    def forward(self, x: torch.Tensor) -> Any:
        found = self.embed(x)
        if hasattr(self, "shift"):
            found = found + self.shift
        for block in self.blocks:
            found = block(found)
        return self.head(found if self.scale is None else found * self.scale)


def dataset() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(5)
    x = torch.randint(0, WORDS, (UNITS * UNIT_SAMPLES * 2, LENGTH), generator=generator)
    return torch.utils.data.TensorDataset(x, (x * 3 + 1) % WORDS)


def built(plan: Dict[str, Any], mesh: Any) -> Net:
    """The model, sharded over the mesh; whole without one."""
    model = Net(plan)
    if plan.get("bf16"):
        model = model.to(torch.bfloat16)
    if plan.get("cut"):
        return cut.built(model, plan, mesh)
    if mesh is None:
        return model
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    more: Dict[str, Any] = {"mesh": mesh}
    if plan.get("offload"):
        more["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    if "reshard" in plan:
        more["reshard_after_forward"] = plan["reshard"]
    if "mixed" in plan:
        more["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=getattr(torch, plan["mixed"])
        )
    if plan.get("checkpoint"):
        from torch.distributed.algorithms._checkpoint import checkpoint_wrapper

        checkpoint_wrapper.apply_activation_checkpointing(
            model, check_fn=lambda module: isinstance(module, Block)
        )
    if plan.get("compile"):
        for block in model.blocks:
            block.compile(backend="aot_eager")
    if plan.get("meta"):
        numbers = model.state_dict()
        with torch.device("meta"):
            model = Net(plan)
    for block in model.blocks:
        fully_shard(block, **more)
    if plan.get("plain head"):
        return model
    if plan.get("meshes") == 2:
        more["mesh"] = init_device_mesh("cpu", (mesh.size(),), mesh_dim_names=("other",))
    fully_shard(model, **more)
    if plan.get("meta") == "to_empty":
        model.to_empty(device="cpu")
    if plan.get("meta"):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        options = StateDictOptions(full_state_dict=True)
        set_model_state_dict(model, numbers, options=options)
    if plan.get("factor") is not None:
        model.set_gradient_divide_factor(plan["factor"])
    return model


def whole(tensor: Any) -> torch.Tensor:
    """All of a tensor, for which all ranks must come here."""
    found: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found.detach()


def hash_of(model: nn.Module) -> str:
    sha = hashlib.sha256()
    for parameter in model.parameters():
        sha.update(whole(parameter).contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def loss_of(model: nn.Module, plan: Dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> Any:
    means = plan.get("reduction", "mean") == "mean"
    logits = model(x).reshape(-1, WORDS).float()
    return F.cross_entropy(logits, y.reshape(-1), reduction="mean" if means else "sum")


class Trouble:
    """What goes wrong in one rank of one worker."""

    def __init__(self, plan: Dict[str, Any], worker: Optional[int], rank: int, model: Net):
        mine = plan.get("rank") in (None, rank) and plan.get("worker") in (None, worker)
        self._kind = plan.get("trouble") if mine else None
        self._at, self._worker = plan.get("at", 2), worker
        self._step = -1
        if self._kind == "killed in forward":
            model.blocks[0].register_forward_pre_hook(self._in_model)
        if self._kind == "killed in backward":
            model.blocks[0].register_full_backward_hook(self._in_model)

    def _in_model(self, *_: Any) -> None:
        if self._step >= self._at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watches(self, run: Any) -> None:
        """Kills the rank while it hands a task in."""
        submit = run._session.native.submit

        def killed(*told: Any) -> Any:
            if self._step >= self._at:
                os.kill(os.getpid(), signal.SIGKILL)
            return submit(*told)

        if self._kind == "killed in submit":
            run._session.native.submit = killed

    def before_unit(self, micro: Any) -> None:
        self._step = micro.step
        if self._kind == "late":
            time.sleep(0.2)
        # Late by turns, so that each worker has steps that it does not compute at all.
        if self._kind == "turns" and (self._worker == 1) == (micro.step < 4):
            time.sleep(0.5)
        if self._kind == "stopped" and micro.step >= self._at:
            os.kill(os.getpid(), signal.SIGSTOP)
        if self._kind == "killed between units" and micro.step >= self._at and micro.unit % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._kind == "raises" and micro.step >= self._at:
            raise ZeroDivisionError("sample 17")

    def before_iteration(self) -> None:
        if self._kind == "late":
            time.sleep(0.2)

    def loss(self, micro: Any, loss: Any) -> Any:
        nan = self._kind == "nan" and micro.step == self._at
        return loss * float("nan") if nan else loss

    def after_backward(self, micro: Any, model: nn.Module) -> None:
        if self._kind == "nan in a shard" and micro.step == self._at:
            for parameter in model.parameters():
                if parameter.grad is not None and parameter.grad.to_local().numel():
                    parameter.grad.to_local().view(-1)[0] = float("nan")
                    return

    def at(self, place: str, step: int) -> None:
        if self._kind == place and step == self._at:
            os.kill(os.getpid(), signal.SIGTERM if place == "told" else signal.SIGKILL)


def train(
    where: Dict[str, Any], plan: Dict[str, Any], rank: int = 0, mesh: Any = None
) -> Dict[str, Any]:
    """Trains as `plan` says; what it has come to."""
    torch.manual_seed(1)
    if plan.get("early"):
        # As large models have many of them.
        announcer._PART = vector._BUCKET = plan["early"]
    over = mesh
    if plan.get("within"):
        # That of fully_shard is a part of a dimension of the other one.
        over = init_device_mesh("cpu", (2, mesh.size() // 2), mesh_dim_names=("x", "y"))["y"]
    model: Any = built(plan, over)
    if plan.get("early") and rank == 0:
        # The others come first: what they have said is there to be read.
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: time.sleep(0.01))
    kind = getattr(torch.optim, plan.get("optimizer", "AdamW"))
    optimizer = kind(model.parameters(), lr=plan.get("rate", 1e-2))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    steps, first = plan.get("steps", STEPS), plan.get("first", 0)
    if first:
        loaded(plan["checkpoints"], model, optimizer, schedule)
    trouble = Trouble(plan, where.get("worker"), rank, model)
    evaluates = plan.get("evaluates")
    if evaluates == "before join":
        evaluate(model)
    run = coded.join(
        model,
        optimizer,
        units=UNITS,
        steps=steps,
        first=first,
        unit_samples=UNIT_SAMPLES,
        reduction=plan.get("reduction", "mean"),
        state={"schedule": schedule},
        mesh=mesh,
        **where,
        **plan.get("join", {}),
    )
    trouble.watches(run)
    loader = coded.Loader(dataset(), run)
    found: Dict[str, Any] = {"totals": [], "norms": [], "skipped": [], "saved": 0, "digests": []}
    agreements = counted(run)
    early = said_early(run)
    for step in run:
        for micro in step:
            time.sleep(plan.get("pause", 0.0))
            trouble.before_unit(micro)
            x, y = loader(micro)
            loss = loss_of(model, plan, x, y)
            micro.report(loss.detach(), float(y.numel()))
            if plan.get("nothing") and micro.unit % 2:
                micro.nothing()
                continue
            trouble.loss(micro, loss).backward()
            trouble.after_backward(micro, model)
            early.after_backward()
        trouble.at("killed before the optimizer", step.index)
        most = plan.get("max_norm", 0.3)
        if plan.get("clip") == "torch":
            norm = whole(nn.utils.clip_grad_norm_(model.parameters(), most))
            found["norms"].append(float(norm))
        if plan.get("clip") == "coded":
            found["norms"].append(coded.clip_grad_norm_(run, most))
        if evaluates == "before the optimizer":
            evaluate(model)
        if step.applied:
            optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        trouble.at("killed after the step", step.index)
        trouble.at("told", step.index)
        if evaluates == "after the optimizer":
            evaluate(model)
        if run.saver and step.index + 1 == plan.get("saves", 0):
            save(plan["checkpoints"], model, optimizer, schedule)
            found["saved"] += 1
        found["totals"].append(list(step.totals))
        found["skipped"].append(step.skipped is not None)
        found["digests"].append(run.digest() if plan.get("digests") else 0)
        agreements()
        if plan.get("tells") and step.index + 1 == steps and rank == 0:
            open(plan["tells"], "w").close()
    return {
        **found,
        "digest": hash_of(model),
        "complete": run.complete,
        "agreements": agreements(),
        "early": early.arrays,
        "traffic": run.traffic(),
        "left_open": left_open(run),
        "report": run.report(),
        "worker": run.worker,
        "rate": schedule.get_last_lr()[0],
        "length": sum(count for count, _ in run._session.native.vector.arrays) if mesh else 0,
    }


def counted(run: Any) -> Any:
    """Gives, each time it is called, how often the ranks have agreed since it was called last."""
    agreement = getattr(run._session.native, "agreement", None)
    counts = [0]

    def since() -> List[int]:
        counts.append(0 if agreement is None else agreement.count)
        return [end - start for start, end in zip(counts, counts[1:])]

    return since


class said_early:
    """How many arrays the first rank has said to be there before a backward pass was over."""

    def __init__(self, run: Any) -> None:
        self.arrays = self._said = 0
        native = run._session.native
        written = getattr(native, "written", None)

        def watched(start: int, end: int) -> None:
            self._said += end - start
            written(start, end)

        if isinstance(native, CellWorker):
            native.written = watched  # type: ignore[method-assign]

    def after_backward(self) -> None:
        self.arrays += self._said
        self._said = 0


def left_open(run: Any) -> List[str]:
    """Threads and memory of the ranks that are left when a run is closed."""
    run.close()
    time.sleep(0.3)
    links = [os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")
             if os.path.islink(f"/proc/self/fd/{each}")]  # fmt: skip
    # Through one of them the ranks hear each other as long as the run is kept.
    files = [each for each in links if "memfd:codedgrad" in each]
    return files[1:] + [each.name for each in threading.enumerate() if "codedgrad" in each.name]


def prepared(
    where: Dict[str, Any], plan: Dict[str, Any], rank: int = 0, mesh: Any = None
) -> Dict[str, Any]:
    """Trains as a script for HSDP does, with sequences of its own lengths on each rank."""
    torch.manual_seed(1)
    model: Any = built(plan, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = plan.get("join", {}).get("data", mesh.mesh_dim_names)
    parts = math.prod(mesh[each].size() for each in ([data] if isinstance(data, str) else data))
    loader: Any = torch.utils.data.DataLoader(dataset(), UNIT_SAMPLES // parts, shuffle=True)
    trouble = Trouble(plan, where.get("worker"), rank, model)
    model, optimizer, loader = coded.prepare(
        model,
        optimizer,
        loader,
        units=UNITS,
        steps=STEPS,
        mesh=mesh,
        **where,
        **plan.get("join", {}),
    )
    run = model.run
    while not run.over:
        for x, y in loader:
            if not run.hollow:
                trouble.before_iteration()
            # By the step: a skipped iteration may meet a length that this rank has not computed.
            # Where tokens of all ranks come to the experts all have equally many.
            alike = run.settings.part == 0 or "experts" in plan.get("cut", "")
            length = LENGTH if alike else LENGTH - run.index % 4
            loss = loss_of(model, plan, x[:, :length], y[:, :length])
            run.report(loss.detach())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return {"digest": hash_of(model), "complete": run.complete, "work": run.work()}


@torch.no_grad()
def evaluate(model: nn.Module) -> None:
    model.eval()
    model(dataset().tensors[0][:4])
    model.train()


def save(folder: str, model: Any, optimizer: Any, schedule: Any) -> None:
    """A checkpoint by torch.distributed.checkpoint, for which all ranks come here."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        get_state_dict,
    )

    parts, moments = get_state_dict(model, optimizer)
    state = {"model": parts, "optimizer": moments, "schedule": schedule.state_dict()}
    dcp.save(state, checkpoint_id=folder)
    numbers = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    for name, parameter in model.named_parameters():
        assert numbers[name].shape == parameter.shape, name


def loaded(folder: str, model: Any, optimizer: Any, schedule: Any) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    parts, moments = get_state_dict(model, optimizer)
    state = {"model": parts, "optimizer": moments, "schedule": schedule.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    schedule.load_state_dict(state["schedule"])


def of_one_process(plan: Dict[str, Any]) -> Tuple[List[float], List[float]]:
    """Losses and gradients' norms of the same training without this package, in one process that has
    the whole model: one gradient of the whole batch, SGD, nothing clipped."""
    torch.manual_seed(1)
    model = built(plan, None)
    optimizer = torch.optim.SGD(model.parameters(), lr=plan.get("rate", 1e-2))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    samples: Any = dataset()
    totals, norms = [], []
    batches = len(samples) // (UNITS * UNIT_SAMPLES)
    for step in range(plan.get("steps", STEPS)):
        epoch, place = divmod(step, batches)
        generator = torch.Generator().manual_seed(unit_seed(0, epoch, 0, "epoch"))
        order = torch.randperm(len(samples), generator=generator)
        chosen = order[place * UNITS * UNIT_SAMPLES :][: UNITS * UNIT_SAMPLES]
        x, y = samples.tensors[0][chosen], samples.tensors[1][chosen]
        loss = loss_of(model, plan, x, y)
        if plan.get("reduction") == "tokens":
            (loss / y.numel()).backward()
        else:
            loss.backward()
        totals.append(loss.item())
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), float("inf"))))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return totals, norms
