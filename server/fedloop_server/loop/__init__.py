"""What starts the next run by itself: a pure machine over verdicts, labels and ledgers, which explains each decision."""

from fedloop_server.loop.decisions import AskHuman, Decision, Refuse, StartRun, Wait
from fedloop_server.loop.events import (
    Approval,
    Clock,
    Event,
    LabelCount,
    LedgerHeadroom,
    RunEnded,
    SiteSilent,
    SiteVerdict,
)
from fedloop_server.loop.machine import step
from fedloop_server.loop.state import Explanation, LoopPolicy, LoopState

__all__ = [
    "Approval",
    "AskHuman",
    "Clock",
    "Decision",
    "Event",
    "Explanation",
    "LabelCount",
    "LedgerHeadroom",
    "LoopPolicy",
    "LoopState",
    "Refuse",
    "RunEnded",
    "SiteSilent",
    "SiteVerdict",
    "StartRun",
    "Wait",
    "step",
]
