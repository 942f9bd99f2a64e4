"""Prints the table of goals, the table of all other rows, and the exponents of growing costs."""
import datetime
import math
import os
import re

from . import goals, programs

NO_REASON = "MISSED WITHOUT A REASON in scripts/bench/goals.py"
UNITS = (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0))


def shown(ns):
    if ns is None:
        return ""
    for unit, factor in UNITS:
        if ns >= factor or unit == "ns":
            return f"{ns / factor:.3g} {unit}" if ns / factor < 1000 else f"{ns / factor:.0f} {unit}"
    return ""


def factor_of(value):
    return "" if value is None else f"{value:.2f}"


def outcome(goal, case, results):
    if not goal.wish:
        return ""
    met = goal.wish.met(case)
    if met is None:
        return "not judged"
    noisy = any(results.unsteady(name) for name in [goal.name, *(goal.floor.rows if goal.floor else [])])
    return ("met" if met else "MISSED") + (", unsteady" if noisy else "")


def missed(results):
    return [goal for goal in goals.GOALS if goal.wish and goal.name in results.ours
            and goal.wish.met(goals.case_of(goal, results)) is False]


def reasons(results):
    """Why each row misses that misses its goal."""
    return [f"{goal.work}: {goal.why or NO_REASON}{allowed(goal, results)}" for goal in missed(results)]


def unexplained(results):
    """The rows that miss their goal, and goals.py has no reason."""
    return [goal.work for goal in missed(results) if not goal.why]


def allowed(goal, results):
    factor = goals.case_of(goal, results).goal_over_floor(goal.wish)
    return f"; the time of the goal is {factor_of(factor)} of the floor" if factor else ""


def without_floor(results):
    """Why rows that ran have no floor; rows with the same reason share a line."""
    works = {}
    for goal in goals.GOALS:
        if goal.no_floor and goal.name in results.ours:
            works.setdefault(goal.no_floor, []).append(goal.work)
    return [f"no floor for {'; '.join(rows)}: {why}" for why, rows in works.items()]


def splits(results):
    """Where the time of a step goes, in the last run of a row that tells it."""
    return [f"{goal.work}, a step: {results.ours[goal.name].split}" for goal in goals.GOALS
            if goal.name in results.ours and results.ours[goal.name].split]


def goal_lines(results):
    """The rows of the goals that ran."""
    head = ("work", "weft", "PyTorch", "ratio", "floor", "weft/floor", "goal", "outcome")
    rows = []
    for goal in goals.GOALS:
        if goal.name not in results.ours:
            continue
        case = goals.case_of(goal, results)
        rows.append((goal.work, shown(case.ns), shown(case.peer), factor_of(case.ratio), shown(case.floor),
                     factor_of(case.over_floor), goal.wish.text if goal.wish else "",
                     outcome(goal, case, results)))
    if not rows:
        return []
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    left = (0, 6, 7)
    return ["  ".join(cell.ljust(widths[i]) if i in left else cell.rjust(widths[i])
                      for i, cell in enumerate(row)).rstrip() for row in [head, *rows]]


def other_lines(results, with_peer_alone=False):
    """All other rows, with PyTorch's time where it has one."""
    known = {goal.name for goal in goals.GOALS}
    names = [name for name in results.ours
             if name not in known and (not with_peer_alone or name in results.peers)]
    if not names:
        return []
    width = max([len(name) for name in names] + [9])
    head = f"{'benchmark':<{width}}  {'weft':>10}"
    if results.peers:
        head += f"  {'PyTorch':>10}  {'ratio':>6}"
    lines = [head + "  rate"]
    for name in names:
        ns, other = results.time(name), results.peer(name)
        line = f"{name:<{width}}  {shown(ns):>10}"
        if results.peers:
            line += f"  {shown(other):>10}  {factor_of(other and other / ns):>6}"
        marks = "  unsteady" if results.unsteady(name) else ""
        lines.append((line + f"  {results.ours[name].rate}{marks}").rstrip())
    return lines


def exponent_lines(results):
    """The power of the size with which the cost grows, between each two neighbouring sizes."""
    families = {}
    for name in results.ours:
        match = re.fullmatch(r"growth/(\w+)/(\d+)(/.*)?", name)
        if match:
            families.setdefault(match.group(1), []).append((int(match.group(2)), results.time(name)))
    return [f"cost over {what}, exponent: "
            + ", ".join(f"{math.log(b / a) / math.log(n / m):.2f} from {m} to {n}"
                        for (m, a), (n, b) in zip(points, points[1:]))
            for what, points in families.items()]


def notes(results, repeated):
    lines = []
    if results.peers:
        lines.append("ratio: PyTorch's time divided by weft's; above 1 weft is faster")
    if repeated:
        lines.append("Each row of the goals ran until two runs agreed within 10 %, six times at most; it is "
                     "their mean. An unsteady row is the median of six runs that never agreed.")
    return lines


def write_growth(results):
    """The costs at growing sizes as bench/results keeps them; returns the path."""
    path = os.path.join("bench", "results", f"growth.{programs.machine()}.txt")
    names = [name for name in results.ours if name.startswith("growth/")]
    width = max(len(name) for name in names)
    rows = [f"{name:<{width}}  {shown(results.time(name)):>10}  {results.ours[name].rate}".rstrip()
            for name in names]
    blocks = [[f"# {datetime.date.today()}, {programs.machine()}", "# scripts/bench.sh growth/"], rows,
              exponent_lines(results)]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n\n".join("\n".join(block) for block in blocks) + "\n")
    return path


def write_record(results, command, torch, repeated):
    """The table as bench/results keeps it; returns its path."""
    path = os.path.join("bench", "results", f"beside-pytorch.{programs.machine()}.txt")
    load = os.getloadavg()[0]
    blocks = [[f"# {datetime.date.today()}, PyTorch {torch}, one thread on each side where a row tells no "
               f"other number, {programs.machine()}, load {load:.1f} at the end", f"# {command}"],
              goal_lines(results), splits(results), reasons(results), without_floor(results),
              other_lines(results, with_peer_alone=True),
              exponent_lines(results) + notes(results, repeated)]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n\n".join("\n".join(block) for block in blocks if block) + "\n")
    return path
