"""What two ranks do with collectives, checkpoints and process control; each function returns what a test compares."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from restoke.facades.accelerate.utils import broadcast, gather_object, set_seed  # type: ignore[import-not-found]
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from restoke.errors import RestokeError
from restoke.facades.accelerate import Accelerator, DataLoaderConfiguration, PartialState
from restoke.facades.accelerate.memory import find_executable_batch_size
from tests.facades.accelerate.on_ranks import CE, dataset, net, weights


def refusal(function: Any, *args: Any, **kwargs: Any) -> str:
    """What it says, and that it is one of ours."""
    try:
        function(*args, **kwargs)
    except RestokeError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def gathered() -> list[Any]:
    accelerator = Accelerator()
    rank = accelerator.process_index
    whole = {"a": torch.arange(2) + 10 * rank, "b": [torch.tensor(float(rank)), torch.tensor([rank == 0])]}
    return [
        {
            key: [t.tolist() for t in value] if isinstance(value, list) else value.tolist()
            for key, value in _d(accelerator, whole)
        },
        gather_object([rank, "x"]),
        accelerator.pad_across_processes(torch.ones(2 + rank, 1)).tolist(),
        accelerator.pad_across_processes(torch.ones(1, 2 + rank), dim=1, pad_index=7, pad_first=True).tolist(),
        accelerator.reduce(torch.tensor([1.0 + rank])).tolist(),
        accelerator.reduce(torch.tensor([1 + rank]), "mean").tolist(),
        accelerator.reduce(torch.tensor([1 + rank]), "max").tolist(),
        accelerator.reduce(torch.tensor([1.0 + rank]), "none").tolist(),
        accelerator.reduce(torch.tensor([1.0 + rank]), "sum", scale=0.5).tolist(),
        broadcast(torch.tensor([float(rank)]), from_process=1).tolist(),
        accelerator.broadcast(torch.tensor([float(rank)])).tolist(),
    ]


def _d(accelerator: Accelerator, whole: Any) -> Any:
    return accelerator.gather(whole).items()


def mismatched() -> list[str]:
    accelerator = Accelerator()
    rank = accelerator.process_index
    told = [
        refusal(accelerator.gather, torch.ones(3 + rank)),
        refusal(accelerator.gather, torch.ones(3, dtype=torch.float64 if rank else torch.float32)),
        refusal(accelerator.gather, {"a": torch.ones(1)} if rank else {"b": torch.ones(1)}),
        refusal(accelerator.reduce, torch.ones(1), "product"),
        refusal(accelerator.gather, 3.0),
        refusal(gather_object, {"loss": 1.0}),
        refusal(gather_object, "text"),
        refusal(accelerator.gather, torch.ones(1)) if rank else refusal(accelerator.reduce, torch.ones(1)),
    ]
    return [*told, str(accelerator.gather(torch.ones(1)).tolist())]


class Stream(IterableDataset[Any]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return iter(torch.arange(self.count))


MODES: dict[str, dict[str, Any]] = {
    "even": {},
    "uneven": {"even_batches": False},
    "split": {"split_batches": True},
    "dispatch": {"dispatch_batches": True},
}


def evaluated(mode: str, count: int, batch: int, kind: str) -> list[Any]:
    """Every sample once, as tensors and as objects; and the classic loop, cut to the dataset's length."""
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(**MODES[mode]))
    data: Any = Stream(count) if kind == "stream" else TensorDataset(torch.arange(count))
    loader = accelerator.prepare(DataLoader(data, batch_size=batch))
    tensors: list[int] = []
    objects: list[Any] = []
    classic: list[int] = []
    for item in loader:
        samples = item if kind == "stream" else item[0]
        try:
            tensors += accelerator.gather_for_metrics(samples).tolist()
        except RestokeError as error:
            return [str(error)]
        objects += accelerator.gather_for_metrics([f"s{i}" for i in samples.tolist()])
        if mode != "uneven":
            classic += accelerator.gather(samples).tolist()
    return [tensors, [int(item[1:]) for item in objects], classic[:count]]


def pre_averaged() -> list[str]:
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(dataset(9), batch_size=2))
    told = []
    for x, y in loader:
        told = [
            refusal(accelerator.gather_for_metrics, CE(torch.randn(2, 3), y)),
            refusal(accelerator.gather_for_metrics, torch.ones(1)),
            refusal(accelerator.gather_for_metrics, {"loss": 1.0}),
            refusal(accelerator.gather_for_metrics, ["one"]),
            str(len(accelerator.gather_for_metrics(torch.ones(1).repeat(2)))),
        ]
        del x
    return told


def triggered() -> list[bool]:
    accelerator = Accelerator()
    told = [accelerator.check_trigger()]
    if accelerator.process_index == 1:
        accelerator.set_trigger()
    return [*told, accelerator.check_trigger(), accelerator.check_trigger()]


def joined() -> list[Any]:
    """3 batches: rank 0 has two, rank 1 one."""
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(even_batches=False))
    model = net()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(dataset(12), batch_size=4)
    )
    steps = 0
    with accelerator.join_uneven_inputs([model]):
        for x, y in loader:
            accelerator.backward(CE(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    accelerator.wait_for_everyone()
    return [steps, weights(accelerator.unwrap_model(model))]


def shared() -> list[Any]:
    accelerator = Accelerator()
    given = {"a": [1, 2, 3], "b": (1, 2, 3)}
    told: list[Any] = []
    with accelerator.split_between_processes(given, apply_padding=True) as own:
        told.append(own)
    with PartialState().split_between_processes([1]) as own:
        told.append(own)
    with accelerator.split_between_processes(torch.arange(5), apply_padding=True) as own:
        told.append(own.tolist())
    return [*told, given]


def controlled() -> list[Any]:
    accelerator = Accelerator()
    told: list[Any] = []
    for decorate in (
        accelerator.on_main_process,
        accelerator.on_local_main_process,
        accelerator.on_last_process,
        accelerator.on_process(process_index=1),
    ):
        told.append(decorate(lambda: "ran")())
    order: list[int] = []
    with accelerator.main_process_first():
        order.append(accelerator.process_index)
    refused = refusal(accelerator.on_process, process_index=5)
    flags = [accelerator.is_main_process == True, accelerator.is_main_process(), bool(accelerator.is_last_process)]  # noqa: E712
    return [*told, refused.split(":")[0], flags, accelerator.num_processes, str(accelerator.distributed_type)]


def executable() -> list[int]:
    """Memory runs out on rank 1 alone, at 8 and more."""
    tried: list[int] = []

    @find_executable_batch_size(starting_batch_size=10, reduce_batch_size_fn=lambda: tried[-1] // 2)
    def train(batch_size: int) -> int:
        tried.append(batch_size)
        if dist.get_rank() == 1 and batch_size >= 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return batch_size

    Accelerator()
    return [train(), *tried]


def seeded() -> list[float]:
    Accelerator()
    set_seed(3)
    same = torch.rand(1).item()
    set_seed(3, device_specific=True)
    return [same, torch.rand(1).item()]


def evaluated_after_a_skip(count: int) -> list[Any]:
    """The epoch without its first batch, then a whole one."""
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(TensorDataset(torch.arange(count)), batch_size=2))
    rest = accelerator.skip_first_batches(loader, 1)
    return [[n for (x,) in rest for n in accelerator.gather_for_metrics(x).tolist()] for _ in range(2)]
