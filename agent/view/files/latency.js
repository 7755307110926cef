// How long things take, from the broker's histograms. Each point of the history has the counts since the broker's start, so the
// difference of any two points is what happened between them: points that were dropped with age take nothing away.
import {duration, exact, h, number} from "./util.js";
import {bars, lines} from "./chart.js";

const command = (server, name) => server.commands?.find((one) => one.name === name);
// What is shown, in this order: a word, what is measured, and where the broker's counts are.
export const KINDS = [
  ["insert", "from the arrival of an item until it is in its table", (server) => server.insert_times],
  ["insert wait", "the same, of items that did not go in at once", (server) => server.insert_wait_times],
  ["sample", "from a sample request to its reply", (server) => command(server, "sample")?.times],
  ["sample wait", "the same, of requests that were not answered at once", (server) => command(server, "sample")?.wait_times],
  ["update", "from an update of priorities to its reply", (server) => command(server, "update")?.times],
  ["journal wait", "of messages to clients, for the disk", (server) => server.journal_wait_times],
];
const WINDOWS = 120; // of a chart: each needs some events for its quantiles

const total = (counts) => counts.reduce((sum, count) => sum + count, 0);

// The counts of a point; those that have not changed since the point before are shared with it.
export function countsOf(server, before) {
  const out = {};
  for (const [name, , find] of KINDS) {
    const counts = find(server) || [], old = before?.[name];
    if (counts.length) out[name] = old && old.length === counts.length && total(old) === total(counts) ? old : counts;
  }
  return out;
}

function difference(now, then) {
  return now.map((count, bucket) => count - (then?.[bucket] || 0));
}

// Bucket b has nanoseconds of b significant bits. Within a bucket times are taken as spread evenly by ratio. In seconds.
export function quantile(counts, share) {
  const wanted = share * total(counts);
  let below = 0;
  for (let b = 0; b < counts.length; b++) {
    if (counts[b] > 0 && below + counts[b] >= wanted) return 1e-9 * (b === 0 ? 0 : 2 ** (b - 1 + (wanted - below) / counts[b]));
    below += counts[b];
  }
  return NaN;
}

// [[end of a window, counts in it]] of a kind, since `from`.
function windows(store, name, from) {
  const points = store.history.since(from).filter((point) => point.instance), out = [];
  const step = Math.max(1, Math.ceil(points.length / WINDOWS));
  for (let i = points.length - 1; i >= step; i -= step) {
    const now = points[i], then = points[i - step];
    if (now.instance === then.instance && now.latency[name]) out.unshift([now.t, difference(now.latency[name], then.latency[name])]);
  }
  return out;
}

function series(list, share) {
  return list.map(([t, counts]) => [t, quantile(counts, share)]);
}

function some(list) {
  return list.some(([, counts]) => total(counts) > 0);
}

// p50 and p99 of some kinds in one chart.
export function latencyChart(store, names, title) {
  const parts = names.map((name) => [name, windows(store, name, store.axis.window[0])]).filter(([, list]) => some(list));
  return lines(parts.flatMap(([name, list]) => [["p50", 0.5], ["p99", 0.99]].map(([word, share]) =>
    ({name: `${name} ${word}`, points: series(list, share)}))), {title, ...store.axis, log: true, format: duration});
}

function sum(list) {
  return list.reduce((all, [, counts]) => counts.map((count, b) => count + (all[b] || 0)), []);
}

function histogram(list, name) {
  const counts = sum(list), first = counts.findIndex((count) => count > 0);
  const shown = counts.slice(Math.max(first, 0)).map((value, i) => ({name: duration(1e-9 * 2 ** (i + first)), value}));
  while (shown.length && !shown[shown.length - 1].value) shown.pop();
  return [h("p", {class: "soft small"}, "How many took up to so long, in the time shown"), bars(shown, {title: `${name}: how many took up to`})];
}

// One part for each kind that has happened: its chart over time, and its histogram if somebody wants to see it.
export function latencyParts(store, page) {
  page.histogramsOpen ||= new Set();
  const parts = KINDS.map(([name, text]) => {
    const list = windows(store, name, store.axis.window[0]);
    if (!some(list)) return null;
    const open = page.histogramsOpen.has(name), counts = sum(list);
    const toggle = () => { if (open) page.histogramsOpen.delete(name); else page.histogramsOpen.add(name); page.redraw(); };
    return h("div", {class: "latency"}, h("h3", {}, name), h("p", {class: "soft small"}, `${text}; ${exact(total(counts))} in this time`),
      lines([{name: "p50", points: series(list, 0.5)}, {name: "p99", points: series(list, 0.99)}],
        {title: `Latency: ${name}`, ...store.axis, log: true, format: duration}),
      h("button", {type: "button", class: "small", "aria-expanded": String(open), onclick: toggle}, `Histogram of ${name}`), open ? histogram(list, name) : null);
  }).filter(Boolean);
  return parts.length ? [h("p", {class: "soft small"}, "Half took no longer than p50, 99 of 100 no longer than p99."), h("div", {class: "two"}, parts)] : h("p", {class: "empty"}, "Nothing was inserted, sampled or updated in this time.");
}

// "12 µs" since the broker's start, for a table of requests.
export function within(counts, share) {
  return counts?.length ? duration(quantile(counts, share)) : number(NaN);
}
