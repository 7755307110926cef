// The item browser: a table, its items, and one item's fields as numbers, images and curves.
import {ask, exact, h, known, number, show, duration} from "./util.js";
import {facts, grid} from "./views.js";
import {drawCharts, lines} from "./chart.js";

const PAGE = 20;
const MOST_IMAGES = 16;

export class Items {
  constructor() {
    this.root = Object.assign(h("div", {class: "cards"}), {kept: true});
    this.table = "";
    this.list = null;
    this.item = null;
    this.cursor = "0";
    this.problem = "";
  }

  // Drawn only when something was asked for: what a person looks at must not move away.
  render(store) {
    const names = (store.state.broker?.tables || []).map((table) => table.name);
    if (!names.length) { show(this.root, h("p", {class: "empty"}, "The broker does not answer, or has no table.")); return this.root; }
    const key = names.join("\n");
    if (key !== this.names) {
      this.names = key;
      if (!names.includes(this.table)) this.table = names[0];
      this.draw(names);
      this.load("0");
    }
    return this.root;
  }

  draw(names) {
    this.choice = h("select", {id: "items-table", onchange: (event) => { this.table = event.target.value; this.item = null; this.load("0"); }},
      names.map((name) => h("option", {value: name, selected: name === this.table}, name)));
    this.listBox = h("div", {});
    this.itemBox = h("section", {class: "card", "aria-live": "polite"});
    show(this.root, h("section", {class: "card double"}, h("h2", {}, "Items"),
      h("div", {class: "row"}, h("label", {for: "items-table"}, "Table"), this.choice,
        h("button", {type: "button", onclick: () => this.load("0")}, "Look again"),
        h("button", {type: "button", onclick: () => this.load(this.next)}, "More"),), this.listBox), this.itemBox);
    show(this.itemBox, h("h2", {}, "Item"), h("p", {class: "soft"}, "Choose an item."));
  }

  async load(cursor) {
    try {
      const reply = await ask(`api/items?table=${encodeURIComponent(this.table)}&cursor=${cursor || 0}&count=${PAGE}`);
      this.list = reply.items;
      this.next = reply.cursor;
      this.problem = "";
    } catch (error) {
      this.problem = error.message;
    }
    this.drawList();
  }

  drawList() {
    const open = (item) => h("button", {type: "button", onclick: () => this.open(item.key_text)}, item.key_text);
    show(this.listBox, this.problem ? h("p", {role: "alert"}, this.problem) : grid([
      {name: "key", of: open}, {name: "priority", of: (item) => number(item.priority), n: true},
      {name: "steps", of: (item) => exact(item.length), n: true, narrow: true},
      {name: "sampled", of: (item) => exact(item.times_sampled), n: true},
      {name: "age", of: (item) => duration(item.age_ns / 1e9), n: true}],
    this.list || [], "The table has no items.", (item) => ({"aria-selected": item.key_text === this.item?.key_text ? "true" : "false"})));
  }

  async open(key) {
    try {
      const reply = await ask(`api/item?table=${encodeURIComponent(this.table)}&key=${key}`);
      this.item = reply.items[0];
      if (!this.item) throw new Error("The item is no longer in the table.");
      const fields = Object.entries(this.item.fields).map(([name, field]) => ({name, ...field}));
      show(this.itemBox, h("h2", {}, `Item ${key}`), facts([["table", this.table], ["priority", number(this.item.priority)],
        ["probability", known(this.item.probability) ? number(this.item.probability) : ""], ["episode", this.item.episode == null ? "" : String(this.item.episode)],
        ["first step", this.item.step == null ? "" : String(this.item.step)], ["policy version", this.item.policy == null ? "" : String(this.item.policy)]]),
        fields.map((field) => this.field(field)));
    } catch (error) {
      show(this.itemBox, h("h2", {}, `Item ${key}`), h("p", {role: "alert"}, error.message));
    }
    drawCharts(this.root);
    this.drawList();
  }

  field(field) {
    const shape = field.shape.length ? field.shape.join(" × ") : "a number";
    const head = h("h3", {}, `${field.name}: ${field.dtype}, ${shape}${field.truncated ? " (the beginning)" : ""}`);
    return h("div", {class: "field"}, head, pictures(field) || curve(field), numbers(field));
  }
}

