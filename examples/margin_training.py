"""Margin training over many small classes: it learns from which file of Python's standard library some lines come.

    python examples/margin_training.py
    restoke launch --spec examples/digits/ddp.yaml examples/margin_training.py --classes 400 --margin cosface
    restoke launch --spec examples/digits/ddp.yaml --processes 4 examples/margin_training.py --sample-rate 0.2

As with faces there are many identities (files) with few pictures each (passages of six lines), and what is learned is a feature
whose angle to its own class's vector is small. Each rank holds the vectors of some classes and steps a sample of them.
"""

from __future__ import annotations

import argparse
import sysconfig
import zlib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from restoke import OptimizerSpec, Session
from restoke.distributed import gather_rows, group_of
from restoke.nn import ArcFace, CombinedMargin, CosFace, PartialFC, parallel_accuracy
from restoke.nn.functional import parallel_cross_entropy

LINES, KEPT, TEST = 6, 16, 4  # of a passage; passages of a file; of these, those that are held out
GRAMS = 1024  # places that three characters in a row are counted at
NOT_OURS = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
MARGINS = {"arcface": ArcFace(0.3), "cosface": CosFace(0.2), "combined": CombinedMargin(1.0, 0.2, 0.1)}


def passages(path: Path) -> list[str]:
    """The file's lines that are not empty, by sixes."""
    lines = [line for line in path.read_text(encoding="utf-8", errors="ignore").splitlines() if line.strip()]
    return ["\n".join(lines[first : first + LINES]) for first in range(0, len(lines) - LINES + 1, LINES)]


def counted(text: str) -> Tensor:
    """How often groups of three characters occur: shape (GRAMS), of length 1."""
    places = [zlib.crc32(text[i : i + 3].encode()) % GRAMS for i in range(len(text) - 2)]
    return F.normalize(torch.bincount(torch.tensor(places), minlength=GRAMS).float().sqrt(), dim=0)


def library(classes: int) -> tuple[TensorDataset, Tensor, Tensor]:
    """So many files, spread over the alphabet, that are long enough: passages to train on, and to test on with their files."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path for path in root.rglob("*.py") if not NOT_OURS & set(path.relative_to(root).parts))
    found = [each for each in map(passages, paths) if len(each) >= KEPT]
    if classes > len(found):
        raise SystemExit(f"--classes {classes}: this Python has {len(found)} files of {KEPT} passages or more")
    chosen = [found[i * len(found) // classes] for i in range(classes)]
    spread = [[each[i * len(each) // KEPT] for i in range(KEPT)] for each in chosen]
    x = torch.stack([counted(text) for each in spread for text in each]).view(classes, KEPT, GRAMS)
    y = torch.arange(classes).repeat_interleave(KEPT).view(classes, KEPT)
    held = torch.arange(KEPT) % (KEPT // TEST) == 1
    train = TensorDataset(x[:, ~held].reshape(-1, GRAMS), y[:, ~held].reshape(-1))
    return train, x[:, held].reshape(-1, GRAMS), y[:, held].reshape(-1)


class Recogniser(nn.Module):
    """A backbone, whole on every rank, and a head of which each rank holds some classes."""

    def __init__(self, classes: int, margin: str, sample_rate: float, seed: int) -> None:
        super().__init__()
        self.group = group_of()
        self.backbone = nn.Sequential(nn.Linear(GRAMS, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 64))
        self.head = PartialFC(64, classes, MARGINS[margin], scale=24.0, sample_rate=sample_rate, seed=seed)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and targets of all ranks' rows: the loss is over all of them, and alike on every rank."""
        return self.head(gather_rows(self.backbone(x), self.group), gather_rows(y, self.group))

    @torch.no_grad()
    def accuracy(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """Whether the file is the first guess, or among five; no rank sees the logits of all classes."""
        return parallel_accuracy(self.head.logits(self.backbone(x)), y, topk=(1, 5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=200, help="files")
    parser.add_argument("--margin", choices=list(MARGINS), default="arcface")
    parser.add_argument("--sample-rate", type=float, default=0.5, help="of the classes, in each step; 1: all")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="passages per process")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    session = Session(seed=args.seed)
    torch.manual_seed(args.seed)
    train, x, y = library(args.classes)
    model = Recogniser(args.classes, args.margin, args.sample_rate, args.seed)
    session.prepare(model, OptimizerSpec(torch.optim.AdamW, {"lr": 3e-3, "weight_decay": 0.01}))
    loader = session.loader(train, args.batch_size, shuffle=True)
    x, y = x.to(session.world.device), y.to(session.world.device)
    if session.world.is_main:
        print(f"{len(train)} passages of {args.classes} files on {session.world.size} ranks, {len(y)} held out; {model.head}")
    for number in range(1, args.epochs + 1):
        model.train()
        losses = []
        for batch in loader:
            logits, targets = session.forward(*batch)
            loss = parallel_cross_entropy(logits, targets)
            session.backward(loss)
            session.step()
            losses.append(loss.detach())
        first, five = model.eval().accuracy(x, y)
        if session.world.is_main:
            loss = torch.stack(losses).mean()
            print(f"epoch {number}: loss {loss:.4f}, held out: first guess {first:.2%}, among five {five:.2%}")


if __name__ == "__main__":
    main()
