"""State machines: shells that lose saves, see stale status, crash between actions, and jobs that die with the machine.

Whatever happens on the way, the end is that of the undisturbed run, and no invariant of `loopworld` breaks.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from curateevo.api.stage import Outcome
from tests.core.evolution.loopworld import Script, World, spec, undisturbed, with_script

SCRIPTS: tuple[Script, ...] = (
    with_script(),
    with_script(curate_v1_a1=Outcome.REJECTED, train_v2_a1=75),
    with_script(train_v1_a1=1, evaluate_v2_a1="no manifest", propose_v3_a1=75),
    with_script(train_v1_a1=1, train_v1_a2=1, ingest_a1=137),
    with_script(evaluate_v1_a1=65, propose_v2_a1=Outcome.EXHAUSTED),
)


class FaultyShells(RuleBasedStateMachine):
    @initialize(script=st.sampled_from(SCRIPTS))
    def begin(self, script: Script) -> None:
        self.world = World(spec(), script)

    @rule(stale=st.booleans())
    def tick(self, stale: bool) -> None:
        self.world.tick(stale=stale)

    @rule()
    def lose_a_save(self) -> None:
        self.world.tick(save=False)

    @rule(applied=st.integers(0, 2))
    def crash_between_actions(self, applied: int) -> None:
        self.world.tick(applied=applied)

    @rule(number=st.integers(0, 4), stale=st.booleans(), save=st.booleans())
    def tick_version(self, number: int, stale: bool, save: bool) -> None:
        self.world.tick_version(number, save=save, stale=stale)

    @rule(number=st.integers(0, 4))
    def crash_in_a_version(self, number: int) -> None:
        self.world.tick_version(number, applied=0)

    @rule(index=st.integers(0, 30))
    def finish_a_job(self, index: int) -> None:
        names = sorted(self.world.jobs)
        if names:
            self.world.finish(names[index % len(names)])

    @rule(index=st.integers(0, 30))
    def lose_a_job(self, index: int) -> None:
        names = sorted(self.world.jobs)
        if names:
            self.world.lose(names[index % len(names)])

    @rule(seconds=st.sampled_from((1.0, 6.0, 61.0)))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def go_on_for_a_while(self) -> None:
        for _ in range(6):
            self.world.tick()
            for number in list(self.world.versions):
                self.world.tick_version(number)
            self.world.finish_all()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()
            self.world.check_end()
            assert self.world.outcome() == undisturbed(self.world)


TestFaultyShells = FaultyShells.TestCase
TestFaultyShells.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    derandomize=True,
    phases=(Phase.generate,),  # shrinking a run of this length takes minutes
    suppress_health_check=list(HealthCheck),
)
