// The views of a live or finished run. Each is a function (store, page) -> elements; it is called after every look.
import {ANSWERS, h, ask, bytes, cores, duration, exact, known, number, percent, plural} from "./util.js";
import {bars, lines, meter} from "./chart.js";
import {flow} from "./flow.js";
import {latencyChart, latencyParts, within} from "./latency.js";

export function card(title, ...children) {
  return h("section", {class: "card"}, h("h2", {}, title), children);
}
export function wide(title, ...children) {
  return h("section", {class: "card wide"}, h("h2", {}, title), children);
}
export function facts(rows) {
  return h("dl", {class: "facts"}, rows.filter((row) => row && row[1] !== "" && row[1] != null)
    .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
// columns: [{name, of: row -> text, n: number?, narrow: hidden on narrow screens}]
export function grid(columns, rows, caption, mark) {
  if (!rows.length) return h("p", {class: "empty"}, caption);
  const kind = (column) => [column.n ? "n" : "", column.narrow ? "hide-narrow" : ""].join(" ").trim() || null;
  return h("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": caption},
    h("table", {}, h("thead", {}, h("tr", {}, columns.map((one) => h("th", {class: kind(one), scope: "col"}, one.name)))),
      h("tbody", {}, rows.map((row) => h("tr", mark ? mark(row) : {}, columns.map((one) => h("td", {class: kind(one)}, one.of(row))))))));
}

function badge(text, good) {
  return h("span", {class: `badge ${good ? "good" : "bad"}`}, `${good ? "✓" : "✕"} ${text}`);
}

function over(store, field) {
  return store.history.since(store.axis.window[0]).map((point) => [point.t, field(point)]);
}
function mainTable(state) {
  const list = state.broker?.tables || [];
  return list.reduce((best, one) => (!best || one.limiter.inserts > best.limiter.inserts ? one : best), null);
}
function ratesOf(store, name) {
  const last = store.history.since(store.state.unix_s - 6).filter((point) => point.tables?.[name]);
  const mean = (field) => {
    const list = last.map((point) => point.tables[name][field]).filter(known);
    return list.length ? list.reduce((a, b) => a + b, 0) / list.length : NaN;
  };
  return {inserts: mean("inserts"), samples: mean("samples"), updates: mean("updates")};
}
function ratio(store, name) {
  return over(store, (point) => {
    const one = point.tables?.[name];
    return one && one.inserts > 0 ? one.samples / one.inserts : NaN;
  });
}
/** Limiters of other kinds tell one sample per insert, and hold nobody to it. */
export const hasRatio = (limiter) => limiter.kind === "sample_to_insert_ratio";

function cursorMeter(table) {
  const limiter = table.limiter;
  if (!known(limiter.min_diff) || !known(limiter.max_diff) || limiter.kind === "min_size" || limiter.max_diff - limiter.min_diff > 1e15)
    return h("p", {class: "soft small"}, `limiter ${limiter.kind}, at least ${number(limiter.min_size)} items`);
  return meter(limiter.cursor, limiter.min_diff, limiter.max_diff,
    `The cursor is ${number(limiter.cursor)}; samples wait below ${number(limiter.min_diff)}, inserts above ${number(limiter.max_diff)}`);
}

export function now(store) {
  const state = store.state, table = mainTable(state), run = state.run;
  const rates = table ? ratesOf(store, table.name) : {inserts: run?.inserts_rate, samples: run?.samples_rate, updates: NaN};
  return h("div", {class: "cards"},
    store.over ? null : h("section", {class: "card wide"}, flow(state, table, rates)),
    card("Throughput", lines([{name: "samples/s", points: over(store, (p) => p.samples)}, {name: "inserts/s", points: over(store, (p) => p.inserts), second: true}],
      {title: "Throughput", ...store.axis, zero: true})),
    state.broker ? card("Latency", latencyChart(store, ["insert", "sample"], "Latency of inserts and samples")) : null,
    table ? card(`Ratio of ${table.name}`, h("p", {class: "number"}, number(rates.samples / rates.inserts), h("span", {class: "soft small"},
      hasRatio(table.limiter) ? ` samples per insert, target ${number(table.limiter.samples_per_insert)}` : " samples per insert")),
      cursorMeter(table), lines([{name: "samples per insert", points: ratio(store, table.name)}],
        {title: "Samples per insert", ...store.axis, lines: hasRatio(table.limiter) ? [{name: "target", y: table.limiter.samples_per_insert}] : []})) : null,
    run ? card("Who waits", lines([{name: "actors", points: over(store, (p) => p.actorIdle)}, {name: "learners", points: over(store, (p) => p.learnerIdle)}],
      {title: "Share of the time for which processes wait", ...store.axis, zero: true, format: percent}),
      store.over ? null : facts([["actors wait", causes(run, "actor")], ["learners wait", causes(run, "learner")], ["now", run.waits || "nobody waits"]])) : null,
    run ? progress(state, store.over) : null,
    waitsCard(state));
}

function causes(run, side) {
  const list = ["credit", "sample", "parameters", "reduce", "updates", "counters"].map((cause) => [cause, run[`${side}_idle_${cause}`]])
    .filter(([, share]) => known(share) && share >= 0.005).map(([cause, share]) => `${cause} ${percent(share)}`);
  return `${percent(run[`${side}_idle`])}${list.length ? ` (${list.join(", ")})` : ""}`;
}

function progress(state, over) {
  const run = state.run;
  return card("Progress", facts([
    ["phase", run.phase + (run.reason ? `: ${run.reason}` : "")],
    ["time", duration(run.elapsed_s)],
    ["left", !over && known(run.eta_s) ? `about ${duration(run.eta_s)} (${percent(run.progress)} done)` : ""],
    ["environment steps", `${exact(run.steps)}${run.stop_steps ? ` of ${exact(run.stop_steps)}` : ""} (${number(run.steps_rate)}/s)`],
    ["learner steps", `${exact(run.learner_steps)} (${number(run.updates_rate)}/s)`],
    ["return", known(run.value) ? `${number(run.value)}, best ${number(run.best)}${known(run.stop_value) ? `, target ${number(run.stop_value)}` : ""}` : "no evaluation yet"],
    ["processors", over ? "" : `${cores(run.cpu)} of ${number(run.cores)}${run.others >= 0.05 ? `; other programs take ${cores(run.others)}` : ""}`],
    ["memory", over ? "" : `${bytes(run.memory)}${run.memory_limit ? ` of ${bytes(run.memory_limit)}` : ""}`],
    ["last event", run.event ? `${run.event} (${duration(state.unix_s - run.event_unix_s)} ago)` : ""],
  ]));
}

function waitsCard(state) {
  const waits = state.waits || [];
  if (!waits.length) return null;
  return wide(`Waiting now (${waits.length})`, grid([
    {name: "who", of: (wait) => wait.who}, {name: "for", of: (wait) => wait.kind}, {name: "table", of: (wait) => wait.table, narrow: true},
    {name: "since", of: (wait) => duration((wait.waited_ns ?? 0) / 1e9), n: true}, {name: "why", of: (wait) => wait.text},
  ], waits.slice(0, 50), "Requests and writers that wait"));
}

export function tables(store, page) {
  const state = store.state;
  if (store.over) return h("p", {class: "empty"}, "The run is over, and its broker with the tables has ended.");
  if (!state.broker) return h("p", {class: "empty"}, "The broker does not answer: there are no tables to show.");
  return h("div", {class: "cards"}, state.broker.tables.map((table) => {
    const rates = ratesOf(store, table.name), detail = page.histograms?.[table.name];
    const limiter = table.limiter, bounded = Math.abs(limiter.max_diff) < 1e15;
    return h("section", {class: "card wide"}, h("h2", {}, table.name), h("div", {class: "two"},
      h("div", {}, facts([["items", `${exact(table.size)} of ${exact(table.max_size)}`], ["bytes", bytes(table.bytes) + (table.max_bytes ? ` of ${bytes(table.max_bytes)}` : "")],
        ["sampler, remover", `${table.sampler}, ${table.remover}`],
        ["inserts", `${exact(limiter.inserts)} (${number(rates.inserts)}/s)`], ["samples", `${exact(limiter.samples)} (${number(rates.samples)}/s)`],
        ["updates", table.updates ? `${exact(table.updates)} (${number(rates.updates)}/s)` : ""],
        ["evicted", exact(table.evicted)], ["too old (max_lag)", table.stale ? exact(table.stale) : ""],
        ["groups that wait", table.group_size ? `${exact(table.open_groups)}, dropped ${exact(table.dropped_groups)}` : ""],
        ["under lease", table.leased || table.returned ? `${exact(table.leased)}, ${exact(table.returned)} returned, ${exact(table.dead)} dead` : ""], ["rejected", table.rejected ? exact(table.rejected) : ""],
        ["age of samples", known(table.mean_age_s) && limiter.samples ? duration(table.mean_age_s) : ""],
        ["staleness of samples", table.mean_staleness > 1e-6 ? `${number(table.mean_staleness)} versions` : ""],
        ["waiting", `${table.waiting_inserts} inserts, ${table.waiting_samplers} samplers`],
        ["inserts wait", limiter.inserts_wait], ["samples wait", limiter.samples_wait]]), cursorMeter(table)),
      h("div", {}, h("h3", {}, "Rates"), lines([{name: "samples/s", points: over(store, (p) => p.tables?.[table.name]?.samples)},
        {name: "inserts/s", points: over(store, (p) => p.tables?.[table.name]?.inserts), second: true}], {title: `Rates of ${table.name}`, ...store.axis, zero: true})),
      h("div", {}, h("h3", {}, "Cursor between its bounds"), lines([{name: "cursor", points: over(store, (p) => p.tables?.[table.name]?.cursor)}],
        {title: `Cursor of ${table.name}`, ...store.axis, lines: bounded ? [{name: "inserts wait", y: limiter.max_diff}, {name: "samples wait", y: limiter.min_diff}] : []})),
      h("div", {}, h("h3", {}, state.broker.tables.length > 1 ? "Latency, over all tables" : "Latency"), latencyChart(store, ["insert", "sample"], "Latency of inserts and samples")),
      detail ? [h("div", {}, h("h3", {}, `Priorities of ${exact(detail.priorities.length)} items`), bars(bins(detail.priorities, number), {title: `Priorities in ${table.name}`})),
        h("div", {}, h("h3", {}, `Ages of ${exact(detail.ages.length)} items`), bars(bins(detail.ages, duration), {title: `Ages of items in ${table.name}`}))] : null));
  }));
}

const BINS = 20;

// Bins of equal width; of equal ratio where values differ by more than a factor of 1000.
function bins(values, format) {
  if (!values.length) return [];
  const least = Math.min(...values), most = Math.max(...values), ratio = least > 0 && most > 1000 * least;
  const [to, back] = ratio ? [Math.log, Math.exp] : [(x) => x, (x) => x];
  const width = (to(most) - to(least)) / BINS, counts = new Array(width > 0 ? BINS : 1).fill(0);
  for (const value of values) counts[width > 0 ? Math.min(BINS - 1, Math.floor((to(value) - to(least)) / width)) : 0]++;
  return counts.map((count, i) => ({name: format(back(to(least) + width * i)), value: count}));
}

// Items are asked for every few seconds only: nobody sees more.
export async function loadHistograms(page, store) {
  const now = Date.now();
  if (now - (page.histogramsAt || 0) < 5000) return;
  page.histogramsAt = now;
  page.histograms ||= {};
  for (const table of (store.state?.broker?.tables || []).slice(0, 8))
    page.histograms[table.name] = await ask(`api/histogram?table=${encodeURIComponent(table.name)}&size=${table.size}`).catch(() => page.histograms[table.name]);
}

export function learning(store, page) {
  const run = store.state.run;
  if (!run) return h("p", {class: "empty"}, "This page shows a broker alone. A broker knows no returns: the page of a run shows them (replay-launch open).");
  return h("div", {}, chartOptions(page), h("div", {class: "cards"}, learningCharts(run, page.curves, page),
    card("Evaluations", facts([["newest", number(run.value)], ["best", number(run.best)], ["target", known(run.stop_value) ? number(run.stop_value) : "none"],
      ["evaluations", exact(run.n_values)], ["return of the actors", number(run.actor_value)]])),
    store.over ? null : planCard(run)));
}

const AXES = [["environment_steps", "environment steps"], ["learner_steps", "learner steps"], ["time", "seconds"]];

// What charts of learning are drawn over, and how smooth: for all of them, and kept for the next visit.
export function chartOptions(page) {
  page.x ||= localStorage.getItem("x") || AXES[0][0];
  page.smooth ??= Number(localStorage.getItem("smooth")) || 0;
  const set = (name, value) => { page[name] = value; localStorage.setItem(name, value); page.redraw(); };
  return h("div", {class: "row small spans"}, h("label", {}, "Over ", h("select", {onchange: (event) => set("x", event.target.value)},
    AXES.map(([value, name]) => h("option", {value, selected: value === page.x}, name)))),
  h("label", {}, "Smoothing ", h("input", {type: "range", min: "0", max: "0.99", step: "0.01", value: String(page.smooth), oninput: (event) => set("smooth", Number(event.target.value))})),
  h("span", {class: "soft"}, page.smooth ? `${page.smooth}` : "off"));
}

export const axisName = (page) => AXES.find(([value]) => value === page.x)?.[1] || AXES[0][1];

// [[x, y]] of two columns.
export function pairs(columns, x, y) {
  return (columns?.[y] || []).map((value, i) => [columns[x]?.[i], value]);
}

// Returns, losses and values: the same for a run that goes on and for its report. curves: what api/run answers.
export function learningCharts(run, curves, page) {
  const who = curves?.evaluated === false ? "mean return of the actors, who explore" : "mean return of an evaluation";
  const chart = (title, part, columns, options = {}) => {
    const some = columns.filter(([column]) => curves?.[part]?.[column]);
    return some.length || options.always ? card(title, lines(some.map(([column, name]) => ({name, points: pairs(curves[part], page.x, column)})),
      {title, xName: axisName(page), smooth: page.smooth, ...options})) : null;
  };
  return [chart("Return", "curve", [["return", "return"]], {always: true, yName: who, lines: [{name: "target", y: run.stop_value}], dots: (curves?.curve?.return || []).length < 80}),
    chart("Loss", "learning", [["loss", "loss"], ["policy_loss", "of the policy"], ["value_loss", "of the values"]]),
    chart("Mean Q", "learning", [["q", "Q"]], {yName: "mean of the batches"}), chart("Norm of the gradient", "learning", [["gradient_norm", "norm"]]),
    chart("Entropy of the policy", "learning", [["entropy", "entropy"]]), chart("Accuracy of the policy", "learning", [["accuracy", "accuracy"]]),
    chart("Length of episodes", "acting", [["episode_length", "steps"]], {yName: "mean of the first actor's episodes"}),
    chart("Exploration", "acting", [["epsilon", "epsilon"]], {yName: "epsilon of the first actor", zero: true})];
}

function planCard(run) {
  if (!known(run.planned_inserts)) return card("Plan", h("p", {class: "soft"}, "The file gives the counts; nothing was predicted."));
  const row = (name, plan, seen, format) => ({name, plan: format(plan), seen: format(seen)});
  return card("Predicted and achieved", grid([{name: "", of: (one) => one.name}, {name: "predicted", of: (one) => one.plan, n: true}, {name: "now", of: (one) => one.seen, n: true}], [
    row("inserts/s", run.planned_inserts, run.inserts_rate, number), row("samples/s", run.planned_samples, run.samples_rate, number),
    row("actors wait", run.planned_actor_idle, run.actor_idle, percent), row("learners wait", run.planned_learner_idle, run.learner_idle, percent),
    row("samples per insert", run.spi_target, run.samples_rate / run.inserts_rate, number)], "Plan"));
}

export function processes(store, page) {
  const run = store.state.run;
  if (!run) return h("p", {class: "empty"}, "This page shows a broker alone. A broker knows its writers, under Broker, but no hosts and processes: the page of a run shows them (replay-launch open).");
  const hosts = run.hosts || [];
  const fine = (one) => one.state === (store.over ? "ended" : "runs");
  return h("div", {class: "cards"},
    hosts.length ? wide("Hosts", grid([{name: "host", of: (one) => one.name}, {name: "state", of: (one) => badge(one.state, one.ready)},
      {name: "actors", of: (one) => `${one.actors} of ${one.actors_wanted}`, n: true}, {name: "learners", of: (one) => `${one.learners} of ${one.learners_wanted}`, n: true},
      {name: "processors", of: (one) => `${cores(one.cpu)} of ${number(one.cores)}`, n: true}, {name: "memory", of: (one) => bytes(one.memory), n: true, narrow: true},
      {name: "round trip", of: (one) => (known(one.round_trip_ms) ? `${number(one.round_trip_ms)} ms` : "–"), n: true, narrow: true},
      {name: "processor", of: (one) => one.model, narrow: true}], hosts, "Hosts")) : null,
    wide("Processes", grid([{name: "process", of: (one) => h("button", {type: "button", onclick: () => page.openLog(one.name)}, one.name)},
      {name: "state", of: (one) => badge(one.state, fine(one))}, {name: "host", of: (one) => one.host || "here", narrow: true},
      {name: "restarts", of: (one) => exact(one.restarts), n: true, narrow: true}, {name: "processors", of: (one) => cores(one.cpu), n: true},
      {name: "memory", of: (one) => bytes(one.memory), n: true}, {name: "pid", of: (one) => String(one.pid || "–"), n: true, narrow: true}],
    run.processes || [], "Processes")),
    log(page));
}

// The newest lines of a process, at the bottom; while a person reads further up or has selected text, the log stands still.
function log(page) {
  if (!page.log) return h("section", {class: "card wide", id: "log"}, h("h2", {}, "Log"), h("p", {class: "soft"}, "Choose a process to read what it printed last."));
  const wanted = (page.search || "").toLowerCase(), all = (page.logText || "").split("\n"), found = wanted ? all.filter((line) => line.toLowerCase().includes(wanted)) : all;
  return h("section", {class: "card wide", id: "log"}, h("h2", {}, `Last lines of ${page.log}`),
    h("div", {class: "row small"}, h("label", {}, "Search ", h("input", {type: "search", value: page.search || "", oninput: (event) => { page.search = event.target.value; page.redraw(); }})),
      h("label", {}, h("input", {type: "checkbox", checked: page.follow, onchange: (event) => { page.follow = event.target.checked; page.redraw(); }}), " follow"),
      h("span", {class: "soft"}, wanted ? `${found.length} of ${plural(all.length, "line")}` : "")),
    h("pre", {tabindex: "0"}, found.join("\n")));
}

export function followLog(page) {
  const box = document.querySelector("#log pre");
  if (box && page.follow && getSelection().isCollapsed) box.scrollTop = box.scrollHeight;
}

export function broker(store, page) {
  const state = store.state;
  if (store.over) return h("p", {class: "empty"}, "The run is over, and its broker has ended.");
  if (!state.broker) return h("p", {class: "empty"}, "The broker does not answer.");
  const server = state.broker.server;
  const calls = (server.commands || []).filter((one) => one.calls > 0);
  return h("div", {class: "cards"},
    card("Broker", facts([["release", server.release], ["since", duration(server.uptime_ns / 1e9)], ["service", server.service], ["ingest", server.ingest],
      ["memory", `${bytes(server.memory_bytes)} of ${bytes(server.memory_limit)}`], ["chunks", `${exact(server.chunk_count)}, ${bytes(server.chunk_bytes)} (${bytes(server.raw_bytes)} unpacked)`],
      ["shared memory", server.shared_clients ? `${bytes(server.memory?.shared ?? 0)}, used by ${plural(server.shared_clients, "client")}` : "not used"],
      ["granted to writers", bytes(server.granted_bytes)], ["messages", `${exact(server.messages_in)}, ${exact(server.messages_bad)} bad`],
      ["longest stretch", duration(server.longest_stretch_ns / 1e9)]]),
      lines([{name: "memory", points: over(store, (p) => p.brokerMemory)}], {title: "Memory of the broker's tables", ...store.axis, zero: true, format: bytes}),
      changes(state, page)),
    h("section", {class: "card double"}, h("h2", {}, "Requests"), grid([{name: "request", of: (one) => one.name}, {name: "calls", of: (one) => exact(one.calls) + (one.errors ? `, ${exact(one.errors)} failed` : ""), n: true},
      {name: "p50", of: (one) => within(one.times, 0.5), n: true}, {name: "p99", of: (one) => within(one.times, 0.99), n: true},
      {name: "work", of: (one) => duration(one.max_ns / 1e9), n: true, narrow: true}], calls, "Requests"),
      h("p", {class: "soft small"}, "Since the broker started, from the request to its reply: half took no longer than p50, 99 of 100 no longer than p99. Work: the longest without waiting.")),
    card("Parameters", grid([{name: "slot", of: (one) => one.name}, {name: "version", of: (one) => exact(one.version), n: true}, {name: "size", of: (one) => bytes(one.bytes), n: true},
      {name: "age", of: (one) => duration(one.age_ns / 1e9), n: true}], state.broker.slots, "Nobody has published parameters yet.")),
    card("Counters", grid([{name: "counter", of: (one) => one.name}, {name: "value", of: (one) => exact(one.value), n: true}], state.broker.counters, "No counters yet.")),
    shardsCard(state), wide("Latency", latencyParts(store, page)), wide("Sessions", sessionsTable(page)));
}

// A row for each shard and table; a shard that does not answer has one row, with its sentence.
function shardsCard(state) {
  const shards = state.broker.shards?.shard || [];
  if (!shards.length) return null;
  const rows = shards.flatMap((shard) => (shard.problem ? [{shard}] : shard.tables.map((table) => ({shard, table}))));
  const figure = (field) => (row) => (row.table ? field(row.table) : "–");
  const missing = shards.filter((shard) => shard.problem);
  return wide(`Shards (${shards.length - missing.length} of ${shards.length} answer)`, grid([
    {name: "shard", of: (row) => String(row.shard.shard), n: true}, {name: "state", of: (row) => badge(row.shard.problem ? "away" : "answers", !row.shard.problem)},
    {name: "service", of: (row) => row.shard.service, narrow: true}, {name: "table", of: figure((table) => table.name)},
    {name: "items", of: figure((table) => exact(table.size)), n: true}, {name: "inserts/s", of: figure((table) => number(table.insert_rate)), n: true},
    {name: "samples/s", of: figure((table) => number(table.sample_rate)), n: true}, {name: "cursor", of: figure((table) => number(table.limiter?.cursor)), n: true},
    {name: "memory", of: (row) => (row.shard.server ? bytes(row.shard.server.memory_bytes) : "–"), n: true, narrow: true}], rows, "Shards"),
  missing.map((shard) => h("p", {class: "soft small"}, `${shard.problem}: its part is missing from all figures.`)));
}

function sessionsTable(page) {
  const sharded = (page.sessions || []).some((one) => known(one.shard));
  const list = page.sessions || [], sum = (one, field) => (one.tables || []).reduce((all, table) => all + table[field], 0);
  return [grid([{name: "writer", of: (one) => one.name}, ...(sharded ? [{name: "shard", of: (one) => String(one.shard), n: true}] : []),
    {name: "state", of: (one) => (one.expired ? "expired" : "open")},
    {name: "items", of: (one) => exact(sum(one, "resolved")), n: true}, {name: "waiting", of: (one) => exact(sum(one, "waiting")), n: true},
    {name: "rejected", of: (one) => exact(one.rejected), n: true, narrow: true}, {name: "silent", of: (one) => duration(one.silent_ns / 1e9), n: true},
    {name: "bytes in flight", of: (one) => bytes(one.chunk_bytes), n: true, narrow: true}], list, "No writer has a session."),
  page.moreSessions ? h("p", {class: "soft small"}, `${list.length} are shown; there are more.`) : null];
}

function changes(state, page) {
  if (!state.can?.change) return null;
  const names = state.broker.tables.map((table) => table.name);
  return h("div", {}, h("h3", {}, "Change something"), h("div", {class: "row"},
    h("button", {type: "button", onclick: () => page.change({action: "checkpoint"}, "Write a checkpoint now?")}, "Checkpoint"),
    names.map((name) => h("button", {type: "button", class: "danger", onclick: () => page.change({action: "reset", table: name}, `Remove all items of ${name}? They are gone then.`)}, `Reset ${name}`)),
    names.map((name) => h("button", {type: "button", onclick: () => page.limiter(name)}, `Limiter of ${name}`)),
    state.can.stop === "broker" ? h("button", {type: "button", class: "danger", onclick: () => page.change({action: "stop"}, "End the broker in order?")}, "Stop the broker") : null));
}

export async function loadCurves(page, store) {
  if (!store.state?.run || (page.curves && Date.now() - page.curvesAt < 5000)) return;
  page.curvesAt = Date.now();
  page.curves = await ask("api/run").catch(() => page.curves);
}

export async function loadSessions(page) {
  const reply = await ask("api/writers").catch(() => null);
  page.sessions = reply?.sessions || [];
  page.moreSessions = !!reply?.session_cursor;
}

export async function loadLog(page) {
  if (!page.log || (page.logText && !page.follow)) return;
  const reply = await ask(`api/log?process=${encodeURIComponent(page.log)}&lines=400`).catch((error) => ({text: String(error.message)}));
  page.logText = reply.text;
}
