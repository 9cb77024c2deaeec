"""What the hub sees of a doctor that looks at it: the site, and no stranger."""

from __future__ import annotations

import pytest

from fedloop_clients.doctor.scene import Scene
from fedloop_clients.home import SiteHome

STRANGER = "PEER_DID_NOT_RETURN_A_CERTIFICATE"


def test_the_hub_logs_no_stranger_when_the_doctor_looks(
    joined_home: SiteHome, capfd: pytest.CaptureFixture[str]
) -> None:
    scene = Scene(joined_home, seconds=10.0)
    assert scene.way("hub")[-1].error is None
    greeting = scene.greeting()
    assert greeting is not None
    assert greeting.error is None
    assert STRANGER not in capfd.readouterr().err


def test_a_certificate_that_cannot_be_read_is_not_shown(joined_home: SiteHome) -> None:
    joined_home.site_key.write_bytes(b"\xff")
    assert Scene(joined_home, seconds=10.0).way("hub")[-1].error is None  # whose key it is, another check says
