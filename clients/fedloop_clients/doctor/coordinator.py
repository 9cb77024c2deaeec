"""What answers at the end of the way: front, hub, clock, generation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedloop_clients.doctor.finding import Finding, fine, problem, warning
from fedloop_clients.doctor.scene import Scene
from fedloop_core.errors import CoordinatorUnreachable, VersionRefused
from fedloop_core.federation.protocol import PROTOCOL, check_protocol

__all__ = ["ClockCheck", "FrontCheck", "HubCheck", "VersionCheck"]

_AHEAD_SECONDS = 5.0  # SuperLink refuses what was signed later than this
_BEHIND_SECONDS = 300.0  # and, with those 5, what was signed earlier than this
_UNSURE = 0.5  # times are told in whole seconds
_NOTICEABLE = 2.0
_TIME = "Set this machine's clock, and keep it by NTP: systemctl enable --now systemd-timesyncd (or chrony)."
_RENEW = "Run: fedloop site renew; if that is refused, ask the coordinator for a new token."


@dataclass(frozen=True)
class FrontCheck:
    """Whether our front answers, by the page with which it refuses whatever it does not serve."""

    name: str = "front"

    def look(self, scene: Scene) -> Iterator[Finding]:
        """See ``Check``."""
        answer = scene.front_answer()
        if answer is None:
            return
        target = scene.targets["front"]
        if answer.ours:
            yield fine(f"{target} is the right door: it refuses what it should.")
        elif answer.failed:
            yield problem(f"{target} does not answer over HTTP ({answer.failed}).", "Tell the coordinator's people.")
        else:
            yield problem(
                f"{target} answers with status {answer.status} and not as a front does.",
                "Compare the address with what the coordinator's people say.",
            )


@dataclass(frozen=True)
class HubCheck:
    """Whether the hub greets the site under its certificate."""

    name: str = "hub"

    def look(self, scene: Scene) -> Iterator[Finding]:
        """See ``Check``."""
        greeting = scene.greeting()
        if greeting is None:
            return
        error = greeting.error
        if error is None or isinstance(error, VersionRefused):
            yield fine("the hub knows this site by its certificate.")
        elif isinstance(error, CoordinatorUnreachable) and error.fields.get("stage") == "busy":
            yield warning("the hub has too many connections.", "Try again later.")
        elif isinstance(error, CoordinatorUnreachable):
            yield problem(
                f"the way to the hub is open, and it ends the connection when the site shows its certificate: {error.message}",
                _RENEW,
            )
        else:
            yield problem(error.message, error.hint or _RENEW)


@dataclass(frozen=True)
class ClockCheck:
    """How far this machine's clock is from the coordinator's: signatures carry times."""

    name: str = "clock"

    def look(self, scene: Scene) -> Iterator[Finding]:
        """See ``Check``."""
        greeting, answer = scene.greeting(), scene.front_answer()
        if greeting is not None and greeting.error is None:
            skew = greeting.skew
        elif answer is not None and answer.skew is not None:
            skew = answer.skew
        else:
            return
        if skew > _AHEAD_SECONDS - _UNSURE:
            yield problem(
                f"this machine's clock is {skew:.0f} s ahead of the coordinator's; Flower refuses more than"
                f" {_AHEAD_SECONDS:.0f} s.",
                _TIME,
            )
        elif -skew > _BEHIND_SECONDS - _UNSURE:
            yield problem(
                f"this machine's clock is {-skew:.0f} s behind the coordinator's; Flower refuses more than"
                f" {_BEHIND_SECONDS:.0f} s.",
                _TIME,
            )
        elif abs(skew) > _NOTICEABLE:
            where = "ahead of" if skew > 0 else "behind"
            yield warning(f"this machine's clock is {abs(skew):.0f} s {where} the coordinator's.", _TIME)
        else:
            yield fine("this machine's clock agrees with the coordinator's.")


@dataclass(frozen=True)
class VersionCheck:
    """Whether both sides' generations of the protocol are neighbours."""

    name: str = "version"

    def look(self, scene: Scene) -> Iterator[Finding]:
        """See ``Check``."""
        greeting, membership = scene.greeting(), scene.membership()
        if greeting is not None and isinstance(greeting.error, VersionRefused):
            yield problem(greeting.error.message, greeting.error.hint)
            return
        if greeting is not None and greeting.error is None:
            theirs = greeting.protocol
        elif membership is not None:
            theirs = membership.protocol
        else:
            return
        check_protocol(theirs, peer="the coordinator")
        if theirs == PROTOCOL:
            yield fine(f"both sides speak generation {PROTOCOL} of the protocol.")
        else:
            older = "this side" if theirs > PROTOCOL else "the coordinator"
            yield warning(
                f"the coordinator speaks generation {theirs} of the protocol, this side {PROTOCOL}: they work together.",
                f"Upgrade fedloop on {older} before the next generation comes.",
            )
