"""What may keep a site from working, looked at one by one, each with one sentence and what to do."""

from fedloop_clients.doctor.checks import CHECKS
from fedloop_clients.doctor.examine import examine
from fedloop_clients.doctor.finding import Check, Finding, Level
from fedloop_clients.doctor.scene import Scene

__all__ = ["CHECKS", "Check", "Finding", "Level", "Scene", "examine"]
