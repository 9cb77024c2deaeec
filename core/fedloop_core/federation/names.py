"""The name of a site: ours, chosen when it is added, and outliving keys, certificates and Flower's node ids."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

__all__ = ["SITE_PATTERN", "SiteName", "is_site_name"]

SITE_PATTERN = r"^[a-z0-9][a-z0-9\-]{0,62}$"
"""A DNS label: it stands in certificates, file names and addresses."""

SiteName = Annotated[str, Field(pattern=SITE_PATTERN)]


def is_site_name(text: str) -> bool:
    """Whether a text can name a site."""
    return re.fullmatch(SITE_PATTERN[1:-1], text) is not None
