"""An image classifier with Stoke's verbs: scikit-learn's digits, or CIFAR-10 where torchvision and the data are there.

    python examples/digits/train.py
    restoke launch --spec examples/digits/ddp.yaml examples/digits/train.py
    torchrun --nproc-per-node 4 examples/digits/train.py --data cifar10 --root data

Nothing here says on what it runs, in how many processes, or in which precision.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from restoke import Stoke, StokeOptimizer


class Block(nn.Module):
    """Two convolutions, and a way around them. Group norm: its statistics do not depend on how a batch is spread over ranks."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(4, outputs) for _ in range(2))
        self.around = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(inner)) + self.around(x))


def small_resnet() -> nn.Module:
    """For gray images of 8 x 8."""
    stem = nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU()
    return nn.Sequential(*stem, Block(16, 32, 2), nn.Flatten(), nn.Linear(32 * 4 * 4, 10))


class Images(Dataset):
    """Each sample is an image, its label and its own number, by which a test set is counted."""

    def __init__(self, images: Tensor, labels: Tensor, augment: bool = False) -> None:
        self.images, self.labels, self.augment = images, labels, augment

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor, int]:
        image = self.images[number]
        return (shifted(image) if self.augment else image), self.labels[number], number


def shifted(image: Tensor) -> Tensor:
    """Moved by up to an eighth of its side, and mirrored where it has colours: a mirrored digit is none."""
    room = image.shape[-1] // 8
    top, left = torch.randint(2 * room + 1, (2,)).tolist()
    padded = F.pad(image, (room,) * 4)
    moved = padded[..., top : top + image.shape[-2], left : left + image.shape[-1]]
    return moved.flip(-1) if len(image) == 3 and torch.rand(()) < 0.5 else moved


def digits() -> tuple[Images, Images, nn.Module]:
    from sklearn.datasets import load_digits

    found = load_digits()
    images, labels = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(found.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[360:], order[:360]
    return Images(images[train], labels[train]), Images(images[test], labels[test]), small_resnet()


def cifar10(root: str) -> tuple[Images, Images, nn.Module]:
    """torchvision's data set, which must lie in `root`, and its ResNet-152."""
    try:
        from torchvision.datasets import CIFAR10
        from torchvision.models import resnet152

        sets = [CIFAR10(root, train=train) for train in (True, False)]
    except (ImportError, RuntimeError) as error:
        raise SystemExit(f"--data cifar10: {error}. Install torchvision, and give the folder of the data by --root") from error
    middle, spread = torch.tensor([0.491, 0.482, 0.447]).view(3, 1, 1), torch.tensor([0.247, 0.243, 0.262]).view(3, 1, 1)
    images = [(torch.tensor(each.data).permute(0, 3, 1, 2) / 255 - middle) / spread for each in sets]
    train, test = (Images(x, torch.tensor(each.targets)) for x, each in zip(images, sets, strict=True))
    train.augment = True
    return train, test, resnet152(num_classes=10)


def train_epoch(stoke: Stoke, loader, number: int) -> None:
    stoke.model_access.train()
    for images, labels, _ in loader:
        loss = stoke.loss(stoke.model(images), labels)
        stoke.backward(loss)
        stoke.step()
    stoke.print_ema_loss(f"epoch {number}: training loss")
    stoke.reset_ema()


def accuracy(stoke: Stoke, loader, samples: int) -> float:
    """Over all ranks. Ranks get as many batches each, so that some samples come twice: each is counted at its own number."""
    right = torch.zeros(samples, device=stoke.device)
    with stoke.evaluate():
        for images, labels, numbers in loader:
            right[numbers] = (stoke.model(images).argmax(dim=1) == labels).float()
    if stoke.world_size > 1:
        dist.all_reduce(right, op=dist.ReduceOp.MAX)
    return right.mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("digits", "cifar10"), default="digits")
    parser.add_argument("--root", default="data", help="where CIFAR-10 lies")
    parser.add_argument("--samples", type=int, help="train on so many; by default on all")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16, help="samples per process and micro-batch")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoints", default=".restoke/digits", help="folder")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint there")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train, test, model = cifar10(args.root) if args.data == "cifar10" else digits()
    adamw = StokeOptimizer(optimizer=torch.optim.AdamW, optimizer_kwargs={"lr": args.lr})
    stoke = Stoke(model, adamw, nn.CrossEntropyLoss(), args.batch_size, device="auto", seed=args.seed)
    few = train if args.samples is None else Subset(train, range(args.samples))
    train_loader, test_loader = stoke.DataLoader(few, shuffle=True), stoke.DataLoader(test)

    done = stoke.load(args.checkpoints)["epoch"] if args.resume else 0
    for number in range(done + 1, args.epochs + 1):
        train_epoch(stoke, train_loader, number)
        stoke.print(f"epoch {number}: test accuracy {accuracy(stoke, test_loader, len(test)):.2%}")
    path, tag = stoke.save(args.checkpoints, name=args.data, extras={"epoch": max(done, args.epochs)})
    stoke.print(f"saved {tag} in {path}")


if __name__ == "__main__":
    main()
