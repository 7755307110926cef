// What the page knows: the newest state, and a history that gets thinner with age, so that a day costs little memory.
import {ANSWERS, ask, known} from "./util.js";
import {countsOf} from "./latency.js";

const EVERY_MS = 1000;
// Seconds between points, and how many points are kept so: ten minutes, four hours, four days.
const LEVELS = [[1, 600], [10, 1440], [60, 5760]];

export class History {
  constructor() {
    this.levels = LEVELS.map(() => []);
  }

  add(point) {
    this.levels.forEach((list, i) => {
      const last = list[list.length - 1];
      if (last && point.t - last.t < LEVELS[i][0] * 0.9) return;
      list.push(point);
      if (list.length > LEVELS[i][1]) list.splice(0, list.length - LEVELS[i][1]);
    });
  }

  // Points since `from`, the finest that there are.
  since(from) {
    const out = [];
    for (let i = LEVELS.length - 1; i >= 0; i--) {
      const finer = i > 0 && this.levels[i - 1].length ? this.levels[i - 1][0].t : Infinity;
      for (const point of this.levels[i]) if (point.t >= from && point.t < finer) out.push(point);
    }
    return out;
  }

  get first() {
    return Math.min(...this.levels.map((list) => (list.length ? list[0].t : Infinity)));
  }

  get last() {
    return this.levels[0][this.levels[0].length - 1];
  }

  get points() {
    return this.levels.reduce((sum, list) => sum + list.length, 0);
  }
}

export class Store {
  constructor() {
    this.state = null;
    this.history = new History();
    this.lost = null; // why there is no answer
    this.lostSince = 0;
    this.listeners = [];
    this.backfilled = false;
    this.span = 300; // seconds that charts show
  }

  listen(listener) {
    this.listeners.push(listener);
  }

  async start() {
    for (;;) {
      const began = performance.now();
      await this.look();
      if (ANSWERS) return;
      const wait = document.hidden ? 4 * EVERY_MS : EVERY_MS;
      await new Promise((done) => setTimeout(done, Math.max(100, wait - (performance.now() - began))));
    }
  }

  async look() {
    try {
      const state = await ask("api/state");
      this.lost = null;
      this.take(state);
      if (!this.backfilled && state.run) await this.backfill();
    } catch (error) {
      if (!this.over) { // the launcher has ended with its run: what is shown is the end
        if (!this.lost) this.lostSince = Date.now();
        this.lost = error;
      }
    }
    for (const listener of this.listeners) listener(this);
  }

  // What happened before the page was opened, from the run's own record.
  async backfill() {
    this.backfilled = true;
    const old = await ask("api/history").catch(() => null);
    if (!old) return;
    const now = this.history;
    this.history = new History();
    const first = this.over ? Infinity : now.first;
    old.unix_s?.forEach((at, i) => {
      if (at < first) this.history.add(runPoint(Object.fromEntries(Object.entries(old).map(([name, values]) => [name, values[i]]))));
    });
    for (const point of now.since(0)) this.history.add(point);
  }

  // A run that is over: what is shown ends with it.
  get over() {
    return !!this.state?.run && !this.state.run_alive;
  }

  // The right end of charts, in seconds since 1970.
  get end() {
    return this.over ? this.state.run.unix_s : this.state.unix_s;
  }

  // The time that all charts over time show, as an option of theirs.
  get axis() {
    const from = Math.max(this.end - this.span, this.history.first);
    return {window: [Math.min(from, this.end - 10), this.end], over: this.over};
  }

  take(state) {
    const before = this.state;
    this.state = state;
    if (this.over) return;
    const point = state.run ? runPoint(state.run) : {t: state.unix_s};
    point.t = state.unix_s;
    if (state.broker) addBroker(point, state, before, this.history.last);
    this.history.add(point);
  }
}

function runPoint(run) {
  return {
    t: run.unix_s, elapsed: run.elapsed_s, steps: run.steps, value: run.value, actorIdle: run.actor_idle, learnerIdle: run.learner_idle,
    inserts: run.inserts_rate, samples: run.samples_rate, spi: run.spi, cpu: run.cpu, memory: run.memory,
    stepsRate: run.steps_rate,
  };
}

// Rates of a broker without a run come from its counters.
function addBroker(point, state, before, last) {
  const seconds = before ? state.unix_s - before.unix_s : 0;
  const same = before?.broker && before.broker.server.instance === state.broker.server.instance && seconds > 0.2;
  point.tables = {};
  let inserts = 0, samples = 0;
  for (const table of state.broker.tables) {
    const old = same ? before.broker.tables.find((one) => one.name === table.name) : null;
    const rate = (now, then) => (old && now >= then ? (now - then) / seconds : NaN);
    const one = {
      inserts: rate(table.limiter.inserts, old?.limiter.inserts),
      samples: rate(table.limiter.samples, old?.limiter.samples),
      updates: rate(table.updates, old?.updates),
      cursor: table.limiter.cursor, size: table.size,
    };
    point.tables[table.name] = one;
    inserts += one.inserts;
    samples += one.samples;
  }
  point.instance = state.broker.server.instance;
  point.latency = countsOf(state.broker.server, same ? last?.latency : null);
  point.brokerMemory = state.broker.server.memory_bytes;
  if (!known(point.inserts)) point.inserts = inserts;
  if (!known(point.samples)) point.samples = samples;
}
