"""`SavedForms`: what the fields of a checkpoint must look like for a run to go on from it, found out beforehand.

Otherwise a wrong shape would end the run with a traceback, on some ranks, in the middle of a step, or be taken for
right.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from trainers.checkpoints.checkpoint import Checkpoint
from trainers.checkpoints.fields import described, mismatch
from trainers.checkpoints.random_states import RandomState, random_state, set_random_state_of

NOTES: dict[str, Any] = {
    "losses": None, "skipped_now": 0, "skipped": 0, "skipped_in_a_row": 0, "last_loss": None, "states": 0, "log": None
}  # fmt: skip


class SavedForms:
    """model: the state of the model. optimizer: that of an optimizer which has taken a step, on any device.

    training: that of the run's identity. strategy: of each rank, as `Strategy.state_forms` gives them.
    """

    def __init__(
        self,
        model: Mapping[str, Any],
        optimizer: dict[str, Any],
        training: dict[str, Any],
        strategy: Sequence[dict[str, Any]] = (),
    ) -> None:
        self._model = dict(model)
        self._optimizer = optimizer
        self._strategy = list(strategy)
        self._training = {**training, "clip_norm": None, "schedule_steps": None, "amp": None}  # or none

    def check_config(self, checkpoint: Checkpoint) -> str | None:
        """What is wrong with what it says of its run, before the two runs can be compared; None if nothing is."""
        if fault := mismatch("config", checkpoint.config, {"task": {}, "training": {}}, inside=False):
            return fault
        if not checkpoint.config.keys() >= {"task", "training"}:
            return "is of no training session"
        if fault := mismatch("config.task", checkpoint.config["task"], {}, inside=False):
            return fault
        training = checkpoint.config["training"]
        if fault := mismatch("config.training", training, self._training):
            return fault
        saved = len(checkpoint.random_states)
        if training["num_ranks"] != saved:
            return f"random_states: has those of {saved} ranks, must have {training['num_ranks']} by config.training"
        return None

    def check_states(self, checkpoint: Checkpoint) -> str | None:
        """What is wrong with the states of model, optimizer and random generators, and with the notes."""
        return (
            mismatch("model_state", checkpoint.model_state, self._model)
            or _fault_of_notes(checkpoint)
            or self._fault_of_optimizer(checkpoint.optimizer_state, checkpoint.notes["states"])
            or self._fault_of_strategy(checkpoint.strategy_states)
            or _fault_of_random_states(checkpoint.random_states)
        )

    def _fault_of_strategy(self, saved: list[dict[str, Any]]) -> str | None:
        unlike_optimizers = [{**form, "optimizer": None} if "optimizer" in form else form for form in self._strategy]
        if fault := mismatch("strategy_states", saved, unlike_optimizers):
            return fault
        for rank, state in enumerate(saved):
            if "optimizer" in state and (fault := self._fault_of_optimizer(state["optimizer"])):
                return f"strategy_states[{rank}]: {fault}"
        return None

    def _fault_of_optimizer(self, saved: Any, num_states: int | None = None) -> str | None:
        """num_states: how many parameters it must have a state of, if that is known."""
        if fault := mismatch("optimizer_state", saved, dict.fromkeys(("state", "param_groups"))):
            return fault
        groups, state = saved["param_groups"], saved["state"]
        if fault := self._fault_of_groups(groups) or mismatch("optimizer_state.state", state, {}, inside=False):
            return fault
        if num_states is not None and len(state) != num_states:
            return f"optimizer_state.state: has {len(state)} entries, must have {num_states}"
        return next((f for index, got in state.items() if (f := self._fault_of_state(index, got))), None)

    def _fault_of_groups(self, groups: Any) -> str | None:
        wanted = self._optimizer["param_groups"]
        if fault := mismatch("optimizer_state.param_groups", groups, _with_any_number(wanted)):
            return fault
        for index, (got, want) in enumerate(zip(groups, wanted, strict=True)):
            place = f"optimizer_state.param_groups[{index}]"
            if got["params"] != want["params"]:
                return f"{place}.params: has other parameters than the task's optimizer"
            for name in (name for name, value in want.items() if value is None):  # a choice, such as foreach
                if not isinstance(got[name], int | float | None):
                    return f"{place}.{name}: is {described(got[name])}, must be a number, True, False or None"
        return None

    def _fault_of_state(self, index: object, got: Any) -> str | None:
        place = f"optimizer_state.state.{index}"
        if index not in [number for group in self._optimizer["param_groups"] for number in group["params"]]:
            return f"{place}: is of no parameter of the task's optimizer"
        want = self._optimizer["state"].get(index)
        if want is None:  # of an optimizer that cannot tell without numbers
            return mismatch(place, got, {}, inside=False)
        if fault := mismatch(place, got, {}, inside=False):
            return fault
        # More there may be: what an optimizer does not have after its first step.
        return mismatch(place, {name: got[name] for name in got if name in want}, want)


def _with_any_number(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A rate of 1 may have become 0.5 meanwhile."""
    return [
        {name: float(value) if isinstance(value, int) and not isinstance(value, bool) else value for name, value in g}
        for g in (group.items() for group in groups)
    ]


def _fault_of_notes(checkpoint: Checkpoint) -> str | None:
    notes = checkpoint.notes
    if fault := mismatch("notes", notes, NOTES):
        return fault
    if not isinstance(notes["losses"], list) or not all(isinstance(loss, float) for loss in notes["losses"]):
        return f"notes.losses: is {described(notes['losses'])}, must be a list of numbers"
    if not isinstance(notes["last_loss"], float | None):
        return f"notes.last_loss: is {described(notes['last_loss'])}, must be a number or None"
    for name in ("skipped_now", "skipped", "skipped_in_a_row", "states"):
        if notes[name] < 0:
            return f"notes.{name}: is {notes[name]}, must be at least 0"
    if notes["skipped"] > checkpoint.step:
        return f"notes.skipped: is {notes['skipped']}, must be at most the step, {checkpoint.step}"
    return mismatch("notes.log", notes["log"], {"lines": 0, "crc32": 0})


def _fault_of_random_states(states: list[dict[str, Any]]) -> str | None:
    for rank, state in enumerate(states):
        place = f"random_states[{rank}]"
        if fault := mismatch(place, state, _form_of_random_state()):
            return fault
        for name in ("torch", "python", "numpy"):
            if trouble := _rehearsed(name, state):
                return f"{place}.{name}: is no state of that generator: {trouble}"
        if not isinstance(state["python"]["gauss"], float | None):
            return f"{place}.python.gauss: is {described(state['python']['gauss'])}, must be a number or None"
        if not isinstance(state["cuda"], torch.Tensor | None):
            return f"{place}.cuda: is {described(state['cuda'])}, must be a tensor or None"
    return None


def _form_of_random_state() -> RandomState:
    form = random_state("cpu")
    python = {**form["python"], "gauss": None}  # a number, if one of a pair is left
    return {**form, "python": python, "cuda": None}


def _rehearsed(name: str, state: RandomState) -> str:
    """What a generator of our own says when it is given the state; "" if nothing."""
    try:
        set_random_state_of(name, state, random.Random(), np.random.RandomState(), torch.Generator())
    except (ValueError, TypeError, RuntimeError, KeyError, OverflowError) as error:
        return str(error).splitlines()[0]
    return ""
