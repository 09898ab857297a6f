"""A clock that a test sets."""

__all__ = ["Clock"]


class Clock:
    """Seconds that a test sets (`clock.now += 60`). Each look advances it by `step`."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now
        self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now
