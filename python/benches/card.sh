#!/bin/bash
# Measures codedgrad's PyTorch door on a card, with bits, times and goals: one command, one card, no network, at most 8 minutes.
#
#     python/benches/card.sh                  # with the Python that has codedgrad and torch: PYTHON=...
#     DEVICE=fake python/benches/card.sh      # on the emulated device (tests/fake_device, g++); DEVICE=cpu
#
# It prints a line for each figure as it comes, and ends with a table of goals. A finished part leaves its lines in a file of the
# folder RESULTS (card-results/$DEVICE). Where the time (MINUTES) was over, call it again: it prints those lines, marked `kept`, and
# measures the other parts. Remove RESULTS, or one file, to measure again. CASES has steps as numbers:format:micro-batches.
# The exit status is 1 if a run had other bits than one alone, or a part failed. A missed goal alone leaves it 0, and so does a cut.
set -u
PYTHON=${PYTHON:-python3}
export DEVICE=${DEVICE:-cuda}
RESULTS=${RESULTS:-card-results/$DEVICE}
here=$(cd "$(dirname "$0")" && pwd)
if [ "$DEVICE" = fake ]; then export PYTHONPATH="$here/../tests${PYTHONPATH:+:$PYTHONPATH}"; fi
# Cases whose goals were missed before come first, then the old way beside one of them (`host`).
cases="1e9:bfloat16:4 1e9:float32:1 100e6:float32:1 100e6:float32:4 100e6:float32:4:host 100e6:float32:8 100e6:bfloat16:1 100e6:bfloat16:4"
if [ "$DEVICE" != cuda ]; then cases="2e6:bfloat16:4 2e6:float32:1 2e6:float32:4 2e6:float32:4:host" BYTES=${BYTES:-8e6}; fi
CASES=${CASES:-$cases} BYTES=${BYTES:-4e9}
# cuBLAS has the same bits twice only with a workspace of its own.
# The CPU's sums depend on its threads, of which `codedgrad run` gives each worker its share.
export OMP_NUM_THREADS=1
export CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONDONTWRITEBYTECODE=1
folder=$(mktemp -d) lines="$RESULTS/.lines"
trap 'rm -rf "$folder" "$lines"' EXIT
limit=$((SECONDS + ${MINUTES:-8} * 60))
deadline=$limit measured=0 kept=0 failed=0 missing=0 finished=()

cat > "$folder/card.py" <<'PYTHON'
import hashlib, os, statistics, sys, time
import torch
from torch import nn

DEVICE = os.environ["DEVICE"]
if DEVICE == "cuda" and not torch.cuda.is_available():
    sys.exit(3)
if DEVICE == "fake":
    import fake_device
    fake_device.load()
import codedgrad.torch as coded
from codedgrad._torch import host
from codedgrad._torch.sums import transfer_of

# Large tensors are made on a card: one core of the host would take longer than the measurement.
MADE = DEVICE if DEVICE == "cuda" else "cpu"
# The fewest steps to time, and the seconds for more.
LEAST, LONGEST = (5, 4.0) if DEVICE == "cuda" else (3, 0.5)


def wait():
    if DEVICE != "cpu":
        torch.accelerator.synchronize()


def say(what, value, more=""):
    print(f"{what:<58} {value} {more}".rstrip(), flush=True)


