"""The first server.toml, with comments for those who edit it."""

from __future__ import annotations

import json

from fedloop_server.settings import ServerSettings

__all__ = ["settings_text"]

_TEXT = """\
# Settings of a fedloop coordinator. Written by `fedloop server init`; yours to edit.
# Changes count after `fedloop server up` was started again.

format = 1
name = {name}

# Host names and addresses in the certificates of front and hub: those by which sites reach this machine.
# Certificates follow by themselves when this changes.
public_names = {public_names}

# SuperLink, on loopback only.
superlink_port = {superlink_port}

# GET http://127.0.0.1:PORT/healthz answers 200 when all processes run.
health_port = {health_port}

# A PostgreSQL URL, or "" for coordinator.db in this folder.
database = {database}

# An fsspec URL (s3://bucket/path), or "" for blobs/ in this folder.
blobs = {blobs}

[front]
# What is listened on, and what sites are told. Flower, joining and renewal come through here.
address = {front_address}
public = {front_public}

[hub]
# gRPC under mutual TLS: cancels and other notices to sites, and what they report.
address = {hub_address}
public = {hub_public}

[sites]
# How long a site's certificate is valid; sites renew at half of that by themselves.
certificate_days = {certificate_days}

# How long what need not be kept for ever is kept, in days: `fedloop server retention` shows it.
[retention]
run_days = {run_days}         # runs that are over and made no version
weights_days = {weights_days} # weights of versions that are neither served nor their task's newest
log_days = {log_days}

# What all runs whose task has [central_privacy] may spend on one whole site, for life; inf keeps no budget, and counts all the same.
# A site keeps the budget of its first charge. `fedloop server budget` shows what is spent and left.
[whole_sites]
epsilon = {whole_sites_epsilon}
delta = {whole_sites_delta}

# Bounds, with their defaults; remove the # to change one.
# [limits]
# body_bytes = {body_bytes}
# reply_bytes = {reply_bytes}
# requests_per_second = {requests_per_second}
# burst = {burst}
# connections = {connections}
# connections_per_address = {connections_per_address}
# [hub_limits]
# message_bytes = {message_bytes}
# streams = {streams}
# reports_per_second = {reports_per_second}
# report_burst = {report_burst}
"""

_OWN = """
# The front shows the institution's own certificate. Renew it in these files: they are looked at every few seconds.
[certificate]
certificate = {certificate}
key = {key}
authority = {authority}
"""


def settings_text(settings: ServerSettings) -> str:
    """TOML that reads as exactly these settings, as long as limits are the defaults."""
    limits, hub = settings.limits, settings.hub_limits
    text = _TEXT.format(
        name=_quoted(settings.name),
        public_names=f"[{', '.join(map(_quoted, settings.public_names))}]",
        superlink_port=settings.superlink_port,
        health_port=settings.health_port,
        database=_quoted(settings.database),
        blobs=_quoted(settings.blobs),
        front_address=_quoted(settings.front.address),
        front_public=_quoted(settings.front.public),
        hub_address=_quoted(settings.hub.address),
        hub_public=_quoted(settings.hub.public),
        certificate_days=settings.sites.certificate_days,
        **settings.retention.model_dump(),
        whole_sites_epsilon=settings.whole_sites.epsilon,
        whole_sites_delta=settings.whole_sites.delta,
        **limits.model_dump(),
        **hub.model_dump(),
    )
    own = settings.certificate
    if own is None:
        return text
    return text + _OWN.format(
        certificate=_quoted(own.certificate), key=_quoted(own.key), authority=_quoted(own.authority)
    )


def _quoted(text: str) -> str:
    """A basic string of TOML: JSON's strings are, but for one character that names and paths have not."""
    return json.dumps(text, ensure_ascii=False)
