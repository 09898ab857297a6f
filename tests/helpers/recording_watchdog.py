"""A child watchdog that remembers the processes that it watched."""

from mcp_mirror.system.child_watchdog import ChildWatchdog


class RecordingWatchdog(ChildWatchdog):
    def __init__(self) -> None:
        super().__init__()
        self.added: list[int] = []
        """The number of every process that was started, the latest last."""

    def add(self, group: int) -> None:
        self.added.append(group)
        super().add(group)
