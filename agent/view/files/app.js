// The page: which view is shown, the sentence on top, keys, themes, and questions before anything changes.
import {ANSWERS, Refused, ask, duration, h, show, update} from "./util.js";
import {Store} from "./store.js";
import {drawCharts, redrawCharts} from "./chart.js";
import * as views from "./views.js";
import {Items} from "./items.js";
import {Play} from "./play.js";
import {Runs} from "./runs.js";
import {loadReport, report} from "./report.js";
import {controls} from "./controls.js";

const store = new Store();
const items = new Items();
const play = new Play();
const TABS = [
  ["now", "Now", views.now], ["tables", "Tables", views.tables, views.loadHistograms], ["learning", "Learning", views.learning, views.loadCurves],
  ["play", "Play", (s) => play.render(s), (p, s) => play.load(s)],
  ["processes", "Processes", views.processes, views.loadLog], ["broker", "Broker", views.broker, views.loadSessions],
  ["items", "Items", (s) => items.render(s)], ["runs", "Runs", (s) => runs.render(s)], ["report", "Report", report, loadReport],
].filter(([id]) => !ANSWERS || `api/${id}` in ANSWERS || (id === "processes" && ANSWERS["api/state"].run));
const SPANS = [["5 min", 300], ["1 h", 3600], ["24 h", 86400], ["all", Infinity]];
const get = (id) => document.getElementById(id);
const page = {log: "", logText: "", follow: true, sessions: [], openLog, change, limiter, order, redraw: () => draw()};
const runs = new Runs(page);
let paused = false;
get("verdict").replaceChildren(); // every part of the page has arrived
get("verdict").className = "";

// Beside all runs there is nothing else to see.
const tabs = () => (store.state?.home ? TABS.filter(([id]) => id === "runs") : TABS);

function current() {
  return tabs().find(([id]) => id === location.hash.slice(1)) || tabs().at(ANSWERS ? -1 : 0);
}

function drawTabs() {
  const [id] = current();
  update(get("tabs"), tabs().map(([key, name], i) => h("li", {}, h("a", {href: `#${key}`, "aria-current": key === id ? "page" : null, title: `${name} (${i + 1})`}, name))));
}

function spans() {
  return h("div", {class: "row small spans", role: "group", "aria-label": "Time that charts show"}, SPANS.map(([name, seconds]) =>
    h("button", {type: "button", "aria-pressed": String(store.span === seconds), onclick: () => { store.span = seconds; draw(); }}, name)));
}

function draw() {
  if (!store.state) return;
  const [id, , view] = current(), main = get("main"), same = main.dataset.view === id;
  const content = [["now", "tables", "broker"].includes(id) && !ANSWERS ? spans() : null, view(store, page)];
  (same ? update : show)(main, ...content);
  main.dataset.view = id;
  drawCharts(main);
  views.followLog(page);
}

function drawHead() {
  const state = store.state, run = state?.run;
  const name = run?.name || (ANSWERS ? "replay" : state?.home ? "replay runs" : "replay broker");
  get("title").textContent = name;
  document.title = run ? `${name}: ${run.phase}` : name;
  get("phase").textContent = store.lost ? "" : run?.phase || "";
  get("phase").className = `badge ${run?.phase === "failed" ? "bad" : ["running", "done"].includes(run?.phase) ? "good" : ""}`;
  const link = get("link"), since = duration((Date.now() - store.lostSince) / 1000);
  if (store.lost) set(link, "badge bad", `✕ no answer for ${since}; trying again`);
  else if (state && !ANSWERS && !state.broker && state.run_alive !== false && !state.elsewhere) set(link, "badge warn", "✕ the broker does not answer; trying again");
  else set(link, store.over ? "badge" : "badge good", state ? (ANSWERS ? "" : store.over ? "finished" : "✓ live") : "…");
  drawVerdict(state, since);
  update(get("controls"), controls(store, page));
}

function set(element, kind, text) {
  if (element.className !== kind) element.className = kind;
  if (element.textContent !== text) element.textContent = text; // a screen reader speaks only of changes
}

function ended(state) {
  const run = state?.run;
  if (!run) return "";
  return `${isEnding(run) ? "The run has ended" : "If the run has ended"}: replay-launch open ${run.folder.split("/").pop()} shows it.`;
}
const isEnding = (run) => ["stopping", "measuring", "done", "stopped", "failed"].includes(run?.phase);

function drawVerdict(state, since) {
  const box = get("verdict");
  if (store.lost) {
    const refused = store.lost instanceof Refused && store.lost.status === 401;
    set(box, isEnding(state?.run) ? "warn" : "bad", refused ? "This page needs a token: open the address that replay-launch or replay-broker printed on its terminal, or add ?token= with the broker's token (http.admin.token among its keys, or http.token, which only reads)."
      : `The program that serves this page does not answer (for ${since}), so what is shown is old. ${ended(state)} The page tries again every second.`);
    return;
  }
  const verdict = state?.verdict;
  if (!verdict) return;
  const kind = verdict.level === "bad" ? "bad" : verdict.level === "warn" ? "warn" : "";
  const text = verdict.text + (verdict.advice || "");
  if (box.dataset.text === text && box.className === kind) return;
  box.dataset.text = text;
  box.className = kind;
  show(box, verdict.text, store.over && !ANSWERS ? [" ", h("a", {href: "#report"}, "The report")] : null, verdict.advice ? h("span", {class: "advice"}, verdict.advice) : null);
}

