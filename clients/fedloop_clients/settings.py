"""site.toml: what a site's people decide about it. Read strictly; nothing that comes over the network can change it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from fedloop_clients.data.settings import DataSettings
from fedloop_clients.policy import Budget, SiteConfig, SitePolicy
from fedloop_core.federation.names import SiteName
from fedloop_core.processes.logs import LOG_DAYS
from fedloop_core.settings_file import parse_settings, read_settings
from fedloop_core.strict import Strict

__all__ = [
    "BudgetSettings",
    "ComputeSettings",
    "RetentionSettings",
    "SiteSettings",
    "load_settings",
    "parse_site_settings",
    "starter_text",
]

_MOST_DAYS = 3650
_DEVICE = re.compile(r"cuda:\d{1,3}")


def _known_devices(value: object) -> object:
    listed = isinstance(value, list | tuple) and all(isinstance(v, str) and _DEVICE.fullmatch(v) for v in value)
    if value in ("auto", "cpu") or (listed and value):
        return tuple(value) if isinstance(value, list) else value
    raise ValueError('must be "auto", "cpu" or an array such as ["cuda:0", "cuda:1"]')


def _http_proxy(text: str) -> str:
    if not text:
        return text
    try:
        parts = urlsplit(text)
        sound = parts.scheme == "http" and parts.hostname and parts.port and parts.path in {"", "/"}
    except ValueError:
        sound = False
    if not sound:
        raise ValueError('must be "" or written as http://host:port or http://user:password@host:port')
    return text.rstrip("/")


class BudgetSettings(Strict):
    """Budgets for life of the blocks of training rows and of evaluation rows."""

    training: Budget
    evaluation: Budget


class ComputeSettings(Strict):
    """``devices``: "auto" takes all GPUs or else the CPU. ``memory_share``: of a GPU's free memory that may be used."""

    devices: Annotated[Literal["auto", "cpu"] | tuple[str, ...], BeforeValidator(_known_devices)] = "auto"
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.8


class RetentionSettings(Strict):
    """How long the site keeps what it need not keep for ever, in days.

    ``outbox_days``: answers, with the updates in them; a question that is asked again later is refused. ``feedback_days``: labelled
    examples from devices, where that is less than the task says. ``log_days``: a line of a process's log.
    """

    outbox_days: Annotated[int, Field(ge=1, le=_MOST_DAYS)] = 30
    feedback_days: Annotated[int, Field(ge=1, le=_MOST_DAYS)] | None = None
    log_days: Annotated[int, Field(ge=2, le=_MOST_DAYS)] = LOG_DAYS


class SiteSettings(Strict):
    """The whole file. ``proxy`` works for Flower and for the hub; ``health_port`` is on loopback, 0 for none."""

    format: Literal[1]
    site: SiteName
    proxy: Annotated[str, AfterValidator(_http_proxy)] = ""
    health_port: Annotated[int, Field(ge=0, le=65535)] = 0
    data: DataSettings
    budget: BudgetSettings
    policy: SitePolicy = SitePolicy()
    compute: ComputeSettings = ComputeSettings()
    retention: RetentionSettings = RetentionSettings()

    def rules(self) -> SitePolicy:
        """The policy, with the unit that follows from the column of people where the policy names none."""
        column = self.data.person_column
        if column is None or self.policy.unit_column is not None:
            return self.policy
        named = (name for name, mapped in self.data.map.items() if mapped.column == column)
        return self.policy.model_copy(update={"unit_column": next(named, column)})

    def config(self) -> SiteConfig:
        """What the daemon enforces."""
        return SiteConfig(
            site=self.site,
            policy=self.rules(),
            training_budget=self.budget.training,
            evaluation_budget=self.budget.evaluation,
        )


def load_settings(path: Path) -> SiteSettings:
    """Reads a site.toml.

    Raises:
        NotSetUp: there is none.
        SettingsInvalid: it cannot be read, or has mistakes; each is named with file, line and key.
    """
    return read_settings(path, SiteSettings, missing="`fedloop site join TOKEN` writes it.")


def parse_site_settings(text: str, source: str = "site.toml") -> SiteSettings:
    """Checks the text of a site.toml.

    Raises:
        SettingsInvalid: as ``load_settings``.
    """
    return parse_settings(text, SiteSettings, source=source)


def starter_text(site: str, proxy: str) -> str:
    """A commented site.toml to begin with; right as it stands, but for the data file."""
    return _STARTER.replace("SITE", json.dumps(site)).replace("PROXY", json.dumps(proxy))


_STARTER = """\
# What this site decides about itself. After a change: `fedloop site doctor`; processes that run read it when they start.
format = 1
site = SITE
proxy = PROXY      # "http://host:port" when the way out leads through a proxy; for all that the site says
health_port = 0    # a port on 127.0.0.1 that answers GET /healthz; 0: none

[data]
file = "data.csv"  # CSV, .parquet, .arrow or .npz; a relative path begins at this file's folder
# person_column = "patient" # names the person in each row: for `fedloop site erase`, and for policy.unit_column
# columns = ["age", "sex", "outcome"]            # names of the columns, when the file has no header
# missing = ["", "?", "NA"]                      # cells that mean a missing value; only an empty cell unless said
# decimal = ","                                  # the mark in numbers
# csv = { delimiter = ";", encoding = "cp1252" } # told from the file where it is not said
# map.weight = { column = "Gewicht", unit = "lb" }              # another name, another unit than the task's
# map.outcome = { recode = { "0" = "healthy", "1" = "diseased" } } # the task's word for each of the site's
evaluation_share = 0.2 # of the patients or customers (or rows): evaluated on, never trained on

# What may be told about these rows, for their whole life and by all runs together. Rows that have a budget keep it.
[budget]
training = { epsilon = 10.0, delta = 1e-6 }
evaluation = { epsilon = 10.0, delta = 1e-6 }

# What may happen here, whatever the coordinator sends.
[policy]
# tasks = ["heart"]      # the only tasks that may run here; "heart@DIGEST" for one document alone
# purposes = ["diagnosis-support"] # the only purposes that a task may name here
# model_modules = ["our_models"] # installed Python modules that may make a task's model; none else is imported
# maximum_epsilon = 5.0  # the most that one run may ask for
# require_private = true
# unit_column = "patient" # a private task must protect all rows of one together; "" allows single rows too
# require_secure_aggregation = true # updates leave this site masked only: see `fedloop site consortium`
# minimum_sites = 5      # fewest sites behind a secure sum; else more than two thirds of the consortium
# approval = "each-run"  # or "each-task": a person decides with `fedloop site approve`
# hours = { time_zone = "Europe/Berlin", windows = [{ days = ["mon", "tue"], start = "19:00", end = "06:00" }] }
paused = false

[compute]
devices = "auto"   # "auto", "cpu", or the GPUs to train on, such as ["cuda:0", "cuda:1"]
memory_share = 0.8 # of a GPU's free memory

# How long what is not kept for ever is kept, in days: `fedloop site retention` shows what is held and when it goes.
[retention]
outbox_days = 30 # answers, with the updates in them; after that, a repeated question is refused
log_days = 90
"""
