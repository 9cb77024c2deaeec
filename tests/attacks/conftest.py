"""One federation that is attacked: coordinator, north and south by commands, east played; its folders are open to pass through."""

from __future__ import annotations

import shutil
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.attacks.attackers import HostileRelay, Stranger
from tests.conditions.small_federation import Federation
from tests.membership.coordinators import SiteEnd

from fedloop_clients.home import SiteHome
from fedloop_core.federation.join import JoinToken
from fedloop_proto.membership.v1 import membership_pb2 as messages
from fedloop_server.home import CoordinatorHome


@dataclass
class Scene:
    """``east`` joined by ``token`` and was revoked; ``relay`` is south's, and has heard a short run to its end."""

    federation: Federation
    stranger: Stranger
    east: SiteEnd
    token: JoinToken
    relay: HostileRelay

    @property
    def server(self) -> CoordinatorHome:
        return CoordinatorHome(self.federation.home)

    @property
    def south(self) -> SiteHome:
        return SiteHome(self.federation.site_home("south"))

    def node_id(self, site: str) -> int:
        members = self.server.members()
        with closing(members.database):
            return members.site(site).node_id or 0


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    folder = Path(tempfile.mkdtemp(prefix="fedloop-attacks-"))
    folder.chmod(0o755)  # the rights of what is inside are what is tried
    federation = Federation(folder)
    try:
        federation.begin()
        for name in ("north", "south"):
            federation.add_site(federation.small_site(name))
        yield from _played(federation)
    finally:
        federation.close()
        shutil.rmtree(folder, ignore_errors=True)


def _played(federation: Federation) -> Iterator[Scene]:
    server = CoordinatorHome(federation.home)
    added = federation.fedloop("server", "site", "add", "east", "--home", str(federation.home), json_output=True)
    token, east = JoinToken.parse(added["token"]), SiteEnd("east")
    stranger = Stranger(server.settings.front.public, server.settings.hub.public, token.authority_pem())
    context = ssl.create_default_context(cadata=token.authority_pem().decode())
    request = east.join_request(token.secret).SerializeToString(deterministic=True)
    url = f"https://{stranger.front}/v1/membership/join"
    joined = httpx.post(url, content=request, verify=context, trust_env=False, timeout=60.0)
    east.certificate = messages.JoinResponse.FromString(joined.content).certificate
    federation.fedloop("server", "site", "revoke", "east", "--home", str(federation.home))
    with closing(HostileRelay(SiteHome(federation.site_home("south")))) as relay:
        federation.begin_run(rounds=3)
        assert federation.wait_for_end(federation.run) == "run-finished"
        yield Scene(federation, stranger, east, token, relay)


def soon() -> int:
    """An expiry that is still to come."""
    return int(time.time()) + 600
