"""What is watched while a run goes on: that what was agreed at `join` stays as it was."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import torch
from torch import nn

from ._torch_checks import check_optimizers, check_states
from ._torch_body import Unwritten
from ._torch_model import parameters_of, persistent_buffers, trained_of
from ._torch_scaler import GradScaler
from ._units import Micro
from ._warn import warn


class Agreed:
    """What takes a gradient, and what computing a unit must not write."""

    def __init__(self, modules: List[nn.Module], optimizers: List[torch.optim.Optimizer]):
        self._modules = modules
        self._optimizers = optimizers
        self._named = trained_of(modules)
        self._parameters = [parameter for _, parameter in self._named]
        self._formats = [(each.dtype, each.device) for each in self._parameters]
        self._frozen = {
            name for name, parameter in parameters_of(modules) if not parameter.requires_grad
        }
        self._buffers = list(persistent_buffers(modules))
        self._versions_of_buffers: List[int] = []
        # All parameters, from a unit's beginning to its end.
        self._all = Unwritten([*parameters_of(modules)])
        # The step in which the model was last compared with what was agreed.
        self._compared = -1

    def unit_begins(self, micro: Micro) -> None:
        """Raises RuntimeError if the model is not what it was at `join`."""
        if micro.step != self._compared:
            self._compare_layout()
            self._compared = micro.step
        self._versions_of_buffers = [buffer._version for _, _, _, buffer in self._buffers]
        self._all.begins()

    def unit_ends(self, micro: Micro) -> None:
        """What computing a unit writes into the model is not the same on all replicas."""
        path = self._all.changed()
        if path is not None:
            raise RuntimeError(
                f"parameter {path} was written while unit {micro.unit} was computed: its gradient "
                "would be of parameters that no other worker has. Change parameters after the "
                "step is decided, with the optimizer's step; what takes two gradients, as SAM, "
                "takes two steps of a run by the iterator, codedgrad.torch.join"
            )
        versions = self._versions_of_buffers
        for (path, module, name, buffer), version in zip(self._buffers, versions):
            if buffer._version != version or module._buffers.get(name) is not buffer:
                raise RuntimeError(
                    f"buffer {path} of a {type(module).__name__} was written while unit "
                    f"{micro.unit} was computed: it depends on who computes what, and replicas "
                    "would drift apart. Put the module in eval(), use one without such statistics, "
                    "or register the buffer with persistent=False if it is only a cache"
                )

    def _compare_layout(self) -> None:
        """What takes a gradient must be what was agreed."""
        found = trained_of(self._modules)
        if len(found) == len(self._named) and all(
            new is old for (_, new), old in zip(found, self._parameters)
        ):
            check_optimizers(self._optimizers, self._named)
            for (name, parameter), (dtype, device) in zip(self._named, self._formats):
                if parameter.dtype is not dtype:
                    raise RuntimeError(
                        f"parameter {name} was {dtype} at join and is {parameter.dtype} now: "
                        "convert the model before it"
                    )
                if parameter.device != device:
                    raise RuntimeError(
                        f"parameter {name} was on {device} at join and is on {parameter.device} "
                        "now: move the model before it"
                    )
            return
        before, now = {name for name, _ in self._named}, {name for name, _ in found}
        changed = (sorted(before ^ now) or sorted(before))[0]
        there = {name for name, _ in parameters_of(self._modules)}
        if changed in self._frozen & now:
            verb = "was frozen at join and takes a gradient"
        elif changed in now - before:
            verb = "was added"
        elif changed in there - now:
            verb = "was frozen"
        else:
            verb = "was taken away or replaced"
        raise RuntimeError(
            f"parameter {changed} {verb} after join: build the model, and freeze or unfreeze what "
            "is to be, before it. What is trained only later, or no longer, takes part from the "
            "beginning, with a learning rate of 0 meanwhile; for another set of parameters close() "
            "the run and join again"
        )


class Kept:
    """What goes with a replica beside what the user names: up to which step each scheduler has made
    its steps outside of the loop, and schedulers that `prepare` was not given, in the order in which
    they have made their first steps."""

    def __init__(self, schedulers: int):
        self.ends = [-1] * schedulers
        self._given = schedulers
        self._met: List[Any] = []
        # Which of these cannot be handed over.
        self._bare: Set[int] = set()
        # States of some that are not met here yet.
        self._owed: List[Any] = []

    def meet(self, scheduler: Any) -> bool:
        """Whether it makes its first step; warns if it cannot be handed over."""
        if any(each is scheduler for each in self._met):
            return False
        try:
            check_states([scheduler], {})
        except TypeError as error:
            self._bare.add(len(self._met))
            warn(f"{error}. It is not handed over: a worker that falls behind keeps its own")
        self._met.append(scheduler)
        self._catch_up()
        return True

    def place_of(self, scheduler: Any) -> int:
        """Where its end is kept."""
        return self._given + [each is scheduler for each in self._met].index(True)

    def _catch_up(self) -> None:
        self.ends += [-1] * (self._given + len(self._met) - len(self.ends))
        for place, scheduler in enumerate(self._met[: len(self._owed)]):
            state, self._owed[place] = self._owed[place], None
            if state is not None:
                scheduler.load_state_dict(state)

    def state_dict(self) -> Dict[str, Any]:
        """To be handed over."""
        met = [
            None if place in self._bare else each.state_dict()
            for place, each in enumerate(self._met)
        ]
        return {"ends": list(self.ends), "schedulers": met + self._owed[len(met) :]}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.ends = [int(end) for end in state["ends"]]
        self._owed = list(state["schedulers"])
        self._catch_up()


class Schedules:
    """Whether some scheduler changes learning rates and is in nobody's state."""

    def __init__(self, optimizers: List[torch.optim.Optimizer], state: Mapping[str, Any]):
        self._optimizers = optimizers
        self._state = state
        # The learning rates at join, until it is settled whether schedulers are in state=.
        self._rates: Optional[List[Optional[float]]] = [_rate(group) for group in self._groups()]

    def _groups(self) -> Sequence[Dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def look(self) -> None:
        """Warns, once, of a scheduler that whoever takes over this replica's state would lack."""
        if self._rates is None:
            return
        # Under prepare those that are not given are kept, too.
        if any(not isinstance(item, GradScaler) for item in self._state.values()):
            self._rates = None
            return
        # PyTorch's schedulers leave the rate that they begin with in what they change.
        changed = any(
            "initial_lr" in group and _rate(group) != before
            for group, before in zip(self._groups(), self._rates)
        )
        if changed:
            self._rates = None
            warn(
                "a scheduler changes the learning rate and is not in state=: a worker that takes "
                "over another's state would count its steps from 0: join with "
                'state={"scheduler": scheduler}'
            )


class Stepping:
    """Whether the optimizers that were given make their steps."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]):
        self._are_there = bool(optimizers)
        #: Whether one has begun a step, and how many decoded gradients were shown.
        self.begun = False
        self.shown = 0

    def look(self) -> None:
        """Warns, once, where gradients come and nothing is made of them."""
        # A scaler of the user's own may leave out the first.
        if self._are_there and self.shown == 2 and not self.begun:
            self._are_there = False
            warn(
                "two steps are decided, and no optimizer that was given to join has made one: call "
                "optimizer.step() after `for micro in step:`, where the whole batch's gradient is "
                "in p.grad. What changes parameters in another way needs optimizer=None"
            )


def _rate(group: Dict[str, Any]) -> Optional[float]:
    """A parameter group's learning rate, which may be a tensor that is written in place."""
    rate = group.get("lr")
    return None if rate is None else float(rate)
