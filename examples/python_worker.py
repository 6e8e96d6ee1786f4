#!/usr/bin/env python3
"""A worker in plain Python, as docs/protocol.md describes it: star exchange, plain TCP, nothing but the standard library.

    python3 examples/python_worker.py HOST:PORT TOKEN_FILE IDENTITY [WORKER]

It trains small integers and 64ths of them: every sum is exact and has the same bits whoever computes it, in any language.
SIGTERM makes it leave: it ends when it is not needed any more.
"""
import hmac, json, math, os, pathlib, secrets, select, signal, socket, struct, sys, time, zlib
from array import array
from collections import defaultdict, deque

HEADER = struct.Struct("<4sHBBQIIQIIQQQII")
CONTROL, TERM, SUM, RESULT, STATE = range(5)
CHUNK, NOT_FINITE = 1 << 16, 128
AT_ONCE = {"ping", "discard", "release", "exchange"}
IN_ORDER = {"compute", "apply", "skip", "send_state", "load_state", "stop"}

def gradient(out, parameters, batch, sample, coefficient):
    """`out` plus the coefficient times the gradient of one sample."""
    shift, pairs = 13 * sample + 31 * batch, zip(out, parameters)
    return array("f", [x + coefficient * (p // 1 - ((7 * i + shift) % 101 - 50)) for i, (x, p) in enumerate(pairs)])

def key(task):
    """What tells a task from others; a run that goes on with fewer workers has more than one plan."""
    return task["job"], task["piece"], task.get("plan", 0)

class Worker:
    def __init__(self, address, token, identity, number=None):
        self.socket = socket.create_connection(address.rsplit(":", 1))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting = b"\1\0" + secrets.token_bytes(32)
        self.socket.sendall(b"CGRAD\0" + greeting)
        assert self.exactly(2) == b"\1\0", "another version of the handshake"
        transcript = greeting + self.exactly(32)
        proof = hmac.digest(token, b"codedgrad server" + transcript, "sha256")
        assert hmac.compare_digest(self.exactly(32), proof), "the coordinator does not know the token"
        self.socket.sendall(hmac.digest(token, b"codedgrad client" + transcript, "sha256"))
        assert self.exactly(1) == b"\1"
        self.stamp, self.queue, self.wanted, self.ordered, self.transfers = (0, 0, 0, 0), deque(), None, 0, 0
        process = secrets.randbits(64)  # tells this process from others of the same name
        self.tell("hello", worker=number, identity=identity, process=process, address=None, offer=None)
        (name, welcome), = json.loads(self.frame()[1]).items()
        if name == "replaced":
            sys.exit(4)
        assert name == "welcome" and welcome["format"] == "f32", welcome
        self.stamp = tuple(welcome[key] for key in ("run", "epoch", "worker", "layout"))
        self.length, self.next, self.unit_samples = welcome["length"], welcome["first"], json.loads(welcome["job"])["unit_samples"]
        self.tell("facts", facts={"length": self.length, "unit_samples": self.unit_samples})
        self.zeros = self.parameters = array("f", bytes(4 * self.length))  # neither is ever written to
        self.leaves = False
        self.results = {}  # by key(task): a list of vectors
        # By (SUM, step, attempt) or (STATE, transfer, 0): a vector, the offsets of its missing chunks, whether all is finite.
        self.arriving = defaultdict(lambda: [self.zeros[:], set(range(0, self.length, CHUNK)), True])

    def exactly(self, count):
        data = self.socket.recv(count, socket.MSG_WAITALL)
        return data if len(data) == count else sys.exit("the coordinator hung up")
    def frame(self):
        fields = HEADER.unpack(head := self.exactly(72))
        assert fields[:2] == (b"CGRD", 10) and fields[-1] == zlib.crc32(head[:68]), "not a frame"
        return fields, self.exactly(fields[-2])
    def send(self, kind, body, number=0, attempt=0, piece=0, offset=0):
        run, epoch, worker, layout = self.stamp
        head = HEADER.pack(b"CGRD", 10, kind, 0, run, epoch, worker, number, attempt, piece, offset, layout, 0, len(body), 0)[:68]
        self.socket.sendall(head + struct.pack("<I", zlib.crc32(head)) + body)
    def send_chunks(self, vector, kind, number, attempt, piece):
        for offset in range(0, self.length, CHUNK):
            self.send(kind, vector[offset : offset + CHUNK].tobytes(), number, attempt, piece, offset)
    def tell(self, kind, **fields):
        self.send(CONTROL, json.dumps({kind: fields}).encode())
    def read(self, patience):
        """Takes in one frame, if one comes in time."""
        if self.leaves:  # said between two frames: a signal may come in the middle of one
            self.leaves = self.tell("leave", seconds=20.0)
        if not select.select([self.socket], [], [], patience)[0]:
            return False
        (_, _, kind, flags, _, _, _, number, attempt, _, offset, *_), body = self.frame()
        if kind == CONTROL:
            (name, message), = json.loads(body).items()
            if name == "sum":
                (name, message), = message.items()
            if name == "replaced":
                print("another process has this worker's number", file=sys.stderr)
                sys.exit(4)
            if message.get("epoch", self.stamp[1]) != self.stamp[1]:
                return True  # meant for a connection of this worker that is over
            if name == "compute":
                if message["order"] <= self.ordered:
                    return True  # it came twice
                self.ordered = self.wanted = message["order"]
            if name == "stop" or name == "abandon" and message["order"] == self.wanted:
                self.wanted = None
            if name == "load_state":
                self.queue.clear()
            if name in IN_ORDER:
                self.queue.append((name, message))
            elif name in AT_ONCE:
                getattr(self, name)(**message)
        elif kind == STATE or kind == SUM and number >= self.next:
            vector, missing, _ = entry = self.arriving[kind, number, attempt]
            if offset in missing:
                missing.remove(offset)
                vector[offset : offset + len(body) // 4] = array("f", body)
                entry[2] = entry[2] and not flags & NOT_FINITE
                if kind == SUM and not missing:
                    name, digest = ("held", {"digest": None}) if entry[2] else ("not_finite", {})
                    self.tell("sum", **{name: {"step": number, "attempt": attempt, **digest}})
        return True

    def ping(self, number, **_):
        self.tell("pong", number=number)
    def discard(self, task, **_):
        (self.results.get(key(task)) or [None]).pop(0)
    def release(self, end, **_):
        self.results = {task: vectors for task, vectors in self.results.items() if task[0] >= end}
    def exchange(self, step, attempt, terms, places=(), **_):
        for number, term in zip(places or range(len(terms)), terms):
            if (source := term["holders"][0])["worker"] == self.stamp[2]:  # for the one owner, which is number 0
                self.send_chunks(self.results[key(source["task"])][-1], TERM, step, attempt, number)

    def run(self):
        name, asked = "", 0
        while name != "stop":
            name, message = self.queue[0] if self.queue else ("", {})
            # The worker neither computes nor ends before the steps that must be applied before.
            step = max([message.get("step", self.next), *(after + 1 for after in message.get("after", []))])
            due = [at for at, (_, other) in enumerate(self.queue) if other.get("step") == self.next]
            if step > self.next and due:  # overtaken on its way by what needs it
                name = self.queue.rotate(-due[0])
                continue
            transfer = message.get("transfer")
            chunks = {"apply": (SUM, step, message.get("attempt")), "load_state": (STATE, transfer, 0)}.get(name)
            if not name or step > self.next or chunks and step == self.next and self.arriving[chunks][1]:
                # A step that was left out on the way is as one whose sum does not come: a state is needed.
                if not self.read(0.5) and name in ("apply", "skip", "compute"):
                    self.tell("step_unavailable", step=self.next)
                    asked += step > self.next
                    if asked > 3:  # the connection has lost an order: a new one begins without a state
                        os.execv(sys.executable, [sys.executable, *sys.argv])
                name = ""
            elif self.queue.popleft() and step >= self.next and name != "stop":
                asked = getattr(self, name)(**message) or 0
    def compute(self, order, tasks, **_):
        for task, parts in ((each["task"], each["parts"]) for each in tasks):
            result, count, began, units = self.zeros, 0.0, time.monotonic(), 0
            for unit, x in ((unit, part["coefficient"]) for part in parts for unit in range(part["units"]["start"], part["units"]["end"])):
                while self.read(0):
                    pass
                if order != self.wanted:
                    return self.tell("idle", order=order, computed=time.monotonic() - began, units=units)
                samples = range(unit * self.unit_samples, (unit + 1) * self.unit_samples)
                try:
                    for sample in samples:
                        result, count = gradient(result, self.parameters, task["job"], sample, x), count + x
                except Exception as error:  # its task waits for another holder, or for this worker's return
                    failed = {"job": task["job"], "unit": unit, "samples": {"start": samples.start, "end": samples.stop}}
                    self.tell("parting", failed=failed, for_good=False, reason=f"{type(error).__name__}: {error}")
                    raise
                units += 1
            finite = all(map(math.isfinite, result))
            if finite:
                self.results.setdefault(key(task), []).append(result)
            spent = {"computed": time.monotonic() - began, "units": units}
            self.tell("done", order=order, task=task, aux=[count] if finite else [], finite=finite, **spent)
    def apply(self, step, attempt, **_):
        self.parameters = array("f", [p - g / 64 for p, g in zip(self.parameters, self.arriving[SUM, step, attempt][0])])
        self.skip(step)
    def skip(self, step, **_):
        self.next = step + 1
        for key in [key for key in self.arriving if key[0] == SUM and key[1] < self.next]:
            del self.arriving[key]
        self.tell("applied", step=step, digest=None)
    def send_state(self, needy, **_):
        self.transfers += 1
        self.tell("state", needy=needy, transfer=self.transfers, next=self.next, lengths=[self.length])
        self.send_chunks(self.parameters, STATE, self.transfers, 0, 0)
    def load_state(self, transfer, next, **_):
        self.parameters, self.next = self.arriving.pop((STATE, transfer, 0))[0], next
        self.tell("state_loaded", transfer=transfer, digests=[])

if __name__ == "__main__":
    assert sys.byteorder == "little", "numbers travel as they lie in memory"
    address, token_file, identity, *number = sys.argv[1:]
    worker = Worker(address, bytes.fromhex(pathlib.Path(token_file).read_text()), identity, *map(int, number))
    signal.signal(signal.SIGTERM, lambda *_: setattr(worker, "leaves", True))
    worker.run()
    print(json.dumps({"next": worker.next, "crc": zlib.crc32(worker.parameters.tobytes())}))
