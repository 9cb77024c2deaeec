"""Signed releases: TUF metadata over a blob store, and the assignments that tell a group of devices what to run."""

from fedloop_server.release.artifact import PublishedArtifact
from fedloop_server.release.metadata import Lifetimes
from fedloop_server.release.repository import ReleaseRepository
from fedloop_server.release.served import ServedRelease

__all__ = ["Lifetimes", "PublishedArtifact", "ReleaseRepository", "ServedRelease"]
