"""Checks the table of goals: each row with a goal has a reason and two tries with figures, each row has a
floor or the reason why it has none, and misses are told."""
import dataclasses
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "scripts"))
sys.dont_write_bytecode = True
from bench import goals, steady, table  # noqa: E402

failed = 0


def check(claim, text):
    global failed
    if not claim:
        print(text)
        failed += 1


def results_of(times, theirs=None):
    """Results with these ns."""
    results = steady.Results()
    for of, given in ((results.ours, times), (results.peers, theirs or {})):
        for name, ns in given.items():
            of[name] = steady.Series()
            of[name].times.append(ns)
    return results


def ways(why):
    """The ways tried, without the remarks in brackets; one with a figure there ends with #."""
    marked = re.sub(r"\([^()]*\)", lambda remark: "#" if re.search(r"\d", remark[0]) else "", why)
    tried = marked.partition("tried")[2].partition(":")[2].partition(";")[0]
    return [way.strip() for way in tried.split(",") if way.strip()]


for goal in goals.GOALS:
    check(bool(goal.floor) != bool(goal.no_floor), f"{goal.work}: no floor and no reason for that")
    if goal.wish:
        check(len(ways(goal.why)) >= 2, f"{goal.work}: no reason with two ways that were tried")
    for way in ways(goal.why):
        check(way.endswith("#"), f"{goal.work}: the way '{way}' has no figure in brackets")

MISSED = results_of({"noop": 1e9})
kept = goals.GOALS
slow = goals.Goal("a call", "noop", None, goals.within(25e3, "<= 25 us"), why="it sleeps; tried: a, b")
for why, lines, unexplained in ((slow.why, ["a call: it sleeps; tried: a, b"], []),
                                ("", ["a call: " + table.NO_REASON], ["a call"])):
    goals.GOALS = [dataclasses.replace(slow, why=why)]
    check(table.reasons(MISSED) == lines, f"reasons: {table.reasons(MISSED)}")
    check(table.unexplained(MISSED) == unexplained, f"unexplained: {table.unexplained(MISSED)}")
    check(table.reasons(results_of({"noop": 10})) == [], "a goal that is met has a reason")
    check(table.reasons(results_of({"other": 10})) == [], "a row that did not run has a reason")
fast = dataclasses.replace(slow, work="another call", no_floor="nothing to compare")
goals.GOALS = [dataclasses.replace(fast, work="a call"), fast, dataclasses.replace(fast, name="absent")]
check(table.without_floor(MISSED) == ["no floor for a call; another call: nothing to compare"],
      f"without_floor: {table.without_floor(MISSED)}")
goals.GOALS = kept

clip = next(goal for goal in goals.GOALS if goal.name == "ClipSgd/1/real_time")
for copied, theirs, met in ((5e6, 20e6, True), (5e6, 12e6, False), (4e6, 20e6, False)):
    case = goals.case_of(clip, results_of({clip.name: 10e6, "floor/copy": copied}, {clip.name: theirs}))
    check(bool(clip.wish.met(case)) is met,
          f"clip in 10 ms, a copy in {copied / 1e6:g}, PyTorch in {theirs / 1e6:g}: {clip.wish.met(case)}")
print(f"{sum(1 for goal in goals.GOALS if goal.wish)} goals, {failed} checks failed")
sys.exit(1 if failed else 0)
