"""What a channel raises.  All derive from :class:`ChannelError`."""

from __future__ import annotations


class ChannelError(RuntimeError):
    """The channel could not do what was asked."""


class ComponentFailed(ChannelError):
    """A component failed, or its process ended, so the awaited state cannot come.

    ``component`` is who failed; ``cause`` is what it said or how it ended.
    """

    def __init__(self, component: str, cause: str) -> None:
        super().__init__(f"component {component} failed: {cause}")
        self.component = component
        self.cause = cause

    def __reduce__(self) -> tuple[type[ComponentFailed], tuple[str, str]]:
        return type(self), (self.component, self.cause)


class WaitTimeout(ChannelError, TimeoutError):
    """A wait was given a time limit and reached it; the message is the stall report."""


class OwnerLost(ChannelError):
    """The owner of the channel is gone: its process ended or it was closed."""
