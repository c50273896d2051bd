"""What the command line names: transitions (``--set``) and dependencies (``--without``)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cfac.compiler.analyze.network import Network, label
from cfac.compiler.diagnostics import did_you_mean
from cfac.compiler.model import Spec

NS = 1_000_000_000
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(us|ms|s|min)?")
_UNITS = {None: NS, "s": NS, "ms": 1_000_000, "us": 1000, "min": 60 * NS}


class SelectionError(ValueError):
    """A name on the command line that means nothing here; the message has a hint."""


@dataclass(frozen=True, slots=True)
class Selected:
    """Transitions of the expanded graph, and nodes of the network that are merge groups."""

    transitions: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()


def duration(text: str) -> int:
    """``12s``, ``20ms``, ``300us``, ``2min`` or seconds, in ns; SelectionError if it is none."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise SelectionError(f"{text!r} is not a duration (write 1.5s, 20ms, 2min, or seconds)")
    return round(float(match[1]) * _UNITS[match[2]])


class Names:
    """Finds what a text means in one network."""

    def __init__(self, spec: Spec, network: Network, absent: Collection[str]) -> None:
        self.spec, self.network, self.absent = spec, network, absent
        self._transitions: dict[str, list[int]] = {}
        for node, transition in enumerate(network.expanded.transitions):
            for name in self._of(node):
                self._transitions.setdefault(name, []).append(node)
            if transition.index is not None:
                self._transitions.setdefault(label(transition), []).append(node)
        self._groups: dict[str, list[int]] = {}
        for node, group in network.groups.items():
            names = {group.name, network.names[node], network.names[node].removeprefix("group ")}
            for name in names:
                self._groups.setdefault(name, []).append(node)

    def _of(self, node: int) -> set[str]:
        transition = self.network.expanded.transitions[node]
        return {self.network.expanded.names[node], f"{transition.component}.{transition.state}"}

    def select(self, text: str) -> Selected:
        """``core.Ready``, ``worker.*.Ready``, ``worker[0].Ready``, or a merge group's name."""
        if text in self._transitions:
            return Selected(transitions=tuple(self._transitions[text]))
        if text in self._groups:
            return Selected(groups=tuple(self._groups[text]))
        raise SelectionError(self._unknown(text))

    def _unknown(self, text: str) -> str:
        name = re.sub(r"(\[\w*\]|\.\*)\.", ".", text)
        component, _, state = name.partition(".")
        found = self.spec.components.get(component)
        if found is not None and component in self.absent:
            return f"{text}: {component} is absent with these parameters"
        if found is not None and found.state(state) is not None:
            if found.states[0].name == state:
                return f"{text} is where {component} starts: no transition enters it"
            return f"{text} names no replica that is there with these parameters"
        known = {f"{c.name}.{s.name}" for c, s in self.spec.transitions()} | set(self._groups)
        hint = did_you_mean(name, known)
        return f"the spec has no transition {text}" + (f" ({hint})" if hint else "")

    def dependency(self, text: str) -> set[int]:
        """The network's edges of ``AWAITED:WAITING``, as in ``core.Ready:frontend.Ready``."""
        first, colon, second = text.partition(":")
        if not colon:
            raise SelectionError(
                f"{text!r} is not AWAITED:WAITING, as in core.Ready:frontend.Ready"
            )
        links = self.network.links
        waiting = set(self._members(second))
        refs = {link.of for link in links if link.of and link.target in waiting}
        awaited = set() if first in refs else set(self._members(first))
        found = {
            number
            for number, link in enumerate(links)
            if link.target in waiting and (link.source in awaited or link.of == first)
        }
        chosen = {number for number in found if links[number].kind != "own"}
        if not chosen:
            raise SelectionError(self._no_edge(first, second, bool(found), refs))
        return {e for e, number in enumerate(self.network.origin) if number in chosen}

    def _members(self, text: str) -> Iterator[int]:
        selected = self.select(text)
        yield from selected.transitions
        for group in selected.groups:
            yield from self.network.members[group]

    def _no_edge(self, first: str, second: str, own: bool, refs: Collection[str]) -> str:
        if own:
            return f"{second} comes after {first} by its component's own order, which stays"
        try:
            back = {(link.source, link.target) for link in self.network.links if link.of}
            sources, targets = set(self._members(second)), set(self._members(first))
            reversed_ = any(s in sources and t in targets for s, t in back)
        except SelectionError:
            reversed_ = False
        if reversed_:
            return f"{second} does not wait for {first} (did you mean {second}:{first}?)"
        waits = f"waits for {', '.join(sorted(refs))}" if refs else "waits for nothing"
        return f"{second} does not wait for {first}: it {waits}"
