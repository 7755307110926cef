// Small tools: elements, numbers for people, requests.

// h("td", {class: "n"}, "text", child, ...). Text is always text: nothing of the network becomes markup.
export function h(tag, attrs, ...children) {
  return fill(document.createElement(tag), attrs, children);
}

const SVG = "http://www.w3.org/2000/svg";
export function s(tag, attrs, ...children) {
  return fill(document.createElementNS(SVG, tag), attrs, children);
}

function fill(element, attrs, children) {
  for (const [name, value] of Object.entries(attrs || {})) {
    if (name.startsWith("on")) element[name] = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

export function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
export function number(value, digits = 3) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size < 1000 && Number.isInteger(value)) return String(value);
  for (const [unit, prefix] of PREFIXES)
    if (size >= unit) return (size / unit >= 999.5 || digits < 3 && size / unit >= 99.5 ? String(Math.round(value / unit)) : trim((value / unit).toPrecision(digits))) + prefix;
  if (size >= 10 ** digits - 0.5) return String(Math.round(value)); // 1.0e+2 is nothing for people
  return size < 1e-3 && size > 0 ? value.toExponential(1) : trim(value.toPrecision(digits));
}

function trim(text) {
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}

export function exact(value) {
  return known(value) ? value.toLocaleString("en-US", {maximumFractionDigits: 3}) : "–";
}

export function bytes(value) {
  if (!known(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (Math.abs(value) >= 1024 && at < units.length - 1) { value /= 1024; at++; }
  return `${at === 0 || value >= 100 ? Math.round(value) : trim(value.toPrecision(3))} ${units[at]}`;
}

export function duration(seconds) {
  if (!known(seconds)) return "–";
  if (seconds < 1e-3) return `${number(seconds * 1e6)} µs`;
  if (seconds < 1) return `${number(seconds * 1e3)} ms`;
  if (seconds < 60) return `${number(seconds)} s`;
  const whole = Math.round(seconds), days = Math.floor(whole / 86400), hours = Math.floor(whole / 3600) % 24;
  const minutes = Math.floor(whole / 60) % 60;
  if (days) return `${days} d ${hours} h`;
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}

// Processors: hundredths are as much as anybody can see.
export function cores(value) {
  return known(value) ? value.toFixed(value < 10 ? 2 : 1) : "–";
}

// Less than a tenth of a percent is nothing.
export function percent(share) {
  return known(share) ? `${Math.abs(share) < 0.001 ? 0 : number(100 * share, 2)}%` : "–";
}

export class Refused extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

// The token comes with the address of the page once, and stays in this tab.
const params = new URLSearchParams(location.search);
if (params.get("token")) {
  sessionStorage.setItem("token", params.get("token"));
  history.replaceState(null, "", location.pathname + location.hash);
}
// Where the server begins: the page of a run is at 1/NAME/ below it.
export const ROOT = location.pathname.replace(/\d+\/[^/]+\/$/, "");

// The page in one file, without a server: the answers lie in it.
export const ANSWERS = JSON.parse(document.getElementById("answers")?.textContent || "null");

export async function ask(path, options = {}) {
  if (ANSWERS) {
    if (path in ANSWERS) return ANSWERS[path];
    throw new Refused(404, "This file does not have it: replay-launch open shows the run's folder.");
  }
  const token = sessionStorage.getItem("token");
  const headers = {...(token ? {Authorization: `Bearer ${token}`} : {}), ...(options.headers || {})};
  const reply = await fetch(path, {...options, headers, cache: "no-store", signal: AbortSignal.timeout(8000)});
  const text = await reply.text();
  let body = null;
  try { body = JSON.parse(text); } catch { /* not JSON: the text is the message */ }
  if (!reply.ok) throw new Refused(reply.status, body?.error || text || reply.statusText);
  return body;
}

const nodes = (children) => children.flat(Infinity).filter((child) => child != null && child !== false)
  .map((child) => (child instanceof Node ? child : document.createTextNode(child)));

// Replaces the children of an element.
export function show(parent, ...children) {
  parent.replaceChildren(...nodes(children));
}

// Makes the children of an element like fresh ones and changes only what differs: focus, selected text, clicks under way, scroll
// positions and open details stay.
export function update(parent, ...children) {
  const fresh = nodes(children);
  fresh.forEach((node, i) => (parent.childNodes[i] ? become(parent.childNodes[i], node) : parent.append(node)));
  while (parent.childNodes.length > fresh.length) parent.lastChild.remove();
}

const HANDLERS = ["onclick", "onchange", "oninput", "onsubmit", "ontoggle"];

function become(old, fresh) {
  if (old === fresh) return;
  if (old.nodeType === Node.TEXT_NODE && fresh.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data && !isSelected(old)) old.data = fresh.data;
    return;
  }
  // An element that is `kept` belongs to somebody who changes it, and a canvas has no other content than its pixels.
  if (old.nodeName !== fresh.nodeName || old.kept || fresh.kept || fresh.nodeName === "CANVAS" || old.dataset?.key !== fresh.dataset?.key) {
    old.replaceWith(fresh);
    return;
  }
  for (const name of HANDLERS) if (old[name] !== fresh[name]) old[name] = fresh[name];
  if (fresh.spec) { old.spec = fresh.spec; return; } // a chart, which draws itself
  for (const {name} of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const {name, value} of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.checked !== fresh.checked) old.checked = fresh.checked;
  update(old, ...fresh.childNodes);
  if (old.value !== fresh.value && document.activeElement !== old) old.value = fresh.value;
}

function isSelected(node) {
  const selection = getSelection();
  return !selection.isCollapsed && selection.containsNode(node, true);
}

export function plural(count, word) {
  return `${exact(count)} ${word}${count === 1 ? "" : "s"}`;
}
