"""Reading a plan and instantiating it for the parameters of one start."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cfac.runtime.errors import ChannelError
from cfac.runtime.table import Key, label

PLAN_VERSION = 1


class ParamsUnknown(ChannelError):
    """A reference needs a parameter whose value is not known yet."""


@dataclass(slots=True)
class Plan:
    """A loaded plan (see docs/plan.md) with the parameter values known so far."""

    data: dict[str, Any]
    params: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Plan:
        """Load a plan file; ChannelError if it is of another version."""
        with open(path, encoding="utf-8") as file:
            return cls.of(json.load(file))

    @classmethod
    def of(cls, data: dict[str, Any]) -> Plan:
        """Wrap plan data; ChannelError if it is of another version."""
        version = data.get("cfac")
        if version != PLAN_VERSION:
            raise ChannelError(
                f"plan version {version!r} is not {PLAN_VERSION}: compile the spec again"
            )
        plan = cls(data)
        for name, param in data["params"].items():
            if not param["at"]:
                plan.params[name] = _early(param, sys.argv)
        return plan

    @property
    def name(self) -> str:
        """The spec's name."""
        return str(self.data["name"])

    @property
    def settled(self) -> bool:
        """Whether every parameter's value is known."""
        return len(self.params) == len(self.data["params"])

    @property
    def components(self) -> dict[str, Any]:
        """The components by name."""
        return self.data["components"]  # type: ignore[no-any-return]

    def settle(self, argv: list[str] | None = None, names: Iterable[str] | None = None) -> None:
        """Give parameters (default: all) that are still unknown their early value."""
        for name in self.data["params"] if names is None else names:
            param = self.data["params"][name]
            self.params.setdefault(name, _early(param, sys.argv if argv is None else argv))

    def present(self, component: str) -> bool:
        """Whether the component's ``when`` holds; ParamsUnknown if that is not known."""
        return self.holds(self.components[component]["when"])

    def holds(self, condition: list[list[Any]] | None) -> bool:
        """Evaluate a ``when``: all of its tests."""
        return all(self._test(*test) for test in condition or ())

    def is_known(self, condition: list[list[Any]] | None) -> bool:
        """Whether a ``when`` is known to hold by now."""
        try:
            return self.holds(condition)
        except ParamsUnknown:
            return False

    def applies(self, name: str, kind: str, number: int | None) -> bool:
        """Whether a site applies in this start; a parameter that is not known speaks for it."""
        lists = self.data.get("sites", {}).get(f"{name}:{kind}")
        if number is None or lists is None:
            return True
        for test in lists[number]:
            try:
                if not self._test(*test):
                    return False
            except ParamsUnknown:
                continue
        return True

    def passed(self, component: str, state: str) -> bool:
        """Whether this start passes the state at all.

        No site of an auxiliary one may apply (``when``): then the state before it counts.
        """
        name = f"{component}.{state}"
        sites = self.data.get("sites", {}).get(f"{name}:publish")
        if sites is None or state not in self.components[component]["aux"]:
            return True
        return any(self.applies(name, "publish", number) for number in range(len(sites)))

    def at_exit(self, component: str, state: str) -> bool:
        """Whether a component's state is its process's end."""
        name = f"{component}.{state}"
        numbers = range(len(self.data.get("sites", {}).get(f"{name}:exit", ())))
        return bool(self.transition(component, state).get("exit")) and (
            not numbers or any(self.applies(name, "exit", number) for number in numbers)
        )

    def _test(self, subject: str, op: str, expected: Any) -> bool:
        kind, _, name = subject.partition(":")
        if kind == "platform":
            actual: Any = sys.platform
        elif kind == "never":
            return False  # decided when the patch was made
        elif name in self.params:
            actual = self.params[name]
        else:
            raise ParamsUnknown(f"parameter {name!r} is not known yet")
        if op == "is":
            return bool(actual == expected)
        if op == "not":
            return bool(actual != expected)
        if op == "in":
            return actual in expected
        if op == "above":
            return bool(actual > expected)
        if op == "below":
            return bool(actual < expected)
        return re.fullmatch(str(expected), str(actual)) is not None

    def unsupported(self) -> str | None:
        """Why this start must be as stock, by the parameters known so far; None: it need not."""
        for entry in (self.data["engine"] or {}).get("unsupported", ()):
            try:
                if self.holds(entry["when"]):
                    return str(entry["reason"])
            except ParamsUnknown:
                continue
        return None

    def count(self, component: str) -> int | None:
        """How many replicas the component has; None if it is not indexed."""
        replicas = self.components[component]["replicas"]
        if replicas is None or isinstance(replicas, int):
            return replicas
        if replicas not in self.params:
            raise ParamsUnknown(f"parameter {replicas!r} is not known yet")
        return int(self.params[replicas])

    def indices(self, component: str) -> list[int | None]:
        """The replica indices of a component: ``[None]`` where it is not indexed."""
        if not self.present(component):
            return []
        count = self.count(component)
        return [None] if count is None else list(range(count))

    def instances(self) -> Iterator[tuple[str, int | None]]:
        """Every component instance of this start."""
        for component in self.components:
            for index in self.indices(component):
                yield component, index

    def resolve(self, reference: Mapping[str, Any], index: int | None, owner: str) -> list[Key]:
        """The table keys that a reference means for replica ``index`` of ``owner``.

        References out of range or to an absent component mean nothing: satisfied.
        """
        component, state = reference["component"], reference["state"]
        if not self.present(component):
            return []
        while not self.passed(component, state):
            state = self.states(component)[self.states(component).index(state) - 1]
        if state == self.states(component)[0]:
            return []
        kind, value = reference["index"]
        if kind == "none":
            return [(component, state)]
        count = self.count(component) or 0
        if kind == "all":
            wanted: list[int] = list(range(count))
        elif kind == "at":
            wanted = [value]
        elif kind == "offset":
            wanted = [(index or 0) + value]
        else:
            lists = self.data["layouts"].get(f"{owner}.{value}")
            if lists is None:
                raise ChannelError(
                    f"the relation {owner}.{value} is not known: it comes from the headers of a "
                    "model's files, and no loader has given it"
                )
            wanted = lists[index or 0]
        return [(label(component, k), state) for k in wanted if 0 <= k < count]

    def needs(self, transition: str, index: int | None, *, bounds: bool = True) -> list[Key]:
        """The keys that a transition waits for, in the spec's order, each once.

        A bound is met by waiting for the one neighbour that it names; without ``bounds``
        those are left out.
        """
        owner = transition.partition(".")[0]
        entry = self.data["transitions"].get(transition)
        if entry is None:
            raise ChannelError(f"the plan has no transition {transition}")
        keys = (
            key
            for ref in entry["after"]
            if bounds or not ref.get("bound")
            for key in self.resolve(ref, index, owner)
        )
        return list(dict.fromkeys(keys))

    def bounds(self, transition: str) -> list[tuple[str, str, int]]:
        """(component, state, R): of the replicas before i fewer than R may not be in the state."""
        return [
            (ref["component"], ref["state"], -ref["index"][1])
            for ref in self.data["transitions"][transition]["after"]
            if ref.get("bound")
        ]

    def states(self, component: str) -> list[str]:
        """The component's states, in order."""
        return self.components[component]["states"]  # type: ignore[no-any-return]

    def births(self, component: str) -> list[str]:
        """The states that a child which is there early reaches by itself, at its birth."""
        later = self.states(component)[1:]
        return list(
            itertools.takewhile(lambda s: self.transition(component, s).get("birth"), later)
        )

    def following(self, component: str, state: str | None) -> str | None:
        """The state after ``state`` (None: the first one); None at the end."""
        states = self.states(component)
        position = 0 if state is None else states.index(state) + 1
        return states[position] if position < len(states) else None

    def transition(self, component: str, state: str) -> dict[str, Any]:
        """The plan's entry for a transition; empty for an initial state."""
        return self.data["transitions"].get(f"{component}.{state}", {})  # type: ignore[no-any-return]

    def roots(self) -> list[str]:
        """The components that nobody spawns: their start is a run's start."""
        spawned = (
            c for c in self.components.items() if not (c[1]["process"] or {}).get("spawned_by")
        )
        return [name for name, _ in spawned]


