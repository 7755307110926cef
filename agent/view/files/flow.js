// The run as a picture: actors -> table -> learners, rates on the arrows, and a mark on the arrow that waits.
import {s, number, known, percent, plural} from "./util.js";

function box(x, y, w, hgt, title, lines) {
  return s("g", {},
    s("rect", {class: "box", x, y, width: w, height: hgt, rx: 10}),
    s("text", {class: "strong", x: x + w / 2, y: y + 24, "text-anchor": "middle", style: "font-size:15px"}, title),
    lines.map((line, i) => s("text", {x: x + w / 2, y: y + 44 + 17 * i, "text-anchor": "middle", style: "font-size:12.5px"}, line)));
}

function arrow(x1, x2, y, text, blocked) {
  const left = x2 < x1;
  return s("g", {class: blocked ? "blocked" : ""},
    s("path", {class: "arrow", d: `M${x1} ${y}H${left ? x2 + 9 : x2 - 9}`}),
    s("path", {class: "head", d: left ? `M${x2} ${y}l12 -7v14z` : `M${x2} ${y}l-12 -7v14z`}),
    s("text", {class: "strong", x: (x1 + x2) / 2, y: y - 9, "text-anchor": "middle", style: "font-size:13px"}, text),
    blocked ? s("text", {class: "mark", x: (x1 + x2) / 2, y: y + 17, "text-anchor": "middle"}, `✕ ${blocked}`) : null);
}

function down(x, y1, y2, text, blocked) {
  const up = y2 < y1;
  return s("g", {class: blocked ? "blocked" : ""},
    s("path", {class: "arrow", d: `M${x} ${y1}V${up ? y2 + 9 : y2 - 9}`}),
    s("path", {class: "head", d: up ? `M${x} ${y2}l-7 12h14z` : `M${x} ${y2}l-7 -12h14z`}),
    s("text", {class: "strong", x: x + 12, y: (y1 + y2) / 2, style: "font-size:13px"}, text),
    blocked ? s("text", {class: "mark", x: x + 12, y: (y1 + y2) / 2 + 16}, `✕ ${blocked}`) : null);
}

function idle(share) {
  return known(share) ? `wait ${percent(share)} of the time` : "";
}

function slotOf(state) {
  const slot = state.broker?.slots[0];
  return slot ? `${slot.name} v${slot.version}` : "";
}

// Side by side on a wide screen, one below the other on a narrow one.
export function flow(state, table, rates) {
  const run = state.run, blocked = state.verdict?.blocked || "";
  const actors = run ? plural(run.actors, "actor") : plural(state.broker?.server.session_count ?? 0, "writer");
  const learners = run ? plural(run.learners, "learner") : "samplers";
  const spi = rates.inserts > 0 ? rates.samples / rates.inserts : NaN;
  const rate = (value, word) => (known(value) ? `${number(value)} ${word}s/s` : `${word}s`);
  const words = `${actors} insert ${rate(rates.inserts, "item")}, ${learners} sample ${rate(rates.samples, "item")}` +
    (blocked ? `; ${blocked} wait` : "");
  const wanted = (now, all) => (run && now !== all ? `of ${all} wanted` : "");
  const actorLines = [wanted(run?.actors, run?.actors_wanted), run ? idle(run.actor_idle) : ""].filter(Boolean);
  const learnerLines = [wanted(run?.learners, run?.learners_wanted), run ? idle(run.learner_idle) : ""].filter(Boolean);
  const tableLines = table ? [`${number(table.size)} of ${number(table.max_size)} items`, known(spi) ? `${number(spi)} samples per insert` : "no samples yet"] : [];
  const title = table ? `table ${table.name}` : "table";
  const marks = [blocked === "actors" ? `${run ? "actors" : "writers"} wait` : "", blocked === "learners" ? `${run ? "learners" : "samplers"} wait` : ""];
  const slot = slotOf(state), updates = rates.updates > 0 ? rate(rates.updates, "update") : "";
  const picture = (kind, size, ...parts) => s("svg", {class: `flow ${kind}`, viewBox: size, role: "img", "aria-label": words}, parts.filter(Boolean));
  return [
    picture("broad", "0 0 1000 150", box(4, 30, 190, 92, actors, actorLines), box(405, 30, 190, 92, title, tableLines), box(806, 30, 190, 92, learners, learnerLines),
      arrow(200, 400, 64, rate(rates.inserts, "insert"), marks[0]), arrow(600, 801, 64, rate(rates.samples, "sample"), marks[1]),
      updates && arrow(801, 600, 112, updates, ""), slot && arrow(400, 200, 112, slot, "")),
    picture("tall", "0 0 340 430", box(60, 4, 220, 84, actors, actorLines), box(60, 172, 220, 84, title, tableLines), box(60, 340, 220, 84, learners, learnerLines),
      down(130, 92, 168, rate(rates.inserts, "insert"), marks[0]), down(130, 260, 336, rate(rates.samples, "sample"), marks[1])),
  ];
}
