"""A script in the shape of TorchShard's "write your own layer": weights that it cuts itself, and says so."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchshard as ts
from torch import nn
from torch.nn import Parameter, init
from torch.nn.parallel import DistributedDataParallel


class ParallelLayer(nn.Module):
    def __init__(self, in_features, out_features, bias=True, dim=None, customized=False):
        super().__init__()
        self.dim, self.customized = dim, customized
        self.weight = torch.empty(out_features, in_features)
        self.bias = torch.empty(out_features) if bias else None
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            init.uniform_(self.bias, -0.5, 0.5)
        self.slice_params()

    def slice_params(self):
        if self.dim in {-1, 1}:
            self.weight = ts.distributed.scatter(self.weight, dim=0)
            if self.bias is not None:
                self.bias = ts.distributed.scatter(self.bias, dim=0)
        if self.dim == 0:
            self.weight = ts.distributed.scatter(self.weight, dim=1)
        self.weight = Parameter(self.weight)
        if self.bias is not None:
            self.bias = Parameter(self.bias)
        ts.register_parallel_attribute(self.weight, self.dim, order_type=0)
        if self.bias is not None:
            ts.register_parallel_attribute(self.bias, self.dim, order_type=0)

    def forward(self, x):
        if not self.customized:
            return ts.nn.functional.parallel_linear(x, self.weight, self.bias, self.dim)
        if self.dim in [1, -1]:
            output = F.linear(ts.distributed.copy(x), self.weight, self.bias)
            ts.register_parallel_dim(output, -1)
        else:
            if ts.get_parallel_dim(x) not in [-1, 1]:
                x = ts.distributed.scatter(x, dim=-1)
            output = ts.distributed.reduce(F.linear(x, self.weight)) + self.bias
            ts.register_parallel_dim(output, None)
        return output


class Net(nn.Module):
    def __init__(self, customized, shared):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        if shared:
            self.first = ParallelLayer(8, 12, dim=1, customized=customized)
            self.second = ParallelLayer(12, 8, dim=0, customized=customized)
            self.head = ParallelLayer(8, 7, dim=-1, customized=customized)
        else:
            self.first, self.second, self.head = ParallelLayer(8, 12), ParallelLayer(12, 8), ParallelLayer(8, 7)

    def forward(self, x):
        x = self.stem(x)
        if self.head.dim is not None:
            x = ts.distributed.gather(x, dim=0)
        x = F.relu(self.first(x))
        if self.first.dim is not None:
            ts.register_parallel_dim(x, -1)
        return self.head(self.second(x))


def train(customized, shared):
    torch.manual_seed(1)
    model = Net(customized, shared)
    ts.register_ddp_parameters_to_ignore(model)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.3, momentum=0.9)
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(2)
    for _ in range(8):
        x, y = torch.randn(8, 6, generator=generator), torch.randint(7, (8,), generator=generator)
        x, y = x[rank * 4 : rank * 4 + 4], y[rank * 4 : rank * 4 + 4]
        if shared:
            y = ts.distributed.gather(y, dim=0)
        loss = ts.nn.functional.parallel_cross_entropy(ddp(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return ts.collect_state_dict(model, model.state_dict())


def main():
    dist.init_process_group(backend="gloo")
    ts.distributed.init_process_group(group_size=dist.get_world_size())
    whole = train(False, False)
    for customized in (False, True):
        state_dict = train(customized, True)
        for name, value in state_dict.items():
            print(f"{name} differs by {(value - whole[name]).abs().max():.1e} customized {customized}")


if __name__ == "__main__":
    main()
