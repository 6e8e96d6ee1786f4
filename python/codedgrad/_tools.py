"""The program's tools as functions: arrays and paths in, records with arrays out."""

from __future__ import annotations

import html
import json
import operator
import os
import re
import shutil
import tempfile
import warnings
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

from ._native import answer
from ._records import Code, Plan, Simulation, TraceStats

if TYPE_CHECKING:
    from types import TracebackType

Floats = npt.NDArray[np.float64]
Table = Union[npt.NDArray[Any], Sequence[Sequence[float]]]
Path = Union[str, os.PathLike[str]]
Delays = Union[str, os.PathLike[str], Table]
Scheme = Union[str, Table]
Whole = Union[int, np.integer[Any], np.bool_]
Number = Union[float, np.floating[Any], np.integer[Any]]

# The options of each command by their kinds; what is left out is as the command has it. The functions
# below name those alone that they look at. `proportional` and `as_recorded` are no flags.
_OPTIONS: Dict[str, Dict[type, str]] = {
    "simulate": {
        int: "workers jobs rounds seed",
        float: "mu base_load slope dispatch",
        str: "delays close rules accept",
        bool: "proportional as_recorded grid",
        os.PathLike: "svg",
    },
    "plan": {
        int: "workers rounds max_delay cut accumulate seed",
        float: "max_work base_load slope dispatch",
        str: "delays families rules",
        bool: "proportional as_recorded allow_inexact",
        os.PathLike: "share_costs out",
    },
    "code": {int: "workers", str: "survivors", bool: "verify"},
    "trace stats": {int: "workers rounds seed"},
}

# The command's flags in what it says, with what stands for their values, and commands that it tells
# its user to run, whose flags stay; what a round of a grid begins with.
_FLAG = re.compile(r"`codedgrad [^`]*`|(?<![\w/.-])--([a-z][a-z-]*)(?: <[A-Z_]+>)?")
_ROUND = re.compile(r"r=\d+ *\|")


def _as_arguments(text: str) -> str:
    """What the command says, with its flags as the arguments that they are here."""
    return _FLAG.sub(lambda flag: flag[1].replace("-", "_") if flag[1] else flag[0], text)


def _whole(name: str, value: Whole) -> str:
    try:
        return str(int(value) if isinstance(value, np.bool_) else operator.index(value))
    except TypeError:
        raise TypeError(f"{name} = {value!r}: expected a whole number") from None


def _number(name: str, value: Number) -> str:
    try:
        return repr(float(value))
    except (TypeError, ValueError):
        raise TypeError(f"{name} = {value!r}: expected a number") from None


def _said(name: str, kind: type, value: Any) -> str:
    """An option's value as the command reads it."""
    if kind is int:
        return _whole(name, value)
    if kind is float:
        return _number(name, value)
    return os.fspath(value) if kind is os.PathLike else str(value)


def _grown(options: Mapping[str, Any]) -> Dict[str, Any]:
    """The same options, with how delays grow with the load as the command is told it."""
    told = dict(options)
    proportional, stays = told.pop("proportional", False), told.pop("as_recorded", False)
    base, slope = told.get("base_load"), told.get("slope")
    if proportional and (base is None or slope is not None):
        raise ValueError("proportional = True: it goes with base_load, and not with slope")
    if stays and (base is not None or slope is not None):
        raise ValueError("as_recorded = True: base_load and slope say how delays grow")
    return {**told, "slope": 0.0} if stays else told


