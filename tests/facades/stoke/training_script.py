"""A script as Stoke's users write it: DDP, accumulation, clipping, schedulers, evaluation, and nothing of restoke's."""

import argparse
import os
import sys

import torch
from stoke import (
    AMPConfig,
    BucketedDistributedSampler,
    ClipGradNormConfig,
    DDPConfig,
    DeepspeedConfig,
    DistributedOptions,
    FairscaleOSSConfig,
    FP16Options,
    ParamNormalize,
    Stoke,
    StokeOptimizer,
)
from stoke.utils import make_folder
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--ddp", action="store_true")
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))

    def forward(self, inputs):
        return self.body(inputs)


def cross_entropy(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets)


def accuracy(s, loader):
    s.model_access.eval()
    right = total = 0
    with torch.no_grad():
        for inputs, targets in loader:
            outputs = s.model(inputs)
            s.loss(outputs, targets)
            right += (outputs.argmax(dim=1) == targets).sum().item()
            total += len(targets)
    s.model_access.train()
    return right / total


torch.manual_seed(0)
inputs = torch.randn(512, 8)
dataset = TensorDataset(inputs, inputs[:, :4].argmax(dim=1))
local_rank = int(os.getenv("LOCAL_RANK", "0"))
stoke_model = Stoke(
    model=Model(),
    verbose=True,
    optimizer=StokeOptimizer(optimizer=torch.optim.AdamW, optimizer_kwargs={"lr": 1e-2, "betas": (0.9, 0.99)}),
    loss=cross_entropy,
    batch_size_per_device=16,
    gpu=False,
    fp16=FP16Options.amp.value if args.amp else None,
    distributed=DistributedOptions.ddp.value if args.ddp else None,
    fairscale_oss=False,
    fairscale_sddp=False,
    grad_accum_steps=2,
    grad_clip=ClipGradNormConfig(max_norm=1.0, norm_type=2.0),
    configs=[
        AMPConfig(init_scale=2.0**10),
        DDPConfig(local_rank=local_rank, convert_to_sync_batch_norm=False),
        FairscaleOSSConfig(broadcast_fp16=True),
        DeepspeedConfig(dump_state=True),
    ],
    info_rank=0,
)
sampler = None
if stoke_model.distributed:
    sampler = DistributedSampler(dataset, num_replicas=stoke_model.world_size, rank=stoke_model.rank)
train_loader = stoke_model.DataLoader(
    dataset=dataset, sampler=sampler, shuffle=sampler is None, num_workers=1, multiprocessing_context="fork"
)
bucketed = BucketedDistributedSampler(
    dataset,
    buckets=2,
    batch_size=stoke_model.batch_size,
    sorted_idx=list(range(len(dataset))),
    backend=DistributedOptions.ddp,
    num_replicas=stoke_model.world_size,
    rank=stoke_model.rank if stoke_model.distributed else 0,
)
val_loader = stoke_model.DataLoader(dataset, sampler=bucketed)
cycle = OneCycleLR(stoke_model.optimizer, max_lr=2e-2, total_steps=6 * len(train_loader))
plateau = ReduceLROnPlateau(stoke_model.optimizer, patience=100)
make_folder(args.folder)
stoke_model.print_num_model_parameters(normalize=ParamNormalize.THOUSAND)
for epoch in range(4):
    stoke_model.reset_ema()
    for step, (batch, targets) in enumerate(train_loader):
        outputs = stoke_model.model(batch)
        loss = stoke_model.loss(outputs, targets)
        if step % 8 == 0:
            stoke_model.print_ema_loss(prepend_msg=f"Epoch {epoch} Step {step} -- EMA Loss")
            stoke_model.print_synced_loss(loss)
        stoke_model.print_mean_accumulated_synced_loss()
        synced = stoke_model.detach_and_sync_loss(loss=loss)
        stoke_model.backward(loss)
        stoke_model.step()
        cycle.step()
    plateau.step(synced)
    stoke_model.print_on_devices(f"accuracy {accuracy(stoke_model, val_loader):.2f} of {stoke_model.rank}", rank=[0, 1])
path, tag = stoke_model.save(path=args.folder, name="script", extras={"epoch": epoch})
assert stoke_model.load(path=path, tag=tag) == {"epoch": 3}
stoke_model.barrier()
stoke_model.print(f"saved {tag} after {stoke_model.effective_batch_size}, scaler {stoke_model.scaler is not None}")
sys.exit(0 if stoke_model.ema_loss < 0.5 else 1)
