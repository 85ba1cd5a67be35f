"""What restoke adds to the start of a process: CPU time of imports, of building a session, and of the command line's help.

    python benchmarks/startup.py --json startup.json

Each row is a fresh process, `--runs` times, the rows by turns; seconds of CPU, user and system. An optimizer and DDP import
much of torch by themselves, so a session is compared with bare PyTorch that builds the same, in per cent of `import torch`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
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
    """A process to time: Python code, or arguments of the `restoke` command. What it adds `over` another row has a bound, in
    parts of `import torch`; a command has one in seconds."""

    code: str = ""
    arguments: tuple[str, ...] = ()
    over: str = ""
    share: float | None = None
    seconds: float | None = None

    @property
    def words(self) -> list[str]:
        if self.arguments:
            return [str(Path(sys.executable).with_name("restoke")), *self.arguments]
        return [sys.executable, "-c", self.code]


def _session(strategy: str) -> str:
    made = f"session = Session(strategy='{strategy}', device='cpu')"
    return f"{MODEL}; from restoke import *; {made}; session.prepare(model, OptimizerSpec({SGD}))"


def _stoke(strategy: str) -> str:
    made = f"Stoke(model, {STOKE}, batch_size_per_device=1, strategy='{strategy}', verbose=False)"
    return f"{MODEL}; from restoke import Stoke, StokeOptimizer; {made}"


BARE, BARE_DDP = "bare PyTorch: a model and SGD", "bare PyTorch: DDP of one process, and SGD"
PROBES = {
    "python": Probe("pass"),
    TORCH: Probe(TORCH),
    "from restoke import Stoke": Probe(f"{TORCH}; from restoke import Stoke", over=TORCH, share=SHARE),
    BARE: Probe(f"{MODEL}; torch.optim.SGD(model.parameters(), lr=0.1)", over=TORCH),
    "Session, single": Probe(_session("single"), over=BARE, share=SHARE),
    "Stoke, single": Probe(_stoke("single"), over=BARE, share=SHARE),
    BARE_DDP: Probe(f"{MODEL}{DDP}; torch.optim.SGD(model.parameters(), lr=0.1)", over=TORCH),
    "Session, ddp of one process": Probe(_session("ddp"), over=BARE_DDP, share=SHARE),
    "Stoke, ddp of one process": Probe(_stoke("ddp"), over=BARE_DDP, share=SHARE),
    "restoke --help": Probe(arguments=("--help",), seconds=0.25),
    "restoke launch --help": Probe(arguments=("launch", "--help"), seconds=0.5),
}


def cpu_seconds(words: list[str]) -> float:
    """User and system time of one run of a command. Raises CalledProcessError where it fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with subprocess.Popen(words, env=os.environ | alone, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = process.stderr.read().decode()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words, stderr=said)
    return used.ru_utime + used.ru_stime


def judged(times: dict[str, list[float]]) -> list[dict[str, Any]]:
    """A row for each probe. What one adds is the difference of the least times: what disturbs a run only makes it longer."""
    least = {name: min(runs) for name, runs in times.items()}
    rows = []
    for name, probe in PROBES.items():
        row = {"name": name, "min": least[name], "median": statistics.median(times[name]), "over": probe.over}
        if probe.over:
            row |= {"adds": least[name] - least[probe.over], "share": (least[name] - least[probe.over]) / least[TORCH]}
        if probe.share is not None:
            row |= {"bound": f"{probe.share:.0%} of {TORCH}", "met": row["share"] <= probe.share}
        if probe.seconds is not None:
            row |= {"bound": f"{probe.seconds} s", "met": least[name] <= probe.seconds}
        rows.append(row)
    return rows


def show(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table("", "min s", "median s", "adds", f"of {TORCH}", "over", "bound")
    for row in rows:
        adds = [f"{row['adds'] * 1e3:.0f} ms", f"{row['share']:.1%}", row["over"]] if row["over"] else ["", "", ""]
        verdict = f"{row['bound']}: {'met' if row['met'] else 'MISSED'}" if "bound" in row else ""
        table.add_row(row["name"], f"{row['min']:.3f}", f"{row['median']:.3f}", *adds, verdict)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    console = Console()
    console.print(" · ".join(f"{key} {value}" for key, value in machine().items()))
    times: dict[str, list[float]] = {name: [] for name in PROBES}
    for _ in track(range(args.runs), "Runs", console=Console(stderr=True), transient=True):
        for name, probe in PROBES.items():
            times[name].append(cpu_seconds(probe.words))
    rows = judged(times)
    show(console, rows)
    if args.json is not None:
        args.json.write_text(
            json.dumps({"machine": machine(), "rows": rows, "times": times}, indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
