"""Draws figures as SVG. panel: returns against environment steps, for each group of runs the mean in a band from the worst to the
best seed. chart: any numbers against others, as lines with points.

A curve is [(environment steps, return)], in the order of the steps. Axes have ticks at round numbers.
"""
import html
import math
import statistics

COLOURS = ["#1b6ca8", "#d1495b", "#2e8b57", "#8a5fbf", "#c77d1a", "#4a4a4a", "#159a9c", "#a0527a"]
MISSED = "#c0182b"  # words on what was not reached
POINTS = 50  # in which a curve is drawn
FONT = 11


def value_at(curve, steps):
    """The curve as a piecewise linear function; level before its first and after its last point."""
    before = None
    for x, y in curve:
        if x >= steps:
            if before is None:
                return y
            return before[1] + (y - before[1]) * (steps - before[0]) / max(1, x - before[0])
        before = (x, y)
    return before[1]


def grid_to(last):
    return [last * i / POINTS for i in range(POINTS + 1)]


def ticks(low, high, most):
    """At most `most` + 1 round numbers that reach from below `low` to above `high`."""
    raw = (high - low or abs(high) or 1.0) / most
    power = 10.0 ** math.floor(math.log10(raw))
    for factor in (1, 2, 2.5, 5, 10, 20):
        step = factor * power
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first <= most:
            return [i * step for i in range(first, max(last, first + 1) + 1)]
    raise AssertionError((low, high, most))


def short(value):
    if abs(value) >= 1e6:
        return f"{value / 1e6:.4g}M"
    return f"{value / 1e3:.4g}k" if abs(value) >= 1e4 else f"{value:.4g}"


def text(x, y, words, anchor="middle", size=FONT, colour="#222"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">'
            f'{html.escape(words)}</text>')


def line(x1, y1, x2, y2, colour, extra=""):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{extra}/>'


def frame(box, title, at, first, levels, marks):
    """Axes and title: a line at each level, and the numbers of the marks from `first` on where there is room for them."""
    left, top, width, height = box
    out, taken = [text(left, top - 8, title, "start", 13)], -math.inf
    for y in levels:
        place = at(first, y)[1]
        out += [line(left, place, left + width, place, "#ddd"), text(left - 5, place + 4, short(y), "end")]
    for x in marks:
        place = at(x, levels[0])[0]
        if place - taken >= 28:
            out += [line(place, top + height, place, top + height + 4, "#888"), text(place, top + height + 16, short(x))]
            taken = place
    return out + [f'<path d="M{left},{top}V{top + height}H{left + width}" fill="none" stroke="#888"/>']


def panel(box, title, groups, steps, bar=None):
    """box: (left, top, width, height) of the axes; groups: [(colour, [curve, ...])]; bar: a return, drawn dashed."""
    left, top, width, height = box
    grid = grid_to(steps)
    columns = [(colour, [[value_at(curve, x) for curve in curves] for x in grid]) for colour, curves in groups if curves]
    values = [y for _, group in columns for column in group for y in column] + ([] if bar is None else [bar])
    levels = ticks(min(values), max(values), max(3, height // 30))
    low, high = levels[0], levels[-1]

    def at(x, y):
        return left + width * x / steps, top + height * (high - y) / (high - low)

    out = frame(box, title, at, 0, levels, [x for x in ticks(0, steps, max(3, width // 80)) if x <= steps])
    for colour, group in columns:
        edge = [at(x, max(column)) for x, column in zip(grid, group)]
        edge += [at(x, min(column)) for x, column in zip(grid, group)][::-1]
        mean = [at(x, statistics.fmean(column)) for x, column in zip(grid, group)]
        out.append(f'<polygon points="{path(edge)}" fill="{colour}" opacity="0.18"/>')
        out.append(f'<polyline points="{path(mean)}" fill="none" stroke="{colour}" stroke-width="2"/>')
    if bar is not None:
        out.append(line(left, at(0, bar)[1], left + width, at(0, bar)[1], "#444", ' stroke-dasharray="5 4"'))
    return out


def chart(box, title, lines, log=""):
    """lines: [(colour, dashed, [(x, y)])]; points without a line between them where dashed is None. log: "x", "y" or "xy" for axes that are
    logarithmic; only positive values then."""
    left, top, width, height = box
    xs, ys = (sorted({point[i] for _, _, points in lines for point in points}) for i in (0, 1))
    if not xs:
        return [text(left, top - 8, title + ": nothing was measured", "start", 13)]
    scale_x, scale_y = (math.log10 if axis in log else float for axis in "xy")
    if "y" in log:
        levels = [10.0 ** i for i in range(math.floor(math.log10(ys[0])), math.ceil(math.log10(ys[-1]) + 1e-9) + 1)]
    else:
        levels = ticks(min(0, ys[0]), ys[-1], max(3, height // 30))

    def at(x, y):
        shares = [(scale(value) - scale(low)) / (scale(high) - scale(low) or 1)
                  for scale, value, low, high in ((scale_x, x, xs[0], xs[-1]), (scale_y, y, levels[0], levels[-1]))]
        return left + width * shares[0], top + height * (1 - shares[1])

    marks = [f * 10.0 ** i for i in range(19) for f in (1, 2, 5)] if "x" in log else ticks(xs[0], xs[-1], width // 60)
    out = frame(box, title, at, xs[0], levels, xs if all(x == int(x) for x in xs) else [x for x in marks if xs[0] <= x <= xs[-1]])
    for colour, dashed, points in lines:
        places = [at(x, y) for x, y in points]
        if dashed is not None:
            out.append(f'<polyline points="{path(places)}" fill="none" stroke="{colour}" stroke-width="2"'
                       + (' stroke-dasharray="5 4"/>' if dashed else "/>"))
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places if not dashed]
    return out


def path(points):
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def write(file_name, width, height, parts):
    with open(file_name, "w") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                   'font-family="sans-serif">\n'
                   f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")
