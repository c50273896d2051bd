"""One pass over what is wanted, shared by the ranks of a `torch.distributed` group.

Every chunk is cut into one segment per rank; each rank reads its own, and an all-gather gives all
of them the whole chunk, so that each byte is read once per group.  Every rank then copies out the
same tensors.

Nobody hangs when one rank fails.  Each pass, and the opening of the files, begins with an exchange
in which every rank says whether it is fine and what it is about to do; before each chunk's gather
the ranks exchange whether all have read their segment.  If one has not, all raise: that one its own
error, the others `GroupError`.  A rank that is gone breaks the exchange, which raises as well.
"""

from __future__ import annotations

import ctypes
import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cfac.runtime.loading.job import Chunk, Job, Piece, Plan
from cfac.runtime.loading.memory import bytes_of, shaped
from cfac.runtime.loading.reading import Checker, Pass, fill_report
from cfac.runtime.loading.report import Report
from cfac.runtime.loading.selection import Wanted
from cfac.runtime.loading.targets import Targets

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
_FINE, _LEFT, _FAILED = range(3)


class GroupError(RuntimeError):
    """Another rank of the group failed, stopped early, is gone, or asks for something else."""


class _Said(NamedTuple):
    """What a rank says in an exchange: its error or "", and what it is about to do."""

    error: str
    mark: Any


class Circle:
    """A process group, as the loader uses it."""

    def __init__(self, group: Any) -> None:
        import torch
        import torch.distributed as dist

        self.group, self.dist, self.torch = group, dist, torch
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        if self.rank < 0:
            raise ValueError("this process is not in the group that it shall load with")
        nccl = "nccl" in str(dist.get_backend(group))
        #: Where gathered chunks lie.
        self.device = torch.device("cuda", torch.cuda.current_device()) if nccl else "cpu"
        # torch 2.13 gave all_gather_into_tensor another name.
        self._all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        self._status = torch.zeros(1, dtype=torch.int32, device=self.device)

    def together(self, work: Callable[[], T], mark: Callable[[T], Any]) -> tuple[T, list[Any]]:
        """Do something on every rank; gives its value and the ranks' marks.

        Raises its own error, or GroupError if another rank has one.
        """
        value: T | None = None
        failure: Exception | None = None
        said = _Said("", None)
        try:
            value = work()
            said = _Said("", mark(value))
        except Exception as error:
            failure, said = error, _Said(f"{type(error).__name__}: {error}", None)
        heard = self._exchange(said)
        if failure is not None:
            raise failure
        self._raise_of_others(heard)
        assert value is not None
        return value, [one.mark for one in heard]

    def _exchange(self, said: _Said) -> list[_Said]:
        heard: list[Any] = [None] * self.ranks
        try:
            self.dist.all_gather_object(heard, tuple(said), group=self.group)
        except RuntimeError as error:
            raise GroupError(f"a rank of the group is gone: {_first_line(error)}") from error
        return [_Said(*one) for one in heard]

    def _raise_of_others(self, heard: Sequence[_Said]) -> None:
        for rank, one in enumerate(heard):
            if one.error:
                raise GroupError(f"rank {rank} of the group failed: {one.error}")

    def worst(self, status: int) -> int:
        """The worst status of any rank."""
        self._status.fill_(status)
        try:
            self.dist.all_reduce(self._status, op=self.dist.ReduceOp.MAX, group=self.group)
        except RuntimeError as error:
            raise GroupError(f"a rank of the group is gone: {_first_line(error)}") from error
        return int(self._status.item())

    def tell(self, error: BaseException | None) -> None:
        """After a bad status: all ranks say what is wrong; raises unless this one has an error."""
        heard = self._exchange(_Said(f"{type(error).__name__}: {error}" if error else "", None))
        if error is None:
            self._raise_of_others(heard)
            raise GroupError("a rank of the group failed")  # pragma: no cover - it said nothing

    def gather(self, buffer: torch.Tensor, segment: int) -> torch.Tensor:
        """A chunk from its segments; ``buffer`` (bytes on the host) holds this rank's in its place.

        On the host the others' segments are received into it; otherwise gives a copy on the device.
        """
        whole = buffer[: segment * self.ranks]
        own = whole[segment * self.rank : segment * (self.rank + 1)]
        if self.device != "cpu":
            own = own.to(self.device)
            whole = self.torch.empty(segment * self.ranks, dtype=own.dtype, device=self.device)
        try:
            self._all_gather(whole, own, group=self.group)
        except RuntimeError as error:
            raise GroupError(f"a rank of the group is gone: {_first_line(error)}") from error
        return whole


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]


def fingerprint(wanted: Sequence[Wanted], chunk_size: int) -> str:
    """What a pass is about to read: equal on all ranks, or they must not begin."""
    digest = hashlib.sha256(str(chunk_size).encode())
    for w in wanted:
        t = w.tensor
        digest.update(repr((t.name, t.dtype, t.shape, t.begin, t.end, t.file)).encode())
        digest.update(repr((w.read_begin, w.read_length, w.hidden)).encode())
    return digest.hexdigest()


