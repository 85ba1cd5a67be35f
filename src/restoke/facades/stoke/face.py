"""Stoke's verbs: `model`, `loss`, `backward`, `step`, and all else that a script calls on a Stoke object."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from restoke import comm
from restoke.configs.validate import whole
from restoke.errors import DataError, SpecError
from restoke.facades.stoke.checkpoints import Progress, load_stoke, refuse_between, save
from restoke.facades.stoke.declare import refuse_unknown, spec_of
from restoke.facades.stoke.flags import read_flags
from restoke.facades.stoke.losses import Loss, Losses, read_losses, read_weight, tensors
from restoke.facades.stoke.optimizer import StokeOptimizer, StokeScheduler, read_optimizer, read_scheduler
from restoke.facades.stoke.printing import Printer, ranks_of
from restoke.facades.stoke.reports import Reports
from restoke.facades.stoke.status import StokeStatus
from restoke.parts import Step
from restoke.session import Session
from restoke.spec import Spec

if TYPE_CHECKING:
    from restoke.data import Loader


@final
class Stoke(Reports):
    """A model, its optimizer and its losses, trained as declared.

    Args:
        model: what is trained; placed and wrapped here.
        optimizer: a class and its keywords; built here.
        loss: one function of tensors, or several, which get the same arguments.
        batch_size_per_device: samples per process and micro-batch.
        grad_accum_steps: micro-batches per optimizer step.
        grad_clip: ClipGradNormConfig, ClipGradConfig, or a number, the largest norm.
        gpu: train on CUDA; the CPU unless `device` or `spec` says otherwise.
        fp16, distributed, fairscale_oss, fairscale_sddp, fairscale_fsdp: Stoke's options, each a member or its value.
        configs: settings of any strategy and precision.
        info_rank: the rank, or ranks, that print; None: none, where there are several.
        verbose: print the status at the start.
        ema_weight: of the newest loss in the moving average of losses.
        strategy, precision, device, seed: what the options above lack, as in `restoke.Spec`.
        spec: a whole declaration: a Spec, the path of a YAML file, or a mapping.
        scheduler: a class and its keywords; built on the optimizer, and stepped with it.

    Raises:
        SpecError: the declaration cannot be obeyed here, and why.
        WorldError: launcher, settings and process group contradict each other.
    """

    model: Callable[..., Any]
    """The model's output, under the precision declared."""
    loss: Callable[..., Any]
    """The loss, or a list of several; while the model trains, divided by the accumulation, for `backward`. It is followed on
    the device (`step_loss`, `ema_loss`); of a model in `eval()` neither divided nor averaged. What is no scalar is refused."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: StokeOptimizer | Mapping[str, Any],
        loss: Loss | Sequence[Loss],
        batch_size_per_device: int,
        grad_accum_steps: int | None = 1,
        grad_clip: Any = None,
        gpu: bool = False,
        fp16: str | None = None,
        distributed: str | None = None,
        fairscale_oss: bool = False,
        fairscale_sddp: bool = False,
        fairscale_fsdp: bool = False,
        configs: Iterable[Any] | None = None,
        info_rank: int | Iterable[int] | None = 0,
        verbose: bool = True,
        ema_weight: float = 0.1,
        *,
        strategy: str | None = None,
        precision: str | None = None,
        spec: Spec | str | os.PathLike[str] | Mapping[str, Any] | None = None,
        device: str | None = None,
        seed: int | None = None,
        scheduler: StokeScheduler | Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> None:
        refuse_unknown(unknown, type(self).__init__)
        flags = read_flags(gpu, fp16, distributed, fairscale_oss, fairscale_sddp, fairscale_fsdp, grad_clip, configs)
        words = {"strategy": strategy, "precision": precision, "device": device, "seed": seed}
        declared = spec_of(flags, grad_accum_steps, words, spec)
        chosen, functions, weight = ranks_of(info_rank, "info_rank"), read_losses(loss), read_weight(ema_weight)
        batch_size = _batch_size(batch_size_per_device)
        built, schedule = read_optimizer(optimizer), read_scheduler(scheduler)
        if not isinstance(model, nn.Module):
            raise SpecError.of("model", type(model).__name__, "it is no torch.nn.Module", "an instance of your nn.Module")

        self.session = session = Session(declared)
        session.prepare(model, built, schedule)
        self._module = session.parts.module
        self.model = session.forward
        self._losses = Losses(functions, not isinstance(loss, list | tuple), session, weight)
        self.loss = self._losses.call
        self._status = StokeStatus.of(session, batch_size)
        world = session.world
        self._printer = Printer(None if self._status.distributed is None else world.rank, chosen, world.size)
        self._batch_size = batch_size
        self._progress = Progress(self._losses.track)
        session.register("stoke", self._progress)
        # once in each micro-batch, so they are looked up here
        self._run_back, self._end, self._begin_window = session.backward_divided, session.step, self._losses.track.begin_window
        self._backward_is_due = True
        session.attach = self._attach
        if verbose:
            self.print(repr(self._status).split("\n"))

    def backward(self, loss: Tensor | Sequence[Tensor]) -> None:
        """Add the gradients of what `loss()` returned, or of what was made from it; several are summed, and run back once.

        A loss of your own making is divided by nobody: give `session.divide(loss)`.
        """
        self._run_back(loss if isinstance(loss, Tensor) else reduce(add, tensors(loss)))
        self._progress.backward_steps += 1
        self._backward_is_due = False

    def step(self) -> Step | None:
        """End a micro-batch; the last of `grad_accum` clips, steps the optimizer and clears the gradients. None before it."""
        step = self._end()
        self._backward_is_due = True
        if step is not None:
            self._begin_window()
        return step

    def flush(self) -> Step | None:
        """Step the optimizer now, with the micro-batches that the window has; None if it has none. Every rank calls this.

        Raises:
            SessionError: called between `backward` and `step`.
        """
        refuse_between(self._backward_is_due, "flush")
        return self._stepped(self.session.flush())

    def _stepped(self, step: Step | None) -> Step | None:
        self._backward_is_due = True
        if step is not None:
            self._begin_window()
        return step

    def _attach(self, after: Callable[[], None] | None) -> None:
        """What follows a step comes when this object, too, is done with it: a checkpoint then holds it as a whole."""
        begin = self._losses.track.begin_window

        def begin_and_more() -> None:
            begin()
            if after is not None:
                after()

        self._begin_window = begin if after is None else begin_and_more

    @contextmanager
    def evaluate(self) -> Iterator[None]:
        """Within it the model is in eval mode, no gradients are recorded, and losses are neither divided nor averaged."""
        modes = [(module, module.training) for module in self.session.parts.model.modules()]
        self.session.parts.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module, training in modes:
                module.training = training

    def zero_grads(self) -> None:
        """Drop the gradients, and begin a new window of micro-batches."""
        self.session.zero_grads()
        self._stepped(None)
        self._losses.track.begin_window()

    def reset(self) -> None:
        """As `zero_grads`; moving average and totals stay."""
        self.zero_grads()

    def reset_ema(self) -> None:
        """The next loss begins the moving average."""
        self._losses.track.begin_ema()

    def reset_tracking(self) -> None:
        """Begin all counts and losses anew; gradients stay."""
        self.session.windows.close()
        self.session.steps = self.session.skipped = self._progress.backward_steps = 0
        self._losses.track.reset()
        self._backward_is_due = True

    def barrier(self) -> None:
        """Wait for all ranks. Collective."""
        comm.barrier(self.session.world)

    def save(
        self,
        path: str | os.PathLike[str],
        name: str = "checkpoint",
        extension: str | None = None,
        create_directory: bool = True,
        extras: Mapping[str, Any] | None = None,
    ) -> tuple[str, str]:
        """Write all that it takes to go on as if never stopped; returns the path and the tag. Every rank calls this.

        The tag is `stoke-{name}-backward-step-{N}`, the name of a folder of safetensors and JSON in `path`; an `extension`,
        which Stoke's files had, is put behind it. `extras` are plain values and tensors.

        Raises:
            SessionError: called between `backward` and `step`.
            CheckpointError: it cannot be written; what was saved before is untouched.
        """
        refuse_between(self._backward_is_due, "save")
        ending = "" if extension is None else f".{extension}"
        return save(self.session, path, f"stoke-{name}-backward-step-{self.backward_steps}{ending}", create_directory, extras)

    def load(
        self, path: str | os.PathLike[str], tag: str | None = None, strict: bool = True, *, unsafe: bool = False
    ) -> dict[str, Any]:
        """Restore what `save` wrote and return its extras; without a tag, the newest good one. Every rank calls this.

        `unsafe` reads a `.pt` file of Stoke's instead, at `path` and `tag`. It is a pickle: **code in it is run**.

        Raises:
            CheckpointError: it is missing, damaged or foreign, or does not fit.
        """
        if unsafe:
            extras = load_stoke(self.session, self._progress, Path(path, tag or ""), strict)
            self._losses.track.reset()
        else:
            extras = self.session.load(path, tag, strict)
        self._backward_is_due = True
        return extras

    def resume(
        self,
        path: str | os.PathLike[str],
        *,
        every: int | None = None,
        keep: int | None = None,
        extras: Callable[[], Mapping[str, Any]] | None = None,
        strict: bool = True,
        signals: Iterable[str | int] | None = None,
    ) -> dict[str, Any]:
        """Load the newest checkpoint in `path`, if any, and save there wherever a signal asks to stop: see `Session.resume`."""
        return self.session.resume(path, every=every, keep=keep, extras=extras, strict=strict, signals=signals)

    def DataLoader(  # noqa: N802 - the name that scripts call
        self,
        dataset: Any,
        shuffle: bool = False,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool | None = None,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        **unknown: Any,
    ) -> Loader:
        """A loader of this rank's share, whose batches of `batch_size` are on its device, and which is saved with its position.

        Any sampler is dealt out to the ranks, or taken as it is where it does so itself, and told the epoch. The parameters
        are torch's, but for `batch_size`; see `restoke.data.make_loader`.

        Raises:
            DataError: they contradict each other, the world or the dataset.
        """
        options = {name: value for name, value in locals().items() if name not in ("self", "dataset", "unknown")}
        if "batch_size" in unknown:
            why = "a Stoke object's loaders have its batch_size_per_device"
            raise DataError.of("batch_size", unknown["batch_size"], why, "leave it out")
        refuse_unknown(unknown, self.DataLoader)
        return self.session.loader(dataset, self._batch_size, **options)

    @property
    def status(self) -> StokeStatus:
        return self._status


def _batch_size(value: Any) -> int:
    size = whole(value, "batch_size_per_device")
    if size < 1:
        raise SpecError.of("batch_size_per_device", value, "a batch holds at least one sample", "1 or more")
    return size