// uint8 arrays with two or three long dimensions are images: H x W, H x W x C, or C x H x W; the first may count steps.
export function imagesOf(field) {
  if (field.dtype !== "uint8") return null;
  let shape = field.shape.slice(), count = 1;
  const small = (n) => n === 1 || n === 3 || n === 4;
  if (shape.length === 4 || (shape.length === 3 && !small(shape[2]) && !small(shape[0]))) count = shape.shift();
  let layout = null;
  if (shape.length === 2) layout = {h: shape[0], w: shape[1], c: 1, at: (y, x) => y * shape[1] + x};
  else if (shape.length === 3 && (small(shape[2]) || shape[2] < shape[0])) layout = {h: shape[0], w: shape[1], c: shape[2], at: (y, x, c) => (y * shape[1] + x) * shape[2] + c};
  else if (shape.length === 3) layout = {h: shape[1], w: shape[2], c: shape[0], at: (y, x, c) => (c * shape[1] + y) * shape[2] + x};
  if (!layout || layout.h < 4 || layout.w < 4) return null;
  return {...layout, count, size: shape.reduce((a, b) => a * b, 1)};
}

function pictures(field) {
  const kind = imagesOf(field);
  if (!kind) return null;
  // Small numbers, such as 0 and 1, would all be black. Several planes of zeros and ones are one picture, a colour for each plane.
  const most = field.values.reduce((a, b) => Math.max(a, b), 0);
  kind.scale = most > 0 && most < 16 ? 255 / most : 1;
  kind.planes = most <= 1 && kind.c > 1;
  const planes = kind.c === 3 || kind.planes ? [null] : Array.from({length: kind.c}, (_, c) => c); // four planes are four frames, not RGBA
  const out = [];
  for (let k = 0; k < kind.count && out.length < MOST_IMAGES; k++)
    for (const plane of planes) {
      if ((k + 1) * kind.size > field.values.length || out.length >= MOST_IMAGES) break;
      out.push(picture(field, kind, k, plane));
    }
  return out.length ? h("div", {class: "images"}, out) : null;
}

const PLANES = [[255, 255, 255], [250, 90, 70], [80, 160, 255], [90, 210, 110], [245, 200, 60], [190, 110, 240], [60, 210, 210], [250, 140, 190]];

// A part of the colour of a pixel: the last plane that is set there has it.
function coloured(count, at, part) {
  for (let p = count - 1; p >= 0; p--) if (at(p) > 0) return PLANES[p % PLANES.length][part];
  return 0;
}

function picture(field, kind, k, plane) {
  const canvas = h("canvas", {class: "image", width: kind.w, height: kind.h, role: "img", "aria-label": `${field.name} ${k}`});
  const context = canvas.getContext("2d"), image = context.createImageData(kind.w, kind.h), base = k * kind.size;
  const at = (y, x, c) => field.values[base + kind.at(y, x, c)] * kind.scale;
  for (let y = 0; y < kind.h; y++)
    for (let x = 0; x < kind.w; x++) {
      const to = 4 * (y * kind.w + x);
      for (let c = 0; c < 3; c++) image.data[to + c] = kind.planes ? coloured(kind.c, (p) => at(y, x, p), c) : at(y, x, plane === null ? c : plane);
      image.data[to + 3] = 255;
    }
  context.putImageData(image, 0, 0);
  const scale = Math.max(1, Math.floor(180 / Math.max(kind.w, kind.h)));
  canvas.style.width = `${kind.w * scale}px`;
  return h("figure", {}, canvas, h("figcaption", {}, kind.count > 1 || plane !== null ? `${k}${plane ? `.${plane}` : ""}` : field.name));
}

// A column over several steps is a curve, at most four of them.
function curve(field) {
  const steps = field.shape[0], width = field.shape.slice(1).reduce((a, b) => a * b, 1);
  if (!(steps > 2) || field.shape.length > 2 || field.values.length < steps * width) return null;
  const series = Array.from({length: Math.min(width, 4)}, (_, k) => ({name: width > 1 ? `[${k}]` : field.name,
    points: Array.from({length: steps}, (_unused, i) => [i, Number(field.values[i * width + k])])}));
  return lines(series, {title: field.name, xName: field.shape.length > 1 ? "step" : "index"});
}

function numbers(field) {
  const text = field.values.slice(0, 256).map((value) => number(Number(value), 4)).join(" ");
  return h("details", {open: field.values.length <= 16}, h("summary", {}, `${exact(field.values.length)} numbers`),
    h("pre", {tabindex: "0"}, text + (field.values.length > 256 ? " ..." : "")));
}
