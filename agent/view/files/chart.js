// Charts as SVG: lines over time or steps, and bars. Lines differ by dashes as well as by colour; every chart has a
// description in words and a table of its figures for those who cannot see it.
import {h, s, known, number, duration} from "./util.js";

const W = 460, H = 180, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 22;

function ticks(low, high, count) {
  const span = high - low || 1;
  const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((one) => one >= raw * 0.999);
  const out = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) out.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return out;
}

// Powers of ten between two logarithms, and 2 and 5 times those if they are few.
function logTicks(low, high) {
  const factors = high - low > 3 ? [1] : [1, 2, 5], out = [];
  for (let power = Math.floor(low); power <= high; power++)
    for (const factor of factors) {
      const at = power + Math.log10(factor);
      if (at >= low - 1e-9 && at <= high + 1e-9) out.push(at);
    }
  return out;
}

function bounds(series, options) {
  let low = Infinity, high = -Infinity, left = Infinity, right = -Infinity;
  for (const one of series)
    for (const [x, y] of one.points) {
      if (!known(y) || !known(x)) continue;
      low = Math.min(low, y); high = Math.max(high, y); left = Math.min(left, x); right = Math.max(right, x);
    }
  for (const line of options.lines || []) if (known(line.y)) { low = Math.min(low, line.y); high = Math.max(high, line.y); }
  if (options.zero) low = Math.min(low, 0);
  const least = 0.02 * Math.max(Math.abs(low), Math.abs(high)) || 2; // a line that hardly moves looks as if it hardly moves
  if (high - low < least) {
    const middle = options.zero ? low + least / 2 : (low + high) / 2;
    low = middle - least / 2;
    high = middle + least / 2;
  }
  if (left === right) right = left + 1;
  return {low, high, left, right, some: low <= high};
}

// At most about two points a pixel: the mean, so that a peak of one second does not hide the rest.
function thin(points, most = 600) {
  if (points.length <= most) return points;
  const out = [], size = points.length / most;
  for (let i = 0; i < most; i++) {
    const part = points.slice(Math.floor(i * size), Math.floor((i + 1) * size)).filter(([, y]) => known(y));
    if (part.length) out.push([part[part.length >> 1][0], part.reduce((sum, [, y]) => sum + y, 0) / part.length]);
  }
  return out;
}

function path(points, x, y) {
  let text = "", pen = false;
  for (const [px, py] of points) {
    if (!known(py)) { pen = false; continue; }
    text += `${pen ? "L" : "M"}${x(px).toFixed(1)} ${y(py).toFixed(1)}`;
    pen = true;
  }
  return text;
}

// series: [{name, points: [[x, y]]}], with a colour of its own: like, dashed; options: title, xTime (x is seconds
// since 1970) or xName, yName, now, lines [{name, y}], format, log (for values that differ by orders of magnitude; 0 has no place there).
export function lines(series, options) {
  if (options.log) return logLines(series, options);
  return draw(series, options, bounds(series, options), options.format || number);
}

function logLines(series, options) {
  const format = options.format || number, scaled = series.map((one) => ({...one, points: one.points.map(([x, y]) => [x, y > 0 ? Math.log10(y) : NaN])}));
  const box = bounds(scaled, {});
  box.low -= 0.1;
  box.high += 0.1;
  return draw(scaled, {...options, ticks: logTicks(box.low, box.high)}, box, (value) => format(known(value) ? 10 ** value : NaN));
}

