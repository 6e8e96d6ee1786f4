"""A script for `codedgrad run` whose last worker takes five times as long from step 30 on.

    codedgrad run -n 4 --quiet --scheme auto --out late-auto python/benches/late.py

Each worker sleeps 10 ms for a unit of a batch of 8; `run.jsonl` has what the steps took.
"""

import time

import numpy as np

from codedgrad import loop

weights = np.zeros(1000, dtype=np.float32)
run = loop.join([weights], units=8, steps=600)
for step in run:
    for micro in step:
        late = run.worker == run.workers - 1 and micro.step >= 30
        time.sleep(0.05 if late else 0.01)
        micro.give([np.full(1000, micro.unit, dtype=np.float32)])
    if step.applied:
        weights += step.gradients[0]
