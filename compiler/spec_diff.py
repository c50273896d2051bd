"""What differs between two specs, in the language's own terms.

A spec is taken apart into named facts (a component, a state, a dependency, a site, ...);
positions, comments, the order of keys and how it is split into files do not count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from cfac.compiler.diagnostics import Span
from cfac.compiler.model import PROCESS_KINDS, Condition, Ref, Site, Spec, Test

Status = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that a spec says.  ``kind`` and ``name`` tell which, ``value`` what."""

    kind: str
    name: str
    value: str
    span: Span | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact of one spec that the other does not have, or has otherwise."""

    status: Status
    old: Fact | None
    new: Fact | None

    @property
    def fact(self) -> Fact:
        """The fact as it is now; as it was, if it is no more."""
        fact = self.new or self.old
        assert fact is not None
        return fact

    def as_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "status": self.status,
            "kind": self.fact.kind,
            "name": self.fact.name,
            "old": _side(self.old),
            "new": _side(self.new),
        }


def _side(fact: Fact | None) -> dict[str, Any] | None:
    if fact is None:
        return None
    span = fact.span
    at = None if span is None else f"{span.file}:{span.line}:{span.column}"
    return {"value": fact.value, "at": at}


def diff_specs(old: Spec, new: Spec) -> list[Difference]:
    """All differences, in the order of the old spec, then what is new."""
    before = {(fact.kind, fact.name): fact for fact in facts(old)}
    after = {(fact.kind, fact.name): fact for fact in facts(new)}
    found: list[Difference] = []
    for key, fact in before.items():
        other = after.get(key)
        if other is None:
            found.append(Difference("removed", fact, None))
        elif other.value != fact.value:
            found.append(Difference("changed", fact, other))
    found += [Difference("added", None, after[key]) for key in after if key not in before]
    return found


def facts(spec: Spec) -> Iterator[Fact]:
    """Everything that a spec says."""
    yield Fact("spec", "name", spec.name, spec.span)
    yield Fact("spec", "channel", spec.transport, spec.span)
    if spec.engine is not None:
        engine = spec.engine
        yield Fact("engine", engine.package, engine.versions, engine.span)
        for entry in engine.unsupported:
            yield Fact("unsupported", condition(entry.when), entry.reason, entry.span)
    for param in spec.params.values():
        sources = "; ".join(plain(source) for source in param.sources)
        text = f"{param.type}, default {param.default!r}" + (f", from {sources}" if sources else "")
        yield Fact("param", param.name, text, param.span)
    yield from _components(spec)
    before = "(first)"
    for step in spec.chain:
        text = " | ".join(map(str, step))
        yield Fact("chain", text, f"after {before}", step[0].span if step else spec.chain_span)
        before = text
    for group in spec.merges:
        yield Fact("merge", group.name, ", ".join(sorted(map(str, group.of))), group.span)
    for deferred in spec.defers:
        name = f"{deferred.kind} {deferred.name}"
        yield Fact("defer", name, plain(deferred, {"kind", "name"}), deferred.span)
    for remembered in spec.remembers:
        name = f"{remembered.kind} {remembered.name}"
        yield Fact("remember", name, plain(remembered, {"kind", "name"}), remembered.span)
    for layout in spec.layouts.values():
        name = f"{layout.component}.{layout.relation}"
        yield Fact("layout", name, str([list(part) for part in layout.lists]), layout.span)
    for binding in spec.bindings:
        if binding.run is not None:
            yield Fact("run", str(binding.ref), binding.run, binding.ref.span)
        yield from _sites(str(binding.ref), binding.sites)


def _components(spec: Spec) -> Iterator[Fact]:
    for component in spec.components.values():
        name, process = component.name, component.process
        parts = [f"states {' > '.join(s.name for s in component.states)}"]
        if component.replicas is not None:
            parts.append(f"replicas {component.replicas}")
        if component.when is not None:
            parts.append(f"when {condition(component.when)}")
        if process is not None:
            strategy = process.strategy
            at = f" at {strategy.at}" if strategy.at else ""
            parts.append(f"process {process.name or '-'} of {process.spawned_by or 'none'}")
            parts.append(f"strategy {strategy.kind}{at}")
            parts += [f"{alias.state} as {alias.of}" for alias in process.aliases]
        if component.policy is not None:
            policy = component.policy
            text = f"gc {policy.gc} until {policy.until}"
            parts.append(f"{text} when {condition(policy.when)}" if policy.when else text)
        yield Fact("component", name, "; ".join(parts), component.span)
        for state in component.states:
            full = f"{name}.{state.name}"
            skipped = {"name", "after", "recorded", "recorded_part", "recorded_torch"}
            said = plain(state, skipped)
            yield Fact("state", full, said or "stock", state.span)
            for dependency in state.after:
                why = ["schedule"] if dependency.schedule else []
                why += [dependency.reason] if dependency.reason else []
                text = "; ".join(why) or "required"
                span = dependency.ref.span
                yield Fact("dependency", f"{full} after {dependency.ref}", text, span)
        for kind in PROCESS_KINDS if process is not None else ():
            assert process is not None
            yield from _sites(name, process.of(kind))


def _sites(owner: str, sites: tuple[Site, ...]) -> Iterator[Fact]:
    numbers: dict[str, int] = {}
    for site in sites:
        numbers[site.kind] = numbers.get(site.kind, 0) + 1
        number = f" ({numbers[site.kind]})" if numbers[site.kind] > 1 else ""
        yield Fact("site", f"{owner} {site.kind}{number}", plain(site, {"kind"}), site.span)


def condition(when: Condition) -> str:
    """``executor is 'mp' and version below '0.33'``."""
    return " and ".join(_test(test) for test in when.tests)


def _test(test: Test) -> str:
    return f"{test.subject.removeprefix('param:')} {test.op} {test.value!r}"


def plain(value: Any, skipped: set[str] | frozenset[str] = frozenset()) -> str:
    """A part of the model as text, without positions and what is as by default."""
    if isinstance(value, Ref):
        return str(value)
    if isinstance(value, Condition):
        return condition(value)
    if dataclasses.is_dataclass(value):
        parts: list[str] = []
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            if field.name == "span" or field.name in skipped or inner == field.default:
                continue
            parts.append(f"{field.name} {plain(inner)}")
        return ", ".join(parts)
    if isinstance(value, tuple):
        texts = [plain(part) for part in value]
        return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return str(value)


def render(differences: list[Difference]) -> str:
    """One block per difference."""
    out: list[str] = []
    for entry in differences:
        out.append(f"{entry.status:8} {entry.fact.kind} {entry.fact.name}")
        if entry.status == "changed":
            assert entry.old is not None and entry.new is not None
            out += [f"         - {entry.old.value}", f"         + {entry.new.value}"]
        elif entry.fact.kind not in ("state", "dependency", "chain"):
            out.append(f"         {entry.fact.value}")
    return "\n".join(out) + "\n" if out else ""
