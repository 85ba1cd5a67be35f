"""An ImageNet-shaped script with as many classes as you like: a ResNet on every rank, and a head that the ranks share.

    python examples/imagenet_classes.py
    restoke launch --processes 2 examples/imagenet_classes.py --classes 10000 --head sharded

Images are made up: each class has a code, and an image is its code's mixture of a few smooth patterns, in noise.
"""

from __future__ import annotations

import argparse
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from restoke import OptimizerSpec, Session
from restoke.distributed import Group, gather_rows, group_of
from restoke.nn import ParallelCrossEntropyLoss, convert_parallel_linear, parallel_accuracy

PATTERNS = 24
FOLDER = ".restoke/imagenet_classes"


class MadeUp(Dataset):
    """`samples` images, 3 x size x size; image i is of class i modulo `classes`."""

    def __init__(self, classes: int, samples: int, size: int, noise: int) -> None:
        draw = torch.Generator().manual_seed(0)
        patterns = torch.randn(PATTERNS, 3, 4, 4, generator=draw)
        self.patterns = F.interpolate(patterns, size, mode="bilinear").flatten(1) / math.sqrt(PATTERNS)
        self.codes = torch.randn(classes, PATTERNS, generator=draw)
        self.samples, self.size, self.noise = samples, size, noise

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        label = number % len(self.codes)
        image = (self.codes[label] @ self.patterns).view(3, self.size, self.size)
        draw = torch.Generator().manual_seed(self.noise + number)
        return image + 0.3 * torch.randn(image.shape, generator=draw), label


class Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, 2, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(8, outputs) for _ in range(2))
        self.around = nn.Conv2d(inputs, outputs, 1, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(inner)) + self.around(x))


class ResNet(nn.Module):
    """This rank's images -> logits of every image of the group, of the classes that this rank holds."""

    def __init__(self, classes: int, width: int, group: Group) -> None:
        super().__init__()
        stem = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.GroupNorm(8, width), nn.ReLU()
        blocks = Block(width, 2 * width), Block(2 * width, 4 * width)
        self.backbone = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(16 * width, classes)
        self.group = group

    def forward(self, images: Tensor) -> Tensor:
        return self.head(gather_rows(self.backbone(images), self.group))


class Counted:
    """The mean loss, and the share of right answers among the first and the first five, over all ranks."""

    def __init__(self, session: Session, topk: tuple[int, ...]) -> None:
        self.world, self.topk = session.world, topk
        self.sums = torch.zeros(len(topk) + 2, device=session.world.device)

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        shares = parallel_accuracy(logits.detach(), labels, self.topk)
        self.sums += len(labels) * torch.stack([torch.ones_like(loss), loss.detach(), *(share.to(loss) for share in shares)])

    def __str__(self) -> str:
        if self.world.size > 1:
            dist.all_reduce(self.sums)
        loss, *shares = (self.sums[1:] / self.sums[0]).tolist()
        right = ", ".join(f"top-{k} {share:.1%}" for k, share in zip(self.topk, shares, strict=True))
        return f"loss {loss:.4f}, {right}"


def run(session: Session, group: Group, loader, topk: tuple[int, ...], train: bool) -> Counted:
    """One epoch. Where the head is shared, every rank has the loss of all rows; else that of its own."""
    session.parts.module.train(train)
    criterion, counted = ParallelCrossEntropyLoss(), Counted(session, topk)
    with torch.set_grad_enabled(train):
        for images, own in loader:
            labels = gather_rows(own, group)
            with session.forward_context():
                logits = session.forward(images)
                loss = criterion(logits, labels)
            if train:
                session.backward(loss)
                session.step()
            counted.add(loss, logits, labels)
    return counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--head", choices=("sharded", "whole"), default="sharded", help="shared by the ranks, or on each")
    parser.add_argument("--dim", type=int, choices=(0, 1), default=1, help="1: each rank has some classes; 0: some features")
    parser.add_argument("--samples", type=int, default=1280)
    parser.add_argument("--size", type=int, default=16, help="of an image's sides")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="images of all processes together")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint, of any number of processes")
    args = parser.parse_args()

    session = Session(seed=args.seed)
    group = group_of(None if args.head == "sharded" else 1)
    model = ResNet(args.classes, args.width, group)
    convert_parallel_linear(model, args.dim, names="head", group=group)
    session.prepare(model, OptimizerSpec(torch.optim.SGD, {"lr": args.lr, "momentum": 0.9}))
    held = sum(param.numel() for param in model.head.parameters())

    each = max(1, args.batch_size // session.world.data_size)
    train = session.loader(MadeUp(args.classes, args.samples, args.size, 0), each, shuffle=True)
    test = session.loader(MadeUp(args.classes, args.samples // 4, args.size, 1 << 40), each)
    speak = print if session.world.is_main else lambda *_: None
    if args.resume:
        session.load(FOLDER)
    speak(f"head: {held} of {args.classes * (16 * args.width + 1)} weights on this rank")
    topk = (1, min(5, args.classes))
    for epoch in range(train.epoch + 1, args.epochs + 1):
        speak(f"epoch {epoch}: {run(session, group, train, topk, train=True)}")
    speak(f"test: {run(session, group, test, topk, train=False)}")
    speak(f"saved {session.save(FOLDER)} in {FOLDER}: the whole head, for any number of ranks")


if __name__ == "__main__":
    main()
