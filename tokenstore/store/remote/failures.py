"""What a failed request means: whether another attempt may help, and what to do otherwise.

obstore's messages contain the request's URL and the server's answer, which may hold a signature. Only the status and the
server's error code are taken from them.
"""

import re
from dataclasses import dataclass

_STATUS = re.compile(r"status code: (\d{3})([A-Za-z -]{0,40})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,60})</Code>")
_EXPIRED = ("ExpiredToken", "TokenRefreshRequired", "RequestExpired", "InvalidToken")
_MAY_PASS = (408, 409, 425, 429)  # besides 5xx
GONE, REPLACED, SHORT = "gone", "replaced", "short"
DENIED, REFUSED, PASSING = "denied", "refused", "passing"


@dataclass(frozen=True)
class Failure:
    """Why a request failed.

    Attributes:
        kind: GONE (no such object), REPLACED (its ETag has changed), SHORT (it ends before the range), DENIED (credentials),
            REFUSED (another attempt does not help) or PASSING (it may).
        text: what was found, for a message.
        advice: what to do.
    """

    kind: str
    text: str
    advice: str


def failure_of(error: BaseException) -> Failure:
    """The meaning of an exception that obstore raised."""
    name, text = type(error).__name__, str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    number = int(status[1]) if status else 0
    found = " ".join([status[1] + status[2].rstrip() if status else "", code[1] if code else ""]).strip()
    if isinstance(error, FileNotFoundError):
        return Failure(GONE, found or "no such object", "check the URL, and copy or build the store again")
    if name == "PreconditionError":
        return Failure(REPLACED, "another object", "")
    if number == 416:
        return Failure(SHORT, found, "check the URL and the endpoint in the environment")
    if (
        number in (401, 403)
        or (
            number == 400 and code is None
        )  # the answer to HEAD has no body, so it does not say that a token has expired
        or name in ("UnauthenticatedError", "PermissionDeniedError")
        or (code and code[1] in _EXPIRED)
    ):
        return Failure(
            DENIED, found or "no access", "check that the credentials in the environment are valid and allow to read it"
        )
    if "redirect" in text and "region" in text:
        return Failure(REFUSED, "a redirect to another region", "set AWS_REGION to the region of the bucket")
    if name == "NotSupportedError" or "non-partial response" in text:
        return Failure(
            REFUSED, "the whole object instead of a range", "use a server that supports ranges, or copy the store"
        )
    if number and number < 500 and number not in _MAY_PASS:
        return Failure(REFUSED, found, "check the URL and the endpoint in the environment")
    if isinstance(error, ValueError):
        return Failure(REFUSED, "invalid settings", "check the endpoint and the region in the environment")
    if "credential" in text.lower() and not number:
        return Failure(
            DENIED, "no credentials", "set them in the environment, or AWS_SKIP_SIGNATURE=true for a public bucket"
        )
    return Failure(
        PASSING, found or _transport(text), "check the network and the endpoint, and start again from the last state"
    )


def _transport(text: str) -> str:
    """What broke below HTTP, in plain words."""
    if "kind: Timeout" in text or "timed out" in text:
        return "no complete answer in time"
    if "error sending request" in text or "Connect" in text:
        return "no connection"
    return "a broken connection"