def verdict(met):
    """Times of the emulated device and the CPU mean nothing."""
    return "-" if DEVICE != "cuda" else "pass" if met else "fail"


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def model_of(parameters, dtype, made="cpu", layers=8):
    torch.manual_seed(1)
    width = max(16, int((parameters / (8 * layers)) ** 0.5) // 16 * 16)
    with torch.device(made):
        model = nn.Sequential(*(Block(width) for _ in range(layers)))
    return model.to(dtype).to(DEVICE), width


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
    say("torch", torch.__version__, f"cuda {torch.version.cuda}, DEVICE={DEVICE}")
    if DEVICE == "cuda":
        found = torch.cuda.get_device_properties(0)
        say("card", found.name, f"{found.total_memory / 2**30:.0f} GiB")


def timed(step):
    """Seconds of a step, their median."""
    step(); step(); wait()
    found, begun = [], time.perf_counter()
    while len(found) < LEAST or (time.perf_counter() - begun < LONGEST and len(found) < 50):
        before = time.perf_counter()
        step(); wait()
        found.append(time.perf_counter() - before)
    return statistics.median(found)


def steps():
    parameters, dtype, units = float(sys.argv[2]), getattr(torch, sys.argv[3]), int(sys.argv[4])
    rate = float(sys.argv[5]) if sys.argv[5] else None
    old = os.environ.get("CODEDGRAD_STAGING") == "host"
    rows = 64 if DEVICE != "cuda" else 8192
    model, width = model_of(parameters, dtype, MADE)
    count = sum(each.numel() for each in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    xs = [torch.randn(rows, width, device=MADE).to(dtype).to(DEVICE) for _ in range(units)]
    def unit(x):
        # Its gradient is scaled as a mean over units is.
        (model(x).float().square().mean() / units).backward()
    def plain():
        for x in xs:
            unit(x)
        optimizer.step(); optimizer.zero_grad(set_to_none=True)
    without = timed(plain)
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
    with_it = timed(step)
    size = count * (2 if dtype is torch.bfloat16 else 4)
    added = 1e3 * (with_it - without)
    # One copy of the gradient, the slower way, and 10 ms for all the rest.
    goal = None if rate is None else size / rate / 1e6 + 10
    name = f"step, {count / 1e6:.0f} M {sys.argv[3]} x {units}" + ", CODEDGRAD_STAGING=host" * old
    judged = "no goal" if old else f"goal {goal:.1f} ms: {verdict(added <= goal)}" if goal else "goal unknown: -"
    say(name + (" (s)" if old else ", without and with (s)"), f"{without:.4f} {with_it:.4f}", f"ratio {with_it / without:.3f}, gradient {size / 1e9:.2f} GB, added {added:.1f} ms, {judged}")
    if DEVICE == "cuda":
        more = torch.cuda.max_memory_allocated() - peak
        say(name + ", device memory more", f"{more / size:.2f} gradients")
    on_device = run.report().get("device")
    if on_device:
        ways = (f"{way} {each['bytes'] / 1e9:.2f} GB, waited {each['seconds']:.3f} s" for way, each in on_device.items())
        say(name + ", in all", "; ".join(ways))
    run.close()


def copies():
    size, by = int(float(sys.argv[2])) // 4, sys.argv[3]
    if DEVICE == "cpu":
        return say("copies, " + by, "skipped: there is no device")
    device, pinned = torch.ones(size, device=MADE).to(DEVICE), torch.ones(size, pin_memory=True)
    rates = [4 * size / timed(copy) / 1e9 for copy in (lambda: pinned.copy_(device, non_blocking=True), lambda: device.copy_(pinned, non_blocking=True))]
    names = [f"copy of {4 * size / 1e9:.2f} GB, {by}, to the {where} (GB/s)" for where in ("host", "device")]
    if by == "page-locked":
        return [say(name, f"{rate:.2f}") for name, rate in zip(names, rates)]
    parameters = [nn.Parameter(part) for part in device.chunk(16)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    room = torch.ones(size)
    class Unit:
        number, begins, ends, factor = 0, True, True, 1.0
        def go_on(self, summed=False): pass
        def hand_over(self, first, arrays): pass
        def room(self): return room
        def around(self, room): return room
        def written(self, first, end): pass
    class Decoded:
        factor = 1.0
        def write(self, first, arrays): pass
        def lies(self, parameters): return room, room, list(room.chunk(16))
    def out():
        transfer.begin(Unit()); transfer.collect(); transfer.settle()
    def back():
        transfer.back([True] * len(parameters), Decoded())
    transfer = transfer_of(parameters)
    for name, way, rate in zip(names, (out, back), rates):
        found = 4 * size / timed(way) / 1e9
        say(name, f"{found:.2f}", f"of page-locked {found / rate:.2f}, goal 0.85: {verdict(found >= 0.85 * rate)}")
    transfer.close()


def digest():
    size = int(float(sys.argv[2])) // 4
    parameters = [nn.Parameter(part) for part in torch.randn(size, device=MADE).to(DEVICE).chunk(16)]
    took = 1e3 * timed(lambda: host.digest(parameters))
    goal = 50 * 4 * size / 4e9
    say(f"digest of {4 * size / 1e9:.2f} GB (ms)", f"{took:.1f}", f"goal {goal:.1f} ms: {verdict(took <= goal)}")


{"about": about, "worker": worker, "steps": steps, "copies": copies, "digest": digest}[sys.argv[1]]()
PYTHON

card="$folder/card.py"

# A command of a part, which ends with the part's time.
limited() { timeout -k 10 $((deadline > SECONDS ? deadline - SECONDS : 1)) "$@"; }

# A part by its name and the seconds it may take: its lines are shown and kept; of one that ends otherwise, why.
part() {
    local name=$1 seconds=$2; shift 2
    if [ -f "$RESULTS/$name" ]; then
        kept=$((kept + 1)) finished+=("$RESULTS/$name")
        sed 's/^/kept: /' "$RESULTS/$name"; return
    elif [ $((limit - SECONDS)) -le 10 ]; then
        missing=$((missing + 1))
        echo "not run: $name: the time is over"; return
    fi
    # Without a card the cores do all the work, and others may use them too.
    if [ "$DEVICE" != cuda ]; then seconds=$((3 * seconds)); fi
    deadline=$((SECONDS + seconds < limit ? SECONDS + seconds : limit))
    "$@" 2> "$folder/stderr" | tee "$lines"
    local status=${PIPESTATUS[0]}
    if [ $status -eq 0 ]; then
        mv "$lines" "$RESULTS/$name"
        measured=$((measured + 1)) finished+=("$RESULTS/$name")
    elif [ $SECONDS -ge $limit ] && ! grep -q ^FAILED "$lines"; then
        missing=$((missing + 1))
        echo "cut: $name: the time is over"
    else
        failed=$((failed + 1))
        echo "FAILED with status $status (124: it took too long): $name"
        tail -5 "$folder/stderr"
    fi
}

# Compares a run of several workers with one alone.
same() {
    local right=$1 what=$2 file; shift 2
    for file in "$@"; do
        if [ ! -s "$file" ] || [ "$(cat "$right")" != "$(cat "$file")" ]; then
            echo "FAILED: $what: $(cat "$file" 2> /dev/null || echo nothing), and alone $(cat "$right")"
            return 1
        fi
    done
    echo "$what: equal bits, $(cat "$right")"
}

# Bits of a format: alone, twice, by four workers, and with one of two late.
bits() {
    local dtype=$1 alone="$folder/$1.first.alone" wrong=0
    limited $PYTHON "$card" worker $dtype "$folder/$dtype.first" > /dev/null || return
    limited $PYTHON "$card" worker $dtype "$folder/$dtype.second" > /dev/null || return
    same "$alone" "alone twice, $dtype" "$folder/$dtype.second.alone" || wrong=1
    limited $PYTHON -m codedgrad run -n 4 --scheme uncoded --out "$folder/run-$dtype" "$card" worker $dtype "$folder/$dtype.four" > /dev/null || return
    same "$alone" "four workers, $dtype" "$folder/$dtype.four".{0,1,2,3} || wrong=1
    LATE=1 limited $PYTHON -m codedgrad run -n 2 --scheme groups:s=1 --out "$folder/late-$dtype" "$card" worker $dtype "$folder/$dtype.late" 2 > /dev/null || return
    same "$alone" "two workers, one late by 2 s a unit, $dtype" "$folder/$dtype.late".{0,1} || wrong=1
    if [ "$DEVICE" != cpu ] && [ $dtype = float32 ]; then
        DEVICE=cpu limited $PYTHON "$card" worker $dtype "$folder/cpu" > /dev/null || return
        echo "the CPU's bits, $dtype: $(cat "$folder/cpu.alone"), the device's: $(cat "$alone") (a card rounds otherwise, the emulated device does not)"
    fi
    return $wrong
}

sanitizer() {
    if [ "$DEVICE" != cuda ]; then echo "skipped: PyTorch's CUDA sanitizer: it looks at cards alone"; return; fi
    TORCH_CUDA_SANITIZER=1 limited $PYTHON "$card" worker float32 "$folder/sanitizer" > /dev/null
    local status=$?
    echo "PyTorch's CUDA sanitizer: $(grep -c 'CSAN detected' "$folder/stderr") reports"
    return $status
}

limited $PYTHON "$card" about > "$folder/about" 2> "$folder/stderr"
case $? in
    0) cat "$folder/about" ;;
    3) echo "skipped: all of it: PyTorch ($PYTHON) sees no card here. DEVICE=fake tries it on the emulated device"; exit 0 ;;
    *) echo "FAILED: about"; tail -5 "$folder/stderr"; exit 1 ;;
