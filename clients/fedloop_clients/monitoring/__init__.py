"""Monitors that run inside a site's hub on exact sketches, and the verdict that leaves the site under a charge."""
