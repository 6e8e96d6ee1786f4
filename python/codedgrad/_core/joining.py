"""Joining a run: what a worker says of it, and how its coordinator is found."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from .. import _native
from .exits import Replaced, refusal, take_back_final
from .seeds import unit_seed

if TYPE_CHECKING:
    from .signals import Order

REDUCTIONS = ("mean", "sum", "tokens")

# How long a worker may take to leave, and what says so, where it is not told.
NOTICE = "CODEDGRAD_NOTICE"
NOTICE_SECONDS = 20.0
_LONGEST_NOTICE = 1e6


def whole(name: str, value: object, least: int) -> int:
    """`value` as an int of at least `least`, or a ValueError that names it."""
    try:
        number = int(value.__index__())  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        raise TypeError(f"{name} is {value!r}: it must be a whole number") from None
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}: it must be a whole number")
    if number < least:
        raise ValueError(f"{name} is {number}: it must be {least} or more")
    return number


@dataclass(frozen=True)
class Settings:
    """What a worker says of its run; the same for all of its workers, but for `part`."""

    units: int
    steps: int
    first: int = 0
    micro_steps: int = 1
    unit_samples: int = 1
    reduction: str = "mean"
    seed: Optional[int] = 0
    seed_all: bool = False
    verify: int = 1
    #: Which part of a unit's samples this process has, where a worker's processes cut them.
    part: int = 0

    def check(self) -> "Settings":
        """The same with whole numbers.

        Raises ValueError or TypeError that names the one that is wrong.
        """
        if self.reduction not in REDUCTIONS:
            raise ValueError(
                f"reduction is {self.reduction!r}: it is one of {', '.join(map(repr, REDUCTIONS))}"
            )
        steps, first = whole("steps", self.steps, 1), whole("first", self.first, 0)
        if steps <= first:
            raise ValueError(
                f"steps is {steps} and first is {first}: nothing is left to do. "
                "steps counts those before first too"
            )
        return Settings(
            units=whole("units", self.units, 1),
            steps=steps,
            first=first,
            micro_steps=whole("micro_steps", self.micro_steps, 1),
            unit_samples=whole("unit_samples", self.unit_samples, 1),
            reduction=self.reduction,
            seed=None if self.seed is None else whole("seed", self.seed, 0),
            seed_all=bool(self.seed_all),
            verify=whole("verify", self.verify, 0),
            part=self.part,
        )

    def told(self) -> Dict[str, str]:
        """What must be the same on all workers beside what the program itself compares."""
        told = {
            "reduction": self.reduction,
            "seed": self.seed,
            "seed_all": self.seed_all,
            "verify": self.verify,
        }
        return {name: str(value) for name, value in told.items()}

    def unit_seed(self, batch: int, unit: int, purpose: str) -> int:
        """The seed of what this process draws for a unit; see `seeds.unit_seed`."""
        return unit_seed(self.seed or 0, batch, unit, purpose, self.part)


# Where it is said how many workers a run has and which one this is: the SIZES and NUMBERS of
# `codedgrad::transport::tcp::Environment`.
_WORKERS = ("CODEDGRAD_WORKERS", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_WORKER = (
    "CODEDGRAD_WORKER",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "JOB_COMPLETION_INDEX",
)


# Where a launcher tells each of several processes that it has started how many they are. Slurm's is the
# step's: in a shell of an allocation SLURM_NTASKS counts tasks that nothing has started.
_STARTED = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
# What says that each of them is to train by itself, if it is 1.
_ALONE = "CODEDGRAD_ALONE"


def _started_with_others() -> Optional[Tuple[str, int]]:
    """The variable by which a launcher says that it has started several processes, and how many."""
    for name in _STARTED:
        try:
            count = int(os.environ.get(name, ""))
        except ValueError:
            # Another program's use of the name says nothing about launchers.
            continue
        if count > 1:
            return name, count
    return None


def _told(names: Sequence[str], ranks: bool) -> Optional[int]:
    """What the environment says first; of a worker that is several processes a launcher counts
    those."""
    for name in names[:1] if ranks else names:
        value = os.environ.get(name)
        if value:
            try:
                return int(value)
            except ValueError:
                raise ValueError(f"{name} is {value!r}: it must be a whole number") from None
    return None


def workers_told(ranks: bool) -> Optional[int]:
    """How many workers the environment says that the run has."""
    return _told(_WORKERS, ranks)


def asks_for_state(worker: Optional[int], ranks: bool) -> bool:
    """Whether this worker, which is to begin as worker 0 does, takes over a state: all others do.

    Worker 0 does not when it is started again: where it was lost before another had its state,
    no other has one. If the run began with another, it takes over one after all.
    """
    number = _told(_WORKER, ranks) if worker is None else worker
    return bool(number)


def layout_hash(*parts: object) -> int:
    """A 63-bit number of what all workers of a run must have in common."""
    text = json.dumps(parts, separators=(",", ":"), default=str)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def notice_of(told: Optional[float]) -> float:
    """The seconds that a worker has to leave: those that it was told, or the environment's."""
    where = "notice"
    if told is None:
        where, text = NOTICE, os.environ.get(NOTICE) or str(NOTICE_SECONDS)
        try:
            told = float(text)
        except ValueError:
            raise ValueError(f"{NOTICE}={text!r}: seconds are needed, 0 or more") from None
    if not 0 <= told <= _LONGEST_NOTICE:
        raise ValueError(f"{where} is {told}: seconds are needed, 0 to {_LONGEST_NOTICE:.0e}")
    return told


