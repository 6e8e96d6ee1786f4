"""The tools from Python: the numbers of the command, whatever they are asked with."""

from __future__ import annotations

import dataclasses
import doctest
import importlib.util
import json
import math
import os
import pickle
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import codedgrad
from codedgrad import _tools
from codedgrad._records import Record

# Two pairs of workers, each pair computing the same half of the batch.
PAIRS = np.array([[1, 0], [1, 0], [0, 1], [0, 1]])
DELAYS = np.array([[1.0, 2.0, 0.5, 9.0], [3.0, 0.1, 1.0, 1.0], [1.0, 1.0, 1.0, 7.0]])


def command(*arguments, status=0, **options):
    found = subprocess.run(
        [sys.executable, "-m", "codedgrad", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    assert found.returncode == status, found.stderr
    return found


def printed(*arguments, **options):
    return json.loads(command(*arguments, "--json", **options).stdout)


def plain(value):
    """A record as the command's JSON has it."""
    if isinstance(value, Record):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def same(record, shown, *own):
    """Whether a record has the command's numbers, to the last digit; `own` has no counterpart."""
    found = plain(record)
    absent = {name for name in found.keys() - shown.keys() if found[name] is None}
    for name in absent | set(own):
        found.pop(name)
    assert found == shown


@pytest.fixture
def folder(tmp_path):
    np.savetxt(tmp_path / "b.csv", PAIRS, delimiter=",")
    np.savetxt(tmp_path / "d.csv", DELAYS, delimiter=",", fmt="%.17g")
    return tmp_path


@pytest.mark.parametrize("scheme", ["uncoded", "groups:s=1", "queue:m=4", "defer:cap=2,cut=4"])
def test_simulations_are_the_commands(scheme):
    shown = printed("simulate", scheme, "--delays", "bursts", "--jobs", 50, "--seed", 3)
    same(codedgrad.simulate(scheme, delays="bursts", jobs=50, seed=3), shown)


def test_every_option_of_a_simulation(tmp_path):
    flags = "--workers 6 --jobs 20 --mu 0.25 --close all --accept model --base-load 0.5 --slope 0.3"
    shown = printed("simulate", "m-sgc:B=1,W=2,lambda=2", "--delays", "iid", *flags.split())
    found = codedgrad.simulate(
        "m-sgc:B=1,W=2,lambda=2",
        delays="iid",
        workers=np.int32(6),
        jobs=np.uint8(20),
        mu=np.float64(0.25),
        close="all",
        accept="model",
        base_load=0.5,
        slope=0.3,
        grid=np.True_,
        svg=tmp_path / "a.svg",
    )
    same(found, shown, "grid")
    assert len(found.grid.splitlines()) == found.rounds
    assert (tmp_path / "a.svg").read_text().startswith("<svg")


def test_times_grow_alike_in_simulations_and_plans(folder):
    rows = np.vstack([DELAYS + 0.01 * row for row in range(8)])
    for how in ({}, {"as_recorded": True}, {"base_load": 0.5, "proportional": True}):
        planned = codedgrad.plan(delays=rows, families=["groups", "defer"], **how)
        for found in planned.candidates:
            simulated = codedgrad.simulate(found.scheme, delays=rows, jobs=len(rows), **how)
            assert simulated.growth == planned.growth
            assert simulated.time_per_job == pytest.approx(found.time_per_job, rel=1e-12)
    flags = "--jobs 9 --rounds 2 --slope 0".split()
    shown = printed("simulate", "ring:reach=2", "--delays", "d.csv", *flags, cwd=folder)
    found = codedgrad.simulate("ring:reach=2", delays=DELAYS, jobs=9, rounds=2, as_recorded=True)
    assert found.delays == "<array>"
    same(dataclasses.replace(found, delays="d.csv"), shown)


def test_a_matrix_is_simulated_planned_and_verified(folder):
    shown = printed("code", "matrix:b.csv,s=1", "--workers", 4, "--verify", cwd=folder)
    found = codedgrad.code(PAIRS, stragglers=1, verify=True)
    assert found.scheme == "matrix:<array>,s=1" and found.matrix.tolist() == PAIRS.tolist()
    same(dataclasses.replace(found, scheme=shown["scheme"]), shown)
    assert found.verified.exhaustive and found.verified.failed == 0
    line = ["simulate", "matrix:b.csv", "--delays", "d.csv", "--jobs", 9]
    found = codedgrad.simulate(PAIRS, delays=DELAYS, jobs=9)
    found = dataclasses.replace(found, scheme="matrix:b.csv", delays="d.csv")
    same(found, printed(*line, cwd=folder))
    line = ["plan", "--delays", "hotspot", "--workers", 4, "--families", "queue,drop", "--also"]
    found = codedgrad.plan(delays="hotspot", workers=4, families=["queue", "drop"], also=[PAIRS])
    shown = json.dumps(printed(*line, "matrix:b.csv", cwd=folder))
    same(found, json.loads(shown.replace("b.csv", "<also[0]>")))
    assert "matrix:<also[0]>" in [candidate.scheme for candidate in found.candidates]


def test_plans_are_the_commands(folder):
    line = ["plan", "--delays", "iid", "--workers", 5, "--rounds", 40, "--max-delay", 1]
    line += ["--max-work", 2, "--families", "groups,m-sgc"]
    shown = printed(*line, "--out", folder / "theirs")
    found = codedgrad.plan(
        delays="iid",
        workers=5,
        rounds=40,
        max_delay=1,
        max_work=2,
        families=["groups", "m-sgc"],
        out=folder / "ours",
    )
    same(found, shown)
    assert found.choice.scheme == found.recommended
    kept = [(folder / name / "plan.json").read_text() for name in ("ours", "theirs")]
    assert kept[0] == kept[1]
    shown = printed("plan", "--delays", "d.csv", "--share-costs", "d.csv", cwd=folder)
    found = codedgrad.plan(delays=DELAYS, share_costs=DELAYS)
    same(dataclasses.replace(found, delays="d.csv"), shown)


@pytest.mark.parametrize("delays", ["hotspot", "serverless"])
def test_statistics_are_the_commands(delays):
    shown = printed("trace", "stats", delays, "--rounds", 60)
    same(codedgrad.trace_stats(delays, rounds=60), shown)


def test_codes_are_the_commands():
    line = ["code", "graph:d=3,err=0.1", "--workers", 12, "--survivors", "0-7,9-11", "--verify"]
    survivors = [worker for worker in range(12) if worker != 8]
    found = codedgrad.code("graph:d=3,err=0.1", workers=12, survivors=survivors, verify=True)
    same(found, printed(*line))
    assert codedgrad.code("uncoded", workers=3, survivors=[]).survivors.shape == (0,)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_arrays_keep_every_bit(data):
    shape = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    number = st.floats(0, 1e9, allow_subnormal=True)
    rows = data.draw(st.lists(st.lists(number, min_size=shape[1], max_size=shape[1]),
                              min_size=shape[0], max_size=shape[0]))
    found = codedgrad.simulate("uncoded", delays=np.array(rows), jobs=1, as_recorded=True)
    assert found.total_time == max(rows[0])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "d.csv")
        with open(path, "w") as file:
            file.writelines(",".join(map(repr, row)) + "\n" for row in rows)
        theirs = codedgrad.trace_stats(path)
    assert dataclasses.replace(codedgrad.trace_stats(rows), delays=path) == theirs


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "uint64", "bool", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_real_array_will_do(dtype, order):
    delays = np.asarray(np.arange(1, 13).reshape(4, 3) % 5, dtype=dtype, order=order)
    wanted = codedgrad.trace_stats(delays.tolist())
    assert codedgrad.trace_stats(delays) == wanted
    assert codedgrad.trace_stats(np.repeat(delays, 2, axis=0)[::2]) == wanted


def test_records_compare_copy_and_pickle():
    found = codedgrad.simulate("groups:s=1", delays="hotspot", jobs=4)
    again = codedgrad.simulate("groups:s=1", delays="hotspot", jobs=4)
    assert found == again == pickle.loads(pickle.dumps(found))
    assert found != codedgrad.simulate("groups:s=1", delays="hotspot", jobs=4, seed=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.jobs = 5


@pytest.mark.parametrize(
    ("kind", "words", "call"),
    [
        (ValueError, "gruops", lambda: codedgrad.simulate("gruops:s=1", delays="iid", jobs=1)),
        (ValueError, "delays has shape (3,): expected (rounds, workers)",
         lambda: codedgrad.trace_stats([1.0, 2.0, 3.0])),
        (ValueError, "delays[1, 0] = -3.0: expected a finite number of 0 or more",
         lambda: codedgrad.trace_stats([[1.0], [-3.0]])),
        (ValueError, "delays[0, 1] = nan", lambda: codedgrad.trace_stats([[1.0, math.nan]])),
        (ValueError, "delays has shape (0, 4), that is (rounds, workers): empty",
         lambda: codedgrad.trace_stats(np.zeros((0, 4)))),
        (TypeError, "delays has elements of type complex128",
         lambda: codedgrad.trace_stats(np.ones((2, 2), complex))),
        (ValueError, "scheme[1] is all zero", lambda: codedgrad.code([[1, 1], [0, 0]])),
        (ValueError, "scheme[0, 1] = inf", lambda: codedgrad.code([[1, math.inf], [0, 1]])),
        (ValueError, "scheme has 4 rows, one per worker, but workers = 5",
         lambda: codedgrad.code(PAIRS, workers=5)),
        (ValueError, "scheme has 4 rows and delays 3 columns",
         lambda: codedgrad.simulate(PAIRS, delays=np.ones((2, 3)), jobs=1)),
        (ValueError, "stragglers = 1 goes with a matrix",
         lambda: codedgrad.code("uncoded", workers=2, stragglers=1)),
        (ValueError, "error_max = 0.1 goes with a matrix",
         lambda: codedgrad.code("uncoded", workers=2, error_max=0.1)),
        (ValueError, "err=1.5 is not a normalised error",
         lambda: codedgrad.code(PAIRS, error_max=1.5)),
        (ValueError, "<array>: even all workers together cannot decode",
         lambda: codedgrad.code([[1, 0], [2, 0]])),
        (TypeError, "workers is missing", lambda: codedgrad.code("uncoded")),
        (TypeError, "plan() got an unexpected keyword argument 'max_dely'",
         lambda: codedgrad.plan(delays="iid", max_dely=0)),
        (ValueError, "proportional = True: it goes with base_load",
         lambda: codedgrad.simulate("uncoded", delays="iid", jobs=1, proportional=True)),
        (ValueError, "as_recorded = True: base_load and slope say how",
         lambda: codedgrad.plan(delays="iid", as_recorded=True, slope=1)),
        (TypeError, "jobs = 1.5: expected a whole number",
         lambda: codedgrad.simulate("uncoded", delays="iid", jobs=1.5)),
        (ValueError, "'0' for 'jobs'", lambda: codedgrad.simulate("uncoded", delays="iid", jobs=0)),
        (ValueError, "mu nan: a number of 0 or more is needed",
         lambda: codedgrad.simulate("uncoded", delays="iid", jobs=1, mu=math.nan)),
        (ValueError, "no-such-file", lambda: codedgrad.plan(delays="no-such-file")),
        (ValueError, "families", lambda: codedgrad.plan(delays="iid", families="gruops")),
        (ValueError, "there is no worker 4", lambda: codedgrad.code(PAIRS, survivors=[4])),
        (RuntimeError, "cannot write", lambda: codedgrad.simulate(
            "uncoded", delays="iid", jobs=1, svg="/dev/null/a.svg")),
    ],
)
def test_errors_name_what_is_wrong(kind, words, call):
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert words.lower() in text.lower()
    assert tempfile.gettempdir() + "/codedgrad-" not in text and "--" not in text


def test_a_command_in_a_message_stays_a_command():
    with pytest.raises(ValueError, match="`codedgrad code matrix:FILE --verify` shows"):
        codedgrad.simulate(PAIRS, stragglers=2, delays=DELAYS, jobs=1)


def test_codes_tell_their_normalised_error():
    plane = np.zeros((8, 7))
    for worker, line in enumerate(["012", "034", "056", "135", "146", "236", "245"]):
        plane[worker, [int(share) for share in line]] = 1
    survivors = [0, 1, 3, 4, 5, 6]
    exact = codedgrad.code(plane[:7], survivors=survivors)
    assert not exact.decodable and exact.error == pytest.approx(1 / 28)
    assert exact.error == pytest.approx(np.mean((exact.weights @ exact.matrix - 1) ** 2))
    # Worker 7 computes nothing.
    found = codedgrad.code(plane, error_max=0.036, survivors=survivors, verify=True)
    assert found.decodable and (found.stragglers, found.verified.failed) == (1, 0)
    assert found.verified.worst_error == pytest.approx(1 / 28)
    assert found.verified.mean_error == pytest.approx(7 / 28 / 9)
    assert found.proof and codedgrad.code(plane[:7], stragglers=0).proof is None


def test_no_file_is_left(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    codedgrad.simulate(PAIRS, delays=DELAYS, jobs=2)
    with pytest.raises(ValueError):
        codedgrad.simulate(PAIRS, delays=DELAYS, jobs=2, mu=-1)
    assert list(tmp_path.iterdir()) == []


def test_files_say_what_was_given(tmp_path):
    codedgrad.plan(delays="iid", workers=4, families="drop", also=[PAIRS], out=tmp_path)
    codedgrad.simulate(PAIRS, delays=DELAYS, jobs=2, svg=tmp_path / "jobs.svg")
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert sorted(texts) == ["jobs.svg", "plan.json", "schemes.svg", "time-work.svg"]
    assert not any("codedgrad-" in text for text in texts.values())
    assert "matrix:&lt;array&gt;" in texts["jobs.svg"] and "also[0]&gt;" in texts["schemes.svg"]


def test_a_path_is_no_preset(monkeypatch, folder):
    monkeypatch.chdir(folder)
    (folder / "d.csv").rename(folder / "hotspot")
    stats = codedgrad.trace_stats(type(folder)("hotspot"))
    assert (stats.delays, stats.workers, stats.unit) == ("hotspot", 4, "seconds")
    assert codedgrad.trace_stats("hotspot").unit == "step_times"


def test_what_the_command_says_beside_its_answer_is_warned_of():
    with pytest.warns(UserWarning, match="random cyclic codes"):
        codedgrad.code("cyclic:s=2", workers=40)
    with pytest.warns(UserWarning, match="first 2 of 4 columns"):
        codedgrad.simulate("uncoded", delays=DELAYS, jobs=1, workers=2)


def test_threads_run_side_by_side():
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(
            lambda seed: codedgrad.simulate("queue:m=4", delays="iid", jobs=300, seed=seed),
            [1, 2, 1, 2, 1, 2],
        ))
    assert found[0] == found[2] == found[4] != found[1] == found[3] == found[5]


def test_ctrl_c_is_noticed():
    def interrupt():
        time.sleep(0.3)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    sent = []
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        codedgrad.simulate("queue:m=64", delays="iid", workers=64, jobs=1_000_000)
    # 0.05 s are promised; a busy machine may take its time.
    print(f"Ctrl-C was noticed after {1e3 * (time.monotonic() - sent[0]):.1f} ms")


def test_the_program():
    for line in (["--help"], ["simulate", "--help"], ["--version"]):
        assert command(*line).stdout
    assert "Usage: codedgrad simulate" in command("simulate", "--help").stdout
    wrong = command("code", "gruops", "--workers", 4, status=2)
    assert wrong.stderr.startswith("error: ") and wrong.stdout == ""
    command("nonsense", status=2)
    command("status", "127.0.0.1:1", status=1)


def test_ctrl_c_ends_the_program():
    line = ["simulate", "queue:m=64", "--delays", "iid", "--workers", "64", "--jobs", "1000000"]
    with subprocess.Popen([sys.executable, "-m", "codedgrad", *line]) as program:
        time.sleep(1)
        program.send_signal(signal.SIGINT)
        assert program.wait(30) == -signal.SIGINT


def test_a_reader_that_goes_away_is_no_failure():
    line = [sys.executable, "-m", "codedgrad", "code", "uncoded", "--workers", "1000", "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        program.stdout.close()
        assert program.stderr.read() == b""
        assert program.wait(30) == 0


def test_importing_brings_neither_numpy_nor_torch():
    text = "import time; a = time.perf_counter(); import codedgrad; b = time.perf_counter(); " \
        "import sys; assert not {'numpy', 'torch'} & set(sys.modules); print(b - a)"
    runs = [subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
            for _ in range(5)]
    print(f"import takes {1e3 * statistics.median(float(run.stdout) for run in runs):.1f} ms")


def test_every_public_name_is_there():
    assert set(codedgrad._LAZY) <= set(dir(codedgrad))
    for name, module in codedgrad._LAZY.items():
        if module.startswith("_torch") and importlib.util.find_spec("torch") is None:
            with pytest.raises(ModuleNotFoundError, match="torch"):
                getattr(codedgrad, name)
            continue
        assert getattr(codedgrad, name).__doc__
    with pytest.raises(AttributeError, match="no_such_name"):
        codedgrad.no_such_name


def test_examples():
    found = doctest.testmod(_tools)
    assert found.attempted > 10 and found.failed == 0
