// All runs below the same folder: a table to sort and filter, several runs in one chart, and what differs in their configurations.
import {ANSWERS, ROOT, ask, duration, exact, h, known, number, update} from "./util.js";
import {axisName, chartOptions, grid, pairs} from "./views.js";
import {drawCharts, lines} from "./chart.js";

const MOST_POINTS = 200; // of a band
const LOOK_MS = 5000; // between two looks at all runs, where they are all that is shown
const ended = (run) => (run.result === "failed" || run.result === "lost" ? "bad" : run.result === "done" ? "good" : "");

// name, value to sort by, text, is a number, is left out on a narrow screen
const COLUMNS = [
  ["result", (run) => run.result, (run) => h("span", {class: `badge ${ended(run)}`}, run.result)], ["return", (run) => run.final_value, null, true], ["best", (run) => run.best, null, true],
  ["seed", (run) => Number(run.seed), (run) => run.seed || "–", true, true], ["steps", (run) => run.steps, (run) => exact(run.steps), true, true], ["time", (run) => run.elapsed_s, (run) => duration(run.elapsed_s), true, true],
  ["actors", (run) => run.actors, null, true, true], ["learners", (run) => run.learners, null, true, true],
  ["inserts/s", (run) => run.inserts, null, true, true], ["samples/s", (run) => run.samples, null, true, true]];

export class Runs {
  constructor(page) {
    this.root = Object.assign(h("div", {}), {kept: true});
    this.page = {...page, redraw: () => this.draw()};
    this.chosen = new Set();
    this.curves = new Map();
    this.list = null;
    this.filter = "";
    this.sort = {by: -1, down: false}; // as they come: the newest first
    this.bands = true;
    this.folders = [];
  }

  // The address of a run's page: the number of the folder that it lies in, and its name.
  place(run) {
    return `${ROOT}${this.folders.indexOf(run.folder.slice(0, -run.name.length - 1)) + 1}/${encodeURIComponent(run.name)}/`;
  }

  render(store) {
    if (!store.state.can.runs) return h("p", {class: "empty"}, "This page shows a broker alone. A broker knows no runs: replay-launch open lists and compares them.");
    if (!this.asked || (store.state.home && Date.now() - this.asked > LOOK_MS)) { this.asked = Date.now(); this.load(); }
    return this.root;
  }

  async load() {
    try {
      ({runs: this.list, folders: this.folders = []} = await ask("api/runs"));
      if (ANSWERS) this.list.forEach((run) => { this.chosen.add(run.folder); this.curves.set(run.folder, read(run)); }); // a file is written to compare them
      this.problem = "";
    } catch (error) {
      this.problem = error.message;
    }
    this.draw();
  }

  async choose(runs, on) {
    for (const run of runs) {
      const {folder, name} = run;
      if (on) this.chosen.add(folder); else this.chosen.delete(folder);
      if (on && !this.curves.has(folder)) this.curves.set(folder, read(await ask(`${this.place(run)}api/run`).catch(() => ({name}))));
    }
    this.draw();
  }

  shown() {
    const words = this.filter.toLowerCase().split(/\s+/).filter(Boolean), [, value] = COLUMNS[this.sort.by] || [];
    const text = (run) => `${run.name} ${run.result} ${run.seed}`.toLowerCase();
    const list = (this.list || []).filter((run) => words.every((word) => text(run).includes(word)));
    const order = (a, b) => { // what is not known comes last
      const [x, y] = [value(a), value(b)], gone = (one) => one == null || Number.isNaN(one);
      return gone(x) || gone(y) ? gone(x) - gone(y) : (x < y ? -1 : x > y ? 1 : 0) * (this.sort.down ? -1 : 1);
    };
    return value ? [...list].sort(order) : list;
  }

  table(list) {
    const head = (name, i) => h("button", {type: "button", "aria-label": `sort by ${name}`, onclick: () => { this.sort = {by: i, down: this.sort.by === i ? !this.sort.down : true}; this.draw(); }},
      `${name}${this.sort.by === i ? (this.sort.down ? " ▾" : " ▴") : ""}`);
    const all = list.length > 0 && list.every((run) => this.chosen.has(run.folder));
    const box = (on, name, runs) => h("input", {type: "checkbox", checked: on, "aria-label": name, onchange: (event) => this.choose(runs, event.target.checked)});
    return grid([{name: box(all, "compare all that are shown", list), of: (run) => box(this.chosen.has(run.folder), `compare ${run.name}`, [run])},
      {name: "run", of: (run) => (ANSWERS ? run.name : [h("a", {href: this.place(run), title: run.folder}, run.name), this.folders.length > 1 ? h("div", {class: "soft small hide-narrow"}, run.folder) : null])},
      ...COLUMNS.map(([name, value, text, n, narrow], i) => ({name: head(name, i), of: text || ((run) => number(value(run))), n, narrow}))],
    list, this.list ? "There are no such runs." : "Looking ...");
  }

