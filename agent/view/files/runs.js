// All runs below the same folder: a list, and several of them in one chart.
import {OTHER, ask, duration, exact, h, known, number, show} from "./util.js";
import {grid} from "./views.js";
import {lines} from "./chart.js";

export class Runs {
  constructor() {
    this.root = h("div", {class: "cards"});
    this.chosen = new Set();
    this.curves = new Map();
    this.list = null;
  }

  render(store) {
    if (!store.state.can.runs) return h("p", {class: "empty"}, "This page shows a broker alone. A broker knows no runs: replay-launch open lists and compares them.");
    if (!this.asked) { this.asked = true; this.load(); }
    return this.root;
  }

  async load() {
    try {
      this.list = (await ask("api/runs")).runs;
      this.problem = "";
    } catch (error) {
      this.problem = error.message;
    }
    this.draw();
  }

  async choose(name, on) {
    if (on) this.chosen.add(name); else this.chosen.delete(name);
    if (on && !this.curves.has(name)) this.curves.set(name, await ask(`api/run?run=${encodeURIComponent(name)}`).catch((error) => ({problem: error.message})));
    this.draw();
  }

  draw() {
    const chosen = [...this.chosen].map((name) => ({name, ...this.curves.get(name)}));
    const series = (key) => chosen.filter((one) => one.values).map((one) => ({name: one.name, points: one.values.map((value, i) => [one[key][i], value])}));
    show(this.root, h("section", {class: "card wide"}, h("h2", {}, "Runs"),
      h("div", {class: "row"}, h("button", {type: "button", onclick: () => this.load()}, "Look again"),
        OTHER ? h("a", {href: "./"}, "Back to this page's own run") : null,
        this.problem ? null : h("span", {class: "soft"}, "Choose runs to compare them; a name opens a run.")),
      this.problem ? h("p", {role: "alert"}, this.problem) : grid([
        {name: "compare", of: (run) => h("input", {type: "checkbox", checked: this.chosen.has(run.name), "aria-label": `compare ${run.name}`, onchange: (event) => this.choose(run.name, event.target.checked)})},
        {name: "run", of: (run) => h("a", {href: `?run=${encodeURIComponent(run.name)}`}, run.name)},
        {name: "result", of: (run) => run.result}, {name: "return", of: (run) => number(run.final_value), n: true}, {name: "best", of: (run) => number(run.best), n: true},
        {name: "steps", of: (run) => exact(run.steps), n: true, narrow: true}, {name: "time", of: (run) => duration(run.wall_seconds), n: true, narrow: true},
        {name: "actors, learners", of: (run) => `${run.actors}, ${run.learners}`, n: true, narrow: true}], this.list || [], this.list ? "There are no runs." : "Looking ...")),
    chosen.length ? h("section", {class: "card"}, h("h2", {}, "Return against steps"), lines(series("steps_of_values"), {title: "Return against steps", legend: true, xName: "steps"})) : null,
    chosen.length ? h("section", {class: "card"}, h("h2", {}, "Return against time"), lines(series("seconds"), {title: "Return against time", legend: true, xName: "seconds"})) : null,
    chosen.length ? h("section", {class: "card wide"}, h("h2", {}, "Compared"), grid([{name: "run", of: (one) => one.name}, {name: "best", of: (one) => number(one.best), n: true},
      {name: "samples/s", of: (one) => number(one.samples), n: true}, {name: "inserts/s", of: (one) => number(one.inserts), n: true},
      {name: "actors", of: (one) => (known(one.actors) ? exact(one.actors) : "–"), n: true}], chosen, "Compared")) : null);
  }
}
