"""How an institution becomes a site and stays one: keys made here, a certificate from there, nothing half done."""

from fedloop_clients.joining.keys import OwnCertificate
from fedloop_clients.joining.procedure import Joined, join
from fedloop_clients.joining.renewal import Renewal, renew

__all__ = ["Joined", "OwnCertificate", "Renewal", "join", "renew"]
