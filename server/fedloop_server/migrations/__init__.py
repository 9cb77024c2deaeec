"""How the coordinator's tables came to be what they are: one Alembic revision for each step, applied at opening."""
