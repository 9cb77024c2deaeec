"""The site: its data, its ledger, its training, and the daemon that answers the coordinator's signed questions."""