function draw(series, options, box, format) {
  if (!box.some) return h("div", {class: "empty"}, `${options.title}: nothing yet`);
  const x = (value) => LEFT + ((value - box.left) / (box.right - box.left)) * (W - LEFT - RIGHT);
  const top = TOP + (options.yName ? 14 : 0), bottom = H - BOTTOM - (options.xName ? 14 : 0);
  const y = (value) => top + (1 - (value - box.low) / (box.high - box.low)) * (bottom - top);
  const xText = options.xTime ? (value) => (value >= box.right - 1e-9 ? (options.over ? "end" : "now") : `−${duration(box.right - value)}`) : number;
  const xTicks = options.xTime ? ticks(box.left - box.right, 0, 3).map((at) => at + box.right) : ticks(box.left, box.right, 4);
  const parts = (options.ticks || ticks(box.low, box.high, 4)).map((at) => [
    s("line", {class: "axis", x1: LEFT, x2: W - RIGHT, y1: y(at), y2: y(at)}),
    s("text", {x: LEFT - 5, y: y(at) + 4, "text-anchor": "end"}, format(at)),
  ]);
  parts.push(xTicks.map((at) => s("text", {x: Math.min(Math.max(x(at), LEFT + 10), W - 14), y: bottom + 16, "text-anchor": "middle"}, xText(at))));
  if (options.xName) parts.push(s("text", {x: (LEFT + W - RIGHT) / 2, y: H - 4, "text-anchor": "middle"}, options.xName));
  if (options.yName) parts.push(s("text", {x: 2, y: TOP + 2}, options.yName));
  for (const line of options.lines || [])
    if (known(line.y)) parts.push(s("line", {class: "curve l3 d2", x1: LEFT, x2: W - RIGHT, y1: y(line.y), y2: y(line.y)}),
                                  s("text", {x: W - RIGHT, y: y(line.y) - 4, "text-anchor": "end"}, `${line.name} ${format(line.y)}`));
  series.forEach((one, i) => {
    const points = thin(one.points);
    parts.push(s("path", {class: lineClass(one, i), d: path(points, x, y)}));
    points.forEach(([px, py], k) => { // a point without neighbours has no line
      const alone = !known(points[k - 1]?.[1]) && !known(points[k + 1]?.[1]);
      if (known(py) && (options.dots || alone)) parts.push(s("circle", {class: `f${(one.like ?? i) % 4}`, cx: x(px), cy: y(py), r: 2.5}));
    });
  });
  const last = series.map((one) => `${one.name} ${format(lastOf(one.points))}`).join(", ");
  return h("figure", {style: "margin:0"},
    s("svg", {viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${options.title}: ${last}`}, parts),
    series.length > 1 || options.legend ? legend(series, format) : null,
    asTable(series, options, format, xText));
}

function lineClass(one, i) {
  return `curve l${(one.like ?? i) % 4} d${one.like == null ? i % 4 : one.dashed ? 1 : 0}`;
}

function lastOf(points) {
  for (let i = points.length - 1; i >= 0; i--) if (known(points[i][1])) return points[i][1];
  return NaN;
}

function legend(series, format) {
  return h("ul", {class: "legend"}, series.map((one, i) => h("li", {},
    s("svg", {viewBox: "0 0 26 8", "aria-hidden": "true"}, s("path", {class: lineClass(one, i), d: "M0 4H26"})),
    `${one.name} ${format(lastOf(one.points))}`)));
}

function asTable(series, options, format, xText) {
  const details = h("details", {}, h("summary", {}, "as a table"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    const points = series.map((one) => thin(one.points, 12));
    const most = points.reduce((a, b) => (b.length > a.length ? b : a), []);
    const head = h("tr", {}, h("th", {}, options.xName || "time"), series.map((one) => h("th", {class: "n"}, one.name)));
    const rows = most.map(([at], row) => h("tr", {}, h("td", {}, xText(at)), points.map((list) => h("td", {class: "n"}, format(list[row]?.[1])))));
    details.append(h("div", {class: "scroll"}, h("table", {}, h("thead", {}, head), h("tbody", {}, rows))));
  });
  return details;
}

// bars: [{name, value}], in order.
export function bars(list, options) {
  const most = Math.max(...list.map((one) => one.value), 0);
  if (!list.length || !(most > 0)) return h("div", {class: "empty"}, `${options.title}: nothing yet`);
  const width = (W - LEFT - RIGHT) / list.length, y = (value) => TOP + (1 - value / most) * (H - TOP - BOTTOM);
  const every = Math.ceil(list.length / 8);
  const parts = list.map((one, i) => [
    s("rect", {class: "f0", x: LEFT + i * width + 0.5, y: y(one.value), width: Math.max(1, width - 1), height: H - BOTTOM - y(one.value)},
      s("title", {}, `${one.name}: ${number(one.value)}`)),
    i % every === 0 ? s("text", {x: LEFT + (i + 0.5) * width, y: H - 6, "text-anchor": "middle"}, one.name) : null,
  ].filter(Boolean));
  parts.push(ticks(0, most, 3).map((at) => [s("line", {class: "axis", x1: LEFT, x2: W - RIGHT, y1: y(at), y2: y(at)}),
    s("text", {x: LEFT - 5, y: y(at) + 4, "text-anchor": "end"}, number(at))]));
  const words = list.filter((one) => one.value > 0).map((one) => `${one.name} ${number(one.value)}`).join(", ");
  return s("svg", {viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${options.title}: ${words}`}, parts.flat(2));
}

// Where a value stands between two bounds; `low` and `high` may be infinite.
export function meter(value, low, high, label) {
  const finite = known(low) && known(high) && high > low;
  const share = finite ? Math.min(Math.max((value - low) / (high - low), 0), 1) : 0.5;
  const at = 10 + share * 380;
  return s("svg", {viewBox: "0 0 400 46", role: "img", "aria-label": label},
    s("line", {class: "axis", x1: 10, x2: 390, y1: 18, y2: 18, "stroke-width": 8}),
    s("line", {x1: 10, x2: 10, y1: 10, y2: 26, class: "l0", "stroke-width": 2}),
    s("line", {x1: 390, x2: 390, y1: 10, y2: 26, class: "l0", "stroke-width": 2}),
    s("path", {class: share <= 0.02 || share >= 0.98 ? "f1" : "f0", d: `M${at} 8l7 10l-7 10l-7 -10z`}),
    s("text", {x: 10, y: 42}, `samples wait at ${number(low)}`),
    s("text", {x: 390, y: 42, "text-anchor": "end"}, `inserts wait at ${number(high)}`));
}