async function openLog(name) {
  page.log = name;
  page.logText = "";
  page.follow = true;
  await views.loadLog(page);
  draw();
  get("log")?.scrollIntoView({block: "nearest"});
}

// ---- changes: never without a question ----

function question(text, ...fields) {
  const dialog = get("dialog");
  return new Promise((done) => {
    // Not the event "close": it comes later, perhaps when the next question is already open.
    const finish = (answer) => { dialog.close(); done(answer); };
    const form = h("form", {onsubmit: (event) => { event.preventDefault(); finish(event.submitter?.value === "yes" ? new FormData(form) : null); }},
      h("p", {}, text), fields, h("div", {class: "row"}, h("button", {value: "yes", class: "danger"}, "Yes"),
        h("button", {value: "no", formnovalidate: true, autofocus: true}, "No")));
    dialog.oncancel = () => done(null);
    show(dialog, form);
    dialog.showModal();
  });
}

async function change(what, text) {
  if (!(await question(text))) return;
  await send(what);
}

async function limiter(name) {
  const table = store.state.broker.tables.find((one) => one.name === name), old = table.limiter;
  const field = (key, label, value) => h("p", {}, h("label", {}, `${label} `, h("input", {name: key, type: "number", step: "any", value: String(value), required: true})));
  const answer = await question(`Change the limiter of ${name}? Processes that wait may go on, and others may wait.`,
    field("min_size", "at least this many items", old.min_size),
    views.hasRatio(old) ? [field("samples_per_insert", "samples per insert", old.samples_per_insert),
      field("error_buffer", "room around the ratio, in samples", (old.max_diff - old.min_diff) / 2)] : []);
  if (answer) await send({action: "limiter", table: name, ...Object.fromEntries([...answer].map(([key, value]) => [key, Number(value)]))});
}

// An order to the launcher of a run, or what api/do knows.
async function order(text, wish, field) {
  const answer = await question(text, field ? h("p", {}, h("label", {}, `${field.label} `, h("input", {name: field.name, type: "number", step: "any", min: "0", value: String(field.value), required: true}))) : null);
  if (!answer) return;
  if (wish.order) await send({order: wish.order + (field ? answer.get(field.name) : "")}, "api/ask");
  else await send(wish);
}

async function send(what, path = "api/do") {
  try {
    const reply = await ask(path, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(what)});
    tell(reply?.text || "Done.");
  } catch (error) {
    tell(`That did not work: ${error.message}`);
  }
}

function tell(text) {
  const dialog = get("dialog");
  show(dialog, h("form", {method: "dialog"}, h("p", {}, text), h("div", {class: "row"}, h("button", {autofocus: true}, "Close"))));
  dialog.oncancel = null;
  dialog.showModal();
}

// ---- keys and themes ----

function setTheme(theme) {
  if (theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme);
  localStorage.setItem("theme", theme);
  get("theme").textContent = `Theme: ${theme}`;
  redrawCharts();
}
function nextTheme() {
  const list = ["auto", "light", "dark"];
  setTheme(list[(list.indexOf(localStorage.getItem("theme") || "auto") + 1) % 3]);
}
function setPaused(value) {
  paused = value;
  get("pause").setAttribute("aria-pressed", String(paused));
  get("pause").textContent = paused ? "Frozen" : "Freeze";
  if (!paused) draw();
}
function showKeys() {
  const keys = [["1 – 9", "the views"], ["p", "freeze the pictures, not the run"], ["t", "theme"], ["?", "this list"], ["Esc", "close"]];
  const dialog = get("dialog");
  show(dialog, h("form", {method: "dialog"}, h("h2", {}, "Keys"), h("table", {}, h("tbody", {}, keys.map(([key, text]) => h("tr", {}, h("td", {}, h("kbd", {}, key)), h("td", {}, text))))),
    h("div", {class: "row"}, h("button", {autofocus: true}, "Close"))));
  dialog.oncancel = null;
  dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || get("dialog").open) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  if (/^[1-9]$/.test(event.key) && TABS[event.key - 1]) location.hash = TABS[event.key - 1][0];
  else if (event.key === "p") setPaused(!paused);
  else if (event.key === "t") nextTheme();
  else if (event.key === "?") showKeys();
  else return;
  event.preventDefault();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);
get("pause").hidden = !!ANSWERS;
get("pause").addEventListener("click", () => setPaused(!paused));
get("theme").addEventListener("click", nextTheme);
get("help").addEventListener("click", showKeys);
window.addEventListener("hashchange", async () => { drawTabs(); await current()[3]?.(page, store); draw(); get("main").focus({preventScroll: true}); });

setTheme(localStorage.getItem("theme") || "auto");
drawTabs();
store.listen(async () => {
  drawHead();
  if (store.state?.home) drawTabs();
  if (paused) return;
  if (store.over) await loadReport(page, store);
  if (!store.lost) await current()[3]?.(page, store);
  draw();
});
store.start();
