"""A character GPT on the text of Python's own help topics: paragraphs of unequal length, batched by length.

    python examples/chargpt/train.py
    restoke launch --spec examples/chargpt/ddp.yaml examples/chargpt/train.py
    torchrun --nproc-per-node 4 examples/chargpt/train.py --width 256 --layers 6

Nothing here says on what it runs, in how many processes, or in which precision.
"""

from __future__ import annotations

import argparse
import math
import re
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from restoke import BucketedDistributedSampler, OptimizerSpec, Session

CONTEXT = 256
END = 0  # stands before and behind each paragraph
IGNORED = -100  # what cross_entropy leaves out: padding


def turned(x: Tensor) -> Tensor:
    """(..., length, size): each pair of numbers turned by an angle that grows with the place; products then tell distances."""
    length, half = x.shape[-2], x.shape[-1] // 2
    speeds = 100.0 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(length, device=x.device)[:, None] * speeds
    turn = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.float().unflatten(-1, (half, 2)))
    return torch.view_as_real(pairs * turn).flatten(-2).to(x)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.mix(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        mixed = F.scaled_dot_product_attention(turned(query), turned(key), value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.norms = Attention(width, heads), nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.inner(self.norms[1](x))


class GPT(nn.Module):
    """(batch, length) numbers -> (batch, length, characters) logits of the next. Padding comes last, where nothing sees it."""

    def __init__(self, characters: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        self.head = nn.Linear(width, characters, bias=False)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.head.weight = self.embed.weight

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(text)))


def paragraphs() -> tuple[list[Tensor], list[str]]:
    """Each as its characters' numbers between two ENDs, at most CONTEXT + 1 of them; and what each number means."""
    text = [part for topic in topics.values() for part in re.split(r"\n\s*\n", topic) if part]
    alphabet = ["\n\n", *sorted(set("".join(text)))]
    number = {character: i for i, character in enumerate(alphabet)}
    pieces = [part[i : i + CONTEXT - 1] for part in text for i in range(0, len(part), CONTEXT - 1)]
    return [torch.tensor([END, *map(number.__getitem__, piece), END]) for piece in pieces], alphabet


def padded(batch: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The characters, and of each the next one: (batch, longest - 1)."""
    following = pad_sequence([part[1:] for part in batch], batch_first=True, padding_value=IGNORED)
    return pad_sequence([part[:-1] for part in batch], batch_first=True), following


def nats(session: Session, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The mean loss per character, and what counts: the sum and the number of characters."""
    text, following = batch
    with session.forward_context():
        logits = session.forward(text)
        loss = F.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=IGNORED)
    characters = (following != IGNORED).sum()
    return loss, torch.stack([loss.detach().float() * characters, characters])


def bits(seen: Tensor) -> float:
    """Per character, from a sum of nats and a number of characters."""
    return (seen[0] / seen[1]).item() / math.log(2)


def train_epoch(session: Session, loader) -> float:
    """Bits per character, over all ranks, while it learned."""
    session.parts.module.train()
    seen = torch.zeros(2, device=session.world.device)
    for batch in loader:
        loss, counted = nats(session, batch)
        session.backward(loss)
        session.step()
        seen += counted
    if session.world.size > 1:
        dist.all_reduce(seen)
    return bits(seen)


@torch.no_grad()
def evaluate(session: Session, parts: list[Tensor]) -> float:
    """Bits per character. The text is small: every rank reads all of it."""
    session.parts.module.eval()
    device = session.world.device
    batches = [padded(parts[i : i + 64]) for i in range(0, len(parts), 64)]
    return bits(sum(nats(session, (text.to(device), following.to(device)))[1] for text, following in batches))


@torch.no_grad()
def sample(session: Session, alphabet: list[str], length: int) -> str:
    """A text of the model's own."""
    model = session.parts.module.eval()
    text = torch.full((1, 1), END, device=session.world.device)
    for _ in range(length):
        odds = model(text[:, -CONTEXT:])[0, -1].softmax(dim=0)
        text = torch.cat([text, torch.multinomial(odds, 1).view(1, 1)], dim=1)
    return "".join(alphabet[i] for i in text[0, 1:].tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paragraphs", type=int, help="train on so many; by default on all")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16, help="paragraphs per process and micro-batch")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    session = Session(seed=args.seed)
    parts, alphabet = paragraphs()
    order = torch.randperm(len(parts), generator=torch.Generator().manual_seed(0)).tolist()
    held_out, train = [parts[i] for i in order[:200]], [parts[i] for i in order[200:]][: args.paragraphs]
    model = GPT(len(alphabet), args.width, args.heads, args.layers)
    session.prepare(model, OptimizerSpec(torch.optim.AdamW, {"lr": args.lr, "betas": (0.9, 0.95)}))

    lengths = [len(part) for part in train]
    sampler = BucketedDistributedSampler(train, 8, args.batch_size, lengths=lengths, allow_bucket_overlap=True, seed=args.seed)
    loader = session.loader(train, args.batch_size, sampler=sampler, collate_fn=padded)
    speak = print if session.world.is_main else lambda *_: None
    speak(sampler.padding(lengths))
    for number in range(1, args.epochs + 1):
        learned, held = train_epoch(session, loader), evaluate(session, held_out)
        speak(f"epoch {number}: {learned:.3f} bits per character, {held:.3f} on text held out")
    speak(sample(session, alphabet, 400))  # every rank writes: where parameters are sharded, a forward needs them all


if __name__ == "__main__":
    main()
