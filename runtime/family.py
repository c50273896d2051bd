"""The processes of a run, as its owner sees them: who joined, who ended, who must end."""

from __future__ import annotations

import os
import select
import selectors
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from cfac.runtime import processes
from cfac.runtime.plan import split_label

#: After a failure the engine gets this long to end by itself (seconds) ...
NOTICE_GRACE = 1.0
#: ... after it was up, this long, because it then has requests and files to close.
UP_GRACE = 5.0
#: From SIGTERM to SIGKILL.
TERM_GRACE = 3.0
#: How long an end that may be another's consequence waits for that other one's.
EXIT_GRACE = 5.0
#: A program that is up and has lost a component gets this long to end by itself, and to tell its
#: clients, before it is asked to end (seconds).
BEREFT_GRACE = 2.0
#: Asked to end during a start, the root gets this long to react before it is asked again.
ASK_AGAIN = 1.5
#: How long the owner stays after the root's end for children that have not joined yet.
LINGER = 30.0
_SCAN_INTERVAL = 0.25


@dataclass(slots=True)
class Member:
    """One process that joined the run."""

    pid: int
    pidfd: int
    name: str
    root: bool
    components: set[str] = field(default_factory=set)
    left: bool = False
    early: bool = False
    ended: bool = False


class Family:
    """Watches members by pidfd; ends them when the run has failed or its root ended.

    ``owner`` is the runtime.owner.Owner; its ``over`` is set when there is nothing
    left to do.
    """

    def __init__(self, owner: Any, root: int) -> None:
        self.owner = owner
        self.members: dict[int, Member] = {}
        self.had_children = False
        #: names of components whose processes the engine is ending by itself
        self.stopping: set[str] = set()
        self._stillborn: list[Member] = []
        #: ends that were seen, and when it is said what they mean
        self._ends: list[tuple[Member, int | None]] = []
        self._judge_at: float | None = None
        self.root = root
        self.root_ended = False
        #: the root has begun another run
        self.retired = False
        #: the others outlive the root: it only had the run made for them
        self.released = False
        self._steps: list[tuple[float, signal.Signals]] = []
        self._signalled: signal.Signals | None = None
        #: The root was asked to end while it starts: by which signal, when it is asked
        #: again, and whether it had no children any more when that was last looked at.
        self._asked: tuple[signal.Signals, float, bool] | None = None
        #: the component that the root has lost, and when it is asked to end for that
        self._bereft: tuple[str, float] | None = None
        self._linger_until: float | None = None
        self._next_scan = 0.0
        self._watch(root, "MainProcess", root=True)

    def pids(self) -> dict[str, int]:
        """Component label -> pid, of the living members."""
        return {c: member.pid for member in self.members.values() for c in member.components}

    def join(self, pid: int, name: str) -> None:
        """A process connected with the run's token."""
        if pid in self.members:
            return
        try:
            member = self._watch(pid, name, root=False)
        except OSError as error:  # of another pid namespace; or no descriptor is left
            self.owner.log(f"{name} (process {pid}) cannot be watched: {error}")
            return
        self.had_children = True
        if member.pidfd < 0:
            return
        if self._signalled is not None:  # too late: the run is ending
            processes.send_signal(member.pidfd, self._signalled)
        elif (self.root_ended and not self.released) or self.owner.table.failure is not None:
            self.end(engine_first=False)

    def mark_early(self, pid: int, early: bool) -> None:
        """A child began before the engine asked for it; until it does, it may be given up."""
        if pid in self.members:
            self.members[pid].early = early

    def host(self, pid: int, component: str) -> None:
        """A member published a state of a component."""
        member = self.members.get(pid)
        if member is not None:
            member.components.add(component)

    def asked_to_end(self, number: int) -> None:
        """The root got a polite signal during the start; see :meth:`_ask_again`."""
        if self._asked is None and not self.owner.final:
            self._asked = signal.Signals(number), time.monotonic() + ASK_AGAIN, False

    def _ask_again(self, now: float) -> None:
        """Repeat a signal that the engine has lost (see runtime.interrupts).

        Nothing but that signal is ever sent to the root, and only while its start goes
        on all the same: not once the engine ends its children.  If they ended by
        themselves, a script may have caught its error and gone on to other things; a
        program of the spec's has only its end before it, which may take a moment.
        """
        if self._asked is None or now < self._asked[1]:
            return
        number, _, alone = self._asked
        self._asked = None
        root = self.members.get(self.root)
        if root is None or root.pidfd < 0 or self.stopping:
            return
        childless = not self._children()
        if childless and not self.owner.is_program():
            return
        if not self.owner.final:  # once it is up, its handlers are those that do not fail
            self._asked = number, now + ASK_AGAIN, childless
        if childless and not alone:
            return
        self.owner.log(f"{number.name} did not end the start: it is sent again")
        self.owner.trace.write("note", text=f"{number.name} is sent to the root again")
        processes.send_signal(root.pidfd, number)

    def _lost(self, component: str) -> None:
        """A component's process has ended, not by the engine's doing.

        The engine may not notice: vLLM 0.32 does not if it is waiting for the core's first
        answer, and its core, told to end while it constructs itself, ends cleanly when it is
        up.  A script may go on to other things; a program has only its end before it.
        """
        owner = self.owner
        if owner.plan is None or not owner.final or self.released or self._bereft:
            return
        entry = owner.plan.components.get(split_label(component)[0], {"process": None})
        has_stop = (entry["process"] or {}).get("stop")
        if has_stop and owner.is_program() and not owner.observe_only:
            self._bereft = component, time.monotonic() + BEREFT_GRACE

    def _ask_bereft(self, now: float) -> None:
        """Ask a program to end that has lost a component and goes on."""
        if self._bereft is None or (now < self._bereft[1] and not self.root_ended):
            return
        component, self._bereft = self._bereft[0], None
        root = self.members.get(self.root)
        if root is None or root.pidfd < 0:
            return
        if not processes.catches(root.pid, signal.SIGTERM):  # it has taken its handlers down
            self._bereft = component, now + BEREFT_GRACE
            return
        self.owner.log(f"{component} has ended, and the engine does not: it gets SIGTERM")
        self.owner.trace.write("note", text=f"the root gets SIGTERM: it has lost {component}")
        processes.send_signal(root.pidfd, signal.SIGTERM)

    def stop(self, component: str) -> None:
        """The engine ends a component's processes, and with them those they spawned."""
        self.notice_ends()  # who was dead before did not die of this
        self.stopping.add(component)
        plan = self.owner.plan
        grown = True
        while grown and plan is not None:
            found = {
                name
                for name, entry in plan.components.items()
                if (entry["process"] or {}).get("spawned_by") in self.stopping
            }
            grown = not found <= self.stopping
            self.stopping |= found
        if self._asked is not None:  # a core under construction puts its end off
            self.end(engine_first=False)

    def notice_ends(self) -> None:
        """Take note of the members that have ended by now."""
        self._look()
        self._judge()

    def _look(self) -> None:
        watched = {m.pidfd: m for m in self.members.values() if m.pidfd >= 0 and not m.ended}
        poll = select.poll()
        for pidfd in watched:
            poll.register(pidfd, select.POLLIN)
        for pidfd, _ in poll.poll(0):
            member = watched[pidfd]
            member.ended = True
            self.owner.selector.unregister(pidfd)
            self._ends.append((member, processes.exit_status(member.pid, pidfd)))

    def _on_end(self) -> None:
        """A member has ended; perhaps because another one is about to.

        A killed process's pipes close before its end can be seen: the engine may by
        then have ended that process's siblings, and they must not get the blame.
        """
        self._look()
        killed = any(processes.was_killed(status) for _, status in self._ends)
        living = (member for member in self.members.values() if not member.ended)
        if not killed and any(processes.is_exiting(member.pid) for member in living):
            self._judge_at = time.monotonic() + EXIT_GRACE
        else:
            self._judge()

    def _judge(self) -> None:
        """Say what the noticed ends mean, the likely cause of the others first."""
        ends, self._ends, self._judge_at = self._ends, [], None
        for member, status in sorted(ends, key=lambda end: processes.suspicion(end[1])):
            self._ended(member, status)

    def leave(self, pid: int) -> None:
        """A member says that its work is done: its end is no failure."""
        member = self.members.get(pid)
        if member is not None:
            member.left = True

    def _watch(self, pid: int, name: str, *, root: bool) -> Member:
        pidfd = processes.open_pidfd(pid)
        member = Member(pid, pidfd if pidfd is not None else -1, name, root)
        self.members[pid] = member
        if pidfd is None:  # gone already; what it said last is still to be read
            self._stillborn.append(member)
            return member
        self.owner.selector.register(pidfd, selectors.EVENT_READ, lambda _: self._on_end())
        return member

    def _ended(self, member: Member, status: int | None) -> None:
        owner = self.owner
        if self.members.get(member.pid) is not member:
            return  # noticed already
        owner.hear_out(member.pid)
        if member.pidfd >= 0:
            os.close(member.pidfd)
        del self.members[member.pid]
        how = processes.describe_status(status)
        owner.trace.write("ended", pid=member.pid, components=sorted(member.components), how=how)
        if member.root:
            unseen = member.pidfd < 0  # gone before its owner was up
            self._root_ended(member, how, killed=unseen or processes.was_killed(status))
            return
        if member.early:
            return  # given up before it was adopted: the engine starts its own
        cause = f"its process {member.pid} {how}"
        for component in sorted(member.components):
            if owner.publish_exit(component):
                continue
            stopped = split_label(component)[0] in self.stopping
            if not stopped:
                self._lost(component)
            if stopped or self._ending():
                continue
            if self.released and owner.complete(component):
                continue  # it is through, and nobody waits for it any more
            if processes.is_abnormal(status) or not self._may_end(member, component):
                owner.fail(component, cause)
            elif owner.plan is None:
                owner.gone[component] = cause
                owner.check_gone()
        nameless = not member.components and not member.left and owner.plan is not None
        nameless = nameless and not self.stopping
        if nameless and not owner.final and not self._ending():
            owner.fail(member.name or "a child", cause)

    def _may_end(self, member: Member, component: str) -> bool:
        """Whether a clean end of the component's process is no failure."""
        owner = self.owner
        if owner.plan is None or owner.final:
            return True
        return bool(member.left and owner.complete(component))

    def _root_ended(self, member: Member, how: str, *, killed: bool) -> None:
        owner = self.owner
        self.root_ended = True
        if self.released:
            return
        # A command that ends by itself (--help, a wrong option) has said why.
        adopted = [child for child in self._children() if not child.early]
        alone = not adopted and not owner.table.waiters()
        early = not member.left and not owner.final and not alone
        if (early or killed) and owner.plan is not None:
            component = min(member.components, default="the root process")
            owner.fail(component, f"its process {member.pid} {how}")
        self.end(engine_first=False)

    def _ending(self) -> bool:
        return bool(self._steps) or self._signalled is not None or self.root_ended

    def end(self, *, engine_first: bool) -> None:
        """End every member but the root: politely, then by SIGKILL."""
        now = time.monotonic()
        grace = (UP_GRACE if self.owner.final else NOTICE_GRACE) if engine_first else 0.0
        if not self._steps and self._signalled is None:
            self._steps = [
                (now + grace, signal.SIGTERM),
                (now + grace + TERM_GRACE, signal.SIGKILL),
            ]
        elif not engine_first and self._signalled is None:
            self._steps[0] = (now, signal.SIGTERM)

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do next, monotonic seconds."""
        times = [self._steps[0][0]] if self._steps else []
        times += [0.0] if self._stillborn else []
        times += [] if self._judge_at is None else [self._judge_at]
        times += [limit[1] for limit in (self._asked, self._bereft) if limit is not None]
        if (self.root_ended or self.retired) and not self._children():
            times.append(self._next_scan)
        return min(times, default=None)

    def tick(self, now: float) -> None:
        """Send what is due; see whether the run is over."""
        while self._stillborn:
            member = self._stillborn.pop()
            self._ended(member, processes.exit_status(member.pid, member.pidfd))
        if self._judge_at is not None and self._judge_at <= now:
            self._judge()
        self._ask_again(now)
        self._ask_bereft(now)
        while self._steps and self._steps[0][0] <= now:
            _, number = self._steps.pop(0)
            self._signalled = number
            for member in self._children():
                where = ", ".join(sorted(member.components)) or member.name
                if not member.early:  # nobody has asked for it, and nobody will miss it
                    self.owner.log(f"ending {where} (process {member.pid}) by {number.name}")
                processes.send_signal(member.pidfd, number)
        if self._children():
            return
        if not self.root_ended and not self.retired:
            done = self.owner.final and self.had_children and self._bereft is None
            self.owner.over = self.owner.over or done
            return
        if now < self._next_scan:
            return
        self._next_scan = now + _SCAN_INTERVAL
        if self._linger_until is None:
            self._linger_until = now + LINGER
        if now >= self._linger_until or not processes.processes_of_run(self.owner.run_id):
            self.owner.hear_out()  # somebody may have joined and ended since
            self.owner.over = self.owner.over or not self._children()

    def _children(self) -> list[Member]:
        return [member for member in self.members.values() if not member.root]
