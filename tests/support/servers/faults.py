"""Faults of the test server: which requests fail, and how."""

import random
import threading
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "slow_down",  # 503 SlowDown, as S3 throttles
    "error",  # 500 InternalError
    "expired",  # 400 ExpiredToken
    "forbidden",  # 403 AccessDenied
    "missing",  # 404 NoSuchKey
    "redirect",  # 302 to `location`
    "reset",  # the connection is reset in the middle of the body
    "reset_early",  # the connection is reset before the answer
    "truncated",  # the connection is closed in the middle of the body
    "short",  # a shorter range than asked for, without an error
    "long",  # the right range, and a body of 32 MiB more
    "shifted",  # a range of the same length from one byte later, labelled as the right one
    "flipped",  # one bit of the body is wrong
    "hang",  # no answer
    "hang_in_body",  # half of the body, then nothing
    "replaced",  # from this request on, the object has another entity tag
]


@dataclass
class Fault:
    """A rule: requests that match it fail.

    Attributes:
        kind: how they fail.
        times: number of requests that fail; None for all.
        method: only requests with this method; "" for all.
        key: only keys that contain this text.
        after: the first `after` matching requests succeed.
        only_lists: only requests for lists, which have no key.
        share: share of the matching requests that fail, drawn with `seed`.
        location: where a redirect leads.
    """

    kind: Kind
    times: int | None = 1
    method: str = "GET"
    key: str = ""
    after: int = 0
    only_lists: bool = False
    share: float = 1.0
    seed: int = 0
    location: str = ""
    _seen: int = 0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def strikes(self, method: str, key: str) -> bool:
        """Whether this request fails; counts it if it matches."""
        if self.method not in ("", method) or self.key not in key or self.times == 0 or (self.only_lists and key):
            return False
        self._seen += 1
        if self._seen <= self.after or self._random.random() >= self.share:
            return False
        if self.times is not None:
            self.times -= 1
        return True


class Faults:
    """The rules of a server; the first one that strikes decides."""

    def __init__(self) -> None:
        self._rules: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        """Add a rule."""
        with self._lock:
            self._rules.append(fault)

    def clear(self) -> None:
        """Remove all rules."""
        with self._lock:
            self._rules.clear()

    def of(self, method: str, key: str) -> Fault | None:
        """The rule that decides about a request, or None."""
        with self._lock:
            return next((rule for rule in self._rules if rule.strikes(method, key)), None)
