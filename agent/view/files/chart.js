// Charts by dygraphs (index.html loads it): lines over time or steps with zoom, values under the pointer in all charts of the same
// axis, a logarithmic scale, enlargement, and downloads. Bars and the meter are small pictures of our own.
import {duration, h, known, number, s} from "./util.js";

const W = 460, H = 180, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 22;
const COLOURS = 10;
const charts = new Set(); // those in the document
const zooms = new Map();  // axis -> [from, to] that a person has chosen for all its charts
let pointed = null;       // {axis, x} below the pointer

function ticks(low, high, count, steps = [1, 2, 5, 10]) {
  const raw = (high - low || 1) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = steps === SECONDS ? SECONDS.find((one) => one >= raw) || raw : steps.map((k) => k * power).find((one) => one >= raw * 0.999);
  const out = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) out.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return out;
}
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

// series: [{name, points: [[x, y]]}]; with like, the colour of another series, dashed; second: on the axis at the right; band: points
// are [x, low, middle, high].
// options: title, window [from, to] (x is seconds since 1970, and `to` is now or the end) or xName, yName, lines [{name, y}],
// format (of values), formatSecond, zero (the axis begins at 0), dots, log, smooth (weight of the past, 0 to 1), over.
export function lines(series, options) {
  const figure = h("figure", {class: "chart", "data-key": options.title});
  figure.spec = {series, options};
  return figure;
}

// Draws the figures of a part of the document that are new or have other data, and forgets those that are gone.
export function drawCharts(root) {
  for (const chart of charts) if (!chart.figure.isConnected) chart.remove();
  for (const figure of root.querySelectorAll("figure.chart")) {
    if (!figure.chart) figure.chart = new Chart(figure);
    if (figure.chart.spec !== figure.spec) figure.chart.draw();
  }
}

export function redrawCharts() {
  for (const chart of charts) chart.draw();
}

// The mean of all points so far, the newest with the most weight.
function smoothed(points, weight) {
  let mean = 0, sum = 0;
  return points.map(([x, y]) => {
    if (!known(y)) return [x, y];
    mean = weight * mean + (1 - weight) * y;
    sum = weight * sum + (1 - weight);
    return [x, mean / sum];
  });
}

// Series as they are drawn: constant lines as series, smoothed ones behind their own faint points.
function drawn({series, options}) {
  const out = series.map((one, i) => ({...one, colour: one.like ?? i, dashed: one.dashed || (one.like == null && i >= COLOURS)}));
  const xs = series.flatMap((one) => one.points.map(([x]) => x)).filter(known);
  const [from, to] = options.window || xs.reduce(([low, high], x) => [Math.min(low, x), Math.max(high, x)], [Infinity, -Infinity]);
  (options.lines || []).forEach((line, i) => {
    if (known(line.y) && xs.length) out.push({name: line.name, points: [[from, line.y], [to, line.y]], colour: series.length + i, dashed: true});
  });
  if (!(options.smooth > 0)) return out;
  return out.flatMap((one) => (one.band || one.dashed ? [one] : [{...one, name: "", faint: true}, {...one, points: smoothed(one.points, options.smooth)}]));
}

// Rows of dygraphs: [x, value of each series]; null: the series has no point there, NaN: a gap.
function rowsOf(list, bands) {
  const rows = new Map();
  list.forEach((one, i) => {
    for (const [x, ...y] of one.points) {
      if (!known(x)) continue;
      if (!rows.has(x)) rows.set(x, [x, ...list.map(() => null)]);
      rows.get(x)[i + 1] = bands ? (known(y[0]) ? [y[0], y[1] ?? y[0], y[2] ?? y[0]] : null) : known(y[0]) ? y[0] : NaN;
    }
  });
  return [...rows.values()].sort((a, b) => a[0] - b[0]);
}

