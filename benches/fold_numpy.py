"""numpy's weighted sum of messages, to set against the fold: `a @ X` with a: [M] and X: [M, 2^25], both f32.

    pip install numpy
    cargo bench -p codedgrad --no-default-features --bench fold
    python benches/fold_numpy.py [target/criterion]

Prints the best and the median of several runs, with the rows of X right after one another (the worse case for a
first-level cache) and with the stagger that the bench gives its messages. Given the folder of criterion's results, also
the median of `fold_M/combine/f32` and the ratio numpy / fold, above 1 where the fold is faster. Run the two right after
one another.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy

LENGTH = 1 << 25
RUNS = 15


def milliseconds(count: int, stagger: int) -> list[float]:
    messages = numpy.empty((count, LENGTH + stagger), numpy.float32)[:, :LENGTH]
    pattern = numpy.arange(LENGTH, dtype=numpy.int32)
    for i, message in enumerate(messages):
        message[:] = (pattern + i) % 1000 / 500 - 1
    weights = numpy.full(count, 1.5, numpy.float32)
    times = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        weights @ messages
        times.append((time.perf_counter() - start) * 1e3)
    return times[1:]


def main() -> None:
    for count in (8, 16):
        for stagger in (0, 1056):
            times = milliseconds(count, stagger)
            middle = statistics.median(times)
            line = f"M = {count:2}, stagger {stagger:4}: numpy best {min(times):.1f} ms, median {middle:.1f} ms"
            if len(sys.argv) > 1:
                estimates = Path(sys.argv[1], f"fold_{count}", "combine", "f32", "new", "estimates.json")
                fold = json.loads(estimates.read_text())["median"]["point_estimate"] / 1e6
                line += f"; fold median {fold:.1f} ms; numpy / fold {middle / fold:.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
