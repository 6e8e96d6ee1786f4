"""The PyTorch package on the model of ddp_overlap.py, as a training script uses it.

    python benches/peers/package_overlap.py --compute 1.0
    python benches/peers/package_overlap.py --netns ov --compute 1.0 --keys keys

Worker k runs in the network namespace of that prefix and number, the coordinator in the one whose
number is `c`, as netns.sh makes them; between namespaces connections are encrypted, with the keys
of `codedgrad keygen keys --workers 4`. Steps are from end to end at worker 0, with the gradient in
`p.grad`; prints one JSON object.
"""

import argparse
import os
import time
from typing import Any, Dict, List

import torch
from ddp_overlap import Model, durations, enter, flags, report, steps_of

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
        steps=steps_of(options),
        length=options.elements,
        address=address,
        **secrets(options),
    )
    assert served.wait()


def work(rank: int, address: str, options: argparse.Namespace) -> List[float]:
    import codedgrad.torch as coded

    if options.netns:
        enter(f"{options.netns}{rank}")
    torch.set_num_threads(1)
    model = Model(options.elements, options.compute, float(rank + 1))
    x = torch.zeros(1, requires_grad=True)
    joined = {"address": address, "worker": rank, **secrets(options)}
    run = coded.join(model, units=options.workers, steps=steps_of(options), **joined)
    ends = []
    for step in run:
        for _ in step:
            model(x).backward()
        assert model.weights[0].grad[0] == model.weights[-1].grad[-1]
        ends.append(time.monotonic())
    return durations(ends, options)


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--scheme", default="uncoded")
    parser.add_argument("--keys", metavar="DIR", help="needed between namespaces")
    options = parser.parse_args()
    address = LISTENS[bool(options.netns)].format(options.workers + 1)
    children = []
    for child in range(options.workers):
        process = os.fork()
        if process == 0:
            if child == 0:
                coordinate(address, options)
            else:
                work(child, address, options)
            os._exit(0)
        children.append(process)
    steps = work(0, address, options)
    for process in children:
        os.waitpid(process, 0)
    report(steps, scheme=options.scheme, package=True, compute=options.compute)


if __name__ == "__main__":
    main()
