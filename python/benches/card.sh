#!/bin/bash
# The first figures of codedgrad's PyTorch door on a card: one command, one card, no network, at most 20 minutes.
#
#     python/benches/card.sh                  # with the Python that has codedgrad and torch: PYTHON=...
#     DEVICE=fake python/benches/card.sh      # on the emulated device (tests/fake_device, g++); DEVICE=cpu
#
# It prints one line for each figure as it comes, `skipped` where something is not there, and `FAILED` where a run of several workers
# has other bits than one alone; its exit status says whether that was so. docs/gpu.md says what is expected.
set -u
PYTHON=${PYTHON:-python3}
export DEVICE=${DEVICE:-cuda}
here=$(cd "$(dirname "$0")" && pwd)
if [ "$DEVICE" = fake ]; then export PYTHONPATH="$here/../tests${PYTHONPATH:+:$PYTHONPATH}"; fi
if [ "$DEVICE" = cuda ]; then SIZES=${SIZES:-"100e6 1e9"} BYTES=${BYTES:-4e9}; else SIZES=${SIZES:-2e6} BYTES=${BYTES:-8e6}; fi
# cuBLAS has the same bits twice only with a workspace of its own.
# The CPU's sums depend on its threads, of which `codedgrad run` gives each worker its share.
export OMP_NUM_THREADS=1
export CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONDONTWRITEBYTECODE=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
begun=$SECONDS
limit=$((begun + ${MINUTES:-20} * 60))
failed=0

cat > "$folder/card.py" <<'PYTHON'
import hashlib, os, statistics, sys, time
import torch
from torch import nn

DEVICE = os.environ["DEVICE"]
if DEVICE == "fake":
    import fake_device
    fake_device.load()
import codedgrad.torch as coded
from codedgrad._torch import host
from codedgrad._torch.staging import Staging


def wait():
    if DEVICE != "cpu":
        torch.accelerator.synchronize()


