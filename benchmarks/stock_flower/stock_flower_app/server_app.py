"""The ServerApp: FedAvg as it comes; it only notes when each round was over."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

__all__ = ["app"]

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs FedAvg; writes a line with the wall time after each round into the file of the configuration."""
    file = Path(str(context.run_config["rounds-file"]))

    def note(number: int, arrays: ArrayRecord) -> MetricRecord | None:  # noqa: ARG001  as Flower calls it
        with file.open("a") as lines:
            lines.write(f"{number} {time.time()}\n")
        return None

    FedAvg(fraction_train=1.0, fraction_evaluate=1.0).start(
        grid=grid,
        initial_arrays=ArrayRecord(torch.nn.Linear(10, 2).state_dict()),
        num_rounds=int(str(context.run_config["num-server-rounds"])),
        evaluate_fn=note,
    )
