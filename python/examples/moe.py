"""nanogpt's model with a mixture of experts in each block, balanced without an auxiliary loss.

`codedgrad run -n 4 --scheme groups:s=1 moe.py --steps 60` prints one line of JSON per worker: all
have the same numbers, which are those of `python moe.py --steps 60` alone, whoever of the workers
was late or lost. A worker of two processes, each with the whole model and half of the sequences:
`codedgrad run -n 2 --kill-after 40 torchrun --standalone --nproc-per-node 2 moe.py --steps 60`.
With `--shard` each has half of the experts too, and FSDP2 shards the rest: the numbers are those of
`torchrun --standalone --nproc-per-node 2 moe.py --steps 60 --shard` alone.
`--door prepare` trains the same by a loop as DistributedDataParallel's, to the same numbers.
What to keep in mind is in docs/python.md, "Mixtures of experts".
"""

import argparse
import functools
import hashlib
import json
import math
import os
from typing import Any, Callable, Dict, List, Optional, Sequence

import codedgrad.torch as coded
import nanogpt
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint


def check_experts(count: int, active: int) -> None:
    """Raises ValueError if no router can send tokens so."""
    if count < 2:
        raise ValueError(f"experts={count}: a router needs two experts to choose from")
    if not 1 <= active <= count:
        raise ValueError(f"active={active}: each token has 1 to {count} of the experts")


def ranks_here() -> int:
    """How many processes this worker has, as torchrun says."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def check_ranks(experts: int, ranks: int) -> None:
    """Raises ValueError if ranks cannot have equally many experts each."""
    if ranks < 2 or experts % ranks:
        raise ValueError(
            f"experts={experts} over {ranks} ranks: --shard needs two ranks or more, each with as "
            "many experts, as torchrun --standalone --nproc-per-node 2 starts them"
        )


class Experts(nn.Module):
    """Each token goes to the `active` experts that its router likes best; none is dropped."""

    def __init__(
        self, width: int, experts: Sequence[nn.Module], active: int, spread: float = 0.02
    ):
        super().__init__()
        check_experts(len(experts), active)
        self.experts, self.active = nn.ModuleList(experts), active
        self.router = nn.Parameter(spread * torch.randn(width, len(experts)))
        # Moved by `Balance`, which also takes it to other workers.
        self.register_buffer("bias", torch.zeros(len(experts)), persistent=False)
        self.counts = torch.zeros(len(experts))
        # What has the experts instead, where ranks have a part of them each.
        self.sharded: Optional[nn.Module] = None

    def choose(self, scores: torch.Tensor) -> torch.Tensor:
        """The experts of each token; of equal ones those of lower numbers."""
        order = torch.sort(scores + self.bias, dim=1, descending=True, stable=True).indices
        return order[:, : self.active]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        # In float32 also under autocast: in bfloat16 many scores are equal.
        with torch.autocast(x.device.type, enabled=False):
            scores = torch.sigmoid(tokens.float() @ self.router.float())
        chosen = self.choose(scores.detach())
        weights = scores.gather(1, chosen)
        weights = weights / weights.sum(1, keepdim=True)
        # Set, not added up: with activation checkpointing this is called twice for a unit.
        self.counts = nn.functional.one_hot(chosen, self.bias.numel()).sum((0, 1)).float()
        given = tokens, chosen, weights
        y = self.sharded(mixed, *given) if self.sharded else mixed(self.experts, *given)
        return y.view_as(x)


def mixed(
    experts: Sequence[Callable[[torch.Tensor], torch.Tensor]],
    tokens: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    first: int = 0,
) -> torch.Tensor:
    """What some experts, of which the first one has this number, make of the tokens that chose them."""
    y = torch.zeros_like(tokens)
    for number, expert in enumerate(experts, first):
        rows, place = torch.nonzero(chosen == number, as_tuple=True)
        if len(rows) > 0:
            part = expert(tokens[rows]) * weights[rows, place, None]
            y = y.index_add(0, rows, part.to(y.dtype))
    return y


class Balance:
    """Moves experts' biases a little after each step, up where they had too few tokens of the whole
    batch. It is a part of the replica as the parameters are: `join` is told of it by `state=`."""

    def __init__(self, model: nn.Module, rate: float):
        self.layers = [layer for layer in model.modules() if isinstance(layer, Experts)]
        self.rate = rate
        # After each step: tokens of the busiest expert over the mean, of the worst layer.
        self.loads: List[float] = []

    def counts(self) -> torch.Tensor:
        """How many tokens of the unit each expert of each layer had."""
        return torch.cat([layer.counts for layer in self.layers])

    def update(self, totals: Sequence[float]) -> None:
        """`totals` are the counts of the whole batch, the same on every worker."""
        counts = torch.tensor(totals, dtype=torch.float64)
        load = 0.0
        for layer, own in zip(self.layers, counts.split([len(x.bias) for x in self.layers])):
            layer.bias += self.rate * torch.sign(own.mean() - own).to(layer.bias)
            load = max(load, float(own.max() / own.mean()))
        self.loads.append(load)

    def summary(self) -> Dict[str, float]:
        """The mean load of the first and the last quarter of the steps."""
        part = max(1, len(self.loads) // 4)
        first, last = sum(self.loads[:part]) / part, sum(self.loads[-part:]) / part
        return {"load_first": round(first, 4), "load_last": round(last, 4)}

    def state_dict(self) -> Dict[str, Any]:
        return {"biases": [layer.bias for layer in self.layers], "loads": self.loads}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        for layer, bias in zip(self.layers, state["biases"]):
            layer.bias.copy_(bias)
        self.loads = list(state["loads"])


def replica_hash(model: nn.Module, balance: Balance) -> str:
    """Of all that decides what the model computes: parameters, and biases of experts."""
    sha = hashlib.sha256()
    for parameter in model.parameters():
        # That of a rank's part.
        whole = getattr(parameter, "full_tensor", lambda: parameter)()
        sha.update(whole.detach().numpy().tobytes())
    for layer in balance.layers:
        sha.update(layer.bias.numpy().tobytes())
    return sha.hexdigest()


def make_model(args: argparse.Namespace) -> nanogpt.GPT:
    """nanogpt's, with experts that together do as much for a token as its network did."""
    model, inner = nanogpt.GPT(args), 4 * args.width // args.active
    for block in model.blocks:
        experts = [
            nn.Sequential(nn.Linear(args.width, inner), nn.GELU(), nn.Linear(inner, args.width))
            for _ in range(args.experts)
        ]
        # Characters differ little at first: if scores differed less than a bias moves, all of them
        # would change their experts at once.
        block.network = Experts(args.width, experts, args.active, spread=0.06)
        if args.recompute:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return model