def say(what, value, more=""):
    print(f"{what:<58} {value} {more}".rstrip(), flush=True)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def model_of(parameters, dtype, layers=8):
    torch.manual_seed(1)
    width = max(16, int((parameters / (8 * layers)) ** 0.5) // 16 * 16)
    return nn.Sequential(*(Block(width) for _ in range(layers))).to(dtype).to(DEVICE), width


def loss_of(model, width, rows, generator, dtype):
    x = torch.randn(rows, width, generator=generator).to(dtype).to(DEVICE)
    return model(x).float().square().mean()


def train(dtype, steps=6, units=8, late=0.0):
    """One worker, or the only one; gives back a hash of the parameters."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    model, width = model_of(2e5, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    # No step may be held up by a digest: waits would hide what is not waited for.
    with coded.join(model, optimizer, units=units, steps=steps, verify=0) as run:
        for step in run:
            for micro in step:
                time.sleep(late)
                loss_of(model, width, 8, micro.generator(), dtype).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        units = run.report()["units"]
    wait()
    hashed = hashlib.blake2b(digest_size=6)
    for parameter in model.parameters():
        hashed.update(parameter.detach().float().cpu().numpy().tobytes())
    return hashed.hexdigest(), units


def worker():
    dtype = getattr(torch, sys.argv[2])
    number = os.environ.get("CODEDGRAD_WORKER", "alone")
    late = float(sys.argv[4]) if number == os.environ.get("LATE") else 0.0
    bits, units = train(dtype, late=late)
    with open(f"{sys.argv[3]}.{number}", "w") as file:
        file.write(bits)
    print(f"bits {bits}, {units} units", flush=True)


def about():
    say("torch", torch.__version__, f"cuda {torch.version.cuda}")
    if DEVICE == "cuda":
        found = torch.cuda.get_device_properties(0)
        say("card", found.name, f"{found.total_memory / 2**30:.0f} GiB")


def timed(step, seconds):
    """Seconds of a step, the median of as many as fit."""
    step(); step(); wait()
    found, begun = [], time.perf_counter()
    while len(found) < 5 or (time.perf_counter() - begun < seconds and len(found) < 50):
        before = time.perf_counter()
        step(); wait()
        found.append(time.perf_counter() - before)
    return statistics.median(found)


def steps():
    parameters, dtype, units = float(sys.argv[2]), getattr(torch, sys.argv[3]), int(sys.argv[4])
    rows = 64 if DEVICE != "cuda" else 8192
    model, width = model_of(parameters, dtype)
    count = sum(each.numel() for each in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    xs = [torch.randn(rows, width).to(dtype).to(DEVICE) for _ in range(units)]
    def unit(x):
        # Its gradient is scaled as a mean over units is.
        (model(x).float().square().mean() / units).backward()
    def plain():
        for x in xs:
            unit(x)
        optimizer.step(); optimizer.zero_grad(set_to_none=True)
    without = timed(plain, 8)
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
        plain(); wait(); peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    run = coded.join(model, optimizer, units=units, steps=10_000, reduction="sum", verify=0)
    ordered = iter(run)
    def step():
        for number, _ in enumerate(next(ordered)):
            unit(xs[number])
        optimizer.step(); optimizer.zero_grad(set_to_none=True)
    with_it = timed(step, 8)
    size = count * (2 if dtype is torch.bfloat16 else 4)
    name = f"step, {count / 1e6:.0f} M {sys.argv[3]}, {units} units a step"
    say(name + ": without, with it (s)", f"{without:.4f} {with_it:.4f}", f"added {1e3 * (with_it - without):.1f} ms, ratio {with_it / without:.3f}, gradient {size / 1e9:.2f} GB")
    if DEVICE == "cuda":
        more = torch.cuda.max_memory_allocated() - peak
        say(name + ": device memory more", f"{more / size:.2f} gradients")
    run.close()


def copies():
    size = int(float(sys.argv[2])) // 4
    if DEVICE == "cpu":
        return say("copies", "skipped: there is no device")
    device, pinned = torch.ones(size, device=DEVICE), torch.ones(size).pin_memory()
    rates = {}
    for name, copy in (("to the host", lambda: pinned.copy_(device, non_blocking=True)), ("to the device", lambda: device.copy_(pinned, non_blocking=True))):
        rates[name] = 4 * size / timed(copy, 5) / 1e9
        say(f"copy of {4 * size / 1e9:.2f} GB, page-locked, {name} (GB/s)", f"{rates[name]:.2f}")
    parameters = [nn.Parameter(part) for part in device.chunk(16)]
    staging = Staging(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    def out():
        staging.begin(lambda: None); staging.collect(lambda first, arrays: None); staging.settle()
    def back():
        staging.back([True] * len(parameters), lambda first, arrays: None)
    for name, way in (("to the host", out), ("to the device", back)):
        rate = 4 * size / timed(way, 5) / 1e9
        say(f"the same by Staging, {name} (GB/s)", f"{rate:.2f}", f"{rate / rates[name]:.2f} of it (goal 0.85)")
    staging.close()


def digest():
    size = int(float(sys.argv[2])) // 4
    parameters = [nn.Parameter(part) for part in torch.randn(size).to(DEVICE).chunk(16)]
    took = timed(lambda: host.digest(parameters), 10)
    say(f"digest of {4 * size / 1e9:.2f} GB (ms)", f"{1e3 * took:.1f}", "(goal 50 for 4 GB on a card)")


{"about": about, "worker": worker, "steps": steps, "copies": copies, "digest": digest}[sys.argv[1]]()
PYTHON

# A part of at most so many seconds: its lines are shown; of one that ends otherwise, why.
part() {
    local seconds=$1 left=$((limit - SECONDS)); shift
    if [ $left -le 10 ]; then echo "skipped: the time is over: $*"; return 1; fi
    timeout -k 10 $((seconds < left ? seconds : left)) "$@" 2> "$folder/stderr"
    local status=$?
    if [ $status -ne 0 ]; then
        failed=1
        echo "FAILED with status $status (124: it took too long): $*"
        tail -5 "$folder/stderr"
    fi
    return $status
}

# Compares a run of several workers with one alone.
same() {
    local right=$1 what=$2; shift 2
    for file in "$@"; do
        if [ ! -s "$file" ] || [ "$(cat "$right")" != "$(cat "$file")" ]; then
            failed=1
            echo "FAILED: $what: $(cat "$file" 2> /dev/null || echo nothing), and alone $(cat "$right" 2> /dev/null)"
            return 1
        fi
    done
    echo "$what: equal bits, $(cat "$right")"
}

card="$folder/card.py"
if [ "$DEVICE" = cuda ] && ! $PYTHON -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2> /dev/null; then
    echo "skipped: all of it: PyTorch ($PYTHON) sees no card here. DEVICE=fake tries it on the emulated device"
    exit 0
fi
part 60 $PYTHON "$card" about

for dtype in float32 bfloat16; do
    alone="$folder/$dtype.first"
    part 120 $PYTHON "$card" worker $dtype "$alone" > /dev/null && mv "$alone.alone" "$alone"
    part 120 $PYTHON "$card" worker $dtype "$folder/$dtype.second" > /dev/null
    same "$alone" "alone twice, $dtype" "$folder/$dtype.second.alone"
    part 180 $PYTHON -m codedgrad run -n 4 --scheme uncoded --out "$folder/run-$dtype" "$card" worker $dtype "$folder/$dtype.four" > /dev/null
    same "$alone" "four workers, $dtype" "$folder/$dtype.four".{0,1,2,3}
    LATE=1 part 180 $PYTHON -m codedgrad run -n 2 --scheme groups:s=1 --out "$folder/late-$dtype" "$card" worker $dtype "$folder/$dtype.late" 2 > /dev/null
    same "$alone" "two workers, one late by 2 s a unit, $dtype" "$folder/$dtype.late".{0,1}
done
if [ "$DEVICE" != cpu ]; then
    DEVICE=cpu part 120 $PYTHON "$card" worker float32 "$folder/cpu" > /dev/null
    echo "the CPU's bits, float32: $(cat "$folder/cpu.alone" 2> /dev/null), the device's: $(cat "$folder/float32.first" 2> /dev/null) (a card rounds otherwise, the emulated device does not)"
fi

if [ "$DEVICE" = cuda ]; then
    TORCH_CUDA_SANITIZER=1 part 180 $PYTHON "$card" worker float32 "$folder/sanitizer" > /dev/null
    echo "PyTorch's CUDA sanitizer: $(grep -c 'CSAN detected' "$folder/stderr") reports"
else
    echo "skipped: PyTorch's CUDA sanitizer: it looks at cards alone"
fi

part 120 $PYTHON "$card" copies "$BYTES"
part 120 $PYTHON "$card" digest "$BYTES"
for size in $SIZES; do
    for dtype in float32 bfloat16; do
        for units in 1 4; do part 150 $PYTHON "$card" steps "$size" $dtype $units; done
    done
done
if [ "$DEVICE" != cuda ]; then echo "skipped: figures of a card: sizes above are small ones, their times mean nothing"; fi
echo "$((SECONDS - begun)) s"
exit $failed
