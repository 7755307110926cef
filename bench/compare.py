"""Compares groups of runs, one run for each seed, with the standard deviation over seeds.

A curve is [(environment steps, return)]. A figure of groups is {name: [number for each seed]}.
"""
import itertools
import math
import random
import statistics

import curves
import launcher
from runs import curve_of, number

POINTS = 10       # of a curve that are compared; the last is the end
DIVISIONS = 4000  # random ones, for chance()


def pooled(groups):
    """The standard deviation over seeds, of all groups together."""
    degrees = sum(len(group) - 1 for group in groups)
    means = [sum(group) / len(group) for group in groups]
    squares = sum((value - mean) ** 2 for group, mean in zip(groups, means) for value in group)
    return math.sqrt(squares / degrees) if degrees else 0.0


def apart(groups):
    """How far the means are apart at most, in pooled standard deviations."""
    means = [sum(group) / len(group) for group in groups]
    distance, deviation = max(means) - min(means), pooled(groups)
    if distance <= 1e-9 * max(1.0, abs(means[0])):
        return 0.0
    return distance / deviation if deviation else math.inf


def area(curve, grid):
    return statistics.fmean(curves.value_at(curve, x) for x in grid)


def at_points(curve, last):
    return [curves.value_at(curve, last * (i + 1) / POINTS) for i in range(POINTS)]


def figures(groups):
    """groups: {name: [curve per seed]}. Gives {figure: {name: [number per seed]}}: the points, then the area."""
    last = min(curve[-1][0] for group in groups.values() for curve in group)
    grid = curves.grid_to(last)
    points = {name: [at_points(curve, last) for curve in group] for name, group in groups.items()}
    out = {f"at {last * (i + 1) / POINTS:,.0f} steps": {name: [p[i] for p in group] for name, group in points.items()}
           for i in range(POINTS)}
    out["area under the curve"] = {name: [area(curve, grid) for curve in group] for name, group in groups.items()}
    return out


def chance(rows):
    """rows: the groups of each figure, with the runs in the same order. Gives the greatest distance in deviations, and the
    share of random divisions of all runs into groups of these sizes in which the greatest distance is at least that."""
    ends = list(itertools.accumulate(len(group) for group in rows[0]))
    together = [[value for group in groups for value in group] for groups in rows]

    def greatest(order):
        parts = [order[begin:end] for begin, end in zip([0] + ends, ends)]
        return max(apart([[runs[i] for i in part] for part in parts]) for runs in together)

    order = list(range(ends[-1]))
    found, dice, more = greatest(order), random.Random(1), 0
    for _ in range(DIVISIONS):
        dice.shuffle(order)
        more += greatest(order) >= found - 1e-12
    return found, more / DIVISIONS


def shards(count):
    return f"{count} shard{'' if count == 1 else 's'}"


def cost(groups):
    """groups: {shards: [result per seed]}. What the runs took."""
    return {
        "samples per insert": {n: [sum(r["samples"]) / sum(r["inserts"]) for r in g] for n, g in groups.items()},
        "learner steps": {n: [r["learner_steps"] for r in g] for n, g in groups.items()},
        "fewest inserts in a shard, %": {n: [100 * min(r["inserts"]) / sum(r["inserts"]) for r in g]
                                         for n, g in groups.items()},
        "seconds": {n: [r["seconds"] for r in g] for n, g in groups.items()},
    }


def summary(values):
    return [number(statistics.fmean(values)), number(statistics.stdev(values) if len(values) > 1 else None),
            number(min(values))]


def report(groups):
    """groups: {shards: [lines of a run per seed]}. Prints the comparison, and gives it for a file."""
    if any(len(group) < 2 for group in groups.values()):
        print("there is no deviation to compare with: two seeds are needed at least")
        return {"within": False}
    returns = figures({n: [curve_of(lines) for lines in group] for n, group in groups.items()})
    others = cost({n: [lines[-1] for lines in group] for n, group in groups.items()})
    distances = {name: apart(list(figure.values())) for name, figure in returns.items()}
    grid = [[""] + [cell for n in groups for cell in (shards(n), "deviation", "lowest")] + ["apart"]]
    for name, figure in {**returns, **others}.items():
        distance = f"{distances[name]:.2f}" if name in distances else ""
        grid.append([name] + [cell for values in figure.values() for cell in summary(values)] + [distance])
    launcher.print_grid(grid)
    farthest, share = chance([list(figure.values()) for figure in returns.values()])
    beyond = [name for name, distance in distances.items() if distance > 1]
    print(f"apart: the means, in pooled standard deviations over seeds. Farthest {farthest:.2f}: "
          + (f"NOT within one: {', '.join(beyond)}" if beyond else "within one everywhere")
          + f". Of random divisions of these runs, {100 * share:.0f}% are as far apart somewhere.")
    return {"figures": {**returns, **others}, "apart": distances, "chance": share, "within": not beyond}
