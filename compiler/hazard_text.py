"""What to say about a hazard: both sides, the process, and the ``after`` that is missing."""

from __future__ import annotations

from collections.abc import Mapping

from cfac.compiler.diagnostics import Diagnostic, Note, Span
from cfac.compiler.effects import Act, Hazard, aligned, fork_of, process_of
from cfac.compiler.graph import Graph
from cfac.compiler.model import Component, Spec

#: A list of components that is longer is abbreviated.
MAX_NAMES = 4

_OPEN = {
    "starts_threads": "the threads that {} starts may be running",
    "openmp": "the OpenMP pool that {} opens may be in use",
    "initializes": "{} may have initialized {}",
}
_NOTE = {
    "starts_threads": "threads are started here",
    "openmp": "the OpenMP pool is opened here",
    "initializes": "{} is initialized here",
}


class Text:
    """Diagnostics of hazards; ``ranks`` gives the place in the chain of stock nodes."""

    def __init__(self, spec: Spec, graph: Graph, ranks: Mapping[int, int]) -> None:
        self.spec = spec
        self.graph = graph
        self.ranks = ranks
        self.successors = graph.successors()

    def diagnostic(self, hazard: Hazard) -> Diagnostic:
        """The error that tells of ``hazard``."""
        one, other = hazard.one, hazard.other
        match hazard.code:
            case "CF501" | "CF504" if hazard.child is not None:
                return self._born(hazard.code, one, other, hazard.child)
            case "CF501":
                return self._access(one, other)
            case "CF502":
                return self._fork(one, other, hazard.child)
            case "CF503":
                return self._hold(one, other)
            case "CF504":
                return self._late(one, other)
            case "CF506":
                return self._demand(one, other)
            case "CF507":
                return self._split(one, other)
        return _error(
            "CF505",
            f"{one.component.name} starts in {one.state.name!r}: nothing orders what it does there",
            one.effect.span,
            [],
            "declare the effect at the first transition: it begins where the component starts",
        )

    # -- the codes -----------------------------------------------------------

    def _access(self, one: Act, other: Act) -> Diagnostic:
        name = str(one.effect.value)
        env = name.startswith("env:")
        where = ""
        if env and process_of(one.component) == process_of(other.component):
            where = f" in {self._process(one.component)}"
        if one.key == other.key:
            return _error(
                "CF501",
                f"the replicas of {one.component.name}.{one.state.name} all write {name!r}{where}, "
                "and may do so in parallel",
                one.effect.span,
                [],
                f"let each wait for the one before: {self._add([self._ref(one, one)], one)}",
            )
        first, second = self._direction(one, other, by_kind=True)
        if env and not where:
            where = f" in {self._process(first.component)}, from which it is inherited"
            message = (
                f"{second.label} reads {name!r}, and {first.label} writes it{where}, "
                "but may do so later"
            )
        else:
            too = " too" if first.effect.kind == second.effect.kind else ""
            verb = f"{second.effect.kind} it{too}"
            message = (
                f"{first.label} {first.effect.kind} {name!r} and {second.label} {verb}{where}, "
                "but nothing orders the two"
            )
        return _error(
            "CF501",
            message,
            second.effect.span,
            [Note(f"{first.label} {first.effect.kind} it here", first.effect.span)],
            self._order(first, second, fixed=env and first.effect.kind != second.effect.kind),
        )

    def _fork(self, act: Act, fork: Act, child: Component | None) -> Diagnostic:
        named = act.effect.value
        device = "the device" if named == "device" else f"the device {named!r}"
        opened = _OPEN[act.effect.kind].format(act.label, device)
        if child is None:
            message = f"{fork.label} forks {self._process(fork.component)}, where {opened}"
        else:
            message = f"{child.name} is forked from {self._process(fork.component)} once "
            message += f"{fork.label} is reached, where {opened}"
        notes = self._until(act, _NOTE[act.effect.kind].format(device))
        close = act.effect.until
        over = self._over(fork, child)
        ways = []
        if over is not None and not self._leads(act.key, over.key):
            ways.append(self._add([self._ref(over, act)], act))
        stop = [] if close is None else [act.key, (close.component, close.state)]
        waits = fork.key in self.graph.ids  # an initial state does not
        if waits and stop and not any(self._leads(fork.key, key) for key in stop):
            ways.append(self._add(self._end(act, fork), fork))
        if self._rank(act.key) < self._rank(fork.key):
            ways.reverse()
        help_ = ", or ".join(ways)
        if act.key == fork.key and child is None:
            help_ = "one transition's effects have no order: split it, so that the fork comes first"
        elif not ways:
            help_ = f"fork before {act.label}" if child is None else "fork from an earlier state"
            if close is not None:
                help_ += ", or end it earlier: the declared order puts the fork in between"
            elif act.effect.kind != "initializes":
                help_ += ", or declare with `until` where it is over"
        return _error("CF502", message, fork.effect.span, notes, help_)

    @staticmethod
    def _over(fork: Act, child: Component | None) -> Act | None:
        """The transition whose publish says that a fork is over."""
        if child is None:
            return fork
        if len(child.states) < 2:
            return None
        return Act(child, child.states[1], fork.effect)

    def _born(self, code: str, writer: Act, reader: Act, child: Component) -> Diagnostic:
        """A key of the environment on the wrong side of a fork."""
        fork = fork_of(self.spec, child)
        assert fork is not None
        name, parent = str(writer.effect.value), self._process(fork.act.component)
        if code == "CF501":
            message = f"{reader.label} reads {name!r} as it was when {child.name} was forked from "
            message += f"{parent}, and {writer.label} may write it later"
            span, note = reader.effect.span, Note(f"{writer.label} writes it here",
                                                  writer.effect.span)  # fmt: skip
            help_ = f"write it before {fork.act.label}, or let {child.name} write it itself"
            if fork.at_node and not self._leads(fork.act.key, writer.key):
                help_ = self._add([self._ref(writer, fork.act)], fork.act)
        else:
            message = f"{writer.label} writes {name!r}, but {reader.label} may have read it in "
            message += f"{parent} before {child.name} was forked from it"
            span, note = writer.effect.span, Note(f"{reader.label} reads it here",
                                                  reader.effect.span)  # fmt: skip
            help_ = "what was read stays read in the child: write it before it is read, or read it "
            help_ += "after the fork"
        notes = [note, Note(f"{child.name} is forked here", fork.act.effect.span)]
        return _error(code, message, span, notes, help_)

    def _hold(self, one: Act, other: Act) -> Diagnostic:
        first, second = self._direction(one, other, by_kind=False)
        name = str(first.effect.value)
        if first.key == second.key:
            message = f"the replicas of {first.component.name}.{first.state.name} may hold {name!r}"
            message += " at the same time"
        else:
            message = f"{second.label} holds {name!r}, which {first.label} may hold too"
        notes = self._until(first, f"{first.label} takes it here")
        if first.key == second.key:
            notes = notes[1:]
        ways = [self._release(first, second)]
        if first.key != second.key and self._rank(first.key) >= self._rank(second.key):
            ways.append(self._release(second, first))
        help_ = next(filter(None, ways), None)
        if help_ is None and first.effect.until is None:
            help_ = f"declare with `until` how long {first.label} holds it"
        elif help_ is None:
            help_ = f"end the hold of {first.label} before {second.label}"
        if first.key == second.key:
            help_ += "; or, if each replica holds a part of its own, say `together: true`"
        return _error("CF503", message, second.effect.span, notes, help_)

    def _release(self, first: Act, second: Act) -> str | None:
        """The waits by which ``second`` takes what ``first`` has given up, if there are any."""
        close = first.effect.until
        if close is None:
            return None
        if first.key == second.key:
            replicas = self.spec.components[close.component].replicas
            same = close.index.kind == "offset" and replicas == first.component.replicas
            text = f"{close.component}[i-1].{close.state}" if same else str(close)
            return self._add([text], second)
        if any(self._leads(second.key, k) for k in (first.key, (close.component, close.state))):
            return None
        return self._add(self._end(first, second), second)

    def _late(self, writer: Act, reader: Act) -> Diagnostic:
        name, where = str(writer.effect.value), self._process(writer.component)
        if process_of(writer.component) != process_of(reader.component):
            where += f", too late for {self._process(reader.component)}"
        return _error(
            "CF504",
            f"{writer.label} writes {name!r} after {reader.label} has read it, in {where}",
            writer.effect.span,
            [Note(f"{reader.label} reads it here", reader.effect.span)],
            f"{reader.label} needs `after: {self._ref(writer, reader)}`, and the declared order is "
            f"the opposite: move the write to a transition before {reader.label}",
        )

    def _demand(self, act: Act, demand: Act) -> Diagnostic:
        """An interval that may be open before what demands to come first."""
        device = f"the device {act.effect.value!r}"
        if act.effect.value in (None, "device"):
            device = "the device"
        what = _OPEN[act.effect.kind].format(act.label, device)
        where = self._process(demand.component)
        message = (
            f"{demand.label} has to come before {demand.effect.value} in {where}, and by then "
        )
        note = Note(_NOTE[act.effect.kind].format(device), act.effect.span)
        help_ = f"move it before {act.label}: the declared order puts it later"
        if act.key == demand.key:
            help_ = "one transition's effects have no order: split it"
        elif not self._leads(act.key, demand.key):
            help_ = self._add([self._ref(demand, act)], act)
        return _error("CF506", f"{message}{what}", demand.effect.span, [note], help_)

    def _split(self, giver: Act, taker: Act) -> Diagnostic:
        """A value that may not be there where it is taken."""
        name = f"{taker.effect.value!r}"
        message = f"{taker.label} takes {name}, which {giver.label} carries, "
        one, two = self._process(giver.component), self._process(taker.component)
        if one != two:
            message += f"but {two} may not have it from {one}"
            help_ = f"fork {taker.component.name} at {giver.label} or later, or let "
            help_ += f"{taker.component.name} compute it itself"
        else:
            message += "but may do so before it is there"
            help_ = f"carry it at a state before {taker.label}"
            if giver.key != taker.key and not self._leads(taker.key, giver.key):
                help_ = self._add([self._ref(giver, taker)], taker)
        note = Note(f"{giver.label} carries it here", giver.effect.span)
        return _error("CF507", message, taker.effect.span, [note], help_)

    # -- parts ---------------------------------------------------------------

    def _direction(self, one: Act, other: Act, *, by_kind: bool) -> tuple[Act, Act]:
        """Which comes first: in the chain, else the write, else in the spec."""
        env = str(one.effect.value).startswith("env:")
        first, second = one, other
        if by_kind and one.effect.kind == "reads" and other.effect.kind == "writes":
            first, second = other, one
        if env and one.effect.kind != other.effect.kind:
            return first, second
        if self._rank(second.key) < self._rank(first.key) or (
            self._leads(second.key, first.key) and not self._leads(first.key, second.key)
        ):
            first, second = second, first
        return first, second

    def _order(self, first: Act, second: Act, *, fixed: bool) -> str:
        """The ``after`` that puts ``first`` before ``second``."""
        if not self._leads(second.key, first.key):
            text = self._add([self._ref(first, second)], second)
            if self._rank(first.key) < self._rank(second.key) < len(self.ranks) + 1:
                text += ": the order of the chain"
            return text
        if not fixed and not self._leads(first.key, second.key):
            return self._add([self._ref(second, first)], first)
        return (
            f"no wait alone puts {first.label} first: the declared order would be a cycle; "
            "move one of the effects to another transition"
        )

    def _rank(self, key: tuple[str, str]) -> int:
        """The place in the chain; those that are not in it come last."""
        found = [self.ranks[n] for n in self.graph.ids.get(key, ()) if n in self.ranks]
        return min(found, default=len(self.ranks) + 1)

    def _leads(self, source: tuple[str, str], target: tuple[str, str]) -> bool:
        """Whether some replica of ``source`` comes before one of ``target``, or is one."""
        goals = set(self.graph.ids.get(target, ()))
        stack = list(self.graph.ids.get(source, ()))
        seen = set(stack)
        while stack:
            node = stack.pop()
            if node in goals:
                return True
            fresh = [n for n in self.successors[node] if n not in seen]
            seen.update(fresh)
            stack.extend(fresh)
        return False

    @staticmethod
    def _until(act: Act, opened: str) -> list[Note]:
        """Where an interval is opened, and where it ends."""
        until = act.effect.until
        if until is None:
            return [Note(f"{opened}, for ever", act.effect.span)]
        return [Note(opened, act.effect.span), Note(f"until {until}", until.span)]

    def _ref(self, source: Act, target: Act) -> str:
        """``source`` as a wait of ``target`` would name it."""
        name, state = source.key
        if source.component.replicas is None:
            return f"{name}.{state}"
        if source.key == target.key:
            return f"{name}[i-1].{state}"
        return f"{name}[i].{state}" if self._own(source, target) else f"{name}.*.{state}"

    def _own(self, source: Act, target: Act) -> bool:
        """Whether replicas of the same index only can conflict: one's process, or its child."""
        value, kind = source.effect.value or "", source.effect.kind
        if kind in ("reads", "writes", "holds") and not value.startswith("env:"):
            return False
        one, two = source.component, target.component
        return aligned(self.spec, one, two) or aligned(self.spec, two, one)

    def _end(self, opener: Act, target: Act) -> list[str]:
        """The waits by which ``target`` comes after the interval of ``opener``."""
        until = opener.effect.until
        assert until is not None
        own = opener.component.name == target.component.name and opener.component.process
        if until.index.kind in ("none", "all", "at") or own:
            refs = [str(until)]
        else:
            refs = [f"{until.component}.*.{until.state}"]
        if not self._leads(opener.key, (until.component, until.state)):
            refs.append(self._ref(opener, target))
        return refs

    @staticmethod
    def _add(refs: list[str], target: Act) -> str:
        """The advice to add waits."""
        text = refs[0] if len(refs) == 1 else f"[{', '.join(refs)}]"
        return f"add `after: {text}` to {target.component.name}.{target.state.name}"

    def _process(self, component: Component) -> str:
        """A process by name."""
        if component.process is not None:
            which = "the process" if component.replicas is None else "each process"
            return f"{which} of {component.name}"
        names = [c.name for c in self.spec.components.values() if c.process is None]
        if len(names) > MAX_NAMES:
            names[MAX_NAMES - 1 :] = ["…"]
        return f"the root process ({', '.join(names)})"


def _error(code: str, message: str, span: Span, notes: list[Note], help_: str | None) -> Diagnostic:
    return Diagnostic(code, "error", message, span, tuple(notes), help_)
