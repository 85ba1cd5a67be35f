"""A training script in the shape of TorchShard's ImageNet tutorial: DDP, and a head that its ranks share."""

# ruff: noqa: C901, PLW2901 - as such scripts are found
import argparse

import torch
import torch.distributed as dist
import torchshard as ts
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--enable-model-parallel", action="store_true")
parser.add_argument("--model-parallel-dim", default=None, type=int)
parser.add_argument("--num-classes", default=10, type=int)
parser.add_argument("--enable-amp-mode", action="store_true")
parser.add_argument("--enable-zero-optim", action="store_true")
parser.add_argument("--dist-backend", default="gloo")
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("--resume")
parser.add_argument("--save", default="checkpoint.pt")


class Net(nn.Module):
    def __init__(self, num_classes, gathers):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Sequential(nn.Linear(8, num_classes))  # nested, as in VGG
        self.gathers = gathers

    def forward(self, x):
        x = self.features(x)
        if self.gathers:
            x = ts.distributed.gather(x, dim=0)  # every rank's rows before the head
        return self.classifier(x)


def accuracy(output, target, topk=(1, 5)):
    _, pred = output.topk(max(topk), 1, True, True)
    correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
    return [correct[:k].reshape(-1).float().sum(0) * (100.0 / target.size(0)) for k in topk]


def make_optimizer(model, args):
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
    if args.enable_zero_optim:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, **options)
    return torch.optim.SGD(model.parameters(), **options)


def main():
    args = parser.parse_args()
    dist.init_process_group(backend=args.dist_backend)
    world_size = dist.get_world_size()
    if args.enable_model_parallel:
        ts.distributed.init_process_group(group_size=world_size)

    torch.manual_seed(3)
    model = Net(args.num_classes, args.enable_model_parallel)
    if args.enable_model_parallel:
        ts.nn.ParallelLinear.convert_parallel_linear(model, dim=args.model_parallel_dim)
    model = DistributedDataParallel(model)

    criterion = nn.CrossEntropyLoss()
    if args.enable_model_parallel:
        criterion = ts.nn.ParallelCrossEntropyLoss()
    optimizer = make_optimizer(model, args)

    if args.resume:
        state_dict = torch.load(args.resume)
        if args.enable_model_parallel:
            state_dict = ts.relocate_state_dict(model, state_dict)
        model.load_state_dict(state_dict)

    generator = torch.Generator().manual_seed(5)
    images = torch.randn(48, 3, 12, 12, generator=generator)
    dataset = TensorDataset(images, torch.randint(args.num_classes, (48,), generator=generator))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16 // world_size, sampler=sampler)
    scaler = torch.amp.GradScaler("cpu", enabled=args.enable_amp_mode)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, target in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.enable_amp_mode):
                output = model(images)
                if args.enable_model_parallel:
                    target = ts.distributed.gather(target, dim=0)
                loss = criterion(output, target)
            if args.enable_model_parallel and args.model_parallel_dim in [1, -1]:
                output = ts.distributed.gather(output, dim=-1)
            acc1, acc5 = accuracy(output, target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            mean = torch.stack([loss.detach().float(), acc1, acc5])
            if not args.enable_model_parallel:
                dist.all_reduce(mean)
                mean /= world_size
            print("loss {:.6f} acc1 {:.2f} acc5 {:.2f}".format(*mean.tolist()))

    state_dict = model.state_dict()
    if args.enable_model_parallel:
        state_dict = ts.collect_state_dict(model, state_dict)
    if dist.get_rank() == 0:
        torch.save(state_dict, args.save)


if __name__ == "__main__":
    main()
