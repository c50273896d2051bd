"""The input language as pydantic models: the JSON Schema comes from them.

The models check shape only (keys, types, closed lists of values).  What a value
means, and whether the names in it exist, is checked by ``build`` and ``names``,
which read the positioned nodes.  Keys described as "not built yet" are accepted
here so that editors know them; the loader refuses them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, Tag

from cfac.compiler.refs import NAME_PATTERN
from cfac.compiler.schema_base import ABSENT, Name, Strict
from cfac.compiler.schema_base import by_shape as _by_shape
from cfac.compiler.schema_refine import RefineModel
from cfac.compiler.schema_values import RefText, ScalarValue, Text, Texts, When

SCHEMA_ID = "https://cfac.dev/schema/cfac-v1.schema.json"
NOT_BUILT = "Known, not built yet: comes with the schedule constructs."


class SourceModel(Strict):
    """One place a parameter's value comes from at run time."""

    argv: list[str] = Field(default=ABSENT, description="Names of the command-line option.")
    value: str = Field(default=ABSENT, description="A Python expression, evaluated at 'at'.")
    at: RefText = Field(default=ABSENT, description="The transition at which 'value' is known.")
    program: list[str] = Field(
        default=ABSENT,
        min_length=1,
        description="A program's name and its first arguments: was this process started so?",
    )


class ParamModel(Strict):
    """A parameter, known only when the engine starts."""

    type: Literal["int", "str", "bool"] = Field(
        default=ABSENT, description="The type of the value. Required where first declared."
    )
    default: ScalarValue = Field(
        default=ABSENT, description="The value where no source gives one. Required."
    )
    from_: list[SourceModel] = Field(
        default=ABSENT, alias="from", description="Where the value comes from, in order."
    )


class WaitModel(Strict):
    """A dependency with its options."""

    state: RefText = Field(description="The transition to wait for.")
    schedule: bool = Field(
        default=ABSENT,
        description="True if the order is chosen for speed and not needed for correctness.",
    )
    reason: str = Field(default=ABSENT, description="Why the order is there; shown in messages.")


_After = Annotated[RefText, Tag("<text>")] | Annotated[WaitModel, Tag("<mapping>")]
After = Annotated[
    _After | Annotated[list[Annotated[_After, _by_shape("a reference")]], Tag("<list>")],
    _by_shape("a reference such as core.Ready, or a list of them"),
]


class IntervalModel(Strict):
    """How long an effect's interval stays open."""

    until: str = Field(
        default=ABSENT,
        description="The state that ends it: a reference, or a state of its own.",
    )


Interval = Annotated[
    Annotated[IntervalModel, Tag("<mapping>")] | Annotated[Literal[True], Tag("<boolean>")],
    _by_shape("{until: STATE}, or true for 'for ever'"),
]


class EffectModel(Strict):
    """What a transition does beside its state; exactly one of the kinds."""

    reads: str = Field(default=ABSENT, description="A resource that it reads.")
    writes: str = Field(default=ABSENT, description="A resource that it writes.")
    holds: str = Field(default=ABSENT, description="A resource that it holds until 'until'.")
    until: str = Field(default=ABSENT, description="The state at which 'holds' ends.")
    together: Literal[True] = Field(
        default=ABSENT, description="The component's replicas hold it together, each its part."
    )
    starts_threads: Interval = Field(default=ABSENT, description="It starts threads.")
    initializes: str = Field(default=ABSENT, description="A device that it initializes.")
    openmp: Interval = Field(default=ABSENT, description="It opens an OpenMP pool.")
    forks: Literal[True] = Field(default=ABSENT, description="It forks the process.")


_Interval = Annotated[str, Field(json_schema_extra={"enum": ["openmp", "threads", "device"]})]
Before = Annotated[
    Annotated[_Interval, Tag("<text>")] | Annotated[list[_Interval], Tag("<list>")],
    _by_shape("openmp, threads or device, or a list of them"),
]

_MODULES = "The modules to import, in order. 'recorded': those of a recorded start."


class DeviceModel(Strict):
    """The device that a process opens: that of its own number."""

    kind: str = Field(
        description="cuda, xpu, or module:attribute of the engine, whose value names the kind; "
        "for any other value nothing is opened."
    )
    when: When = Field(
        default=ABSENT, description="Only where this holds, as known when it is opened."
    )


Device = Annotated[
    Annotated[DeviceModel, Tag("<mapping>")] | Text,
    _by_shape("cuda, or {kind: module:attribute, when: ...}"),
]