esac
# Results are of one machine: no commit should take them along.
if [ ! -d "$RESULTS" ]; then mkdir -p "$RESULTS" && echo '*' > "$RESULTS/.gitignore" || exit 1; fi
if [ ! -f "$RESULTS/about" ]; then cp "$folder/about" "$RESULTS/about"; fi
if ! cmp -s "$folder/about" "$RESULTS/about"; then
    echo "FAILED: $RESULTS is of another card or PyTorch: remove it, or set RESULTS"
    exit 1
fi

part rate-$BYTES 60 limited $PYTHON "$card" copies "$BYTES" page-locked
# The slower way, of which goals are made.
rate=$(cat "$RESULTS/rate-$BYTES" 2> /dev/null | awk '/GB\/s/ && (!least || $NF < least) { least = $NF } END { print least }')
for each in $CASES; do
    IFS=: read -r size dtype units way <<< "$each"
    part "steps-${each//:/-}" 90 limited env ${way:+CODEDGRAD_STAGING=$way} $PYTHON "$card" steps $size $dtype $units "$rate"
done
for dtype in float32 bfloat16; do part bits-$dtype 150 bits $dtype; done
part copies-$BYTES 60 limited $PYTHON "$card" copies "$BYTES" "by the package"
part digest-$BYTES 60 limited $PYTHON "$card" digest "$BYTES"
part sanitizer 60 sanitizer

echo
if [ "$DEVICE" != cuda ]; then echo "times above mean nothing: they are of small sizes, and of no card"; fi
cat /dev/null ${finished[@]+"${finished[@]}"} | awk '
    / goal .*: (pass|fail|-)$/ { found[$NF]++; name = substr($0, 1, 58); sub(/ *$/, "", name); printf "%-4s  %s\n", $NF, name }
    END { printf "goals: %d pass, %d fail, %d not judged\n", found["pass"], found["fail"], found["-"] }'
echo "parts: $measured measured, $kept kept, $failed FAILED, $missing without time (call again); $SECONDS s"
[ $failed -eq 0 ]
