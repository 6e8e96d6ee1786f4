"""Times numpy's least squares on the survivor rows of cyclic codes, the peer of `cargo bench --bench decode`.

pip install numpy; python benches/lstsq.py
"""

import statistics
import time

import numpy as np

WORKERS = 256


def cyclic(stragglers, rng):
    """Random cyclic repetition (Tandon et al. 2017, Algorithm 2)."""
    check = rng.standard_normal((stragglers, WORKERS))
    check[:, -1] = -check[:, :-1].sum(axis=1)
    code = np.zeros((WORKERS, WORKERS))
    for i in range(WORKERS):
        window = [(i + j) % WORKERS for j in range(stragglers + 1)]
        code[i, window[0]] = 1
        code[i, window[1:]] = -np.linalg.solve(check[:, window[1:]], check[:, window[0]])
    return code


def main():
    rng = np.random.default_rng(7)
    for stragglers in (7, 15, 31, 63):
        survivors = np.sort(rng.permutation(WORKERS)[: WORKERS - stragglers])
        rows = cyclic(stragglers, rng)[survivors]
        times = []
        for _ in range(15):
            start = time.perf_counter()
            np.linalg.lstsq(rows.T, np.ones(WORKERS), rcond=None)
            times.append(time.perf_counter() - start)
        print(f"n={WORKERS} s={stragglers}: {1e6 * statistics.median(times):.0f} us (median of {len(times)})")


if __name__ == "__main__":
    main()
