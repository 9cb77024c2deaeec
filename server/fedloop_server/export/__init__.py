"""From trained arrays to the files that devices run: converted, quantised, checked and described in a child process."""

from fedloop_server.export.process import export_artifacts
from fedloop_server.export.request import Artifact, ExportRequest

__all__ = ["Artifact", "ExportRequest", "export_artifacts"]
