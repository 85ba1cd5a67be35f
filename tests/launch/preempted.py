"""A script that is asked to stop: `preempted.py FOLDER CASE`; its last act is to write what it has trained."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from restoke.stopping import resuming
from tests.stopping.on_ranks import BATCH, data, prepared, train, values

folder, case = Path(sys.argv[1]), sys.argv[2]
rank = int(os.environ["RANK"])
session = prepared()
loader = session.loader(data(), BATCH, shuffle=True)
session.resume(folder / "checkpoints")


def each(number: int) -> None:
    """Of this run's micro-batches, four a step."""
    if case == "rank 1 is asked" and rank == 1 and number == 6:
        os.kill(os.getpid(), signal.SIGTERM)
    if case == "the launcher is asked" and number == 6:
        (folder / f"trains-{rank}").touch()
        while resuming._ACTIVE[0]._gate.at != -1:
            time.sleep(0.01)


train(session, loader, each)
module = session.parts.module
told = {"steps": session.steps, "weights": values(module.parameters()), "buffers": values(module.buffers())}
(folder / f"trained-{rank}.json").write_text(json.dumps(told))
