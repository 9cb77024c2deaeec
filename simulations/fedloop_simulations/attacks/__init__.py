"""Sites that lie, for rehearsals: what they do, which sites do it, and what came of it."""

from fedloop_simulations.attacks.kinds import Attack
from fedloop_simulations.attacks.order import Assault, AttackOrder

__all__ = ["Assault", "Attack", "AttackOrder"]
