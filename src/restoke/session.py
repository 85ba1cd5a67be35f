"""The verbs. A `Session` decides when things happen; its strategy's parts decide how."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from torch import Tensor, nn
from torch.optim import Optimizer

from restoke.configs import AMPConfig
from restoke.ema import Averages
from restoke.empty import refuse_unfilled
from restoke.errors import SessionError, SpecError
from restoke.filling import fill
from restoke.optim import OptimizerSpec, build_scheduler
from restoke.parts import Parts, Request, Step
from restoke.passes import apply_passes
from restoke.passes.optimizer import run_as_declared, step_as_declared
from restoke.precision import LossScaler, loss_scaler
from restoke.prepared import TOLD
from restoke.said import say_once
from restoke.seeds import seed_all
from restoke.session_loaders import Loaders
from restoke.spec import Spec, outside_spec
from restoke.table import PRECISIONS, check, chosen
from restoke.undoing import give_back
from restoke.verbs import Verbs, bind, unprepared
from restoke.windows import Windows
from restoke.world import World, facts_here, ranks_here

if TYPE_CHECKING:
    from restoke.checkpoint.background import Saver
    from restoke.data import Loader


@final
class Session:
    """One model and its optimizer, trained as a spec declares.

    A process may have several sessions over one world: a GAN has two. What was declared outside the script (by `restoke
    launch`) overrides `spec`, and one line on stderr says what was overridden.

    Args:
        spec: the declaration; or give its fields as keywords.
        scaler: another session's `scaler`, where one backward serves both.

    Raises:
        SpecError: the spec cannot be obeyed here; every reason is named.
        WorldError: the launcher, the settings and the process group contradict each other.
    """

    forward: Callable[..., Any]
    """The model's output, under the precision's context; whether its gradients are reduced is settled here."""
    divide: Callable[[Tensor], Tensor]
    """The loss's share of its window of micro-batches: the one place where it is divided."""
    backward: Callable[[Tensor], None]
    """Add the gradients of a loss, the mean over its micro-batch, divided by the window's length."""
    backward_divided: Callable[[Tensor], None]
    """As `backward`, of a loss that `divide` has divided already."""
    step: Callable[[], Step | None]
    """End a micro-batch; None within a window. At its end: clip, step, clear the gradients, step the schedulers."""

    def __init__(self, spec: Spec | None = None, *, scaler: LossScaler | None = None, **axes: Any) -> None:
        if spec is not None and axes:
            raise SpecError.of(next(iter(axes)), next(iter(axes.values())), "a spec was given as well", "one of the two")
        if spec is not None and not isinstance(spec, Spec):
            raise SpecError.of("spec", spec, "it is no Spec", "Spec.read(path), Spec.of(mapping), or its fields as keywords")
        ranks = ranks_here()
        declared, said = (spec or Spec.of(axes)).overlaid(outside_spec())
        self.spec: Spec = check(declared, facts_here(ranks))
        row = self._row = chosen(self.spec)
        many = row.processes == "many"
        self.world: World = World.join(self.spec.device, ranks, row.rendezvous(self.spec), many, self.spec.tensor)
        if said and self.world.is_main:
            say_once(f"declared outside the script: {'; '.join(said)}")
        precision = PRECISIONS[self.spec.precision].means
        if scaler is not None and not precision.scaled:
            raise SpecError.of("scaler", "given", f"{self.spec.precision} scales no loss", "precision=fp16, or none")
        self.scaler = scaler or loss_scaler(precision, self.world.device, self.spec.setting(AMPConfig))
        if self.scaler is not None:
            self.scaler.serve(self.spec.accumulate)
        self.windows = Windows(self.spec.accumulate)
        self.steps = 0  # optimizer steps taken
        self.skipped = 0  # optimizer steps that an overflow skipped
        self.schedulers: list[Any] = []
        self._loaders = Loaders(self)
        self.registered: dict[str, Any] = {"loaders": self._loaders}
        self.averages: Averages | None = None  # of the weights, where the spec has them kept
        self._parts: Parts | None = None
        self.saver: Saver | None = None  # where a save was not waited for
        self.attach: Callable[[Callable[[], None] | None], None] = self._attach  # what is called after each optimizer step
        self._take(unprepared())
        if self.spec.seed is not None:
            seed_all(self.spec.seed)

    def prepare(
        self,
        model: nn.Module,
        optimizer: OptimizerSpec,
        scheduler: Callable[[Optimizer], Any] | None = None,
        weights: str | os.PathLike[str] | None = None,
    ) -> nn.Module:
        """Place and wrap the model, build the optimizer on it and the scheduler on that. Returns what `forward` calls.

        The scheduler is stepped once after each optimizer step that was not skipped. `weights` is a file or folder that the
        model is filled from (see `restoke.checkpoint.open_weights`), each rank reading what it holds alone: the model may
        then be built on the meta device.

        Raises:
            SessionError: this session has a model already.
            SpecError: the optimizer's groups or keywords do not fit, or a model on the meta device cannot be filled.
            CheckpointError: the weights cannot be read, or are another model's.
        """
        if self._parts is not None:
            raise SessionError.of("prepare", type(model).__name__, "this session has a model already", "a second Session")
        if not isinstance(model, nn.Module):
            raise SpecError.of("model", type(model).__name__, "it is no torch.nn.Module", "an instance of your nn.Module")
        if not isinstance(optimizer, OptimizerSpec):
            raise SpecError.of(
                "optimizer",
                type(optimizer).__name__,
                "it is built here, on the placed and wrapped model",
                "OptimizerSpec(SGD, {...})",
            )
        refuse_unfilled(model, filled=weights is not None)
        from restoke.nn.trained import refuse_shared  # importing restoke does not wait for it

        refuse_shared(model, self.spec, self._row)
        parts = self._made(model, optimizer, weights)
        self._parts = parts
        self.scaler = parts.stepper.scaler
        self.forward_context = parts.stepper.forward_context
        if scheduler is not None:
            self.schedulers.append(build_scheduler(scheduler, parts.optimizer))
        self._take(bind(self, parts))
        if self.spec.seed is not None:
            seed_all(self.spec.seed, 1 + self.world.data_rank)
        for told in TOLD:
            told(self)
        return parts.model

    def _made(self, model: nn.Module, optimizer: OptimizerSpec, weights: str | os.PathLike[str] | None) -> Parts:
        precision = PRECISIONS[self.spec.precision].means
        apply_passes(model, self.spec, self.world, precision)
        optimizer = run_as_declared(optimizer, self.spec, self.world)
        request = Request(self.spec, self.world, model, optimizer, precision, self.scaler)
        parts: Parts = self._row.load()(request)
        give_back(optimizer, parts)
        if weights is not None:
            fill(parts, Path(weights), self.world)
        parts = step_as_declared(parts, self.spec)
        if self.spec.ema is None:
            return parts
        self.averages = Averages(self.spec.ema, parts)
        return self.averages.followed()

    def _attach(self, after: Callable[[], None] | None) -> None:
        self._take(bind(self, self.parts, after))

    def _take(self, verbs: Verbs) -> None:
        self._verbs = verbs
        self.forward, self.divide, self.step = verbs.forward, verbs.divide, verbs.step
        self.backward, self.backward_divided = verbs.backward, verbs.backward_divided

    @property
    def parts(self) -> Parts:
        """What the strategy made. Raises SessionError before `prepare`."""
        if self._parts is None:
            raise SessionError.of("session", "no model", "prepare was not called", "session.prepare(model, optimizer) first")
        return self._parts

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within it the model has the averaged weights, for evaluation; training, saving and loading are refused there.

        Every rank may enter, or one alone: nothing is sent. Raises SessionError where no averages are kept.
        """
        if self.averages is None:
            raise SessionError.of("averaged", "no averages", "the spec does not have them kept", "ema=0.999")
        with self.averages.swapped():
            yield

    def flush(self) -> Step | None:
        """End the window now, with the micro-batches that it has; None if it has none. Every rank calls this."""
        if self.windows.done == 0:
            return None
        self.parts.reduce_grads()
        return self._verbs.boundary()

    def zero_grads(self) -> None:
        """Drop the gradients and begin a new window; also after an exception, on all ranks, in a forward or a backward."""
        self.parts.abandon()
        self.parts.stepper.clear()
        self.windows.close()

    def loader(self, dataset: Any, batch_size: int | None = 1, **options: Any) -> Loader:
        """A loader of this rank's share of a dataset, its batches on this rank's device; saved with its position in the epoch.

        It ends the window of micro-batches with its epoch. The options are those of `restoke.data.make_loader`.

        Raises:
            DataError: they contradict each other, the world or the dataset.
        """
        return self._loaders.make(dataset, batch_size=batch_size, **options)

    def full_state_dict(self) -> dict[str, Tensor]:
        """The model's whole state dict, on the CPU, on every rank, by the user's own names. Every rank calls this."""
        from restoke.whole import gather_whole

        return gather_whole(self.parts.state.capture(), self.world)

    def register(self, name: str, thing: Any) -> None:
        """Save and load this object too: its `state_dict` must hold plain values and tensors."""
        if name in self.registered:
            raise SessionError.of("register", name, "something is registered by this name", "another name")
        if not all(callable(getattr(thing, method, None)) for method in ("state_dict", "load_state_dict")):
            why = f"a {type(thing).__name__} lacks state_dict or load_state_dict"
            raise SessionError.of("register", name, why, "an object that has both, or extras= of save")
        self.registered[name] = thing

    def save(
        self,
        folder: str | os.PathLike[str],
        tag: str | None = None,
        extras: Mapping[str, Any] | None = None,
        keep: int | None = None,
        wait: bool = True,
    ) -> str:
        """Write a checkpoint and return its tag. Every rank calls this.

        `extras` are plain values and tensors. Of the folder's checkpoints the newest `keep` stay, where that is given. Without
        `wait` it returns when the state is copied, and a thread writes the copy: see `wait_saved`.

        Raises:
            CheckpointError: it, or one that was not waited for, cannot be written, on whichever rank; what was saved before is
                untouched.
        """
        from restoke.session_state import save

        return save(self, Path(folder), f"step-{self.steps}" if tag is None else tag, extras or {}, keep, wait)

    def wait_saved(self) -> None:
        """Return when a save that was begun with `wait=False` is on the disk: done by the next save, and at exit, as well.

        Raises:
            CheckpointError: it could not be written, on whichever rank; what was saved before is untouched.
        """
        if self.saver is not None:
            self.saver.wait()

    def load(self, folder: str | os.PathLike[str], tag: str | None = None, strict: bool = True) -> dict[str, Any]:
        """Restore a checkpoint, the newest good one where no tag is given, and return its extras. Every rank calls this.

        Raises:
            CheckpointError: it is missing, damaged or foreign, or does not fit.
        """
        from restoke.session_state import load

        return load(self, Path(folder), tag, strict)

    def resume(
        self,
        folder: str | os.PathLike[str],
        *,
        every: int | None = None,
        keep: int | None = None,
        extras: Callable[[], Mapping[str, Any]] | None = None,
        strict: bool = True,
        signals: Iterable[str | int] | None = None,
    ) -> dict[str, Any]:
        """Load the newest good checkpoint, if there is one, and save a new one wherever a signal asks the job to stop.

        Where any rank gets SIGTERM or SIGUSR1, or under a launcher Ctrl-C, all ranks save after the same optimizer step and
        leave with the exit code `restoke.stopping.RESUME`, 75. Every rank calls this, once the model is prepared.

        Args:
            every: save as well after each so many optimizer steps.
            keep: the newest so many checkpoints of the folder stay; None: all.
            extras: called at each save, for plain values and tensors of the script's own.
            signals: by name or number, instead of those above.

        Returns:
            The extras of the checkpoint; nothing where there was none.

        Raises:
            SessionError: called twice in a process, or in another thread than the main one, or the script handles the signal.
            CheckpointError: there are checkpoints, and none can be loaded.
        """
        from restoke.stopping.resuming import resume_one

        return resume_one(self, folder, every=every, keep=keep, extras=extras, strict=strict, names=signals)
