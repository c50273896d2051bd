"""Which sites of a spec apply to an engine version, and whether exactly one can apply."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from cfac.compiler.diagnostics import Diagnostics, Note
from cfac.compiler.model import (
    PROCESS_KINDS,
    Binding,
    Condition,
    Index,
    Ref,
    Scalar,
    Site,
    SiteKind,
    Spec,
    Test,
)
from cfac.compiler.plan import calls_of, depends

KINDS: tuple[SiteKind, ...] = ("publish", "wait", "begin", "take", *PROCESS_KINDS)


@dataclass(frozen=True, slots=True)
class Bound:
    """A site that applies to this version, with its transition and place in the spec.

    ``numbers`` are its places in the plan's lists of conditions, by the kind of call,
    where parameters or the platform say at run time whether it applies.
    """

    binding: Binding
    site: Site
    order: int
    numbers: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def transition(self) -> str:
        """The transition's name, such as ``core.Ready``; of a process's site, the component's."""
        return _owner(self.binding, self.site.kind)


def applicable(spec: Spec, version: str, diagnostics: Diagnostics) -> list[Bound]:
    """The sites that apply to a version of the engine, in spec order.

    Of one transition and kind, no two may apply in the same configuration; of the
    contexts of a process, all that apply are wrapped.
    """
    found: list[Bound] = []
    counter = itertools.count()
    for binding in (*spec.bindings, *_process_sites(spec)):
        of_binding: list[Site] = []
        for kind in KINDS:
            sites = binding.of(kind)
            here = [site for site in sites if version_holds(site.when, version, diagnostics)]
            if sites and not here:
                diagnostics.error(
                    "CF409",
                    f"{_owner(binding, kind)}: none of its {kind} sites applies to version "
                    f"{version}",
                    sites[0].when.span if sites[0].when else sites[0].span,
                )
            for one, other in itertools.combinations(here if kind != "context" else (), 2):
                if not _exclusive(one.when, other.when, spec):
                    diagnostics.error(
                        "CF409",
                        f"{_owner(binding, kind)}: two {kind} sites can apply in the same "
                        "configuration",
                        other.span,
                        notes=[Note("the other site is here", one.span)],
                        help="give each a 'when' so that exactly one applies; for several "
                        "places in one function use 'expect'",
                    )
            of_binding += here
        calls = calls_of(of_binding)
        found += [Bound(binding, s, next(counter), _numbers(s, calls)) for s in of_binding]
    return found


def _numbers(site: Site, calls: Mapping[str, list[Site]]) -> dict[str, int]:
    if not depends(site):
        return {}
    return {kind: sites.index(site) for kind, sites in calls.items() if site in sites}


def _owner(binding: Binding, kind: SiteKind) -> str:
    ref = binding.ref
    return ref.component if kind in PROCESS_KINDS else f"{ref.component}.{ref.state}"


def _process_sites(spec: Spec) -> list[Binding]:
    """Where processes are ended, made and given their context, as bindings of components."""
    return [
        Binding(Ref(component.name, kind, Index(), component.process.span), sites)
        for component in spec.components.values()
        if component.process is not None
        for kind in PROCESS_KINDS
        if (sites := component.process.of(kind))
    ]


def version_holds(when: Condition | None, version: str, diagnostics: Diagnostics) -> bool:
    """Whether what a condition says of the engine's version holds."""
    tests = [test for test in when.tests if test.subject == "version"] if when else []
    return all(version_test(test, version, diagnostics) for test in tests)


def version_test(test: Test, version: str, diagnostics: Diagnostics) -> bool:
    """Whether a test of the engine's version holds for ``version``."""
    here = Version(version)
    values = test.value if isinstance(test.value, tuple) else (test.value,)
    if test.op == "matches":
        text = str(test.value)
        try:
            return SpecifierSet(text).contains(here, prereleases=True)
        except InvalidSpecifier:
            return re.fullmatch(text, version) is not None
    try:
        others = [Version(str(value)) for value in values]
    except InvalidVersion:
        diagnostics.error("CF409", f"{test.value!r} is not a version", test.span)
        return False
    if test.op in ("is", "in"):
        return here in others
    if test.op == "not":
        return here not in others
    return here > others[0] if test.op == "above" else here < others[0]


def _exclusive(one: Condition | None, other: Condition | None, spec: Spec) -> bool:
    """Whether two conditions can surely not hold together."""
    if one is None or other is None:
        return False
    subjects: dict[str, list[Test]] = {}
    for test in (*one.tests, *other.tests):
        if test.subject != "version":  # both hold for this version
            subjects.setdefault(test.subject, []).append(test)
    return any(_impossible(subject, tests, spec) for subject, tests in subjects.items())


def _impossible(subject: str, tests: Sequence[Test], spec: Spec) -> bool:
    kind, _, name = subject.partition(":")
    param = spec.params.get(name) if kind == "param" else None
    domain: set[Scalar] | None = {True, False} if param and param.type == "bool" else None
    low: float | None = None
    high: float | None = None
    for test in tests:
        values = set(test.value if isinstance(test.value, tuple) else (test.value,))
        if test.op in ("is", "in"):
            domain = values if domain is None else domain & values
        elif test.op == "above" and isinstance(test.value, int | float):
            low = test.value if low is None else max(low, test.value)
        elif test.op == "below" and isinstance(test.value, int | float):
            high = test.value if high is None else min(high, test.value)
    whole = param is not None and param.type == "int"
    if domain is None and whole and low is not None and high is not None and high - low <= 64:
        domain = set(range(int(low) + 1, int(high)))
    if domain is not None:
        return not any(all(_holds(test, value) for test in tests) for value in domain)
    return low is not None and high is not None and low >= high - (1 if whole else 0)


def _holds(test: Test, value: Scalar) -> bool:
    expected = test.value
    if test.op in ("above", "below"):
        if not isinstance(expected, int | float) or not isinstance(value, int | float):
            return True
        return value > expected if test.op == "above" else value < expected
    if test.op == "matches":
        return re.fullmatch(str(expected), str(value)) is not None
    values = expected if isinstance(expected, tuple) else (expected,)
    return (value in values) == (test.op != "not")
