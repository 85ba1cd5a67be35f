"""A GAN is two sessions: two models, two optimizers, one world. It learns eight clusters of points on a ring.

python examples/gan.py
restoke launch --spec examples/digits/ddp.yaml examples/gan.py
"""

from __future__ import annotations

import argparse
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from restoke import OptimizerSpec, Session

SPREAD = 0.05  # of a cluster; the ring's radius is 1
NOISE = 8


class Blur(nn.Module):
    """What the discriminator sees: no point lies so well that nothing else would do, and the generator keeps all clusters."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn_like(x)


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.LeakyReLU(), nn.Linear(64, 64), nn.LeakyReLU(), nn.Linear(64, outputs))


def adam(lr: float) -> OptimizerSpec:
    return OptimizerSpec(torch.optim.Adam, {"lr": lr, "betas": (0.5, 0.9)})


def clusters(device: torch.device) -> Tensor:
    """The eight centres: (8, 2)."""
    angles = torch.arange(8, device=device) * (math.pi / 4)
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def points(count: int, device: torch.device) -> Tensor:
    """Each rank draws its own: dropout, augmentation and whatever else is random differ by rank."""
    return clusters(device)[torch.randint(8, (count,), device=device)] + SPREAD * torch.randn(count, 2, device=device)


def judge(session: Session, scores: Tensor, real: bool) -> Tensor:
    with session.forward_context():
        return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(real)))


def discriminate(discriminator: Session, generator: Session, real: Tensor) -> Tensor:
    """One micro-batch of the discriminator: real and made points in one forward, as DDP wants it."""
    with torch.no_grad():
        made = generator.parts.module(torch.randn(len(real), NOISE, device=real.device))
    scores = discriminator.forward(torch.cat([real, made]))
    loss = (judge(discriminator, scores[: len(real)], True) + judge(discriminator, scores[len(real) :], False)) / 2
    discriminator.backward(loss)
    discriminator.step()
    return loss.detach()


def generate(generator: Session, discriminator: Session, count: int) -> Tensor:
    """One micro-batch of the generator. Its gradients pass through the discriminator's own module, which is frozen meanwhile:
    nothing is reduced for it, and what it has accumulated stays."""
    critic = discriminator.parts.module.requires_grad_(False)
    made = generator.forward(torch.randn(count, NOISE, device=generator.world.device))
    with generator.forward_context():
        scores = critic(made)
    loss = judge(generator, scores, True)
    generator.backward(loss)
    generator.step()
    critic.requires_grad_(True)
    return loss.detach()


@torch.no_grad()
def quality(generator: Session, count: int = 1000) -> tuple[float, int]:
    """Of the points made on all ranks: the share within four spreads of a cluster, and how many clusters get their part."""
    device = generator.world.device
    made = generator.parts.module(torch.randn(count, NOISE, device=device)).float()
    far, nearest = torch.cdist(made, clusters(device)).min(dim=1)
    near = torch.bincount(nearest[far < 4 * SPREAD], minlength=8).float()
    if generator.world.size > 1:
        dist.all_reduce(near)
    total = count * generator.world.size
    return near.sum().item() / total, int((near > total / 80).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="micro-batches of each of the two")
    parser.add_argument("--batch-size", type=int, default=128, help="points per process and micro-batch")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    generator, discriminator = Session(seed=args.seed), Session(seed=args.seed)
    generator.prepare(mlp(NOISE, 2), adam(1e-3))
    discriminator.prepare(mlp(2, 1).insert(0, Blur()), adam(3e-3))
    for step in range(1, args.steps + 1):
        real = points(args.batch_size, discriminator.world.device)
        losses = discriminate(discriminator, generator, real), generate(generator, discriminator, args.batch_size)
        if step % (args.steps // 5) == 0:
            near, held = quality(generator)
            if generator.world.is_main:
                told = "discriminator {:.3f}, generator {:.3f}".format(*(loss.item() for loss in losses))
                print(f"step {step}: {told}; {near:.0%} of the points near a cluster, {held} of 8 clusters")


if __name__ == "__main__":
    main()