def check_equal(marks: Sequence[Any]) -> None:
    """GroupError unless all ranks are about to do the same."""
    for rank, mark in enumerate(marks):
        if mark != marks[0]:
            raise GroupError(
                f"ranks 0 and {rank} of the group ask for different things: their files, names, "
                "slices and options must be the same"
            )


def shared(
    circle: Circle, job: Job, targets: Targets, checker: Checker | None, report: Report
) -> Pass:
    """Read together with the other ranks; ``job`` delivers chunks and is not started."""
    plan = job.plan
    chunks, pieces = plan.chunks(), plan.pieces()
    state = _State(circle, plan, pieces, targets)
    gathered, talking = 0, False
    begin = time.monotonic()
    try:
        for index, chunk in enumerate(chunks):
            failure, buffer = None, None
            try:
                buffer = _own_segment(job, index)
            except Exception as error:
                failure = error
            talking = True
            worst = circle.worst(_FAILED if failure else _FINE)
            if worst == _FAILED:
                circle.tell(failure)
                assert failure is not None
                raise failure
            if worst == _LEFT:
                raise GroupError("a rank of the group stopped before the end")
            assert buffer is not None
            whole = circle.gather(buffer, chunk.segment)
            talking, gathered = False, index + 1
            if checker is not None:
                checker.check(index, _checksum(plan, chunk, whole))
            state.place(chunk, whole)
            del whole, buffer
            yield from state.complete()
        yield from state.complete()
        report.seconds = time.monotonic() - begin
        fill_report(report, job, checker)
    finally:
        job.close()
        # The others wait for this rank's word on the next chunk.
        if gathered < len(chunks) and not talking:
            with suppress(GroupError):
                if circle.worst(_LEFT) == _FAILED:
                    circle.tell(RuntimeError("stopped before the end"))


def _own_segment(job: Job, index: int) -> torch.Tensor:
    """The next chunk's buffer, with this rank's segment in its place."""
    if index == 0:
        job.start()
    result = job.next()
    assert result is not None and result.index == index
    return bytes_of(result.data, result.length, result.buffer)


def _checksum(plan: Plan, chunk: Chunk, whole: torch.Tensor) -> int:
    """CRC-32C of a chunk's wanted bytes, which are all of it."""
    begin = chunk.offset - chunk.origin
    data = whole[begin : begin + chunk.length].cpu()
    pointer = ctypes.cast(data.data_ptr(), ctypes.c_char_p)
    return int(plan.library.cfac_crc32c(0, pointer, chunk.length))


class _State:
    """The tensors that are under way: at most those of a chunk, and one that goes on."""

    def __init__(
        self, circle: Circle, plan: Plan, pieces: Sequence[Piece], targets: Targets
    ) -> None:
        self.circle, self.pieces, self.targets = circle, pieces, targets.tensors
        self.items = list(plan.items)  # each is asked for with every piece of it
        self.under_way: dict[int, torch.Tensor] = {}
        self.ready = self.next = 0  # items complete; items handed out

    def _bytes(self, index: int) -> torch.Tensor:
        """Where an item's bytes go: its target's, or memory of its own."""
        torch = self.circle.torch
        item = self.items[index]
        target = self.targets.get(item.tensor.number)
        if target is not None and item.exact and str(target.device) == str(self.circle.device):
            return target.detach().view(-1).view(torch.uint8)
        return torch.empty(item.read_length, dtype=torch.uint8, device=self.circle.device)

    def place(self, chunk: Chunk, whole: torch.Tensor) -> None:
        """Copy a chunk's pieces to where they belong."""
        for piece in self.pieces[chunk.first_piece : chunk.first_piece + chunk.pieces]:
            item = self.items[piece.item]
            done = piece.item_offset + piece.length == item.read_length
            if not item.hidden:
                if piece.item not in self.under_way:
                    self.under_way[piece.item] = self._bytes(piece.item)
                raw = self.under_way[piece.item]
                begin = piece.offset - chunk.origin
                part = whole[begin : begin + piece.length]
                raw[piece.item_offset : piece.item_offset + piece.length].copy_(part)
            if done:
                self.ready = piece.item + 1

    def complete(self) -> Pass:
        """Hand out what is complete, in file order, empty ones included."""
        while self.next < len(self.items):
            item = self.items[self.next]
            if self.next >= self.ready and item.read_length > 0:
                return
            raw = self.under_way.pop(self.next, None)
            self.next += 1
            if item.hidden:
                continue
            if raw is None:  # empty
                raw = self.circle.torch.empty(0, dtype=self.circle.torch.uint8)
            target = self.targets.get(item.tensor.number)
            if target is not None and raw.data_ptr() == target.data_ptr():
                yield item.length, None
            else:
                yield item.length, (item, shaped(item, raw))
