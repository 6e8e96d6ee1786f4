"""The PyTorch package on the model of ddp_overlap.py, as a training script uses it.

    python benches/peers/package_overlap.py --compute 1.0
    python benches/peers/package_overlap.py --netns ov --compute 1.0 --keys keys
    python benches/peers/package_overlap.py --netns ov --compute 1.0 --keys keys --workers 2 --ranks 2

With `--ranks` a worker is so many processes, over which FSDP2 shards the layers; with `--serial`
nothing is exchanged behind the backward pass.
Worker k runs in the network namespace of that prefix and number, the coordinator in the one whose
number is `c`, as netns.sh makes them; between namespaces connections are encrypted, with the keys
of `codedgrad keygen keys --workers 4`. Steps are from end to end at worker 0, with the gradient in
`p.grad`; prints one JSON object.
"""

import argparse
import os
import tempfile
import time
from typing import Any, Dict, List

import torch
import torch.distributed as dist
from ddp_overlap import LAYERS, Model, Pace, Slow, durations, enter, flags, report, steps_of
from torch import nn

LISTENS = {True: "10.77.0.{}:7177", False: "127.0.0.1:7177"}
TOKEN = "5a" * 32


def secrets(options: argparse.Namespace) -> Dict[str, Any]:
    return {"keys": options.keys} if options.keys else {"token": TOKEN}


def coordinate(address: str, options: argparse.Namespace) -> None:
    from codedgrad import loop

    if options.netns:
        enter(f"{options.netns}c")
    served = loop.serve(
        options.scheme,
        workers=options.workers,
        units=options.workers,
        unit_samples=options.ranks,
        steps=steps_of(options),
        length=options.elements,
        address=address,
        **secrets(options),
    )
    assert served.wait()


class Layer(nn.Module):
    """A layer of `Model` that FSDP2 can shard."""

    def __init__(self, elements: int, pace: Pace, seconds: float, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements))
        self.rest = (pace, seconds, value)

    def forward(self, x: torch.Tensor) -> Any:
        return Slow.apply(x, self.weight, *self.rest)


class Sharded(nn.Module):
    """`Model`, over all ranks of this process group."""

    def __init__(self, elements: int, seconds: float, value: float, mesh: Any) -> None:
        from torch.distributed.fsdp import fully_shard

        super().__init__()
        self.pace = Pace()
        told = (elements // LAYERS, self.pace, seconds / LAYERS, value)
        self.layers = nn.ModuleList(Layer(*told) for _ in range(LAYERS))
        for layer in self.layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=False)
        fully_shard(self, mesh=mesh)

    @property
    def weights(self) -> List[Any]:
        return [layer.weight for layer in self.layers]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.pace.begin()
        for layer in self.layers:
            x = layer(x)
        return x.sum()


def work(worker: int, rank: int, address: str, options: argparse.Namespace) -> List[float]:
    import codedgrad.torch as coded

    if options.netns:
        enter(f"{options.netns}{worker}")
    torch.set_num_threads(1)
    told = (options.elements, options.compute, float(worker + 1))
    joined: Dict[str, Any] = {"address": address, "worker": worker, **secrets(options)}
    if options.ranks > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = dist.FileStore(f"{options.stores}/{worker}", options.ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=options.ranks)
        mesh = dist.init_device_mesh("cpu", (options.ranks,))
        model: Any = Sharded(*told, mesh)
        joined.update(mesh=mesh, unit_samples=options.ranks)
    else:
        model = Model(*told)
    x = torch.zeros(1, requires_grad=True)
    overlap = False if options.serial else None if options.netns else True
    joined.update(units=options.workers, steps=steps_of(options), overlap=overlap)
    ends = []
    for step in coded.join(model, **joined):
        for _ in step:
            model(x).backward()
        first, last = (model.weights[place].grad for place in (0, -1))
        local = (lambda part: part.to_local()) if options.ranks > 1 else (lambda whole: whole)
        mean = (options.workers + 1) / 2
        assert local(first)[0] == local(last)[-1] == mean, (first, last)
        ends.append(time.monotonic())
    return durations(ends, options)


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--scheme", default="uncoded")
    parser.add_argument("--keys", metavar="DIR", help="needed between namespaces")
    parser.add_argument("--ranks", type=int, default=1, help="processes of a worker")
    parser.add_argument("--serial", action="store_true", help="exchange when all is computed")
    options = parser.parse_args()
    address = LISTENS[bool(options.netns)].format(options.workers + 1)
    children = []
    with tempfile.TemporaryDirectory() as options.stores:
        for child in range(options.workers * options.ranks):
            process = os.fork()
            if process == 0:
                if child == 0:
                    coordinate(address, options)
                else:
                    work(*divmod(child, options.ranks), address, options)
                os._exit(0)
            children.append(process)
        steps = work(0, 0, address, options)
        for process in children:
            os.waitpid(process, 0)
    told = {"ranks": options.ranks, "serial": options.serial, "compute": options.compute}
    report(steps, scheme=options.scheme, package=True, **told)


if __name__ == "__main__":
    main()
