"""Which iteration of a loop is open, where the loop stays as it was under DistributedDataParallel.

An *iteration* is the body of the user's loop, once. It computes a unit, or, with `accumulate`, a
part of one. Where the step is decided already, the iteration is *skipped* (`hollow`): it computes
nothing, the body runs with outputs of before (`outputs`), and at the end of its backward pass the
decoded gradient is there.

```text
next(loader)     begin         what was decided is settled; events, until there is a unit (real) or a
                               decided step (skipped)
model(x)         forward
loss.backward()  backward_over real: the unit is taken. Was it the task's last, the task is handed in,
                               and events come until the step is decided, or there is another task
                               skipped: -
                               if the step is decided, its gradient is shown: `sync_gradients`
the rest                       acts only where `sync_gradients` is true (`gate`)
```

The events are `steps.turns`', the units `tasks.Task`'s; nothing else knows of iterations.

Where a script uses Accelerate, `accelerator.sync_gradients` follows a run: it, and what Accelerate
does by it, is true in iterations that decide a step.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import torch

from .._core.parting import How
from .._core.session import Session
from .._core.states import State
from .._core.steps import Apply, Compute, Resync, Skip, ended, turns
from .._core.tasks import Task
from .._core.units import Micro, Totals
from .body import Body, changed_setting, settings_of
from .watch import Norms, explain, explain_at_exit

_SEVERAL = (
    "several backward passes in one iteration of the loop. If they belong to one step, pass their "
    "number as prepare(accumulate=..); if they belong to losses of different models or steps, use "
    "the iterator, coded.join. Run everything beside training in model.eval() or under "
    "torch.no_grad()"
)


class Iterations:
    """The iterations of a run's loop, and what they come to."""

    def __init__(
        self,
        session: Session,
        optimizers: List[torch.optim.Optimizer],
        accumulate: int,
        spread: bool,
        body: Body,
    ):
        self._session = session
        #: What the script does in an iteration.
        self.body = body
        self._optimizers = optimizers
        # Backward passes of a unit, and whether each has an iteration of its own.
        self._accumulate = accumulate
        self._spread = spread
        self._events = turns(session)
        self._task: Optional[Task] = None
        self._micro: Optional[Micro] = None
        # What is decided, and not shown yet.
        self._decided: Union[Apply, Skip, None] = None
        # Whether a unit, or a decided step, is at work, and how many of its backward passes are over.
        self._at_work = False
        self._backwards = 0
        self._open = _Open()
        #: Steps that are decided here, those before the first counted.
        self.stands = session.native.next_step
        #: The step that is decided, or open.
        self.index = self.stands
        #: What units have reported, summed over the whole batch, of the last decided step.
        self.totals = Totals()
        #: Whether `p.grad` is the whole batch's: the step is decided.
        self.sync_gradients = False
        #: Whether gradients are complete with the next backward pass: not under `no_sync`.
        self.require_sync = True
        #: Where the loop that goes on, or the last one, ends: a step; none before the first loop.
        self.end: Optional[int] = None
        # Whether the last loop may have been left by an exception that a generator hides.
        self._failed = False
        # Ends what explains an error that ends the process.
        self._unexplain: Callable[[], None] = lambda: None
        # Which optimizers have made their step, and the settings they had in the step's first pass.
        self._stepped: Dict[int, bool] = {}
        self._settings: Tuple[int, List[Dict[str, Any]]] = (-1, [])
        self._applied = False
        #: Skipped iterations in a row that had no loss, and so could not show their step.
        self.blank = 0
        #: Of gradients, as the body asks for them.
        self.norms = Norms()
        #: What is called when there are no more iterations.
        self.at_end: List[Callable[[], None]] = []

    # What an iteration is.

    @property
    def over(self) -> bool:
        """Whether the run has ended, for all workers or for this one."""
        return self._session.over

    @property
    def steps(self) -> int:
        """How many the whole run has."""
        return self._session.settings.steps

    @property
    def hollow(self) -> bool:
        """Whether the open iteration shows a decided step, and computes nothing."""
        return self._decided is not None

    @property
    def micro(self) -> Optional[Micro]:
        """The unit of the open iteration; none if it is skipped."""
        return self._micro

    @property
    def part(self) -> int:
        """Which part of its unit the open iteration computes, from 0."""
        return self._backwards if self._spread else 0

    @property
    def is_open(self) -> bool:
        """Whether the loop's body runs."""
        return self._open.is_open

    @property
    def computes(self) -> bool:
        """Whether the loop's body runs, and has computed the model in this thread."""
        return self._open.is_open and self._open.thread == threading.get_ident()

    @property
    def undecided(self) -> bool:
        """Whether the body runs in this thread, after its backward pass, without a gradient: its step
        is not decided, or refused."""
        return self.computes and self._open.done and not (self.sync_gradients and self._applied)

    @property
    def decides(self) -> bool:
        """Whether the backward pass of the open iteration is over."""
        return self._open.done

    def resume(self, end: int) -> None:
        """A loop begins, up to this step. What the one before has left by `break` is kept."""
        self.end = end
        self._failed = False
        self._unexplain()
        self.body.loop_begins()
        if self._open.is_open and not (self._open.done or self._open.nothing):
            self._open.again = True

    def begin(self) -> bool:
        """Before an iteration; false where there is none, since the loop is at its end.

        Raises RuntimeError if the iteration before has left something out.
        """
        if self._open.again:
            self._open = _Open(is_open=True)
            return True
        self._close()
        if not self._at_work:
            if not self._find():
                self._end()
                return False
            self._at_work, self._backwards = True, 0
        self._open = _Open(is_open=True)
        self.body.begins()
        self.norms.begins()
        return True

    def _end(self) -> None:
        """The loop is over: if the run is, too, what was taken is given back."""
        self._session.tally.apply.end()
        if self.stands >= self._session.settings.steps:
            # All steps are decided here: others may need a state, until all are told that it is over.
            while self._event():
                pass
        if self.over:
            self.leave()

    def _find(self) -> bool:
        """A unit to compute, or a step that is decided."""
        assert self.end is not None
        while self._decided is None:
            if self.stands >= self.end:
                return False
            if self._task is not None:
                self._micro = self._task.unit()
                if self._micro is not None:
                    self.index = self._micro.step
                    return True
                self._hand_in()
            if not self._event():
                return False
        self.index = self._decided.step
        return True

    def _event(self) -> bool:
        """Takes the next event; false if the run is over."""
        event = next(self._events, None)
        if isinstance(event, Compute):
            self._task = event._task()
        elif isinstance(event, (Apply, Skip)):
            self._decided = event
        elif isinstance(event, Resync):
            event.load()
            if event._loaded:
                self.stands = self.index = event.next_step
                # The optimizers' settings are those of the state now.
                self._settings = (-1, [])
                self.body.settled()
        return event is not None

    def _hand_in(self) -> None:
        assert self._task is not None
        self._task.submit()
        self._task = None

    # What happens in it.

    def forward(self) -> bool:
        """A training forward pass begins; whether its iteration is skipped.

        Raises RuntimeError where there is no iteration that it could be a part of.
        """
        if self.over:
            raise RuntimeError(
                "the run is over, and this is a training forward pass: train on with model.module, "
                "or evaluate in model.eval() or under torch.no_grad()"
            )
        if not self._open.is_open:
            raise RuntimeError(
                "a training forward pass outside of the loop: it belongs into `for .. in loader:`, "
                "with the loader that prepare returned, or, without a loader, into `for _ in "
                "model.run.iterations():`. Evaluate in model.eval() or under torch.no_grad(). "
                "Hugging Face's Trainer has a loop of its own: codedgrad.transformers.CodedTrainer"
            )
        if self._open.done:
            raise RuntimeError(_SEVERAL)
        self._open.forwarded = True
        self._open.thread = threading.get_ident()
        return self.hollow

    def on_all_ranks(self, known: bool) -> bool:
        """Whether something is so on all ranks that share a model: its forward pass is a collective,
        which all of them enter, or none."""
        native: Any = self._session.native
        if not getattr(native, "cut", False):
            return known
        return bool(native.on_all("a skipped iteration", known))

    def call(self) -> int:
        """The number of a forward pass within the iteration."""
        self._open.calls += 1
        return self._open.calls

    def reached(self, *_: Any) -> None:
        """A backward pass has come to what a forward pass gave."""
        self._open.reached = True

    def backward_over(self) -> None:
        """A backward pass is over, in the thread that has asked for it."""
        here = self._open
        if not here.reached or here.thread != threading.get_ident():
            return
        here.reached = False
        if not here.is_open or here.done:
            raise RuntimeError(_SEVERAL)
        self._check_settings()
        last = self._backwards + 1 == self._accumulate
        if not self.require_sync and last and self._spread:
            raise RuntimeError(
                "no_sync() around the last backward pass of a unit: pass the number of batches "
                "whose gradients the loop accumulates as prepare(accumulate=..) "
                f"(it is {self._accumulate})"
            )
        if not self.require_sync and self._accumulate == 1:
            return
        self._backwards += 1
        here.done = last or self._spread
        if last:
            self._decide()
        if here.done and not self.sync_gradients:
            self.body.goes_on_undecided()

    def nothing(self) -> None:
        """The open iteration has no loss, on purpose."""
        self._open.nothing = True

    def report(self, *scalars: Any) -> None:
        """Scalars of the unit; those of its parts are added up."""
        if not self._open.is_open or self._open.done:
            raise RuntimeError(
                "call run.report() before backward(): backward() submits the micro-batch"
            )
        micro = self._micro
        if micro is None:
            return
        before = micro.scalars
        micro.report(*scalars)
        if not before:
            return
        if len(before) != len(micro.scalars):
            raise ValueError(
                f"run.report() was given {len(micro.scalars)} scalars, and {len(before)} before in "
                "the same micro-batch: every report has equally many"
            )
        micro.scalars = tuple(_Sum(a, b) for a, b in zip(before, micro.scalars))

    def check_step(self) -> None:
        """Raises RuntimeError if an optimizer is to step where a unit goes on."""
        if self._spread and self._open.done and self._backwards < self._accumulate:
            raise RuntimeError(
                f"optimizer.step() after {self._backwards} of the {self._accumulate} batches of "
                "prepare(accumulate=..): call it only after the last one, under "
                f"`if (i + 1) % {self._accumulate} == 0:`, or pass the number of batches that the "
                "loop accumulates"
            )

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer makes its step."""
        self._stepped[id(optimizer)] = True

    # What comes of it.

    def _decide(self) -> None:
        """The unit's last backward pass is over."""
        self._at_work = False
        if not self.hollow:
            self._take()
            while self._task is None and not self.hollow:
                if not self._event():
                    # The rest of the body runs without a gradient, and changes nothing.
                    self._session.arrays.hide()
                    self._session.state = State.OVER
                    return
        if self.hollow:
            self._show()

    def _take(self) -> None:
        assert self._task is not None and self._micro is not None
        self._task.take(self._micro)
        self._micro = None
        self._session.arrays.hide()
        if not self._task.goes_on():
            self._hand_in()

    def _show(self) -> None:
        event, self._decided = self._decided, None
        assert event is not None
        event._open()
        self.index, self.stands = event.step, event.step + 1
        self._applied = isinstance(event, Apply)
        self.totals = event.totals if isinstance(event, Apply) else event._totals
        self.sync_gradients = True
        self.blank = 0
        self._stepped = {}
        self._session.seed_body(event.step)
        self._session.tally.decided()

    def _close(self) -> None:
        """The iteration's body is over."""
        here, self._open = self._open, _Open()
        if not here.is_open:
            return
        self.body.ends(self.sync_gradients)
        if not here.done:
            if not here.nothing:
                raise RuntimeError(self._why_not_done(here))
            self._nothing_done(here)
        if not self.sync_gradients:
            return
        self.sync_gradients = False
        self._session.tally.apply.end()
        self._session.arrays.hide()
        missing = [each for each in self._optimizers if id(each) not in self._stepped]
        if self._applied and missing:
            raise RuntimeError(
                f"step {self.index} is committed, and {type(missing[0]).__name__}.step() was not "
                "called before the next iteration of the loop, on the optimizer passed to prepare. "
                "If the loop accumulates gradients over several batches, pass their number: "
                "prepare(.., accumulate=..)"
            )

    def _why_not_done(self, here: "_Open") -> str:
        if here.reached:
            return (
                "an iteration of the loop computed gradients of the model's outputs without "
                "loss.backward(): torch.autograd.grad, and gradients that the script writes to "
                "p.grad itself, are not seen here. Use the iterator, codedgrad.torch.join, which "
                "takes each micro-batch's gradients from p.grad"
            )
        if here.forwarded:
            what = "has no backward pass that reached the outputs of model(..)"
        else:
            what = "did not call the model that prepare returned, in training mode"
        return (
            f"an iteration of the loop {what}: its samples would be lost. Call model(..), neither "
            "model.module(..) nor a model in eval(), and loss.backward(); where a batch has no "
            "loss on purpose (`continue`), say so before: model.run.nothing()"
        )

    def _nothing_done(self, here: "_Open") -> None:
        """An iteration without a loss; a skipped one comes again, since it has shown nothing."""
        self._backwards += 1
        if self._spread and self._backwards < self._accumulate:
            return
        self._at_work = False
        if self._micro is not None:
            self._micro.nothing()
            self._take()
        else:
            self.blank += 1

    def _check_settings(self) -> None:
        """Raises if a learning rate, or the like, has changed within a step."""
        step = self._decided.step if self._decided is not None else self.index
        before, now = self._settings, settings_of(self._optimizers)
        self._settings = (step, now)
        changed = changed_setting(before[1], now) if before[0] == step else None
        if changed is None:
            return
        raise RuntimeError(
            f"{changed} of an optimizer was changed between two iterations of step {step}: a step "
            "may take several, and another number on each worker. Count with model.run.index, not "
            "with iterations, and give schedulers to prepare"
        )

    def leave(self) -> None:
        """There are no more iterations: leaves the run, if it goes on, and gives back what was
        taken of the user's objects."""
        self._open, self.sync_gradients = _Open(), False
        self._unexplain()
        self._session.parting.part("its part in the run was closed", How.FOR_GOOD)
        ended(self._session)
        called, self.at_end = self.at_end, []
        for each in called:
            each()

    def loop_left(self, error: Optional[BaseException]) -> None:
        """The loop has ended before its end: by an exception, or by `break`, which leaves nothing
        but the loop, and after the run's last step the run."""
        # A generator around the loop, as of a progress bar, is closed by both.
        if error is None or isinstance(error, GeneratorExit):
            self.body.loop_begins()
            if error is not None and self.undecided:
                self._unexplain()
                self._unexplain = explain_at_exit(self.sync_gradients)
            # A loop that ends itself does so where gradients are synchronised.
            self._failed = error is not None and not self.sync_gradients
            if self.stands >= self._session.settings.steps:
                self.sync_gradients = False
                self._end()
            return
        if self.undecided or (self.computes and self.hollow):
            explain(error, self.sync_gradients)
        self._session.parting.fail(error)
        self.leave()

    def process_ends(self) -> None:
        """The process ends, which has not come to the run's end."""
        error = getattr(sys, "last_value", None)
        if error is not None and not self.over:
            self._session.parting.fail(error)
        elif not self.over and self.end is not None:
            steps = self._session.settings.steps
            print(
                f"codedgrad: this process ends with {self.stands} of {steps} steps, and leaves the "
                "run: its loop was left by `break`, or has too few epochs. A loop that ends itself "
                "counts with model.run.index, and ends where model.run.sync_gradients is true",
                file=sys.stderr,
            )
            if self._failed:
                self._session.parting.fail(GeneratorExit())
        self.leave()


