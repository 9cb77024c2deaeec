"""The simulation: the same server app, site daemon, hub and edge agent on one machine, in one command."""
