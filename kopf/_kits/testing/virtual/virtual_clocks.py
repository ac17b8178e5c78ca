"""The clock of virtual time: it stands still while code runs; the event loop moves it."""

EPOCH = 1893456000
"""The wall clock at the start, 2030-01-01T00:00:00Z: the same in each run, so that all timestamps are the same."""

ORIGIN = 1000.0
"""The monotonic clock at the start (in seconds). It is not zero, since programs use zero for "never"."""


class VirtualTimeError(RuntimeError):
    """Raised when an action of a test or an operator is impossible in virtual time; the message has the remedy."""

    __module__ = 'kopf.testing'


class VirtualClock:
    """The time since the start of a simulation."""

    def __init__(self) -> None:
        self.now = 0.0
        """The time since the start (in seconds)."""

    def move_to(self, now: float) -> None:
        """Move the clock to this time since the start (in seconds), but never back."""
        self.now = max(self.now, now)

    def read_monotonic(self) -> float:
        """Return the monotonic clock (in seconds)."""
        return ORIGIN + self.now

    def read_monotonic_ns(self) -> int:
        """Return the monotonic clock (in nanoseconds)."""
        return round(self.read_monotonic() * 10**9)

    def read_wall(self) -> float:
        """Return the wall clock (in seconds since 1970)."""
        return EPOCH + self.now

    def read_wall_ns(self) -> int:
        """Return the wall clock (in nanoseconds since 1970)."""
        return EPOCH * 10**9 + round(self.now * 10**9)
