"""Whatever the order in which ranks and their threads run, all stop at one boundary."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import final

import pytest

from restoke.stopping import gate as gates
from restoke.stopping.gate import NEVER, Gate
from tests.stopping.turns import Event, Lock, Turns

RANKS, BOUNDARIES, APART = 2, 9, 3  # a rank is at most so many boundaries ahead, as with a collective in every third
SEEDS = 300


class Halt(Exception):
    """A rank stops."""


@final
class Model:
    """Ranks that vote as `restoke.stopping.listener` does, over a dictionary for a store."""

    def __init__(self, seed: int, every: int) -> None:
        self.turns = Turns(seed, gates.__file__)
        self.gates = [Gate() for _ in range(RANKS)]
        for gate in self.gates:
            gate._lock, gate._decided = Lock(self.turns), Event(self.turns)  # type: ignore[assignment]
        self.votes: dict[int, int] = {}
        self.ended: dict[int, int] = {}  # the boundary where a rank stopped; 0 for one that came to its end
        self.ask_at = random.Random(seed).randrange(RANKS * BOUNDARIES)
        self.every = every
        self.saves: list[list[int]] = [[] for _ in range(RANKS)]

    def train(self, rank: int) -> None:
        gate = self.gates[rank]
        due = [self.every]

        def look_up() -> None:
            gate.wait()
            if gate.done >= gate.decision:
                raise Halt
            if gate.done >= due[0]:
                self.saves[rank].append(gate.done)
                due[0] += self.every
            gate.open(due[0])

        gate.open(due[0])
        passed = gate.counting(look_up)
        try:
            while gate.done < BOUNDARIES:
                self.keep_close(rank)
                passed()
            self.ended[rank] = 0
        except Halt:
            self.ended[rank] = gate.done

    def keep_close(self, rank: int) -> None:
        """Raises AssertionError where another has stopped that this rank would wait for."""
        for other, gate in enumerate(self.gates):
            while self.gates[rank].done - gate.done >= APART:
                assert other not in self.ended, f"rank {rank} waits for rank {other}, which has stopped at {gate.done}"
                self.turns.give()

    def listen(self, rank: int) -> None:
        while sum(gate.done for gate in self.gates) < self.ask_at:
            self.turns.give()
        self.votes[rank] = self.gates[rank].close()
        while len(self.votes) < RANKS:
            self.turns.give()
        self.gates[rank].decide(max(self.votes.values()))


def bound(function: Callable[[int], None], rank: int) -> Callable[[], None]:
    return lambda: function(rank)


@pytest.mark.parametrize("every", [NEVER, 2], ids=["no saves", "a save at every second"])
def test_all_stop_at_the_agreed_boundary_or_come_to_their_end(every: int) -> None:
    stops = []
    for seed in range(SEEDS):
        model = Model(seed, every)
        model.turns.run([bound(work, rank) for rank in range(RANKS) for work in (model.train, model.listen)])
        assert len(set(model.ended.values())) == 1, (seed, model.ended, model.votes)
        assert model.saves[0] == model.saves[1]
        stops.append(model.ended[0])
        if stops[-1]:
            assert stops[-1] == max(model.votes.values()), seed
    assert len(set(stops) - {0}) > 4


def test_a_demand_while_the_gate_is_being_opened_is_not_lost() -> None:
    """What a signal handler does, which interrupts the main thread between two bytecodes of its own."""
    for seed in range(SEEDS):
        turns, gate = Turns(seed, gates.__file__, often=0.5), Gate()
        gate._lock = Lock(turns)  # type: ignore[assignment]

        def main(gate: Gate = gate) -> None:
            gate.open(7)

        turns.run([main, gate.demand])
        assert gate.at <= 0


def test_a_gate_that_nobody_closed_counts_and_asks_nothing() -> None:
    asked: list[int] = []
    gate = Gate()
    passed = gate.counting(lambda: asked.append(gate.done))
    for _ in range(5):
        passed()
    assert (gate.done, asked) == (5, [])
    gate.open(7)
    passed()
    passed()
    assert asked == [7]
