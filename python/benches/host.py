"""What a worker on an accelerator costs its host: passes over memory and processor seconds per step.

    python python/benches/host.py [--numbers 100e6] [--micro 1 4 8] [--staging device host]

It runs on the emulated device (tests/fake_device, g++), whose thread is left out of the seconds. A
pass is 4 bytes times numbers, read or written of the host's memory: by the native module, and by
copies from and to the device. Each line is a process of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Set

HERE = Path(__file__).resolve().parent
STEPS = 4


def seconds_of(threads: Set[str]) -> Dict[str, float]:
    """Processor seconds by thread, of those that are not among some."""
    found = {}
    for thread in set(os.listdir("/proc/self/task")) - threads:
        fields = Path(f"/proc/self/task/{thread}/stat").read_text().rsplit(")", 1)[1].split()
        found[thread] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def measure(numbers: int, micro: int) -> None:
    sys.path.insert(0, str(HERE.parent / "tests"))
    import fake_device
    import torch

    before = set(os.listdir("/proc/self/task"))
    torch.set_num_threads(1)
    fake_device.load()
    torch.ones(1, device="fake").cpu()
    # The device's thread.
    device = set(os.listdir("/proc/self/task")) - before

    import codedgrad.torch as coded

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            parts = [torch.zeros(numbers // 8, device="fake") for _ in range(8)]
            self.parts = torch.nn.ParameterList(torch.nn.Parameter(part) for part in parts)

        def forward(self) -> Any:
            return sum(part.sum() for part in self.parts)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    run = coded.join(model, optimizer, units=micro, steps=STEPS + 2, reduction="sum", verify=0)
    spent: List[float] = []
    bytes_before = 0.0
    for step in run:
        if step.index == 2:
            bytes_before = run.report()["host_bytes"]
            spent = [sum(seconds_of(device).values())]
        for _ in step:
            model().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.accelerator.synchronize()
    per_step = (sum(seconds_of(device).values()) - spent[0]) / STEPS
    passes = (run.report()["host_bytes"] - bytes_before) / STEPS / (4 * (numbers // 8 * 8))
    staging = os.environ["CODEDGRAD_STAGING"]
    print(f"{staging:<7} {micro:>2} micro-batches: {passes:6.2f} passes, {per_step:.3f} s a step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--numbers", type=float, default=100e6, help="of the model")
    parser.add_argument("--micro", type=int, nargs="+", default=[1, 4, 8], help="per step")
    parser.add_argument("--staging", nargs="+", default=["host", "device"], help="ways to try")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.one:
        measure(int(told.numbers), told.micro[0])
        return
    for staging in told.staging:
        for micro in told.micro:
            flags = ["--one", "--numbers", str(told.numbers), "--micro", str(micro)]
            environment = {**os.environ, "CODEDGRAD_STAGING": staging}
            subprocess.run([sys.executable, __file__, *flags], env=environment, check=True)


if __name__ == "__main__":
    main()
