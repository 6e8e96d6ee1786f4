"""Alternates benches/overlap and ddp_overlap.py in network namespaces, and writes every run.

    cargo bench -p codedgrad --bench overlap --no-run
    sudo benches/peers/netns.sh up
    sudo python benches/peers/overlap_runs.py target/release/deps/overlap-* --out runs.csv
    sudo benches/peers/netns.sh down

A run is the median of ten steps after three, of all cases in turn; rows are written as they come.
Prints the median of each case, and its ratio to DDP with buckets of 4 MB at the compute that is
named: groups do twice the work of a batch that is cut among all.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Tuple

DDP = "ddp"
UNCODED = ["--scheme", "uncoded"]
GROUPS = ["--scheme", "groups:s=1", "--units", "2"]
LATE = ["--late-worker", "1"]
ANOTHER = ["--late-worker", "-1"]

# Name, what is run, seconds of computing, and the compute of the DDP that it is compared with.
CASES: List[Tuple[str, List[str], float, float]] = [
    *[(f"ddp 4 MB, {c} s", [DDP, "--bucket-mb", "4"], c, c) for c in (0.5, 1.0, 2.0)],
    *[(f"ddp 25 MB, {c} s", [DDP, "--bucket-mb", "25"], c, c) for c in (0.5, 1.0, 2.0)],
    *[(f"uncoded, {c} s", UNCODED, c, c) for c in (0.5, 1.0, 2.0)],
    ("uncoded in series, 0.5 s", [*UNCODED, "--in-series"], 0.5, 0.5),
    ("uncoded in series, 1.0 s", [*UNCODED, "--in-series"], 1.0, 1.0),
    ("groups, 0.5 s", GROUPS, 0.5, 0.5),
    ("groups, 1.0 s, twice the work", GROUPS, 1.0, 0.5),
    ("groups, 2.0 s, twice the work", GROUPS, 2.0, 1.0),
    *[(f"groups, one late, {c} s", [*GROUPS, *LATE], c, c) for c in (0.5, 1.0, 2.0)],
    *[(f"groups, another late, {c} s", [*GROUPS, *ANOTHER], c, c) for c in (0.5, 1.0, 2.0)],
]

# What is told of every worker, and the column for the most.
KEYS = {"sent_gradients": "most_sent_gradients", "buffered_gradients": "most_buffered_gradients"}


def run(bench: str, words: List[str], compute: float) -> Dict[str, object]:
    if words[0] == DDP:
        script = Path(__file__).with_name("ddp_overlap.py")
        command = [sys.executable, str(script), "--netns", "ov", *words[1:]]
    else:
        command = [bench, "--netns", "ov", *words]
    done = subprocess.run(
        [*command, "--compute", str(compute)], stdout=subprocess.PIPE, check=True, timeout=600
    )
    found: Dict[str, object] = json.loads(done.stdout.decode().strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bench", help="the program of benches/overlap")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    options = parser.parse_args()
    chosen = [case for case in CASES if options.only in case[0]]
    peers = {f"ddp 4 MB, {peer} s" for _, _, _, peer in chosen}
    medians: Dict[str, List[float]] = {}
    with options.out.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["run", "case", "median_s", "min_s", "max_s", *KEYS.values()])
        for number in range(options.runs):
            for name, words, compute, _ in CASES:
                if options.only not in name and name not in peers:
                    continue
                found = run(options.bench, words, compute)
                seconds = found["seconds"]
                most = [max(found.get(key) or [0.0]) or "" for key in KEYS]
                times = [round(seconds[key], 4) for key in ("median", "min", "max")]
                rows.writerow([number, name, *times, *most])
                file.flush()
                medians.setdefault(name, []).append(seconds["median"])
                print(f"{number} {name}: {times[0]:.3f} s", flush=True)
    for name, _, _, peer in CASES:
        ddp = medians.get(f"ddp 4 MB, {peer} s")
        if name in medians and ddp:
            median = statistics.median(medians[name])
            ratio = median / statistics.median(ddp)
            print(f"{name}: {median:.3f} s, {ratio:.3f} of DDP's at {peer} s")


if __name__ == "__main__":
    main()