class DoesModel(Strict):
    """What a component does to reach an auxiliary state; at least one of the two."""

    import_: Texts = Field(default=ABSENT, alias="import", description=_MODULES)
    device: Device = Field(
        default=ABSENT, description="Then its process opens its device, for ever."
    )
    when: When = Field(default=ABSENT, description="It imports only where this holds.")


class IdleModel(Strict):
    """What a component does while it waits for something else."""

    while_: RefText = Field(
        alias="while", description="What it waits for meanwhile; the work fits in before it."
    )
    import_: Texts = Field(alias="import", description=_MODULES)


class StateModel(Strict):
    """Options of a state (that is, of the transition that enters it)."""

    aux: bool = Field(
        default=ABSENT, description="True if the state exists only in the new schedule."
    )
    after: After = Field(
        default=ABSENT, description="What the transition waits for; all entries are required."
    )
    cost: Annotated[
        Annotated[int | float, Tag("<number>")] | Annotated[str, Tag("<text>")],
        _by_shape("a duration such as 1.5s, 20ms, or a number of seconds"),
    ] = Field(default=ABSENT, description="How long it takes: 1.5s, 20ms, or seconds.")
    effects: list[EffectModel] = Field(default=ABSENT, description="What it does beside its state.")
    carries: Name = Field(
        default=ABSENT, description="A value that is computed here, for a later state to take."
    )
    takes: Name = Field(
        default=ABSENT, description="A value that an earlier state carries: not computed again."
    )
    does: DoesModel = Field(
        default=ABSENT, description="Work of an auxiliary state, done before it is published."
    )
    idle: IdleModel = Field(
        default=ABSENT, description="Work of an auxiliary state, done while the component waits."
    )
    before: Before = Field(
        default=ABSENT,
        description="It must be over before its process opens an OpenMP pool, starts threads, or "
        "initializes a device.",
    )


_Options = Annotated[
    Annotated[StateModel, Tag("<mapping>")] | Annotated[None, Tag("<nothing>")],
    _by_shape("the state's options, as in {after: core.Ready}"),
]
StateEntry = Annotated[
    Annotated[Name, Tag("<text>")]
    | Annotated[dict[Name, _Options], Field(min_length=1, max_length=1), Tag("<mapping>")],
    _by_shape("a state's name, or one name with options"),
]


class StrategyModel(Strict):
    """A process that begins early; exactly one of the two."""

    fork: RefText = Field(
        default=ABSENT, description="It begins with its parent's memory, at this parent's state."
    )
    prespawn: RefText = Field(
        default=ABSENT, description="It begins as a new interpreter, at this parent's state."
    )


Strategy = Annotated[
    Annotated[str, Field(json_schema_extra={"enum": ["engine", "prespawn"]}), Tag("<text>")]
    | Annotated[StrategyModel, Tag("<mapping>")],
    _by_shape("'engine', 'prespawn', or {fork: parent.State}"),
]


class ProcessNameModel(Strict):
    """A process's name in some versions of the engine."""

    is_: str = Field(default=ABSENT, alias="is", description="The name.")
    when: When = Field(default=ABSENT, description="The versions of the engine it has there.")


ProcessNames = Annotated[
    Text | Annotated[list[ProcessNameModel], Field(min_length=1), Tag("<list>")],
    _by_shape("a process's name, or a list of {is: NAME, when: {version: ...}}"),
]


class ProcessModel(Strict):
    """How a component's process comes to be."""

    spawned_by: Name = Field(default=ABSENT, description="The component whose process starts it.")
    name: ProcessNames = Field(
        default=ABSENT,
        description="The process's multiprocessing name; {i} in it is the replica's index. "
        "Of a list, exactly one holds for each version of the engine.",
    )
    stop: Sites = Field(
        default=ABSENT,
        description="Where the engine begins to end the process; its end is no failure then.",
    )
    strategy: Strategy = Field(
        default=ABSENT,
        description="'engine': as the engine does it; {fork: parent.State}: forked from the "
        "parent once it is there. 'prespawn': started as soon as its parent is; "
        "{prespawn: parent.State}: once that state is reached.",
    )
    start: Sites = Field(
        default=ABSENT,
        description="Of a fork or a prespawn: the callee that makes the process object. The "
        "child begins as soon as its parent is in the state, and is adopted here.",
    )
    context: Sites = Field(
        default=ABSENT,
        description="Of a fork: callees that return the multiprocessing context. The child is "
        "forked where the engine starts it.",
    )
    aliases: dict[str, RefText] = Field(
        default=ABSENT,
        description="Of a fork: stock states that the child has by birth, as "
        "core.Constructed: frontend.CommonImported.",
    )