@dataclass(frozen=True)
class Called:
    """How the coordinator is called, as `join` is told it."""

    address: Optional[str] = None
    token: Optional[str] = None
    keys: Union[str, "os.PathLike[str]", None] = None
    worker: Optional[int] = None
    patience: float = 30.0
    scheme: Optional[str] = None
    #: How many seconds this worker may take to leave when it is told to; 0 for not at all.
    notice: float = NOTICE_SECONDS

    @property
    def alone(self) -> bool:
        """Whether it is not told where a coordinator is."""
        return self.address is None and not os.environ.get("CODEDGRAD_ADDRESS")

    def check_launcher(self, ranks: bool = False) -> "Called":
        """The same; raises RuntimeError for one of several processes that would each train a model by
        itself. ranks: whether the processes are one worker together."""
        if ranks or not self.alone or os.environ.get(_ALONE) == "1":
            return self
        found = _started_with_others()
        if found is None:
            return self
        name, count = found
        script = os.path.basename(sys.argv[0])
        script = script if script.endswith(".py") else "script.py"
        raise RuntimeError(
            f"{name} is {count}: a launcher has started {count} of this process, and no run is in the "
            "environment, so each would train a model by itself and save it. Start the script by "
            f"`codedgrad run -n {count} {script}`. Where the processes are ranks of one worker, give "
            "mesh=, a DeviceMesh of them, to prepare or to codedgrad.torch.join. "
            f"{_ALONE}=1 in the environment lets each process train alone"
        )


@dataclass(frozen=True)
class Where:
    """How the coordinator is found, and what arrays a gradient has."""

    called: Called
    #: The worker's gradient as one vector: lengths and formats of its arrays.
    arrays: Sequence[Tuple[int, str]]
    layout: int
    dtype: str
    versions: str
    #: Of frozen parameters, and of all numbers that the worker begins with; of one of its ranks those
    #: of what that has.
    frozen: Any = None
    start: Any = None
    #: How many arrays this process trains, if the vector has others too.
    of_process: Optional[int] = None
    #: How many processes cut the model, of which each takes over the state of one of another worker.
    ranks: int = 1
    #: Whether this worker takes over another one's state before anything else.
    takes: bool = False
    #: Whether it does so, too, where the run began with other parameters than it has.
    may_take: bool = False

    @property
    def trained(self) -> int:
        """How many arrays this process trains."""
        return len(self.arrays) if self.of_process is None else self.of_process

    @property
    def alone(self) -> bool:
        """Whether it is not told where a coordinator is."""
        return self.called.alone

    @property
    def told_to_end(self) -> "Optional[Callable[[Order], None]]":
        """What SIGTERM calls where a process cannot leave at once, by itself."""
        return None

    @property
    def on_this_host(self) -> bool:
        """Whether the coordinator is called by a loopback address, and so are the others."""
        host = (self.called.address or os.environ.get("CODEDGRAD_ADDRESS", "")).rpartition(":")[0]
        host = host.strip("[]")
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def connect(self, settings: Settings) -> "_native.Worker":
        """Joins the run of the arguments or the environment, or begins one of this process."""
        arrays = [(count, name) for count, name in self.arrays]
        facts: Dict[str, Any] = {
            "units": settings.units,
            "unit_samples": settings.unit_samples,
            "micro_steps": settings.micro_steps,
            "steps": settings.steps,
            "dtype": self.dtype,
            "layout": self.layout,
            "frozen": self.frozen,
            "start": self.start,
            "settings": {**settings.told(), **self._cut()},
        }
        if not sum(count for count, _ in arrays):
            raise ValueError("nothing is trained: no array has a number that takes a gradient")
        if self.alone:
            self._check_alone()
            return _native.Worker.alone(arrays, facts, settings.first)
        called = self.called
        try:
            native = self._call(arrays, facts, settings.first)
        except _native.Replaced as error:
            raise Replaced(str(error)) from None
        except _native.Refused as error:
            raise refusal(error) from None
        found = scheme_of(native)
        if called.scheme is not None and found not in ("", called.scheme):
            native.close()
            raise ValueError(f"scheme: {called.scheme} here, {found} in the run")
        take_back_final()
        return native

    def _call(
        self, arrays: List[Tuple[int, str]], facts: Dict[str, Any], first: int
    ) -> "_native.Worker":
        """Joins by a call to the coordinator, with this worker's own state or to take over one."""
        called = self.called
        keys = None if called.keys is None else os.fspath(called.keys)
        where = called.address, called.token, keys, called.worker, called.patience
        try:
            return _native.Worker.join(arrays, facts, None if self.takes else first, *where)
        except _native.Refused as error:
            if not self.may_take or "to begin with" not in str(error):
                raise
        return _native.Worker.join(arrays, {**facts, "start": None}, None, *where)

    def _cut(self) -> Dict[str, str]:
        """By how many processes the model is cut, if it is."""
        return {} if self.ranks == 1 else {"ranks of a worker": str(self.ranks)}

    def _check_alone(self) -> None:
        """Raises if a process that would train alone was told to join a run."""
        told = {
            "token": self.called.token,
            "keys": self.called.keys,
            "worker": self.called.worker,
            "scheme": self.called.scheme,
        }
        names = [f"{name}=" for name, value in told.items() if value is not None]
        variables = ("TOKEN", "TOKEN_FILE", "KEYS", "WORKER")
        names += [
            f"CODEDGRAD_{name}" for name in variables if os.environ.get(f"CODEDGRAD_{name}")
        ]
        if names:
            raise ValueError(
                f"{', '.join(names)} without an address: say address=\"host:port\" or set "
                "CODEDGRAD_ADDRESS, or this process would train alone"
            )


def scheme_of(native: "_native.Worker") -> str:
    """The scheme's text, empty if the coordinator does not say it."""
    try:
        job = json.loads(native.job)
    except ValueError:
        return ""
    return str(job.get("scheme", "")) if isinstance(job, dict) else ""