class _Open:
    """An open iteration."""

    def __init__(self, is_open: bool = False):
        self.is_open = is_open
        #: Whether it is to come again, since a loop was left in it.
        self.again = False
        #: Whether there was a forward pass, and in which thread.
        self.forwarded = False
        self.thread = 0
        self.calls = 0
        #: Whether a backward pass has come to what a forward pass gave, and whether it is over.
        self.reached = False
        self.done = False
        self.nothing = False


class _Sum:
    """Of two scalars, which are read when the task is handed in: a device's are not waited for."""

    def __init__(self, a: Any, b: Any):
        self._terms = a, b

    def __float__(self) -> float:
        return float(self._terms[0]) + float(self._terms[1])


def follow(iterations: Iterations) -> Optional[Callable[[], None]]:
    """From now on Accelerate follows these iterations; gives back what ends that, or none."""
    module = sys.modules.get("accelerate.state")
    if module is None or not module.GradientState.initialized.fget(None):
        return None
    # All of its objects share one dictionary: what they have in common is their class.
    kind: Any = module.GradientState
    shared = kind._shared_state

    def value(_: Any) -> bool:
        frame = sys._getframe(1)
        if frame.f_code.co_name == "sync_gradients" and frame.f_back is not None:
            # The accelerator's own name for it.
            frame = frame.f_back
        if not frame.f_globals.get("__name__", "").startswith("accelerate"):
            iterations.body.asked = True
        if iterations.is_open and iterations.decides:
            return iterations.sync_gradients
        return bool(shared.get("sync_gradients", True))

    def set_value(_: Any, to: bool) -> None:
        shared["sync_gradients"] = to

    def end() -> None:
        if kind.__dict__.get("sync_gradients") is found:
            del kind.sync_gradients

    found = kind.sync_gradients = property(value, set_value)
    return end
