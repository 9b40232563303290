"""A run: every case, round by round, the subjects in turn within each round.

Rounds of one subject in a row would compare the machine of one minute with that of the next. In turn, and in another
order each round, what disturbs one subject disturbs its neighbours too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from ztrio_bench.cases import CASES, Case
from ztrio_bench.environment import describe
from ztrio_bench.process import Driver, DriverFailed, hog, open_driver
from ztrio_bench.report import Report, Result
from ztrio_bench.statistics import compare, summarize
from ztrio_bench.subjects import SUBJECTS, Subject
from ztrio_bench.venvs import Unavailable, cache_folder, interpreter

__all__ = ["LINGER", "PATIENCE", "Plan", "run"]

_END_BOUND = 15.0  # seconds for a driver to end, which bounds itself
PATIENCE: Final = 5.0
LINGER: Final = 3.5


@attrs.frozen(kw_only=True)
class Plan:
    """What to run.

    Args:
        cases: Names of cases.
        variants: Only these variants; all when empty.
        subjects: Names of subjects, `ztrio` among them.
        rounds: Rounds.
        count: Samples per round; the case's own when None.
        seconds: Most seconds per round and subject; the case's own when None.
        load: Calls to cancel at once, for `cancel`; 0 for one at a time.
        patience: Seconds until a cancelled caller that has not resumed counts as hung and is freed.
        linger: Seconds that a process may live on after its caller resumed until it counts as a survivor. One peer
            asks politely for 3 seconds.
        hogs: Processes that compute beside everything.
        backend: ztrio's backend; its own choice when None.
        containment: ztrio's containment; its own choice when None.
        sandbox: ztrio's sandbox; its own choice when None.
        cache: Folder for the environments of peers.
        install: Whether peers may be installed.
        replaced: Other definitions of subjects, by name.
    """

    cases: Sequence[str]
    variants: Sequence[str] = ()
    subjects: Sequence[str] = ("ztrio", "floor")
    rounds: int = 5
    count: int | None = None
    seconds: float | None = None
    load: int = 0
    hogs: int = 0
    patience: float = PATIENCE
    linger: float = LINGER
    backend: str | None = None
    containment: str | None = None
    sandbox: str | None = None
    cache: Path = attrs.field(factory=cache_folder)
    install: bool = True
    replaced: Mapping[str, Subject] = attrs.field(factory=dict)


class _Contestant:
    """A subject with its driver, which is started when it is first needed and again after it failed."""

    def __init__(self, subject: Subject, plan: Plan) -> None:
        self.subject = subject
        self.plan = plan
        self.facts: dict[str, Any] = {}
        # Why it cannot take part at all, once that is known.
        self.unavailable = ""
        self._driver: Driver | None = None
        self._stack = AsyncExitStack()

    async def prepare(self, say: Callable[[str], None]) -> None:
        """Find or make its environment, and ask who it is."""
        try:
            if self.subject.requirement:
                say(f"looking for {self.subject.name} (the first time, it is installed)")
            self.python = await interpreter(self.subject, cache=self.plan.cache, install=self.plan.install)
            answer = await self.ask({"op": "hello"}, bound=60.0)
        except (Unavailable, DriverFailed) as error:
            self.unavailable = str(error)
            return
        if answer["status"] == "ok":
            self.facts = answer["facts"]
        else:
            self.unavailable = answer["reason"]

    async def ask(self, request: dict[str, Any], *, bound: float) -> dict[str, Any]:
        options = {name: getattr(self.plan, name) for name in ("backend", "containment", "sandbox")}
        if self._driver is None:
            self._driver = await self._stack.enter_async_context(open_driver(self.subject, self.python))
        try:
            return await self._driver.ask(request | options, bound=bound)
        except DriverFailed:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _END_BOUND):
                await self.end()
            raise

    async def end(self) -> None:
        """End its driver."""
        self._driver = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()


@attrs.define
class _Collected:
    """What the rounds of one subject in one case gave so far."""

    # Metric -> samples by round.
    values: dict[str, list[list[float]]] = attrs.field(factory=dict)
    counts: dict[str, int] = attrs.field(factory=dict)
    notes: list[str] = attrs.field(factory=list)
    facts: dict[str, Any] = attrs.field(factory=dict)
    # The answer that ended its part in the case: unsupported or failed.
    ended: tuple[str, str] | None = None

    def take(self, answer: dict[str, Any]) -> None:
        if answer["status"] != "ok":
            self.ended = (answer["status"], answer["reason"])
            return
        for metric, samples in answer["values"].items():
            self.values.setdefault(metric, []).append(samples)
        for name, number in answer["counts"].items():
            self.counts[name] = self.counts.get(name, 0) + number
        self.notes += [note for note in answer["notes"] if note not in self.notes]
        self.facts |= answer["facts"]

    def result(self, case: str, variant: str, subject: str) -> Result:
        status, reason = self.ended or ("ok", "")
        return Result(
            case=case,
            variant=variant,
            subject=subject,
            status=status,  # type: ignore[arg-type] # a driver says only words of the protocol
            reason=reason,
            metrics={name: summarize(name, rounds) for name, rounds in self.values.items() if any(rounds)},
            counts=self.counts,
            notes=self.notes,
            facts=self.facts,
        )


async def run(plan: Plan, *, say: Callable[[str], None] = lambda _: None) -> Report:
    """Run a plan. Everything it starts has ended when it returns, also when it is cancelled.

    Args:
        plan: What to run.
        say: Receives a line about each step.

    Returns:
        The report.
    """
    environment = describe()
    contestants = [_Contestant(plan.replaced.get(name, SUBJECTS[name]), plan) for name in plan.subjects]
    results: list[Result] = []
    hogs = hog(plan.hogs)
    try:
        for contestant in contestants:
            await contestant.prepare(say)
        places = [(CASES[name], variant) for name in plan.cases for variant in _variants(CASES[name], plan)]
        for number, (case, variant) in enumerate(places, start=1):
            at = f"{number} of {len(places)}, {case.name} {variant}"
            results += await _run_variant(case, variant, contestants, plan, lambda text, at=at: say(f"{at}: {text}"))  # type: ignore[misc]
    finally:
        for process in hogs:
            process.kill()
            process.wait()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _END_BOUND * len(contestants)):
            for contestant in contestants:
                await contestant.end()
    options = attrs.asdict(plan, filter=lambda field, _: field.name not in {"cache", "replaced", "install"})
    return Report(
        environment=environment,
        options=options,
        subjects={each.subject.name: {"text": each.subject.text, **each.facts} for each in contestants},
        results=results,
        comparisons=compare(results),
    )


def _variants(case: Case, plan: Plan) -> list[str]:
    if case.name == "cancel" and plan.load:
        return [f"load-{plan.load}"]
    return [variant for variant in case.variants if not plan.variants or variant in plan.variants]


async def _run_variant(
    case: Case, variant: str, contestants: Sequence[_Contestant], plan: Plan, say: Callable[[str], None]
) -> list[Result]:
    collected = {each.subject.name: _Collected() for each in contestants if case.name in each.subject.cases}
    taking_part = [each for each in contestants if each.subject.name in collected]
    for each in taking_part:
        if each.unavailable:
            collected[each.subject.name].ended = ("unavailable", each.unavailable)
    load = plan.load if case.name == "cancel" else 0
    seconds = plan.seconds or case.seconds
    request = {
        "op": "run",
        "case": case.name,
        "variant": "cpu" if load else variant,
        "load": load,
        "count": plan.count or case.count,
        "seconds": seconds,
        "patience": plan.patience,
        "linger": plan.linger,
        "start_bound": 10.0 + load,  # many interpreters that start at once are slow, each of them
    }
    # A round ends by itself within its seconds, one more sample, and opening and closing the subject; the slowest
    # known peer needs half a second for each of 64 calls.
    bound = 90.0 + seconds + 3 * plan.patience + plan.linger + 4 * load
    for number in range(plan.rounds):
        for each in taking_part[number % len(taking_part) :] + taking_part[: number % len(taking_part)]:
            mine = collected[each.subject.name]
            if mine.ended is None:
                say(f"round {number + 1} of {plan.rounds}, {each.subject.name}")
                try:
                    mine.take(await each.ask(request, bound=bound))
                except DriverFailed as error:
                    mine.ended = ("failed", str(error))
    return [found.result(case.name, variant, name) for name, found in collected.items()]
