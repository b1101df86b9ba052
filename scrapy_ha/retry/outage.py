"""Whether it is not the hosts but our own network that is down.

The sign is that slots fail alike: many failures to connect, of many slots, of nearly all that were
tried, and nobody answers. A slot that already failed when others still answered is sick itself and is
no sign: so a list of dead names among good hosts is no outage, nor are its repetitions at the end. Nor
are such names, slow to fail, that take up all connections: among what failed must be a slot that had
answered before, if any had. A pause would keep the others from being asked.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

ENTRIES = 1000
"""Outcomes remembered at most."""

WORKED = 10_000
"""Slots that answered, remembered at least, as far as there were so many; twice that at most."""

UNSURE = 0.1
"""Share of the deadline after which an outage is no longer believed, or suspected, of which most slots
had never answered while others had: it may be that only dead hosts are left."""


@dataclass(frozen=True)
class OutageRules:
    """The numbers of one crawl; seconds throughout."""

    window: float = 10.0
    """Failures count for so long."""
    failures: int = 10
    """Failures to connect there must be in the window."""
    slots: int = 5
    """Slots they must come from."""
    share: float = 0.9
    """Share of the slots tried in the window that must have failed so, in (0, 1]."""
    silence: float = 3.0
    """Pause when nobody has answered for so long since the first failure."""
    probe: float = 5.0
    """Before the first probe, above 0; twice as long before each further one."""
    max_probe: float = 60.0
    """Between two probes at most."""
    deadline: float = 3600.0
    """An outage is no longer believed after that, until the next answer; 0: it always is."""


class Outage:
    """Watches the outcomes of all slots, and pauses the crawl while the network is down.

    From the moment in which all signs but the silence are there it is *suspected*: failures are not to be
    counted against requests then. When the silence has lasted, and a slot has failed that had answered, it
    is *on*: nothing may be sent but probes. Any answer ends both.

    Args:
        rules: ``None``: there never is an outage.
    """

    def __init__(self, rules: OutageRules | None) -> None:
        self._rules = rules
        self.on = False
        self.began = 0.0
        """When the first failure came of those that no answer has followed, epoch seconds."""
        self._heard: float | None = None
        """The last answer."""
        self._entries: deque[tuple[float, str, bool]] = deque()
        """Time, slot and whether it is a sign."""
        self._signs: dict[str, int] = {}
        self._others: dict[str, int] = {}
        """How many entries each slot has, of either kind."""
        self._failures = 0
        self._given_up = False
        self._until = 0.0
        """When the present outage is no longer believed; 0: never."""
        self._interval = 0.0
        self._next_probe = 0.0
        self.is_reserved = False
        """A probe was handed out and is not sent yet: first that may be sent which it waits for."""
        self._sent_at = 0.0
        """When the last one was sent."""
        self._worked: set[str] = set()
        self._worked_before: set[str] = set()

    def answered(self, slot: str, now: float) -> bool:
        """Something came back from *slot*. Whether that ended an outage."""
        self._heard = now
        if slot not in self._worked:
            if len(self._worked) >= WORKED:
                self._worked_before, self._worked = self._worked, set()
            self._worked.add(slot)
        if not self._entries and not self.on and not self._given_up:
            return False
        self._entries.clear()
        self._signs.clear()
        self._others.clear()
        self._failures = 0
        self._given_up = False
        ended, self.on = self.on, False
        return ended

    def failed(self, slot: str, since: float, now: float, connect: bool) -> bool:
        """A request of *slot* failed, and nothing says that the network is up.

        Args:
            since: When the slot's first failure to connect was after its last answer.
            connect: No connection came about.

        Returns:
            Whether the failure must not be counted.
        """
        if self._rules is None:
            return False
        sign = connect and (self._heard is None or since > self._heard)
        self._entries.append((now, slot, sign))
        if sign and not self._failures:
            self.began = now
        self._failures += sign
        counts = self._signs if sign else self._others
        counts[slot] = counts.get(slot, 0) + 1
        self._prune(self._rules, now)
        return self.on or (sign and self._suspected(self._rules))

    def check(self, now: float) -> bool:
        """Whether :attr:`on` became another by this call: the silence has lasted, or the deadline passed."""
        rules = self._rules
        if rules is None:
            return False
        if self.on:
            if not self._until or now < self._until:
                return False
            self.on, self._given_up = False, True
            return True
        self._prune(rules, now)
        if not self._suspected(rules) or now < self.began + rules.silence:
            return False
        if self._heard is not None and not self._failed_of_old():
            self._given_up = 0 < rules.deadline * UNSURE <= now - self.began
            return False
        self.on = True
        self._interval = rules.probe
        self._next_probe = now + rules.probe
        self.is_reserved = False
        self._until = now + rules.deadline * (1 if self._is_sure() else UNSURE) if rules.deadline else 0.0
        return True

    def allows(self, now: float) -> bool:
        """Whether a request may be sent; during an outage: a probe."""
        return not self.on or now >= self._next_probe

    def taken(self, now: float) -> None:
        """A request was handed out; during an outage it is the probe."""
        if self.on and self._rules is not None and self.allows(now):
            self._interval = min(2 * self._interval, self._rules.max_probe)
            self._next_probe = now + self._interval
            self.is_reserved = True

    def sent(self, now: float) -> None:
        """A request goes to the downloader."""
        if self.on:
            self.is_reserved = False
            self._sent_at = now

    def unsent(self, sent_at: float | None, now: float) -> None:
        """A request ended of which nothing went out; *sent_at*: when it was about to, if it ever was.

        Was it the probe, another may go.
        """
        if self._rules is None or not self.on:
            return
        if self.is_reserved if sent_at is None else sent_at >= self._sent_at:
            self.is_reserved = False
            self._interval = max(self._interval / 2, self._rules.probe)
            self._next_probe = now

    def free_at(self, now: float) -> float:
        """When the next probe may go or, while an outage is only suspected, when what failed is to be tried
        again; 0: now."""
        if self.on:
            return 0.0 if self.allows(now) else self._next_probe
        if self._rules is not None and self._suspected(self._rules):
            decided = self.began + self._rules.silence
            return decided if decided > now else now + self._rules.max_probe
        return 0.0

    def next_event(self, now: float) -> float | None:
        """When :meth:`check` or :meth:`allows` will say something else by itself, after *now*."""
        if self._rules is None:
            return None
        if self.on:
            times = (self._next_probe, self._until)
        elif self._suspected(self._rules):
            times = (self.began + self._rules.silence, 0.0)
        else:
            return None
        return min((time for time in times if time > now), default=None)

    def _suspected(self, rules: OutageRules) -> bool:
        return (
            not self._given_up
            and self._failures >= rules.failures
            and len(self._signs) >= rules.slots
            and len(self._signs) >= rules.share * (len(self._signs) + len(self._others))
        )

    def _failed_of_old(self) -> int:
        """How many of the slots that failed had answered before."""
        return sum(slot in self._worked or slot in self._worked_before for slot in self._signs)

    def _is_sure(self) -> bool:
        return self._heard is None or 2 * self._failed_of_old() >= len(self._signs)

    def _prune(self, rules: OutageRules, now: float) -> None:
        entries = self._entries
        while entries and (entries[0][0] <= now - rules.window or len(entries) > ENTRIES):
            _, slot, sign = entries.popleft()
            counts = self._signs if sign else self._others
            self._failures -= sign
            counts[slot] -= 1
            if not counts[slot]:
                del counts[slot]
