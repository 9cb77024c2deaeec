"""Which institutions are sites: invitations, joining, renewal, revocation, and the authority behind their certificates."""

from fedloop_server.membership.authorities import Authorities
from fedloop_server.membership.desk import MembershipDesk
from fedloop_server.membership.machine import SiteState
from fedloop_server.membership.members import Members
from fedloop_server.membership.notices import Notice, Notices
from fedloop_server.membership.records import Activity, ActivityKind, SiteRecord, TokenRecord

__all__ = [
    "Activity",
    "ActivityKind",
    "Authorities",
    "Members",
    "MembershipDesk",
    "Notice",
    "Notices",
    "SiteRecord",
    "SiteState",
    "TokenRecord",
]
