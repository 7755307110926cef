// All runs below the same folder: a list, and several of them in one chart.
import {ANSWERS, OTHER, ask, duration, exact, h, known, number, show} from "./util.js";
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
      if (ANSWERS) this.list.forEach((run) => { this.chosen.add(run.folder); this.curves.set(run.folder, run); }); // a file is written to compare them
      this.problem = "";
    } catch (error) {
      this.problem = error.message;
    }
    this.draw();
  }

  async choose({folder, name}, on) {
    if (on) this.chosen.add(folder); else this.chosen.delete(folder);
    if (on && !this.curves.has(folder)) this.curves.set(folder, await ask(`api/run?run=${encodeURIComponent(name)}`).catch(() => ({name})));
    this.draw();
  }

  draw() {
    const chosen = [...this.chosen].map((folder) => this.curves.get(folder)).filter(Boolean);
    const series = (key) => chosen.filter((one) => one.curve?.return).map((one) => ({name: one.name, points: one.curve.return.map((value, i) => [one.curve[key]?.[i], value])}));
    show(this.root, h("section", {class: "card wide"}, h("h2", {}, "Runs"),
      h("div", {class: "row"}, ANSWERS ? null : h("button", {type: "button", onclick: () => this.load()}, "Look again"),
        OTHER ? h("a", {href: "./"}, "Back to this page's own run") : null,
        this.problem ? null : h("span", {class: "soft"}, `Choose runs to compare them${ANSWERS ? "." : "; a name opens a run."}`)),
      this.problem ? h("p", {role: "alert"}, this.problem) : grid([
        {name: "compare", of: (run) => h("input", {type: "checkbox", checked: this.chosen.has(run.folder), "aria-label": `compare ${run.name}`, onchange: (event) => this.choose(run, event.target.checked)})},
        {name: "run", of: (run) => (ANSWERS ? run.name : h("a", {href: `?run=${encodeURIComponent(run.name)}`}, run.name))},
        {name: "result", of: (run) => run.result}, {name: "return", of: (run) => number(run.final_value), n: true}, {name: "best", of: (run) => number(run.best), n: true},
        {name: "steps", of: (run) => exact(run.steps), n: true, narrow: true}, {name: "time", of: (run) => duration(run.elapsed_s), n: true, narrow: true},
        {name: "actors, learners", of: (run) => `${run.actors}, ${run.learners}`, n: true, narrow: true}], this.list || [], this.list ? "There are no runs." : "Looking ...")),
    chosen.length ? h("section", {class: "card"}, h("h2", {}, "Return against steps"), lines(series("environment_steps"), {title: "Return against steps", legend: true, xName: "environment steps", yName: "mean return"})) : null,
    chosen.length ? h("section", {class: "card"}, h("h2", {}, "Return against time"), lines(series("time"), {title: "Return against time", legend: true, xName: "seconds", yName: "mean return"})) : null,
    chosen.length ? h("section", {class: "card wide"}, h("h2", {}, "Compared"), grid([{name: "run", of: (one) => one.name}, {name: "best", of: (one) => number(one.best), n: true},
      {name: "samples/s", of: (one) => number(one.samples), n: true}, {name: "inserts/s", of: (one) => number(one.inserts), n: true},
      {name: "actors", of: (one) => (known(one.actors) ? exact(one.actors) : "–"), n: true}], chosen, "Compared")) : null);
  }
}
