"""A small GPT over words, whose table of words the ranks share: tied as embedding and head, on Python's own help topics.

    python examples/sharded_gpt.py
    restoke launch --processes 2 examples/sharded_gpt.py --head sharded

Each rank has texts of its own, and all layers between embedding and head; of the words it holds its part.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from restoke import OptimizerSpec, Session
from restoke.distributed import Group, gather_rows, group_of, own_rows
from restoke.nn import convert_parallel_embedding, parallel_topk
from restoke.nn.functional import parallel_cross_entropy

CONTEXT = 32
RARE = 0  # any word that is not in the table


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.mix(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.inner(self.norms[1](x))


class GPT(nn.Module):
    """(batch, length) words of this rank -> (batch of all ranks, length, words of this rank's part) logits of the next."""

    def __init__(self, words: int, width: int, heads: int, layers: int, group: Group) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        self.head = nn.Linear(width, words, bias=False)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.head.weight = self.embed.weight
        self.group = group

    def forward(self, text: Tensor) -> Tensor:
        rows = [len(text)] * self.group.size  # a loader gives every rank as many
        words = own_rows(self.embed(gather_rows(text, self.group, rows)), self.group, rows)
        return self.head(gather_rows(self.layers(words + self.places[: text.shape[1]]), self.group, rows))


def words_of_topics(most: int) -> tuple[Tensor, list[str]]:
    """All topics as numbers of words, CONTEXT + 1 of them a row; and the table of the most frequent words."""
    found = [word for text in topics.values() for word in re.findall(r"\w+|\n+|[^\w\s]", text)]
    table = ["<rare>", *(word for word, _ in Counter(found).most_common(most - 1))]
    number = {word: i for i, word in enumerate(table)}
    numbers = torch.tensor([number.get(word, RARE) for word in found])
    return numbers[: len(numbers) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1), table


def loss_of(session: Session, group: Group, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The mean over all rows of the group, and the logits."""
    with session.forward_context():
        logits = session.forward(rows[:, :-1])
        following = gather_rows(rows[:, 1:].contiguous(), group)
        return parallel_cross_entropy(logits.flatten(0, 1), following.flatten()), logits


def epoch(session: Session, group: Group, loader, train: bool) -> float:
    """Bits per word, over all ranks."""
    session.parts.module.train(train)
    seen = torch.zeros(2, device=session.world.device)
    with torch.set_grad_enabled(train):
        for (rows,) in loader:
            loss, _ = loss_of(session, group, rows)
            if train:
                session.backward(loss)
                session.step()
            seen += torch.stack([loss.detach().float() * len(rows), torch.tensor(float(len(rows)), device=seen.device)])
    if session.world.size > 1:
        dist.all_reduce(seen)
    return (seen[0] / seen[1]).item() / math.log(2)


@torch.no_grad()
def write(session: Session, start: Tensor, length: int) -> list[int]:
    """The most likely words after `start`. Every rank takes part, and none has all logits."""
    session.parts.module.eval()
    text = start.to(session.world.device)
    for _ in range(length):
        logits = session.parts.module(text[:, -CONTEXT:])
        _, best = parallel_topk(logits[: len(text), -1], 1)
        text = torch.cat([text, best], dim=1)
    return text[0].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=4000, help="of the table")
    parser.add_argument("--head", choices=("sharded", "whole"), default="sharded", help="the table shared, or on each rank")
    parser.add_argument("--rows", type=int, default=1200, help=f"train on so many, of {CONTEXT} words each")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="rows of all processes together")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    session = Session(seed=args.seed, clip=1.0)
    group = group_of(None if args.head == "sharded" else 1)
    rows, table = words_of_topics(args.words)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    model = GPT(len(table), args.width, args.heads, args.layers, group)
    convert_parallel_embedding(model, 0, names="embed", group=group)  # the head, which is tied to it, turns with it
    session.prepare(model, OptimizerSpec(torch.optim.AdamW, {"lr": args.lr, "betas": (0.9, 0.95)}))

    each = max(1, args.batch_size // session.world.data_size)
    train = session.loader(TensorDataset(rows[200 : 200 + args.rows]), each, shuffle=True)
    held_out = session.loader(TensorDataset(rows[:200]), each)
    speak = print if session.world.is_main else lambda *_: None
    speak(f"table: {len(model.embed.weight)} of {len(table)} words on this rank")
    for number in range(1, args.epochs + 1):
        learned, held = epoch(session, group, train, True), epoch(session, group, held_out, False)
        speak(f"epoch {number}: {learned:.4f} bits per word, {held:.4f} on text held out")
    speak(" ".join(table[i] for i in write(session, rows[:1, :8], 24)))


if __name__ == "__main__":
    main()
