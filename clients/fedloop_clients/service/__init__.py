"""The daemon process of a site: ``python -m fedloop_clients.service --home S``."""