def _table(name: str, value: Table, rows: str, columns: str, least: float) -> Floats:
    """A table of finite numbers, none below `least`; errors name the first that is not so."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} has elements of type {array.dtype}: expected real numbers")
    if array.ndim != 2:
        raise ValueError(f"{name} has shape {array.shape}: expected ({rows}, {columns})")
    if array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}, that is ({rows}, {columns}): empty")
    # The sum makes a negative zero a plain one.
    table: Floats = array.astype(np.float64) + 0.0
    wrong = np.argwhere(~np.isfinite(table) | (table < least))
    if len(wrong):
        row, column = (int(index) for index in wrong[0])
        wanted = "a finite number" + ("" if least == -np.inf else f" of {least:g} or more")
        raise ValueError(f"{name}[{row}, {column}] = {table[row, column]}: expected {wanted}")
    return table


def _matrix(name: str, value: Table, approximate: bool = False) -> Floats:
    matrix = _table(name, value, "workers", "shares", -np.inf)
    zero = np.flatnonzero(~matrix.any(axis=1))
    if len(zero) and not approximate:
        raise ValueError(f"{name}[{zero[0]}] is all zero: its worker would send nothing")
    return matrix


class _Command:
    """A command line as it is put together, and the files that stand for arrays meanwhile."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        kinds = _OPTIONS[name].items()
        self._kinds = {option: kind for kind, names in kinds for option in names.split()}
        for other in (option for option in options if option not in self._kinds):
            called = name.replace(" ", "_")
            raise TypeError(f"{called}() got an unexpected keyword argument {other!r}")
        self._words = name.split()
        self._positional: List[str] = []
        self._folder: Optional[str] = None
        # What the command is given, and what its user gave.
        self._names: Dict[str, str] = {}

    def __enter__(self) -> _Command:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def text(self, name: str, value: str) -> None:
        self._words.append(f"--{name.replace('_', '-')}={value}")

    def file(self, table: Floats, shown: str = "<array>") -> str:
        """A file of the very numbers: each is written so that the same bits are read back."""
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="codedgrad-")
        path = os.path.join(self._folder, f"{len(self._names)}.csv")
        with open(path, "w", encoding="ascii") as file:
            file.writelines(",".join(map(repr, row)) + "\n" for row in table.tolist())
        self._names[path] = shown
        return path

    def positional(self, value: str) -> None:
        self._positional.append(value)

    def delays(self, delays: Delays) -> Tuple[str, Optional[int]]:
        """What stands for them, and how many workers an array has."""
        if isinstance(delays, str):
            return delays, None
        if isinstance(delays, os.PathLike):
            path = os.fspath(delays)
            # A path is never the name of a preset.
            given = path if os.path.dirname(path) else os.path.join(os.curdir, path)
            self._names[given] = path
            return given, None
        table = _table("delays", delays, "rounds", "workers", 0.0)
        return self.file(table), table.shape[1]

    def scheme(
        self, scheme: Scheme, stragglers: Optional[Whole], error_max: Optional[Number]
    ) -> Optional[int]:
        """Gives the workers of a matrix."""
        if isinstance(scheme, str):
            for name, value in (("stragglers", stragglers), ("error_max", error_max)):
                if value is not None:
                    raise ValueError(f"{name} = {value} goes with a matrix; {scheme!r} has its own")
            self.positional(scheme)
            return None
        matrix = _matrix("scheme", scheme, error_max is not None)
        claim = "" if stragglers is None else ",s=" + _whole("stragglers", stragglers)
        error = "" if error_max is None else ",err=" + _number("error_max", error_max)
        self.positional(f"matrix:{self.file(matrix)}{claim}{error}")
        return len(matrix)

    def own(self, name: str, scheme: Scheme) -> str:
        """The text of one of several schemes."""
        if isinstance(scheme, str):
            return scheme
        return "matrix:" + self.file(_matrix(name, scheme), f"<{name}>")

    def answer(self, options: Mapping[str, Any]) -> Tuple[Dict[str, Any], List[str]]:
        """The answer to these options, and the lines that are said beside it."""
        for name, kind in self._kinds.items():
            value = options.get(name)
            if kind is bool and value:
                self._words.append("--" + name.replace("_", "-"))
            elif kind is not bool and value is not None:
                self.text(name, _said(name, kind, value))
        line = [*self._words, "--json", *(["--", *self._positional] if self._positional else [])]
        try:
            out, notes = answer(line)
        except (ValueError, RuntimeError) as error:
            raise type(error)(self._named(_as_arguments(str(error)))) from None
        found: Dict[str, Any] = self._renamed(json.loads(out))
        return found, self._named(notes).splitlines()

    def rename_in(self, path: str, markup: bool) -> None:
        """Has a file that the command wrote say what its user gave."""
        if not self._names:
            return
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for given, shown in self._names.items():
            text = text.replace(given, html.escape(shown) if markup else shown)
        with open(path + ".part", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(path + ".part", path)

    def _renamed(self, found: Any) -> Any:
        if isinstance(found, str):
            return self._named(found)
        if isinstance(found, list) and found and isinstance(found[0], (str, dict)):
            return [self._renamed(one) for one in found]
        if isinstance(found, dict):
            return {name: self._renamed(value) for name, value in found.items()}
        return found

    def _named(self, text: str) -> str:
        for given, shown in self._names.items():
            text = text.replace(given, shown)
        return text


def _warned(lines: Iterable[str]) -> None:
    for line in lines:
        text = line[len("warning: ") :] if line.startswith("warning: ") else line
        warnings.warn(_as_arguments(text), stacklevel=3)


def _agreed(workers: Optional[Whole], rows: Optional[int]) -> Optional[Whole]:
    """How many workers there are where a matrix of so many rows says so too."""
    if rows is not None and workers is not None and _whole("workers", workers) != str(rows):
        raise ValueError(f"scheme has {rows} rows, one per worker, but workers = {workers}")
    return workers if rows is None else rows


def simulate(
    scheme: Scheme,
    *,
    delays: Delays,
    jobs: Whole,
    workers: Optional[Whole] = None,
    stragglers: Optional[Whole] = None,
    error_max: Optional[Number] = None,
    grid: bool = False,
    svg: Optional[Path] = None,
    **options: Any,
) -> Simulation:
    """Runs a scheme over recorded or drawn delays on virtual time.

    It is ``codedgrad simulate``: ``python -m codedgrad simulate --help`` tells of every option.

    Args:
        scheme: a scheme's text, or the matrix B of a code, shape ``(workers, shares)``.
        delays: a preset's name, the path of a trace, or an array of shape ``(rounds, workers)`` in
            seconds, which starts again when it is used up.
        jobs: how many.
        rounds: how many of the delays to use before they start again; all if not given.
        workers: how many; all columns of a trace if not given, the rows of a matrix, 8 for presets
            (256 for serverless ones).
        stragglers: how many a matrix is to tolerate; found out if not given.
        error_max: the normalised error up to which decodes of a matrix are accepted, whose rows may
            be zero then; a matrix is decoded exactly if not given.
        mu: an answer later than ``(1 + mu)`` times the fastest is late; 1 if not given.
        close: when a round closes: ``all``, ``incremental`` or ``decodable``.
        rules: ``paper`` has rounds of all schemes wait for the slowest within mu = 1, as the authors
            of sequential gradient coding do; instead of `close` and `mu`.
        accept: which stragglers a round may close without, for schemes that have a model of them:
            ``lookahead``, if not given, or ``model``.
        base_load: load at which the delays were recorded, in batches per worker and round; an
            uncoded worker's if not given, and delays are proportional to the load then, or grow as
            the preset does.
        slope: seconds that a whole batch costs one worker.
        proportional: whether delays grow in proportion to the load.
        as_recorded: whether delays stay as recorded, whatever the load.
        dispatch: seconds that pulling one task within a round costs; 0 if not given, or the
            preset's.
        seed: of a preset's draws; 1 if not given.
        grid: whether to draw the tasks of every worker in every round.
        svg: where to draw when each job was complete.

    Raises:
        ValueError: what was given cannot be right; the message names the value.
        TypeError: a value is of another kind.
        RuntimeError: the picture cannot be written.

    >>> import numpy as np, codedgrad
    >>> delays = np.ones((10, 4))
    >>> delays[:, 0] = 3.0
    >>> codedgrad.simulate("uncoded", delays=delays, jobs=5).job_finish_time
    array([ 3.,  6.,  9., 12., 15.])
    >>> B = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]])
    >>> found = codedgrad.simulate(B, delays=delays, jobs=5)
    >>> found.scheme, found.total_time, found.work
    ('matrix:<array>', 10.0, 2.0)
    """
    with _Command("simulate", options) as command:
        rows = command.scheme(scheme, stragglers, error_max)
        source, columns = command.delays(delays)
        if rows is not None and columns is not None and workers is None and rows != columns:
            raise ValueError(
                f"scheme has {rows} rows and delays {columns} columns: both are one per worker"
            )
        own = {"delays": source, "workers": _agreed(workers, rows), "jobs": jobs, "grid": grid}
        found, lines = command.answer({**_grown(options), **own, "svg": svg})
        if svg is not None:
            command.rename_in(os.fspath(svg), True)
    drawn = [line for line in lines if grid and _ROUND.match(line)]
    _warned(line for line in lines if not (grid and _ROUND.match(line)))
    return Simulation._of(found, "\n".join(drawn) if grid else None)


def plan(
    *,
    delays: Delays,
    families: Union[str, Iterable[str]] = (),
    also: Sequence[Scheme] = (),
    share_costs: Optional[Union[Path, Table]] = None,
    out: Optional[Path] = None,
    **options: Any,
) -> Plan:
    """Says whether to code at all, and with what, from what an uncoded run recorded.

    It is ``codedgrad plan``: ``python -m codedgrad plan --help`` tells of every option.

    Args:
        delays: a preset's name, the path of a trace, or an array of shape ``(rounds, workers)`` in
            seconds.
        workers: how many, the first columns of a trace; all of them if not given.
        rounds: how many to look at.
        max_delay: rounds a job may be late, 3 if not given; 0 if the next step needs this one's
            gradient.
        max_work: work allowed, in uncoded batches per job.
        base_load: load at which the delays were recorded, in batches per worker and round; an
            uncoded worker's if not given, and delays are proportional to the load then, or grow as
            the preset does.
        slope: seconds that a whole batch costs one worker.
        proportional: whether delays grow in proportion to the load.
        as_recorded: whether delays stay as recorded, whatever the load.
        dispatch: seconds that pulling one task within a round costs.
        cut: micro-batches in a worker's share of a round; 16 if not given.
        accumulate: rounds that make up one optimizer step of one model; 1 if not given.
        families: kinds of schemes to try besides uncoded; all of them if none is given.
        also: schemes of one's own to compare with them: texts, or matrices B of shape
            ``(workers, shares)``; the first matrix is called ``matrix:<also[0]>``, and so on.
        allow_inexact: whether schemes that lose samples may be recommended.
        share_costs: what each share cost: a path, or an array as `delays`.
        rules: ``paper`` closes rounds of all schemes as the authors of sequential gradient coding
            do, ``usual`` as suits each best.
        seed: of a preset's draws; 1 if not given.
        out: a folder for ``plan.json`` and two pictures.

    Raises:
        ValueError: what was given cannot be right; the message names the value.
        TypeError: a value is of another kind.
        RuntimeError: the folder cannot be written.

    >>> import numpy as np, codedgrad
    >>> delays = np.ones((40, 4))
    >>> delays[np.arange(40), np.arange(40) % 4] = 9.0
    >>> found = codedgrad.plan(delays=delays, max_delay=0, families=["groups"])
    >>> found.recommended, found.baseline, found.choice.time_per_job
    ('groups:l=2', 9.0, 2.0)
    """
    with _Command("plan", options) as command:
        source, _ = command.delays(delays)
        chosen = families if isinstance(families, str) else ",".join(families)
        if isinstance(also, str):
            raise TypeError(f"also = {also!r}: expected a list of schemes")
        for number, scheme in enumerate(also):
            command.text("also", command.own(f"also[{number}]", scheme))
        if share_costs is not None and not isinstance(share_costs, (str, os.PathLike)):
            costs = _table("share_costs", share_costs, "rounds", "workers", 0.0)
            share_costs = command.file(costs, "<share_costs>")
        own = {"delays": source, "families": chosen or None, "share_costs": share_costs, "out": out}
        found, lines = command.answer({**_grown(options), **own})
        if out is not None:
            for name in ("plan.json", "time-work.svg", "schemes.svg"):
                command.rename_in(os.path.join(os.fspath(out), name), name.endswith(".svg"))
    # Those that are in the plan are not said twice.
    _warned(line for line in lines if not line.startswith("note: "))
    return Plan._of(found)


def code(
    scheme: Scheme,
    *,
    workers: Optional[Whole] = None,
    stragglers: Optional[Whole] = None,
    error_max: Optional[Number] = None,
    survivors: Optional[Union[str, Iterable[Whole]]] = None,
    **options: Any,
) -> Code:
    """Shows a code: its matrix, what it tolerates, and the decode of given survivors.

    It is ``codedgrad code``: ``python -m codedgrad code --help`` tells of every option.

    Args:
        scheme: a code's text, or its matrix B, shape ``(workers, shares)``.
        workers: how many; needed for a text.
        stragglers: how many a matrix is to tolerate; found out if not given.
        error_max: the normalised error up to which decodes of a matrix are accepted, whose rows may
            be zero then; a matrix is decoded exactly if not given.
        survivors: workers whose messages arrived, as numbers or as text such as ``"0,2,5-11"``; all
            of them if not given.
        verify: whether to try every set of tolerated stragglers.

    Raises:
        ValueError: what was given cannot be right; the message names the value.
        TypeError: a value is of another kind.

    >>> import numpy as np, codedgrad
    >>> B = np.array([[0.5, 1, 0], [0, 1, -1], [0.5, 0, 1]])
    >>> found = codedgrad.code(B, stragglers=1, survivors=[0, 1], verify=True)
    >>> found.stragglers, found.verified.failed
    (1, 0)
    >>> np.round(found.weights @ B, 9)
    array([1., 1., 1.])
    """
    with _Command("code", options) as command:
        count = _agreed(workers, command.scheme(scheme, stragglers, error_max))
        if count is None:
            raise TypeError(f"workers is missing: how many does {scheme!r} have?")
        if survivors is not None and not isinstance(survivors, str):
            survivors = ",".join(_whole("survivors", worker) for worker in survivors)
        found, lines = command.answer({**options, "workers": count, "survivors": survivors})
    if "matrix" not in found:
        raise ValueError(
            f"{scheme!r} is a scheme over rounds or with feedback, not a one-round code; its load is "
            f"{found['load']:.4g}, its delay {found['delay']}; codedgrad.simulate shows what it does"
        )
    _warned(lines)
    return Code._of(found)


def trace_stats(delays: Delays, **options: Any) -> TraceStats:
    """Measures how the workers of a trace or a preset straggle.

    It is ``codedgrad trace stats``.

    Args:
        delays: a preset's name, the path of a trace, or an array of shape ``(rounds, workers)`` in
            seconds.
        workers: how many, the first columns of a trace; all of them if not given (a preset: 8, the
            serverless ones 256).
        rounds: how many to measure, a trace starting again when it is used up; the trace once if
            not given (a preset: 5000).
        seed: of a preset's draws; 0 if not given.

    Raises:
        ValueError: what was given cannot be right; the message names the value.
        TypeError: a value is of another kind.

    >>> import numpy as np, codedgrad
    >>> found = codedgrad.trace_stats(np.array([[1.0, 1.0, 4.0], [1.0, 5.0, 1.0]]))
    >>> found.slowest_mean, found.over_median.answers, found.over_median.bursts
    (4.5, 2, {1: 2})
    """
    with _Command("trace stats", options) as command:
        source, _ = command.delays(delays)
        command.positional(source)
        found, lines = command.answer(options)
    _warned(lines)
    return TraceStats._of(found)