class PolicyModel(Strict):
    """An interval from the process's start to a state."""

    gc: Literal["frozen"] = Field(
        description="frozen: the garbage collector is off, and the heap is frozen before a fork."
    )
    until: str = Field(description="The state of the same component that ends it.")
    when: When = Field(
        default=ABSENT, description="It holds only where this does, as known when it would begin."
    )


class ComponentModel(Strict):
    """A component: a finite automaton with ordered, irreversible states."""

    states: list[StateEntry] = Field(
        default=ABSENT,
        min_length=1,
        description="The states in order; the component starts in the first.",
    )
    replicas: Annotated[
        Annotated[int, Field(ge=1), Tag("<number>")] | Annotated[Name, Tag("<text>")],
        _by_shape("a count, or an int parameter's name"),
    ] = Field(default=ABSENT, description="How many there are: a count or an int parameter.")
    when: When = Field(default=ABSENT, description="The component exists only where this holds.")
    process: ProcessModel = Field(default=ABSENT, description="The process it runs in.")
    policy: PolicyModel = Field(
        default=ABSENT, description="How the process is kept until a state is reached."
    )


class SiteModel(Strict):
    """An anchor: one place in the engine's source code. Never a line number."""

    in_: Texts = Field(
        default=ABSENT,
        alias="in",
        description="module:qualname, or a list of candidates of which one exists.",
    )
    at: Literal["entry", "exit", "before", "after", "around", "replace_callee", "process_exit"] = (
        Field(description="Where, relative to the function or to the matched statement.")
    )
    call: Texts = Field(default=ABSENT, description="The call to match, by dotted suffix.")
    import_: Texts = Field(default=ABSENT, alias="import", description="The import to match.")
    assign: Texts = Field(default=ABSENT, description="The assignment's target to match.")
    any_of: list[str] = Field(default=ABSENT, description="Further names that match as well.")
    within: str = Field(default=ABSENT, description="A nested function that contains the place.")
    arg_contains: str = Field(default=ABSENT, description="Text that an argument contains.")
    nth: int = Field(default=ABSENT, ge=1, description="Which match, counted from 1.")
    expect: int = Field(default=ABSENT, ge=1, description="How many matches there must be; 1.")
    when: When = Field(default=ABSENT, description="The site applies only where this holds.")
    index: str = Field(default=ABSENT, description="Python expression: which replica this is.")
    value: str = Field(default=ABSENT, description="Python expression: the value to publish.")


Sites = Annotated[
    Annotated[SiteModel, Tag("<mapping>")] | Annotated[list[SiteModel], Tag("<list>")],
    _by_shape("a site, or a list of sites"),
]


class BindingModel(Strict):
    """Where one transition lives: sites in the engine, or a Python callable."""

    begin: Sites = Field(default=ABSENT, description="Where the transition begins.")
    wait: Sites = Field(default=ABSENT, description="Where it waits for its dependencies.")
    publish: Sites = Field(default=ABSENT, description="Where it has been reached.")
    take: Sites = Field(
        default=ABSENT, description="The callee that is given what the state takes, not called."
    )
    index: str = Field(default=ABSENT, description="Python expression: the replica, at every site.")
    value: str = Field(default=ABSENT, description="Python expression: the value to publish.")
    run: str = Field(default=ABSENT, description="A Python callable, module:qualname (cfac run).")


class MergeModel(Strict):
    """Transitions that run as one."""

    name: Name = Field(description="The group's name.")
    of: list[RefText] = Field(min_length=1, description="The transitions in it.")


class DeferModel(Strict):
    """Work of a module's import, moved to its first use."""

    decorator: str = Field(
        default=ABSENT, description="A decorator, as in torch.compile; applied at the first call."
    )
    call: str = Field(default=ABSENT, description="A call; made once 'until' is imported.")
    import_: Texts = Field(
        default=ABSENT, alias="import", description="Modules; imported where a name is first used."
    )
    within: Texts = Field(
        alias="in", description="The module; 'package.**' for all modules of a package."
    )
    until: str = Field(default=ABSENT, description="The module that a call waits for.")


