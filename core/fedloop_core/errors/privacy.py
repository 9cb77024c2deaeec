"""Parameters and budgets of privacy."""

from __future__ import annotations

from fedloop_core.errors.root import FedloopError

__all__ = [
    "BudgetExhausted",
    "BudgetFixed",
    "DataClaimed",
    "LedgerRolledBack",
    "PrivacyError",
    "PrivacyParameterInvalid",
    "SecureAggregationRefused",
]


class PrivacyError(FedloopError):
    """Parameters or budgets of privacy."""

    code = "FL-PRIV-000"
    exit_status = 5


class PrivacyParameterInvalid(PrivacyError):
    """A parameter that gives no guarantee: epsilon not above 0, delta not below 1/n, noise without clipping."""

    code = "FL-PRIV-001"
    wire_fields = frozenset({"parameter"})


class BudgetExhausted(PrivacyError):
    """A charge is refused: the budget for life of a block of rows at a site, or of a whole site at the coordinator, would be exceeded."""

    code = "FL-PRIV-002"


class LedgerRolledBack(PrivacyError):
    """A site's ledger is behind the head that it showed before: a snapshot was restored, or a second copy is in use."""

    code = "FL-PRIV-003"


class BudgetFixed(PrivacyError):
    """Settings name another budget than at the first charge to a block of rows, or to a whole site: a budget is for life."""

    code = "FL-PRIV-004"


class DataClaimed(PrivacyError):
    """A site's rows are charged to another ledger, of a second installation on the same file: both together would spend twice."""

    code = "FL-PRIV-005"


class SecureAggregationRefused(PrivacyError):
    """A message of secure aggregation that does not fit, or that a site's floors forbid; ``reason`` says which, ``peer`` whose it is."""

    code = "FL-PRIV-010"
    wire_fields = frozenset({"reason", "peer"})
