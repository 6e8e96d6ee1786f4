#!/usr/bin/env python3
"""A worker in plain Python, as docs/protocol.md describes it: star exchange, plain TCP, nothing but the standard library.

    python3 examples/python_worker.py HOST:PORT TOKEN_FILE IDENTITY [WORKER]

It trains small integers and 64ths of them: every sum is exact and has the same bits whoever computes it, in any language.
"""
import hmac, json, math, secrets, select, socket, struct, sys, zlib
from array import array
from collections import deque

HEADER = struct.Struct("<4sHBBQIIQIIQQQII")
CONTROL, TERM, SUM, RESULT, STATE = range(5)
CHUNK, COORDINATOR, NOT_FINITE = 1 << 16, 0xFFFFFFFF, 128
AT_ONCE = {"ping", "abandon", "reduce", "discard", "release", "exchange"}
IN_ORDER = {"compute", "apply", "skip", "provide", "take", "stop"}

def gradient(out, parameters, batch, sample, coefficient):
    """`out` plus the coefficient times the gradient of one sample."""
    shift, pairs = 13 * sample + 31 * batch, zip(out, parameters)
    return array("f", [x + coefficient * (p // 1 - ((7 * i + shift) % 101 - 50)) for i, (x, p) in enumerate(pairs)])

class Worker:
    def __init__(self, address, token, identity, number):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting = b"\1\0" + secrets.token_bytes(32)
        self.socket.sendall(b"CGRAD\0" + greeting)
        assert self.exactly(2) == b"\1\0", "another version of the handshake"
        transcript = greeting + self.exactly(32)
        proof = hmac.digest(token, b"codedgrad server" + transcript, "sha256")
        assert hmac.compare_digest(self.exactly(32), proof), "the coordinator does not know the token"
        self.socket.sendall(hmac.digest(token, b"codedgrad client" + transcript, "sha256"))
        assert self.exactly(1) == b"\1"
        self.stamp = (0, 0, 0, 0)
        self.tell("hello", worker=number, identity=identity, address=None, offer=None)
        welcome = json.loads(self.frame()[1])
        assert welcome["type"] == "welcome" and welcome["format"] == "f32", welcome
        self.stamp = tuple(welcome[key] for key in ("run", "epoch", "worker", "layout"))
        self.me, self.length, self.next = welcome["worker"], welcome["length"], welcome["first"]
        self.unit_samples = json.loads(welcome["job"])["unit_samples"]
        self.parameters = array("f", bytes(4 * self.length))
        self.results, self.sums = {}, {}  # by (job, piece): a list of vectors; by step: a vector
        self.arriving = {}  # by (SUM, step, attempt) or (STATE, transfer, 0): [vectors, chunks that are missing, finite]
        self.queue, self.order, self.wanted, self.transfers = deque(), 0, False, 0

    def exactly(self, count):
        data, filled = memoryview(bytearray(count)), 0
        while filled < count:
            filled += self.socket.recv_into(data[filled:]) or sys.exit("the coordinator hung up")
        return data.tobytes()
    def frame(self):
        head = self.exactly(72)
        fields = HEADER.unpack(head)
        assert fields[:2] == (b"CGRD", 1) and fields[-1] == zlib.crc32(head[:68]), "not a frame"
        return fields, self.exactly(fields[-2])
    def send(self, kind, body, number=0, attempt=0, piece=0, offset=0):
        run, epoch, worker, layout = self.stamp
        head = HEADER.pack(b"CGRD", 1, kind, 0, run, epoch, worker, number, attempt, piece, offset, layout, 0, len(body), 0)[:68]
        self.socket.sendall(head + struct.pack("<I", zlib.crc32(head)) + body)
    def send_chunks(self, vector, chunks, *names):
        for offset in (chunk * CHUNK for chunk in chunks):
            self.send(names[0], vector[offset : offset + CHUNK].tobytes(), *names[1:], offset)
    def tell(self, kind, **fields):
        self.send(CONTROL, json.dumps({"type": kind, **fields}).encode())
    def expect(self, key, lengths):
        missing = {(vector, offset) for vector, length in enumerate(lengths) for offset in range(0, length, CHUNK)}
        return self.arriving.setdefault(key, [[array("f", bytes(4 * length)) for length in lengths], missing, True])
    def read(self, patience):
        """Takes in one frame, if one comes in time."""
        if not select.select([self.socket], [], [], patience)[0]:
            return False
        (_, _, kind, flags, _, _, _, number, attempt, piece, offset, *_), body = self.frame()
        if kind == CONTROL:
            message = json.loads(body)
            name = message.pop("type")
            if name in IN_ORDER:
                self.queue.append((name, message))
            if name in ("compute", "stop"):
                self.order, self.wanted = message.get("order", 0), name == "compute"
            elif name == "take":
                self.expect((STATE, message["transfer"], 0), message["lengths"])
            elif name in AT_ONCE:
                getattr(self, name)(**message)
        elif kind == STATE or kind == SUM and number >= self.next:
            vectors, missing, _ = entry = self.expect((kind, number, attempt), [self.length])
            vectors[piece][offset : offset + len(body) // 4] = array("f", body)
            entry[2] &= not flags & NOT_FINITE
            was_whole = not missing
            missing.discard((piece, offset))
            if kind == SUM and not missing and not was_whole:
                name, digest = ("held", {"digest": None}) if entry[2] else ("overflowed", {})
                self.tell(name, step=number, attempt=attempt, **digest)
        return True

    def ping(self, number, **_):
        self.tell("pong", number=number)
    def abandon(self, **_):
        self.wanted = False
    def discard(self, task, **_):
        return self.results[task["job"], task["piece"]].pop() if self.results.get((task["job"], task["piece"])) else None
    def reduce(self, step, task, weight, **_):
        old, result = self.sums.get(step, array("f", bytes(4 * self.length))), self.discard(task)
        self.sums[step] = array("f", [x + weight * y for x, y in zip(old, result)])
    def release(self, step, end, **_):
        self.sums.pop(step, None)
        self.results = {task: vectors for task, vectors in self.results.items() if task[0] >= end}
    def exchange(self, step, attempt, terms, owners, receivers, **_):
        for (place, owner), (number, term) in ((owner, term) for owner in enumerate(owners) for term in enumerate(terms)):
            holders = term["holders"]
            own = [piece for piece in holders if piece["worker"] == owner["node"]]
            source = own[0] if own else holders[place % len(holders)]
            if source["worker"] == self.me:
                task = source["what"] != "sum" and source["what"]["result"]
                vector = self.results[task["job"], task["piece"]][-1] if task else self.sums[step]
                self.send_chunks(vector, range(owner["start"], owner["end"]), TERM, step, attempt, number)

    def run(self):
        while True:
            while self.read(0):
                pass
            name, message = self.queue[0] if self.queue else ("", {})
            ready = bool(name)
            if name == "take" or name == "apply" and message["step"] >= self.next:
                key = (STATE, message["transfer"], 0) if name == "take" else (SUM, message["step"], message["attempt"])
                ready = key in self.arriving and not self.arriving[key][1]
            if name == "stop":
                return
            if ready:
                self.queue.popleft()
                getattr(self, name)(**message)
            elif not self.read(0.5) and name == "apply":
                self.tell("missing", step=message["step"])

    def compute(self, order, tasks, **_):
        for task, parts in ((task, task.pop("parts")) for task in tasks):
            result, count = array("f", bytes(4 * self.length)), 0.0
            for part in parts:
                for unit in range(part["units"]["start"], part["units"]["end"]):
                    while self.read(0):
                        pass
                    if order != self.order or not self.wanted:
                        return self.tell("freed", order=order)
                    for sample in range(unit * self.unit_samples, (unit + 1) * self.unit_samples):
                        result = gradient(result, self.parameters, task["job"], sample, part["coefficient"])
                        count += part["coefficient"]
            finite = all(map(math.isfinite, result))
            if finite:
                self.results.setdefault((task["job"], task["piece"]), []).append(result)
            self.tell("done", order=order, task=task, tail=[count] if finite else [], finite=finite)

    def apply(self, step, attempt, digest, tail, **_):
        if step >= self.next:
            total = self.arriving[SUM, step, attempt][0][0]
            self.parameters = array("f", [p - g / 64 for p, g in zip(self.parameters, total)])
            self.skip(step)
    def skip(self, step, units=()):
        self.next = step + 1
        self.arriving = {key: entry for key, entry in self.arriving.items() if key[0] == STATE or key[1] >= self.next}
        self.tell("applied", step=step, digest=None)
    def provide(self, needy, **_):
        self.transfers += 1
        self.tell("state", needy=needy, transfer=self.transfers, next=self.next, lengths=[self.length])
        self.send_chunks(self.parameters, range(-(-self.length // CHUNK)), STATE, self.transfers, 0, 0)
    def take(self, transfer, next, lengths, **_):
        self.parameters, self.next = self.arriving.pop((STATE, transfer, 0))[0][0], next

if __name__ == "__main__":
    assert sys.byteorder == "little", "numbers travel as they lie in memory"
    address, token_file, identity, *number = sys.argv[1:]
    with open(token_file) as file:
        worker = Worker(address, bytes.fromhex(file.read()), identity, int(number[0]) if number else None)
    worker.run()
    print(json.dumps({"next": worker.next, "crc": zlib.crc32(worker.parameters.tobytes())}))
