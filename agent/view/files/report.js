// The report of a run that is over, or of a profile: what report.json says, and the charts of the whole run.
import {ANSWERS, ask, bytes, cores, duration, exact, h, known, number, percent, plural} from "./util.js";
import {card, chartOptions, facts, grid, learningCharts, wide} from "./views.js";
import {lines} from "./chart.js";

const FAR_OFF = 0.2; // of the prediction

export async function loadReport(page, store) {
  if (!ANSWERS && !store.over) { page.report = page.curves = null; return; } // it would be that of an earlier leg
  if (page.report) return;
  page.curves = store.state?.run ? await ask("api/run").catch(() => page.curves) : null;
  page.report = await ask("api/report").catch(() => page.report || null); // the last question: then the launcher of a run that ended may go
}

export function report(store, page) {
  const data = page.report, run = store.state.run;
  if (!data) return h("p", {class: "empty"}, "There is no report yet: it is written when the run ends.");
  return h("div", {}, run && data.summary ? chartOptions(page) : null, h("div", {class: "cards"},
    data.summary ? [summary(data), compared(data), run ? learningCharts(run, page.curves, page) : null, timeCharts(store, data)] : null,
    plan(data.plan), profile(data.plan?.input), hosts(data.hosts || []), events(data),
    data.command ? wide("Once more", h("pre", {}, data.command)) : null,
    ANSWERS && data.files ? h("footer", {class: "row"}, ["report.json", ...data.files].map((file) => h("a", {href: file}, file))) : null));
}

function summary(data) {
  const mean = (count) => `${number(count / data.elapsed_s)}/s in the mean`;
  return wide("Result", h("pre", {}, data.summary), facts([
    ["ended", data.unix_s > 0 ? new Date(1000 * data.unix_s).toISOString().slice(0, 16).replace("T", " ") + " UTC" : ""],
    ["cause", data.phase === "failed" ? data.reason : ""],
    ["processes", `${plural(data.actors_wanted, "actor")} and ${plural(data.learners_wanted, "learner")}`],
    ["broker", data.shards > 1 ? `${data.shards} shards${data.shards_reason ? `: ${data.shards_reason}` : ""}` : ""],
    ["at most", `${bytes(data.peak_memory)} and ${cores(data.peak_cpu)} cores`],
    ["environment steps", `${exact(data.steps)}, ${mean(data.steps)}`], ["learner steps", `${exact(data.learner_steps)}, ${mean(data.learner_steps)}`],
    ["legs", data.legs > 1 ? String(data.legs) : ""]]));
}

// ---- predicted against achieved: a plan for four actors says nothing about eight ----

const ROWS = [["inserts/s", "inserts", number], ["samples/s", "samples", number], ["samples per insert", "spi", number],
  ["actors idle", "actor_idle", percent, true], ["learners idle", "learner_idle", percent, true]];

function difference(row, stretch) {
  const [, key, , share] = row, predicted = stretch.predicted[key], achieved = stretch.achieved[key];
  if (!known(predicted) || !known(achieved) || (!share && predicted === 0)) return "–";
  const off = share ? achieved - predicted : achieved / predicted - 1, text = `${off > 0 ? "+" : ""}${Math.round(100 * off)}${share ? " points" : "%"}`;
  return Math.abs(off) > FAR_OFF ? h("span", {class: "badge bad"}, text) : text;
}

function waited(stretch) {
  const side = (name, shares) => {
    const list = Object.entries(shares).filter(([, share]) => share >= 0.005).sort((a, b) => b[1] - a[1]).map(([cause, share]) => `${cause} ${percent(share)}`);
    return list.length ? `${name} for ${list.join(", ")}` : "";
  };
  const text = [side("actors", stretch.actor_idle_by), side("learners", stretch.learner_idle_by)].filter(Boolean).join("; ");
  return text ? h("p", {class: "soft small"}, `waited: ${text}`) : null;
}

function compared(data) {
  const columns = [{name: "", of: ([name]) => name}];
  const column = (name, of) => columns.push({name, of, n: true});
  return data.stretches.filter((one) => one.seconds > 0).map((stretch) => {
    columns.length = 1;
    if (data.plan) column("predicted", ([, key, format]) => format(stretch.predicted[key]));
    column("achieved", ([, key, format]) => format(stretch.achieved[key]));
    if (data.plan) column("difference", (row) => difference(row, stretch));
    return card(data.plan ? "Predicted and achieved" : "Achieved, without a plan",
      h("p", {class: "soft small"}, `${plural(stretch.actors, "actor")}, ${plural(stretch.learners, "learner")}, from ${duration(stretch.from_s)} on: ${duration(stretch.seconds)}` +
        (stretch.settled ? "" : ", too short to leave out their beginning")),
      grid(columns, ROWS, "Predicted and achieved"), waited(stretch));
  });
}

