"""Runs of several workers as threads of one process, with a real coordinator over loopback TCP."""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

from codedgrad import loop

# Nothing here takes long; whatever hangs is to be told, not waited for.
LIMIT_SECONDS = 60.0
AFTER_SECONDS = 2.0


def together(
    scheme: str,
    work: Callable[[int, Dict[str, Any], loop.Coordinator], Any],
    *,
    workers: int = 4,
    units: int = 8,
    steps: int = 12,
    length: int = 18,
    **more: Any,
) -> Tuple[List[Any], loop.Coordinator]:
    """Runs `work(k, where, coordinator)` for each worker k, where `join(**where)` joins the run.

    Gives back what they returned, and the coordinator, whose run is over. The first exception of a
    worker is raised again.
    """
    results: List[Any] = [None] * workers
    errors: List[BaseException] = []
    more.setdefault("max_wait", LIMIT_SECONDS)
    with loop.serve(
        scheme, workers=workers, units=units, steps=steps, length=length, **more
    ) as coordinator:

        def thread(worker: int) -> None:
            where = {"address": coordinator.address, "token": coordinator.token, "worker": worker}
            try:
                results[worker] = work(worker, where, coordinator)
            except BaseException as error:
                errors.append(error)
                coordinator.stop()

        threads = [threading.Thread(target=thread, args=(k,), daemon=True) for k in range(workers)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(LIMIT_SECONDS)
            if errors:
                # The others are told to end, and give back what they have taken of PyTorch.
                for other in threads:
                    other.join(AFTER_SECONDS)
                raise errors[0]
            assert not each.is_alive(), "a worker hangs"
        assert coordinator.wait(LIMIT_SECONDS) is not None, "the coordinator hangs"
    return results, coordinator


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits for something that other threads bring about."""
    pause = threading.Event()
    for _ in range(int(LIMIT_SECONDS / 0.002)):
        if condition():
            return
        pause.wait(0.002)
    raise AssertionError(f"{what} did not come about")


def tree_sum(terms: List[Any], first: int = 0) -> Optional[Any]:
    """The sum of consecutive units by the aligned binary tree, independently of the library:
    neighbours are added as soon as they are the two halves of an aligned block, what is left from
    right to left."""
    partial: List[Tuple[int, int, Any]] = []
    for unit, term in enumerate(terms, first):
        partial.append((unit, 1, term))
        while len(partial) > 1:
            (left, width, a), (right, other, b) = partial[-2:]
            if width != other or left % (2 * width) or left + width != right:
                break
            partial[-2:] = [(left, 2 * width, a + b)]
    while len(partial) > 1:
        (left, width, a), (_, other, b) = partial[-2:]
        partial[-2:] = [(left, width + other, a + b)]
    return partial[0][2] if partial else None
