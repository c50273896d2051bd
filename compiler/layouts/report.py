"""What a layout comes to: requests, bytes and alignment, naive and in chunks, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median

from cfac.compiler.layouts.chunkmap import PAGE, READ_MOST, ChunkMap
from cfac.compiler.layouts.proof import show
from cfac.compiler.model import Refined, Spec
from cfac.native.sizing import show as size_text


@dataclass(frozen=True, slots=True)
class Requests:
    """Reads of one way to load a model.  Sizes in bytes.

    ``aligned`` are those that begin and end at a page (or at the file's end): O_DIRECT takes
    them as they are.  ``direct`` is what O_DIRECT reads for all of them: whole pages, those
    that two requests share twice.  ``calls`` counts read(2) calls of at most 0x7ffff000 bytes.
    """

    requests: int
    calls: int
    wanted: int
    direct: int
    aligned: int
    least: int
    middle: int
    most: int


def count(extents: Iterable[tuple[int, int, int]], sizes: tuple[int, ...]) -> Requests:
    """The figures of reads (file, offset, length), for files of these sizes."""
    lengths: list[int] = []
    calls = direct = aligned = 0
    for file, offset, length in extents:
        end = offset + length
        lengths.append(length)
        calls += -(-length // READ_MOST)
        direct += min(-(-end // PAGE) * PAGE, sizes[file]) - offset // PAGE * PAGE
        aligned += offset % PAGE == 0 and (end % PAGE == 0 or end == sizes[file])
    return Requests(
        len(lengths),
        calls,
        sum(lengths),
        direct,
        aligned,
        min(lengths, default=0),
        int(median(lengths)) if lengths else 0,
        max(lengths, default=0),
    )


def before_and_after(chunks: ChunkMap) -> tuple[Requests, Requests]:
    """The requests of the naive model, one for each tensor with bytes, and of the chunks."""
    sizes = chunks.headers.sizes
    naive = count(chunks.extents(), sizes)
    return naive, count(
        zip(chunks.chunk_file, chunks.chunk_offset, chunks.chunk_length, strict=True), sizes
    )


def _table(naive: Requests, refined: Requests) -> Iterator[str]:
    yield "| | naive: a request per tensor | refined: a request per chunk |"
    yield "| --- | --- | --- |"

    def percent(of: Requests) -> str:
        return f"{of.aligned} ({100 * of.aligned / of.requests:.1f}%)" if of.requests else "0"

    rows = {
        "requests": [f"{r.requests}" for r in (naive, refined)],
        "read(2) calls": [f"{r.calls}" for r in (naive, refined)],
        "bytes wanted": [f"{r.wanted}" for r in (naive, refined)],
        "bytes read by O_DIRECT": [f"{r.direct}" for r in (naive, refined)],
        "aligned requests": [percent(r) for r in (naive, refined)],
        "least, median, most bytes": [f"{r.least}, {r.middle}, {r.most}" for r in (naive, refined)],
    }
    for name, cells in rows.items():
        yield f"| {name} | {' | '.join(cells)} |"


def lines(spec: Spec, refined: Refined) -> Iterator[str]:
    """The report of one refinement."""
    refine, chunks = refined.refine, refined.chunks
    yield f"## Refinement of {refine.component}"
    yield ""
    if chunks is not None:
        widest, tensor = chunks.widest()
        empty = sum(1 for n in chunks.item_chunks if not n)
        files = chunks.headers.files
        number = f"{len(files.paths)} file" + ("s" if len(files.paths) != 1 else "")
        yield f"- model: {refine.model}, {number}" + (
            f", listed in {files.index.name}" if files.index is not None else ""
        )
        yield f"- tensors: {chunks.tensors}, {empty} of them empty"
        yield (
            f"- chunks: {chunks.chunks} of {size_text(chunks.chunk_size)}"
            + (f" (auto: {'; '.join(chunks.choice.reasons)})" if chunks.choice else "")
        )
        yield f"- pieces: {chunks.pieces}"
        if widest:
            yield f"- widest tensor: {chunks.shown(tensor)}, in {widest} chunks"
        yield f"- ring: {refine.ring} buffers, {refine.ring * chunks.chunk_size} bytes at most"
        yield ""
        yield from _table(*before_and_after(chunks))
        yield ""
    yield "What was shown:"
    yield ""
    shown = show(spec, refined)
    yield from (f"- {line}" for line in shown.lines)
    if refine.release == "pieces":
        yield "- termination: the refined graph is acyclic for every layout and every ring"
    else:
        yield (
            "- termination: the refined graph is acyclic for every layout in which no tensor "
            f"spans more than {refine.ring} chunks"
        )


def render(spec: Spec) -> str:
    """The report of all refinements of a spec."""
    parts = ["\n".join(lines(spec, refined)) for refined in spec.refined]
    return f"# {spec.name}\n\n" + "\n\n".join(parts) + "\n"


def summary(spec: Spec) -> Iterator[str]:
    """A line for each model that was read."""
    for refined in spec.refined:
        chunks = refined.chunks
        if chunks is None:
            continue
        naive, after = before_and_after(chunks)
        yield (
            f"{refined.refine.model}: {chunks.tensors} tensors, {chunks.chunks} chunks of "
            f"{size_text(chunks.chunk_size)}, {chunks.pieces} pieces; requests {naive.requests} "
            f"-> {after.requests}, aligned {naive.aligned} -> {after.aligned}"
        )