class RememberModel(Strict):
    """Work whose outcome is kept from one start to the next."""

    compiled: str = Field(
        default=ABSENT,
        description="A module that makes source text and executes it, as dataclasses does.",
    )
    result: str = Field(default=ABSENT, description="A function of data, as module.function.")
    files: Texts = Field(
        default=ABSENT,
        description="Of a result: the files that it depends on, as in '*.py', at any depth below "
        "its first argument, a path; below sys.path as in '*.dist-info/*'.",
    )
    below: Literal["argument", "sys.path"] = Field(
        default=ABSENT, description="Where the files are: the function's first argument is a path."
    )


class UnsupportedModel(Strict):
    """A configuration in which the patched engine starts as stock."""

    when: When = Field(description="The configuration.")
    reason: str = Field(description="Why; logged once at start.")


class EngineModel(Strict):
    """The engine that the bindings are written for."""

    package: str = Field(default=ABSENT, description="The engine's import package, as in vllm.")
    versions: str = Field(default=ABSENT, description="Version specifier, as in '>=0.32,<0.33'.")
    unsupported: list[UnsupportedModel] = Field(
        default=ABSENT, description="Configurations in which the engine starts as stock."
    )


class ChannelModel(Strict):
    """The channel over which states are published."""

    transport: Literal["thread", "process", "coroutine"] = Field(
        default=ABSENT, description="What the components are; process is the default."
    )
    run: Literal["own", "joined"] = Field(
        default=ABSENT,
        description="Whose run: the engine's own (the default), or one that another program makes.",
    )


ChainEntry = Annotated[
    Annotated[
        str, Field(description="A reference; 'a | b' where both are concurrent."), Tag("<text>")
    ]
    | Annotated[list[RefText], Tag("<list>")],
    _by_shape("a reference, or a list of concurrent ones"),
]


class DocumentModel(Strict):
    """A startup spec: one file."""

    model_config = ConfigDict(extra="forbid", strict=True, title="cfac startup spec")

    apiVersion: Literal["cfac/v1"] = Field(description="The version of the language.")  # noqa: N815
    kind: Literal["StartupGraph"] = Field(description="What the file describes.")
    name: Name = Field(default=ABSENT, description="The spec's name. Required in the main file.")
    include: Texts = Field(
        default=ABSENT, description="Files, relative to this one, that this spec refines."
    )
    engine: EngineModel = Field(default=ABSENT, description="The engine that bindings refer to.")
    channel: ChannelModel = Field(default=ABSENT, description="How states are published.")
    params: dict[Name, ParamModel] = Field(
        default=ABSENT, description="Parameters, known when the engine starts."
    )
    components: dict[Name, ComponentModel] = Field(
        default=ABSENT, description="The components by name; one declared before is refined."
    )
    layouts: dict[
        Annotated[str, Field(json_schema_extra={"pattern": rf"^{NAME_PATTERN}\.{NAME_PATTERN}$"})],
        list[list[Annotated[int, Field(ge=0)]]],
    ] = Field(
        default=ABSENT,
        description="component.relation: for each replica, the indices it relates to.",
    )
    chain: list[ChainEntry] = Field(
        default=ABSENT, description="The stock order of the stock transitions."
    )
    merge: list[MergeModel] = Field(default=ABSENT, description="Transitions that run as one.")
    refine: dict[Name, RefineModel] = Field(
        default=ABSENT,
        description="Components of tensors that are loaded in chunks, by name.",
    )
    bind: dict[str, BindingModel] = Field(
        default=ABSENT, description="Where each transition lives; keys are component.State."
    )
    defer: list[DeferModel] = Field(
        default=ABSENT, description="Work of the engine's imports, moved to its first use."
    )
    remember: list[RememberModel] = Field(
        default=ABSENT, description="Work whose outcome is kept from one start to the next."
    )
    exports: Any = Field(default=ABSENT, description=NOT_BUILT)


def json_schema() -> dict[str, Any]:
    """The published JSON Schema (draft 2020-12)."""
    schema = DocumentModel.model_json_schema()
    _tidy(schema, is_schema=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "cfac startup spec",
        **schema,
    }


def _tidy(node: Any, *, is_schema: bool) -> None:
    """Drop generated titles and null defaults, which only make editors noisy."""
    if isinstance(node, list):
        for item in node:
            _tidy(item, is_schema=True)
    elif isinstance(node, dict):
        if is_schema:
            node.pop("title", None)
            if "default" in node and node["default"] is None:
                del node["default"]
            if "patternProperties" in node:
                node["additionalProperties"] = False
        for key, value in node.items():
            _tidy(value, is_schema=not (is_schema and key in ("properties", "$defs")))