  draw() {
    const list = this.shown(), chosen = [...this.chosen].map((folder) => this.curves.get(folder)).filter(Boolean), several = groups(chosen).some((one) => one.runs.length > 1);
    update(this.root, h("div", {class: "cards"}, h("section", {class: "card wide"}, h("h2", {}, "Runs"),
      h("div", {class: "row"}, ANSWERS ? null : h("button", {type: "button", onclick: () => this.load()}, "Look again"),
        h("label", {}, "Filter ", h("input", {type: "search", value: this.filter, oninput: (event) => { this.filter = event.target.value; this.draw(); }})),
        this.problem ? null : h("span", {class: "soft"}, `Choose runs to compare them${ANSWERS ? "." : "; a name opens a run."}`)),
      this.problem ? h("p", {role: "alert"}, this.problem) : this.table(list))),
    chosen.length ? [h("div", {class: "row small"}, chartOptions(this.page), several ? h("label", {}, h("input", {type: "checkbox", checked: this.bands,
      onchange: (event) => { this.bands = event.target.checked; this.draw(); }}), " runs that differ in their seed alone as a band from the lowest to the highest") : null),
    h("div", {class: "cards"}, this.chart("Return", "curve", "return", chosen), this.chart("Loss", "learning", "loss", chosen), this.chart("Mean Q", "learning", "q", chosen),
      this.chart("Length of episodes", "acting", "episode_length", chosen), differences(chosen))] : null);
    drawCharts(this.root);
  }

  chart(title, part, column, chosen) {
    const points = (run) => pairs(run[part], this.page.x, column), with_ = chosen.filter((run) => run[part]?.[column]);
    if (!with_.length) return null;
    const line = (run) => ({name: run.name, points: points(run)});
    const series = !this.bands ? with_.map(line) : groups(with_).flatMap(({name, runs}) => {
      const shared = runs.length > 1 ? band(runs.map(points)) : [];
      return shared.length ? {name: `${name}, ${runs.length} seeds`, points: shared, band: true} : runs.map(line); // curves that never overlap have no band
    });
    return h("section", {class: "card"}, h("h2", {}, title), lines(series, {title, xName: axisName(this.page), smooth: this.page.smooth}));
  }
}

// A run with its configuration, lines of "key: value", as an object.
function read(run) {
  const entry = (line) => [line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)];
  return {...run, config: run.config ? Object.fromEntries(run.config.split("\n").filter(Boolean).map(entry)) : null};
}

// Runs whose configurations differ in nothing but the seed.
function groups(runs) {
  const found = new Map();
  for (const run of runs) {
    const key = run.config ? JSON.stringify(Object.entries(run.config).filter(([name]) => !/(^|\.)seed$/.test(name))) : run.name;
    if (!found.has(key)) found.set(key, {runs: []});
    found.get(key).runs.push(run);
  }
  return [...found.values()].map(({runs}) => ({name: common(runs.map((run) => run.name)), runs}));
}

// What names have in common at their beginning.
function common(names) {
  let size = names[0].length;
  while (size > 0 && !names.every((name) => name.startsWith(names[0].slice(0, size)))) size--;
  return names[0].slice(0, size).replace(/[-_.]?\d*$/, "") || names[0];
}

// [[x, lowest, mean, highest]] where all curves have a value.
function band(curves) {
  const lists = curves.map((points) => points.filter(([x, y]) => known(x) && known(y))).filter((points) => points.length);
  const from = Math.max(...lists.map((points) => points[0][0])), to = Math.min(...lists.map((points) => points.at(-1)[0]));
  const count = Math.min(MOST_POINTS, Math.max(...lists.map((points) => points.length))), out = [];
  const places = lists.map(() => 0);
  for (let i = 0; i < count && to >= from; i++) {
    const x = from + (to - from) * i / Math.max(1, count - 1);
    const values = lists.map((points, k) => {
      while (places[k] < points.length - 2 && points[places[k] + 1][0] <= x) places[k]++;
      const [x0, y0] = points[places[k]], [x1, y1] = points[Math.min(places[k] + 1, points.length - 1)];
      return x1 > x0 ? y0 + (y1 - y0) * Math.min(1, Math.max(0, (x - x0) / (x1 - x0))) : y0;
    });
    out.push([x, Math.min(...values), values.reduce((a, b) => a + b, 0) / values.length, Math.max(...values)]);
  }
  return out;
}

// The keys that do not have the same value in all runs.
function differences(chosen) {
  const runs = chosen.filter((run) => run.config), keys = [...new Set(runs.flatMap((run) => Object.keys(run.config)))]
    .filter((key) => new Set(runs.map((run) => run.config[key])).size > 1);
  if (runs.length < 2) return null;
  return h("section", {class: "card wide"}, h("h2", {}, "What differs in their configurations"),
    grid([{name: "key", of: (key) => key}, ...runs.map((run) => ({name: run.name, of: (key) => run.config[key] ?? "–"}))], keys, "Nothing."));
}
