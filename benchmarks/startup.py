"""What restoke adds to the start of a process: CPU time of imports, of building a session, and of the command line's help.

    python benchmarks/startup.py --json startup.json

Each row is a fresh process, `--runs` times, the rows by turns; seconds of CPU, user and system. An optimizer and DDP import
much of torch by themselves. So a process that builds a session first builds the same in bare PyTorch, and restoke's part is the
CPU time from there on, imports and all, beside the time of `import torch`: the difference of two processes would be noise.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from attrs import frozen
from paired import machine
from rich.console import Console
from rich.progress import track
from rich.table import Table

TORCH = "import torch"
MODEL = "import torch; model = torch.nn.Linear(8, 2)"
SGD = "torch.optim.SGD, {'lr': 0.1}"
DDP = "; torch.distributed.init_process_group('gloo'); model = torch.nn.parallel.DistributedDataParallel(model)"
STOKE = "StokeOptimizer(optimizer=torch.optim.SGD, optimizer_kwargs={'lr': 0.1}), torch.nn.functional.mse_loss"
SHARE = 0.05  # of `import torch`, which is what restoke may add


@frozen
class Probe:
    """A process to time: Python code, or arguments of the `restoke` command. The code may come `after` another, and then its
    own part has a bound, in parts of `import torch`; a command has one in seconds."""

    code: str = ""
    after: str = ""
    arguments: tuple[str, ...] = ()
    seconds: float | None = None

    @property
    def words(self) -> list[str]:
        if self.arguments:
            return [str(Path(sys.executable).with_name("restoke")), *self.arguments]
        part = f"import time; begun = time.process_time(); {self.code}; print(time.process_time() - begun)"
        return [sys.executable, "-c", f"{self.after}; {part}" if self.after else self.code]


def _session(strategy: str) -> str:
    made = f"session = Session(strategy='{strategy}', device='cpu')"
    return f"from restoke import OptimizerSpec, Session; {made}; session.prepare(torch.nn.Linear(8, 2), OptimizerSpec({SGD}))"


def _stoke(strategy: str) -> str:
    made = f"Stoke(torch.nn.Linear(8, 2), {STOKE}, batch_size_per_device=1, strategy='{strategy}', verbose=False)"
    return f"from restoke import Stoke, StokeOptimizer; {made}"


BARE = f"{MODEL}; torch.optim.SGD(model.parameters(), lr=0.1)"
BARE_DDP = f"{MODEL}{DDP}; torch.optim.SGD(model.parameters(), lr=0.1)"
PROBES = {
    "python": Probe("pass"),
    TORCH: Probe(TORCH),
    "bare: a model and SGD": Probe(BARE),
    "bare: DDP of one process, and SGD": Probe(BARE_DDP),
    "from restoke import Stoke": Probe("from restoke import Stoke", after=TORCH),
    "Session, single": Probe(_session("single"), after=BARE),
    "Stoke, single": Probe(_stoke("single"), after=BARE),
    "Session, ddp": Probe(_session("ddp"), after=BARE_DDP),
    "Stoke, ddp": Probe(_stoke("ddp"), after=BARE_DDP),
    "restoke --help": Probe(arguments=("--help",), seconds=0.25),
    "restoke launch --help": Probe(arguments=("launch", "--help"), seconds=0.5),
}


def cpu_seconds(words: list[str]) -> tuple[float, str]:
    """User and system time of one run of a command, and what it printed. Raises CalledProcessError where it fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complained:
        process = subprocess.Popen(words, env=os.environ | alone, stdout=said, stderr=complained)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        complained.seek(0)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, words, stderr=complained.read())
        return used.ru_utime + used.ru_stime, said.read()


def judged(times: dict[str, list[float]], parts: dict[str, list[float]]) -> list[dict[str, Any]]:
    """A row for each probe, from the seconds of whole processes and of restoke's part in them. Bounds are on the least of them:
    what disturbs a run only makes it longer."""
    torch_alone, rows = min(times[TORCH]), []
    for name, probe in PROBES.items():
        row = {"name": name, "min": min(times[name]), "median": statistics.median(times[name])}
        if probe.after:
            least, median = min(parts[name]), statistics.median(parts[name])
            row |= {"part_min": least, "part_median": median, "share": least / torch_alone}
            row |= {"bound": f"{SHARE:.0%} of {TORCH}", "met": row["share"] <= SHARE}
        if probe.seconds is not None:
            row |= {"bound": f"{probe.seconds} s", "met": row["min"] <= probe.seconds}
        rows.append(row)
    return rows


def show(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table("", "min s", "median s", "restoke's part", f"of {TORCH}", "bound")
    for row in rows:
        part = ["", ""]
        if "part_min" in row:
            part = [f"{row['part_min'] * 1e3:.0f} ms, median {row['part_median'] * 1e3:.0f}", f"{row['share']:.1%}"]
        verdict = f"{row['bound']}: {'met' if row['met'] else 'MISSED'}" if "bound" in row else ""
        table.add_row(row["name"], f"{row['min']:.3f}", f"{row['median']:.3f}", *part, verdict)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    console = Console()
    console.print(" · ".join(f"{key} {value}" for key, value in machine().items()))
    times: dict[str, list[float]] = {name: [] for name in PROBES}
    parts: dict[str, list[float]] = {name: [] for name, probe in PROBES.items() if probe.after}
    for _ in track(range(args.runs), "Runs", console=Console(stderr=True), transient=True):
        for name, probe in PROBES.items():
            seconds, printed = cpu_seconds(probe.words)
            times[name].append(seconds)
            if probe.after:
                parts[name].append(float(printed))
    rows = judged(times, parts)
    show(console, rows)
    if args.json is not None:
        args.json.write_text(
            json.dumps({"machine": machine(), "rows": rows, "times": times, "parts": parts}, indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