const middle = (cell) => (Array.isArray(cell) ? cell[1] : cell);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function saveAs(name, url) {
  h("a", {href: url, download: name.replace(/[^\w.-]+/g, "-")}).click();
}

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.plot = h("div", {class: "plot"});
    this.tip = h("div", {class: "tip", hidden: true});
    this.legend = h("ul", {class: "legend"});
    const tool = (text, name, act) => h("button", {type: "button", title: name, "aria-label": `${name}: ${figure.dataset.key}`, onclick: act}, text);
    this.scale = tool("log", "Logarithmic scale", () => { this.log = !this.isLog; this.draw(); });
    this.unzoom = tool("↺", "Whole range (double click)", () => this.zoom(null));
    this.tools = h("div", {class: "tools"}, this.unzoom, this.scale, tool("⤢", "Enlarge", () => this.enlarge()),
      tool("csv", "Download the data", () => this.saveData()), tool("png", "Download the picture", () => this.savePicture()));
    this.yName = h("div", {class: "soft small"});
    figure.append(this.tools, this.yName, h("div", {class: "frame"}, this.plot, this.tip), this.legend);
    this.empty = h("div", {class: "empty"});
    charts.add(this);
  }

  remove() {
    this.graph?.destroy();
    charts.delete(this);
  }

  get isLog() {
    return this.log ?? !!this.spec.options.log;
  }

  get axis() {
    const {window, xName} = this.spec.options;
    return window ? "time" : xName;
  }

  draw() {
    const {figure} = this, spec = this.spec = figure.spec, options = spec.options;
    this.format = options.format || number;
    this.list = drawn(spec);
    const bands = this.list.some((one) => one.band);
    this.rows = rowsOf(this.list, bands);
    const some = this.rows.some((row) => row.slice(1).some((cell) => known(middle(cell))));
    figure.setAttribute("role", "group");
    figure.setAttribute("aria-label", `${options.title}: ${some ? this.words() : "nothing yet"}`);
    this.empty.textContent = `${options.title}: nothing yet`;
    figure.classList.toggle("without", !some);
    if (!some) { figure.append(this.empty); return; }
    this.empty.remove();
    this.yName.textContent = options.yName || "";
    this.scale.setAttribute("aria-pressed", String(this.isLog));
    this.unzoom.hidden = !zooms.has(this.axis);
    this.drawLegend();
    const settings = this.settings(bands);
    if (this.graph && this.bands === bands) this.graph.updateOptions(settings);
    else {
      this.graph?.destroy();
      this.bands = bands;
      this.graph = new Dygraph(this.plot, settings.file, settings);
    }
    this.point();
  }

  settings(bands) {
    const {options} = this.spec, colour = (one) => css(`--c${one.colour % COLOURS}`);
    const axis = (format) => ({axisLabelFormatter: (value) => format(value), axisLabelWidth: 52, logscale: this.isLog});
    const window = zooms.get(this.axis) || options.window || null;
    const end = options.window?.[1], label = (at) => (at > -0.5 ? (options.over ? "end" : "now") : `−${duration(-at)}`);
    const x = options.window ? {ticker: (from, to) => ticks(from - end, to - end, 4, SECONDS).map((at) => ({v: at + end, label: label(at)}))}
      : {axisLabelFormatter: (value) => number(value), pixelsPerLabel: 50};
    return {
      file: this.rows, labels: ["x", ...this.list.map((_, i) => String(i))], colors: this.list.map((one) => colour(one) + (one.faint ? "40" : "")),
      series: Object.fromEntries(this.list.map((one, i) => [String(i), {axis: one.second ? "y2" : "y", strokePattern: one.dashed ? [6, 3] : null,
        strokeWidth: one.faint ? 1 : 1.8, drawPoints: !!options.dots && !one.dashed}])),
      axes: {x: {...x, drawGrid: false}, y: axis(this.format), y2: {...axis(options.formatSecond || this.format), drawGrid: false, independentTicks: true}},
      dateWindow: window, valueRange: null, includeZero: !!options.zero && !this.isLog, logscale: this.isLog, customBars: bands, connectSeparatedPoints: true,
      legend: "never", xlabel: options.xName || null, xLabelHeight: 15, axisLabelFontSize: 11, gridLineColor: css("--grid"), axisLineColor: css("--line"), pointSize: 2,
      xRangePad: 4, yRangePad: 6, rightGap: 8, highlightCircleSize: 3, fillAlpha: 0.15,
      highlightCallback: (event, at) => this.show(at), unhighlightCallback: () => this.show(null),
      zoomCallback: () => this.zoom(this.graph.isZoomed("x") ? this.graph.xAxisRange() : null),
    };
  }

  // All charts of the same axis show the same range.
  zoom(window) {
    if (window) zooms.set(this.axis, window); else zooms.delete(this.axis);
    for (const one of charts) if (one.axis === this.axis && (one !== this || !window)) one.draw();
    this.unzoom.hidden = !window;
  }

  show(x) {
    pointed = x === null ? null : {axis: this.axis, x};
    for (const one of charts) one.point(this);
  }

  // Shows the values at the x that is pointed at, in this chart or another one.
  point(from) {
    const here = pointed && pointed.axis === this.axis && this.graph && this.rows.length;
    this.tip.hidden = !here;
    if (!here) { if (this.graph && from !== this) this.graph.clearSelection(); return; }
    let row = this.rows.findIndex((one) => one[0] >= pointed.x);
    if (row < 0) row = this.rows.length - 1;
    if (from !== this) this.graph.setSelection(row);
    const {options} = this.spec, end = options.window?.[1];
    const at = options.window ? (options.over ? `${duration(Math.max(0, end - pointed.x))} before the end` : `${duration(Math.max(0, end - pointed.x))} ago`) : `${number(pointed.x, 4)} ${options.xName || ""}`;
    this.tip.replaceChildren(h("div", {class: "soft"}, at), ...this.list.flatMap((one, i) => (one.faint ? [] : [h("div", {}, swatch(one), `${one.name} `, h("b", {}, this.text(one, this.at(i, row))))])));
    const left = this.graph.toDomXCoord(this.rows[row][0]), right = left > this.plot.clientWidth / 2;
    this.tip.style.left = right ? "" : `${left + 10}px`;
    this.tip.style.right = right ? `${this.plot.clientWidth - left + 10}px` : "";
  }

  // The value of a series at a row, or the last one before it.
  at(i, row) {
    for (let k = row; k >= 0; k--) if (this.rows[k][i + 1] !== null) return middle(this.rows[k][i + 1]);
    return NaN;
  }

  text(one, value) {
    return (one.second && this.spec.options.formatSecond || this.format)(value);
  }

  last(i) {
    for (let k = this.rows.length - 1; k >= 0; k--) if (known(middle(this.rows[k][i + 1]))) return middle(this.rows[k][i + 1]);
    return NaN;
  }

  words() {
    return this.list.map((one, i) => (one.faint ? "" : `${one.name} ${this.text(one, this.last(i))}`)).filter(Boolean).join(", ");
  }

  drawLegend() {
    this.legend.replaceChildren(...this.list.flatMap((one, i) => (one.faint ? [] : [h("li", {}, swatch(one), `${one.name} ${this.text(one, this.last(i))}${one.second ? " (right)" : ""}`)])));
  }

  enlarge() {
    const on = this.figure.classList.toggle("large");
    this.graph?.resize();
    document.onkeyup = on ? (event) => { if (event.key === "Escape" && this.figure.classList.contains("large")) this.enlarge(); } : null;
  }

  saveData() {
    const quote = (text) => `"${String(text).replaceAll('"', '""')}"`, list = this.list.map((one, i) => [one, i + 1]).filter(([one]) => !one.faint);
    const head = [this.spec.options.xName || "unix_s", ...list.map(([one]) => one.name)].map(quote).join(",");
    const rows = this.rows.map((row) => [row[0], ...list.map(([, i]) => (known(middle(row[i])) ? middle(row[i]) : ""))].join(","));
    saveAs(`${this.spec.options.title}.csv`, URL.createObjectURL(new Blob([[head, ...rows].join("\n"), "\n"], {type: "text/csv"})));
  }

  // dygraphs draws lines on canvases and labels as elements: both go into one picture.
  savePicture() {
    const scale = window.devicePixelRatio || 1, box = this.plot.getBoundingClientRect(), canvas = h("canvas", {width: box.width * scale, height: (box.height + 22) * scale});
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.fillStyle = css("--card");
    pen.fillRect(0, 0, box.width, box.height + 22);
    for (const one of this.plot.querySelectorAll("canvas")) pen.drawImage(one, 0, 22, box.width, box.height);
    pen.fillStyle = css("--ink");
    pen.font = "11px sans-serif";
    pen.textBaseline = "top";
    for (const one of this.plot.querySelectorAll(".dygraph-axis-label, .dygraph-xlabel")) {
      const at = one.getBoundingClientRect();
      pen.textAlign = one.classList.contains("dygraph-axis-label-y") ? "right" : one.classList.contains("dygraph-axis-label-y2") ? "left" : "center";
      pen.fillText(one.textContent, pen.textAlign === "right" ? at.right - box.left : pen.textAlign === "left" ? at.left - box.left : (at.left + at.right) / 2 - box.left, at.top - box.top + 22);
    }
    pen.textAlign = "left";
    pen.fillText(`${this.spec.options.title}: ${this.words()}`, 6, 5);
    saveAs(`${this.spec.options.title}.png`, canvas.toDataURL("image/png"));
  }
}

function swatch(one) {
  return h("i", {class: "swatch", style: `border-top: 2px ${one.dashed ? "dashed" : "solid"} var(--c${one.colour % COLOURS})`});
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
