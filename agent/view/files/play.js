// The agent at play: recorded episodes of the evaluator (agent/run/recording.h), drawn on a canvas.
import {ask, exact, h, number, plural, show} from "./util.js";

const SPEEDS = [0.25, 0.5, 1, 2, 4];
const ROLES = ["--line", "--soft", "--c0", "--c1", "--ink", "--c2"]; // scene, mark, body, limb, joint, goal
const LINE = 0, CIRCLE = 1;
const LAST_FRAME_S = 1; // for which the end of an episode stays
const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

export class Play {
  constructor() {
    this.root = Object.assign(h("div", {class: "cards"}), {kept: true});
    this.list = null;
    this.chosen = "newest";
    this.speed = 1;
    this.playing = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.place = 0; // in steps
    this.build();
  }

  build() {
    const field = (name, input) => h("label", {}, `${name} `, input);
    this.canvas = h("canvas", {class: "play", role: "img", "aria-label": "The environment"});
    this.toggle = h("button", {type: "button", class: "toggle", onclick: () => this.setPlaying(!this.playing)});
    this.bar = h("input", {type: "range", class: "scrub", min: "0", value: "0", "aria-label": "Step", oninput: () => { this.setPlaying(false); this.place = this.frames()[this.bar.value][0]; this.draw(); }});
    this.which = h("select", {onchange: (event) => { this.chosen = event.target.value; this.open(); }});
    this.text = h("p", {class: "row small"});
    this.title = h("h2", {});
    this.about = h("p", {class: "soft small"});
    this.card = h("section", {class: "card wide"}, this.title, this.about, this.canvas, h("div", {class: "row"}, this.toggle, this.bar), this.text,
      h("div", {class: "row small"}, field("Evaluation", this.which), field("Speed", h("select", {class: "speed", onchange: (event) => { this.speed = Number(event.target.value); }},
        SPEEDS.map((speed) => h("option", {value: speed, selected: speed === 1}, `× ${speed}`))))));
    this.setPlaying(this.playing);
  }

  // Looks for new recordings every few seconds, and goes on to the newest one when the present one ends.
  async load(store) {
    if (!store.state?.run || (this.list && Date.now() - this.asked < 5000)) return;
    this.asked = Date.now();
    const before = JSON.stringify(this.list);
    this.list = (await ask("api/play").catch(() => null))?.episodes || this.list || [];
    if (!this.list.length || JSON.stringify(this.list) === before) return;
    show(this.which, h("option", {value: "newest"}, "the newest"), [...this.list].reverse().map((one) =>
      h("option", {value: String(one.at)}, `at ${exact(one.at)} steps: ${number(one.mean)}`)));
    if (!this.list.some((one) => String(one.at) === this.chosen)) this.chosen = "newest";
    this.which.value = this.chosen;
    this.which.parentNode.hidden = this.list.length < 2;
    if (!this.episode) await this.open();
  }

  render(store) {
    if (!store.state.run) return h("p", {class: "empty"}, "This page shows a broker alone. The page of a run shows how its agent plays (replay-launch open).");
    if (!this.list?.length) return h("p", {class: "empty"}, "No episode is recorded yet: the evaluator records one in each evaluation (evaluator.every).");
    if (this.root.firstChild !== this.card) show(this.root, this.card);
    requestAnimationFrame(() => this.animate());
    return this.root;
  }

  frames() {
    return this.episode?.frames || [];
  }

  // Shows the chosen episode, unless another one was chosen before it came, or it is no longer wanted.
  async open(isWanted = () => true) {
    const chosen = this.chosen, at = chosen === "newest" ? this.list.at(-1).at : chosen;
    try {
      const episode = await ask(`api/play?at=${at}`);
      if (this.chosen !== chosen || !isWanted()) return;
      this.episode = episode;
    } catch (error) {
      show(this.text, h("span", {role: "alert"}, error.message));
      return;
    }
    const head = this.episode.head;
    this.title.textContent = head.environment;
    this.about.textContent = `Evaluated at ${exact(head.at)} steps: mean return ${number(head.mean)} of ${plural(head.episodes, "episode")}; this one ${number(head.return)} in ${plural(head.steps, "step")}.`;
    this.bar.max = String(this.frames().length - 1);
    this.place = 0;
    this.draw();
  }