def split_label(text: str) -> tuple[str, int | None]:
    """``worker[0]`` -> ("worker", 0); ``core`` -> ("core", None)."""
    component, bracket, rest = text.partition("[")
    return component, int(rest.rstrip("]")) if bracket else None


def convert(param: Mapping[str, Any], value: Any) -> Any:
    """A value as the parameter's declared type; ValueError where it is none."""
    kind = param["type"]
    if kind == "int":
        return int(value)
    if kind == "bool":
        if isinstance(value, str):
            return value.strip().lower() in {"1", "true", "yes", "on"}
        return bool(value)
    return value if value is None else str(value)


def started_as(words: Sequence[str]) -> bool:
    """Whether this process was started as the program ``words[0]`` with those arguments.

    A child that multiprocessing spawns has its parent's sys.argv, but not its command line.
    """
    argv: list[str] = getattr(sys, "argv", None) or [""]
    named = os.path.basename(argv[0]) == words[0] and argv[1 : len(words)] == list(words[1:])
    return named and argv[0] in sys.orig_argv


def _early(param: Mapping[str, Any], argv: list[str]) -> Any:
    """A parameter's value as far as it can be known from the start."""
    programs = param.get("programs")
    if programs:
        return any(started_as(words) for words in programs)
    return _from_argv(param, argv)


def _from_argv(param: Mapping[str, Any], argv: list[str]) -> Any:
    """The last occurrence of one of the parameter's options in argv, else its default."""
    options = {option.replace("_", "-") for option in param["argv"]}
    found = param["default"]
    for position, word in enumerate(argv):
        option, equals, value = word.partition("=")
        if option.replace("_", "-") not in options:
            continue
        if not equals:
            value = argv[position + 1] if position + 1 < len(argv) else ""
        try:
            found = convert(param, True if param["type"] == "bool" and not equals else value)
        except ValueError:
            continue
    return found