def parse_experts(parser: argparse.ArgumentParser, experts: int) -> argparse.Namespace:
    """The arguments, with those of the experts, which are checked before anything is joined."""
    parser.add_argument("--experts", type=int, default=experts, help="experts of a block")
    parser.add_argument("--active", type=int, default=2, help="experts that a token goes to")
    parser.add_argument("--bias-rate", type=float, default=0.01, help="0 lets experts be unequal")
    args = parser.parse_args()
    try:
        check_experts(args.experts, args.active)
        if getattr(args, "shard", False):
            check_ranks(args.experts, ranks_here())
    except ValueError as error:
        parser.error(str(error))
    return args


def arguments() -> argparse.Namespace:
    parser = nanogpt.options()
    parser.description = "Trains a small GPT with a mixture of experts on a few sonnets."
    parser.add_argument("--recompute", action="store_true", help="activation checkpointing")
    parser.add_argument("--shard", action="store_true", help="cut the model over the ranks")
    parser.add_argument(
        "--door", choices=["join", "prepare"], default="join", help="the loop's shape"
    )
    return parse_experts(parser, 8)


def train_by_units(
    model: nn.Module, balance: Balance, args: argparse.Namespace, mesh: Any
) -> None:
    """By the iterator."""
    optimizer = nanogpt.make_optimizer(model, args)
    scheduler = nanogpt.make_scheduler(optimizer, args)
    run = coded.join(
        model,
        optimizer,
        units=args.units,
        steps=args.steps,
        unit_samples=args.rows * (mesh.size() if mesh else 1),
        state={"lr": scheduler, "balance": balance},
        mesh=mesh,
    )
    for step in run:
        for micro in step:
            x, y = nanogpt.get_batch(args)
            loss = model(x, y)
            loss.backward()
            micro.report(loss, *balance.counts())
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        scheduler.step()
        if step.applied:
            balance.update(step.totals[1:])
        optimizer.zero_grad(set_to_none=True)


def train_by_iterations(
    module: nn.Module, balance: Balance, args: argparse.Namespace, mesh: Any
) -> None:
    """By a loop that looks as it does under DistributedDataParallel."""
    optimizer = nanogpt.make_optimizer(module, args)
    model, optimizer, scheduler = coded.prepare(
        module,
        optimizer,
        nanogpt.make_scheduler(optimizer, args),
        units=args.units,
        steps=args.steps,
        state={"balance": balance},
        mesh=mesh,
    )
    run = model.run
    for _ in run.iterations():
        x, y = nanogpt.get_batch(args)
        loss = model(x, y)
        run.report(loss, *balance.counts())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        scheduler.step()
        # A refused step has no counts.
        if run.sync_gradients and not math.isnan(run.totals[0]):
            balance.update(run.totals[1:])
        optimizer.zero_grad(set_to_none=True)


def main() -> None:
    args = arguments()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = make_model(args)
    ranks, mesh = ranks_here(), None
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("ep",))
    if args.shard:
        import moe_sharded

        moe_sharded.shard(model, mesh)
    balance = Balance(model, args.bias_rate)
    # Each of them has its part of a unit's sequences.
    args.rows //= ranks
    train = train_by_iterations if args.door == "prepare" else train_by_units
    train(model, balance, args, mesh)
    loss = nanogpt.whole_loss(model, args)
    found = {"digest": replica_hash(model, balance), "loss": round(loss, 4), **balance.summary()}
    print(json.dumps(found), flush=True)
    if mesh is not None:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
