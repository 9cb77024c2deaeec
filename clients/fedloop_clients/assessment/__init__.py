"""What a data protection officer files about a site's part in a task: gathered from the site's own records, as data and as a page."""

from __future__ import annotations

from fedloop_clients.assessment.document import Assessment
from fedloop_clients.assessment.gathering import Assessed, assess, known_run
from fedloop_clients.assessment.page import assessment_page

__all__ = ["Assessed", "Assessment", "assess", "assessment_page", "known_run"]
