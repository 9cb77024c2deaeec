"""What ``--attack`` asks for: ``KIND[:SITES[:STRENGTH]]``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from fedloop_core.errors import UsageError
from fedloop_core.task import Task
from fedloop_simulations.attacks.kinds import ALittle, Attack, Backdoor, LabelFlip, Scaling, SignFlip

__all__ = ["KINDS", "Assault", "AttackOrder"]

KINDS: Mapping[str, type[Attack]] = {
    "scaling": Scaling,
    "sign-flip": SignFlip,
    "label-flip": LabelFlip,
    "backdoor": Backdoor,
    "alie": ALittle,
}
_FORM = "Write --attack KIND[:SITES[:STRENGTH]], as in scaling:2:-10 or backdoor:site-1,site-3."


@dataclass(frozen=True)
class Assault:
    """An attack, and the sites that carry it out."""

    attack: Attack
    sites: tuple[str, ...]


@dataclass(frozen=True)
class AttackOrder:
    """An attack by so many sites, or by those named."""

    attack: Attack
    count: int
    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> AttackOrder:
        """Reads the option.

        Raises:
            UsageError: it is none; says what is wrong and how to write it.
        """
        kind, _, rest = text.partition(":")
        chosen, _, strength = rest.partition(":")
        if kind not in KINDS:
            raise UsageError(f"there is no attack {kind!r}; there are {', '.join(KINDS)}.", hint=_FORM)
        names: tuple[str, ...] = ()
        count = 1
        if chosen.isascii() and chosen.isdigit():
            count = int(chosen)
        elif chosen:
            names = tuple(dict.fromkeys(chosen.split(",")))
        if count < 1 or "" in names:
            raise UsageError(f"--attack {text} names no site.", hint=_FORM)
        return cls(_with_strength(kind, strength, text), len(names) or count, names)

    def by(self, sites: Sequence[str], task: Task) -> Assault:
        """The attack by sites of a federation: those named, or the last ones.

        Raises:
            UsageError: a site is not there, none would be honest, or the task does not bear the attack.
        """
        self.attack.check(task)
        unknown = [name for name in self.names if name not in sites]
        if unknown:
            raise UsageError(f"--attack names {unknown[0]!r}; the sites are {', '.join(sites)}.", hint=_FORM)
        if self.count >= len(sites):
            raise UsageError(f"--attack leaves no honest site among {len(sites)}.", hint="Name fewer sites.")
        return Assault(self.attack, self.names or tuple(sites[-self.count :]))


def _with_strength(kind: str, strength: str, text: str) -> Attack:
    if not strength:
        return KINDS[kind]()
    try:
        value = float(strength)
        if not math.isfinite(value):
            raise ValueError(strength)
        return KINDS[kind](strength=value)
    except ValidationError as error:
        words = error.errors()[0]["msg"].removeprefix("Input ")
        raise UsageError(f"the strength of {kind} {words}, not {strength}.", hint=_FORM) from error
    except ValueError as error:
        raise UsageError(f"--attack {text}: {strength!r} is not a number.", hint=_FORM) from error