  setPlaying(on) {
    this.playing = on;
    this.toggle.textContent = on ? "❚❚ Pause" : "▶ Play";
    if (on && this.place >= (this.frames().at(-1)?.[0] ?? 0)) this.place = 0;
    this.animate();
  }

  // One loop, as long as something moves and can be seen.
  animate() {
    if (this.moving || !this.canvas.isConnected) return;
    this.moving = true;
    let before = performance.now();
    const turn = (now) => {
      const seconds = Math.min(0.2, (now - before) / 1000);
      before = now;
      if (!this.playing || !this.canvas.isConnected || !this.episode) { this.moving = false; this.draw(); return; }
      this.advance(seconds * this.speed);
      requestAnimationFrame(turn);
    };
    requestAnimationFrame(turn);
  }

  advance(seconds) {
    const {step_s} = this.episode.head, end = this.frames().at(-1)[0] + LAST_FRAME_S / step_s;
    this.place += seconds / step_s;
    if (this.place > end) {
      this.place = 0;
      if (this.chosen === "newest" && this.list.at(-1).at !== this.episode.head.at) this.open(() => this.playing);
    }
    this.draw();
  }

  // The newest frame that is not later than the place.
  index() {
    const frames = this.frames();
    let low = 0, high = frames.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (frames[middle][0] <= this.place) low = middle; else high = middle - 1;
    }
    return low;
  }

  draw() {
    if (!this.episode || !this.canvas.isConnected) return;
    const {head} = this.episode, i = this.index(), [step, value, action, picture] = this.frames()[i];
    this.bar.value = String(i);
    const reward = value == null ? null : value - (i > 0 ? this.frames()[i - 1][1] : 0); // null: not a number
    show(this.text, [["step", exact(step)], ["action", action == null ? "–" : [action].flat().join(" ")], ["reward", number(reward)], ["return", number(value)]]
      .map(([name, text]) => h("span", {}, h("span", {class: "soft"}, `${name} `), text)));
    if (head.width) this.paintPixels(head, picture);
    else this.paintShapes(head, picture);
  }

  // Sets the size of the canvas, in its own pixels, if it has changed.
  resize(width, height) {
    if (this.canvas.width !== width) this.canvas.width = width;
    if (this.canvas.height !== height) this.canvas.height = height;
    return this.canvas.getContext("2d");
  }

  paintPixels({width, height}, text) {
    const context = this.resize(width, height), image = context.createImageData(width, height);
    for (let i = 0, at = 0; i + 2 < text.length; i += 3) {
      const colour = DIGITS.indexOf(text[i + 1]) << 6 | DIGITS.indexOf(text[i + 2]);
      for (let run = DIGITS.indexOf(text[i]); run >= 0; run--, at += 4)
        image.data.set([(colour >> 8) * 17, (colour >> 4 & 15) * 17, (colour & 15) * 17, 255], at);
    }
    context.putImageData(image, 0, 0);
    this.canvas.classList.add("pixels");
  }

  paintShapes({height}, shapes) {
    const style = getComputedStyle(this.canvas), wide = Math.round(this.canvas.clientWidth * (window.devicePixelRatio || 1)) || 600;
    const context = this.resize(wide, Math.round(wide * height / 1000)), colours = ROLES.map((name) => style.getPropertyValue(name));
    context.setTransform(wide / 1000, 0, 0, wide / 1000, 0, 0);
    context.clearRect(0, 0, 1000, height);
    context.lineCap = "round";
    for (const list of [this.episode.scene, shapes]) paint(context, list, colours);
    this.canvas.classList.remove("pixels");
  }
}

function paint(context, list, colours) {
  for (let i = 0; i < list.length;) {
    const kind = list[i], colour = colours[list[i + 1]], [x, y] = [list[i + 2], list[i + 3]];
    context.fillStyle = context.strokeStyle = colour;
    context.beginPath();
    if (kind === CIRCLE) {
      context.arc(x, y, Math.max(2, list[i + 4]), 0, 2 * Math.PI);
      context.fill();
      i += 5;
    } else if (kind === LINE) {
      context.moveTo(x, y);
      context.lineTo(list[i + 4], list[i + 5]);
      context.lineWidth = Math.max(2, list[i + 6]);
      context.stroke();
      i += 7;
    } else {
      context.fillRect(x, y, list[i + 4] - x, list[i + 5] - y);
      i += 6;
    }
  }
}
