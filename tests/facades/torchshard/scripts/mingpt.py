"""A training script in the shape of TorchShard's minGPT: every part of the model is shared, dropout is off."""

# ruff: noqa: C901, PLW2901 - as such scripts are found
import argparse
import math

import torch
import torch.distributed as dist
import torchshard as ts
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--enable-model-parallel", action="store_true")
parser.add_argument("--group-size", default=0, type=int)
parser.add_argument("--own-data", action="store_true", help="each rank loads its own batch, and gathers the others'")
parser.add_argument("--init")
parser.add_argument("--save-init", default="init.pt")
parser.add_argument("--save", default="model.pt")

VOCAB, BLOCK, EMBD, HEADS = 18, 6, 16, 4


class CausalSelfAttention(nn.Module):
    def __init__(self, parallel):
        super().__init__()
        self.parallel = parallel
        if parallel:
            assert HEADS % ts.distributed.get_group_size() == 0
            self.kqv = ts.nn.ParallelLinear(EMBD, EMBD * 3, dim=1)
            self.proj = ts.nn.ParallelLinear(EMBD, EMBD, dim=0)
        else:
            self.kqv, self.proj = nn.Linear(EMBD, EMBD * 3), nn.Linear(EMBD, EMBD)
        self.attn_drop, self.resid_drop = nn.Dropout(0.0), nn.Dropout(0.0)
        self.register_buffer("mask", torch.tril(torch.ones(BLOCK, BLOCK)).view(1, 1, BLOCK, BLOCK))

    def forward(self, x):
        B, T, C = x.size()
        size = ts.distributed.get_group_size() if self.parallel else 1
        kqv = self.kqv(x).view(B, T, HEADS // size, 3 * (C // HEADS))
        k, q, v = (each.transpose(1, 2) for each in ts.slice(kqv, 3, dim=-1, contiguous=True))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        y = self.attn_drop(F.softmax(att, dim=-1)) @ v
        y = y.transpose(1, 2).contiguous().view(B, T, -1)
        if self.parallel:
            ts.register_parallel_dim(y, -1)
        return self.resid_drop(self.proj(y))


class Block(nn.Module):
    def __init__(self, parallel):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(EMBD), nn.LayerNorm(EMBD)
        self.attn = CausalSelfAttention(parallel)
        if parallel:
            self.mlp = nn.Sequential(
                ts.nn.ParallelLinear(EMBD, 4 * EMBD, dim=-1),
                nn.GELU(),
                ts.nn.RegisterParallelDim(dim=-1),
                ts.nn.ParallelLinear(4 * EMBD, EMBD, dim=0),
                nn.Dropout(0.0),
            )
        else:
            self.mlp = nn.Sequential(
                nn.Linear(EMBD, 4 * EMBD), nn.GELU(), nn.Identity(), nn.Linear(4 * EMBD, EMBD), nn.Dropout(0.0)
            )

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, parallel):
        super().__init__()
        if parallel:
            self.tok_emb = ts.nn.ParallelEmbedding(VOCAB, EMBD, dim=0)
            self.head = ts.nn.ParallelLinear(EMBD, VOCAB, bias=False, dim=-1)
        else:
            self.tok_emb, self.head = nn.Embedding(VOCAB, EMBD), nn.Linear(EMBD, VOCAB, bias=False)
        self.pos_emb = nn.Parameter(torch.zeros(1, BLOCK, EMBD))
        self.blocks = nn.Sequential(*[Block(parallel) for _ in range(2)])
        self.ln_f = nn.LayerNorm(EMBD)
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=0.2)
        elif isinstance(module, (ts.nn.ParallelLinear, ts.nn.ParallelEmbedding)):
            ts.nn.init.shard_init_helper_(torch.nn.init.normal_, module.weight.data, mean=0.0, std=0.2)
            if isinstance(module, ts.nn.ParallelLinear) and module.bias is not None:
                module.bias.data.zero_()

    def forward(self, idx):
        x = self.tok_emb(idx) + self.pos_emb[:, : idx.size(1), :]
        return self.head(self.ln_f(self.blocks(x)))


def main():
    args = parser.parse_args()
    dist.init_process_group(backend="gloo")
    world_size = dist.get_world_size()
    if args.enable_model_parallel:
        ts.distributed.init_process_group(group_size=args.group_size or world_size)
    torch.manual_seed(7 + dist.get_rank())  # unlike seeds: sharded layers begin alike all the same
    model = GPT(args.enable_model_parallel)
    if args.enable_model_parallel:
        ts.register_ddp_parameters_to_ignore(model)
    model = DistributedDataParallel(model)
    if args.init:
        model.module.load_state_dict(torch.load(args.init))
    elif args.enable_model_parallel:
        state_dict = ts.collect_state_dict(model.module, model.module.state_dict())
        if dist.get_rank() == 0:
            torch.save(state_dict, args.save_init)
    criterion = ts.nn.ParallelCrossEntropyLoss() if args.enable_model_parallel else nn.CrossEntropyLoss()
    decayed = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95), eps=1e-6)

    text = torch.randint(VOCAB, (32, BLOCK + 1), generator=torch.Generator().manual_seed(9))
    dataset = TensorDataset(text[:, :-1], text[:, 1:])
    if args.enable_model_parallel and not args.own_data:
        sampler = ts.distributed.DistributedGroupSampler(dataset)
        batch_size = 8 // sampler.num_replicas
    else:
        sampler, batch_size = DistributedSampler(dataset), 8 // world_size
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for ids, target in DataLoader(dataset, batch_size=batch_size, sampler=sampler):
            if args.own_data:
                ids, target = ts.distributed.gather(ids, dim=0), ts.distributed.gather(target, dim=0)
            output = model(ids)
            output = output.view(-1, output.size(-1))
            if args.enable_model_parallel:
                ts.register_parallel_dim(output, -1)
            loss = criterion(output, target.view(-1))
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            print(f"loss {mean / world_size:.6f} norm {norm:.6f}")

    state_dict = model.module.state_dict()
    if args.enable_model_parallel:
        state_dict = ts.collect_state_dict(model.module, state_dict)
    if dist.get_rank() == 0:
        torch.save(state_dict, args.save)


if __name__ == "__main__":
    main()
