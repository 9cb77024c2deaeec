"""A ServerApp for the tests: asks every node once a round, rings the doorbell, and writes down when what happened."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fedloop_core.federation.records import TRAIN, array_record, pack, unpack
from fedloop_server.front.client import FrontClient

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the rounds."""
    config = context.run_config
    front = FrontClient(Path(str(config["front"])))
    while len(nodes := list(grid.get_node_ids())) < int(config["nodes"]):
        time.sleep(0.1)
    arrays = array_record({"w": np.arange(int(config["size"]), dtype=np.float32)})
    known = front.arrivals(0, 0.0).number
    with Path(str(config["out"])).open("a") as out:
        for number in range(int(config["rounds"])):
            started = time.time()
            content = pack(f"question {number}".encode(), arrays)
            waiting = set(grid.push_messages([Message(content, node, TRAIN) for node in nodes]))
            pushed = time.time()
            front.ring()
            answers: list[str] = []
            while waiting and time.time() < started + 60:
                arrived = front.arrivals(known, 3.0)
                known = arrived.number
                for reply in grid.pull_messages(waiting.intersection(arrived.answered) or list(waiting)):
                    waiting.discard(reply.metadata.reply_to_message_id)
                    if reply.has_error():
                        answers.append(f"error {reply.error.code}")
                    else:
                        body, back = unpack(reply.content)
                        answers.append(f"{body.decode()} {float(sum(a.sum() for a in back.values())):g}")
            line = {"round": number, "pushed": pushed, "started": started, "ended": time.time(), "answers": answers}
            print(json.dumps(line), file=out, flush=True)