// ---- charts over the time of the run ----

// A level for each stretch, with a gap between two.
function predicted(data, key, end) {
  return data.stretches.flatMap((one, i) => [[i ? one.from_s : 0, one.predicted[key]], [data.stretches[i + 1]?.from_s ?? end, one.predicted[key]], [NaN, NaN]]);
}

function timeCharts(store, data) {
  const points = store.history.since(0), end = points.at(-1)?.elapsed ?? 0;
  const chart = (title, columns, options = {}) => {
    const series = columns.flatMap(([name, field, key], i) => [{name, points: points.map((p) => [p.elapsed, field(p)]), like: i},
      key && data.plan ? {name: "predicted", points: predicted(data, key, end), like: i, dashed: true} : null]).filter(Boolean);
    return card(title, lines(series, {title, xName: "seconds", zero: true, ...options}));
  };
  return [chart("Inserts per second", [["achieved", (p) => p.inserts, "inserts"]]), chart("Samples per second", [["achieved", (p) => p.samples, "samples"]]),
    chart("Samples per insert", [["achieved", (p) => p.spi]], {lines: data.spi_target > 0 ? [{name: "target", y: data.spi_target}] : []}),
    chart("Idle share", [["actors", (p) => p.actorIdle, "actor_idle"], ["learners", (p) => p.learnerIdle, "learner_idle"]], {yName: "of the time", format: percent}),
    chart("Memory of all processes", [["memory", (p) => p.memory]], {format: bytes})];
}

// ---- tables ----

function plan(found) {
  if (!found?.chosen) return null;
  return wide("The plan, and the pairs that ran together", grid([
    {name: "actors", of: (one) => exact(one.actors), n: true}, {name: "learners", of: (one) => exact(one.learners), n: true},
    {name: "shards", of: (one) => exact(one.shards ?? found.broker?.shards ?? 1), n: true},
    {name: "inserts/s", of: (one) => number(one.inserts), n: true}, {name: "samples/s", of: (one) => number(one.samples), n: true},
    {name: "actors idle", of: (one) => percent(one.actor_idle), n: true}, {name: "learners idle", of: (one) => percent(one.learner_idle), n: true},
    {name: "bottleneck", of: (one) => one.bottleneck || ""}, {name: "why", of: (one) => one.reason || ""}], [found.chosen, ...found.input.runs], "Plan"));
}

// Pairs that ran together, a line for each number of learners and shards.
function profile(input) {
  const groups = new Map();
  for (const run of [...(input?.runs || [])].sort((a, b) => a.actors - b.actors)) {
    const name = `${plural(run.learners, "learner")}${run.shards > 1 ? `, ${run.shards} shards` : ""}`;
    groups.set(name, [...(groups.get(name) || []), [run.actors, run.inserts]]);
  }
  return groups.size ? card("Measured before the run", lines([...groups].map(([name, points]) => ({name, points})),
    {title: "Inserts per second with the limiter", xName: "actors", yName: "inserts/s", zero: true, dots: true})) : null;
}

function hosts(list) {
  return list.length ? wide("Hosts", grid([{name: "host", of: (one) => one.name}, {name: "actors", of: (one) => exact(one.actors_wanted), n: true},
    {name: "learners", of: (one) => exact(one.learners_wanted), n: true},
    {name: "cores used", of: (one) => (known(one.mean_cpu) ? `${cores(one.mean_cpu)} of ${number(one.cores)}` : "–"), n: true},
    {name: "lost", of: (one) => (one.losses ? h("span", {class: "badge bad"}, `${plural(one.losses, "time")}, ${duration(one.lost_s)}`)
      : known(one.mean_cpu) ? "never" : h("span", {class: "badge bad"}, "never there"))}, {name: "processor", of: (one) => one.model, narrow: true}], list, "Hosts")) : null;
}

function events(data) {
  return data.events?.length ? wide("Events", grid([{name: "after", of: (one) => duration(one.elapsed_s), n: true}, {name: "what", of: (one) => one.event}], data.events, "Events")) : null;
}
