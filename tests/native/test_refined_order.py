"""What the chunk library does is what the refined graph says: its events, through verify."""

from __future__ import annotations

import json
import os
from ctypes import byref, c_void_p, create_string_buffer, sizeof
from pathlib import Path

import pytest
from recorded_runs import write

from cfac.compiler.api import compile_plan, load
from cfac.native import binding
from cfac.runtime.history import read_run
from cfac.runtime.verify import verify

ROOT = Path(__file__).parents[2]
LOADING = ROOT / "specs" / "vllm" / "tensor-loading.yaml"
EVENTS = 4
BEGIN, IN_MEM, PLACED, DESTROYED, LOADED = range(5)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """2 MB in 40 tensors, of which some span chunks and one is empty."""
    folder = tmp_path_factory.mktemp("ordered")
    header, at = {}, 0
    for number in range(40):
        size = (number * 7919) % 40 * 2503
        end = at + size
        header[f"t{number}"] = {"dtype": "U8", "shape": [size], "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + os.urandom(at)
    (folder / "model.safetensors").write_bytes(data)
    return folder


def run(chunks, ring, depth, direct, placed):
    """Load all; gives the time stamps of each kind of event by index, ns."""
    library, error = binding.library(), binding.Error()
    plan, job = c_void_p(), c_void_p()
    headers = chunks.headers
    size = binding.PlanOptions(chunks.chunk_size, 1, 0)
    made = library.cfac_plan_make(
        headers.handle, headers.items, headers.count, byref(size), byref(plan), byref(error)
    )
    assert made == 0, error.message
    options = binding.job_options(flags=EVENTS, ring=ring, depth=depth, direct=direct)
    assert library.cfac_job_open(plan, byref(options), byref(job), byref(error)) == 0
    memory = [create_string_buffer(max(length, 1)) for length in chunks.item_length]
    for item, length in enumerate(chunks.item_length if placed else ()):
        assert library.cfac_job_into(job, item, memory[item], length, 0) == 0
    assert library.cfac_job_start(job, byref(error)) == 0
    result = binding.Result()
    while (given := library.cfac_job_next(job, 60_000, byref(result), byref(error))) == 1:
        if result.buffer:
            library.cfac_buffer_release(result.buffer)
    assert given == 0, error.message
    found = (binding.Event * 10_000)()
    count = library.cfac_job_events(job, found, 10_000)
    stamps: list[dict[int, int]] = [{} for _ in range(5)]
    for event in found[:count]:
        stamps[event.kind][event.index] = event.ns
    counters = binding.Counters()
    library.cfac_job_counters(job, byref(counters), sizeof(counters))
    library.cfac_job_close(job)
    library.cfac_plan_free(plan)
    return stamps, counters


def trace(chunks, stamps):
    """The events as steps of a trace, in ms."""
    zero = min(time for times in stamps for time in times.values())
    steps = []

    def add(kind, name, ns):
        steps.append(((ns - zero) / 1e6 + 1, f"{kind} {name}"))

    for c in range(chunks.chunks):
        times = [stamps[kind][c] for kind in (BEGIN, IN_MEM, PLACED, DESTROYED)]
        add("publish", f"chunk[{c}].InDisk", zero)
        add("begin", f"chunk[{c}].InMem", times[0])
        add("publish", f"chunk[{c}].InMem", times[1])
        add("begin", f"chunk[{c}].InGPU", times[1])  # host memory is the destination
        add("publish", f"chunk[{c}].InGPU", times[1])
        add("begin", f"chunk[{c}].Destroyed", times[3])
        add("publish", f"chunk[{c}].Destroyed", times[3])
        for p in chunks.rows["chunk.pieces"][c]:
            add("publish", f"piece[{p}].Alloc", zero)
            add("begin", f"piece[{p}].Copied", times[1])
            add("publish", f"piece[{p}].Copied", times[2])
    for t in range(chunks.tensors):
        add("publish", f"tensor[{t}].Alloc", zero)
        add("begin", f"tensor[{t}].Loaded", stamps[LOADED].get(t, zero))
        add("publish", f"tensor[{t}].Loaded", stamps[LOADED].get(t, zero))
    return sorted(steps, key=lambda step: step[0])


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("direct", [1, 2])  # CFAC_DIRECT_NEVER, CFAC_DIRECT_ALWAYS
@pytest.mark.parametrize(("ring", "depth"), [(2, 1), (4, 4), (16, 8)])
def test_the_library_keeps_the_refined_order(tmp_path, model, ring, depth, direct, placed):
    path = tmp_path / "spec.yaml"
    path.write_text(
        "apiVersion: cfac/v1\nkind: StartupGraph\nname: ordered\n"
        f"include: ['{LOADING}']\n"
        f"refine: {{tensor: {{ring: {max(ring, depth)}, depth: {depth}}}}}\n"
    )
    spec, found = load(path, model=str(model), chunk_size="32KiB")
    assert spec is not None and not found.items
    chunks = spec.refined[0].chunks
    assert chunks is not None and chunks.chunks > 4 * depth
    stamps, counters = run(chunks, ring, depth, direct, placed)
    assert counters.ring == ring and counters.depth == depth
    plan = compile_plan(spec)
    plan["layouts"] = {name: list(rows) for name, rows in chunks.rows.items()}
    for what, name in plan["refine"]["tensor"]["counts"].items():
        plan["params"][name] |= {"default": getattr(chunks, what)}
    steps = trace(chunks, stamps)
    assert verify(read_run(write(tmp_path / "run", plan, steps))) == []
    # The same events do not keep an order that the library does not promise.
    first = min(steps, key=lambda step: "begin chunk[3].Destroyed" not in step[1])
    late = [(0, step[1]) if step == first else step for step in steps]
    kinds = {f.kind for f in verify(read_run(write(tmp_path / "run", plan, late)))}
    assert kinds == {"dependency"}
