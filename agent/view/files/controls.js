// What can be done with a run that goes on. Every button says, before anything happens, what it will do, with the numbers of now.
import {exact, h, known, number, plural} from "./util.js";

// label, what it does, order or other wish, class; a field asks for a number first
function list(state) {
  const run = state.run, actors = run.actors_wanted, hosts = (run.hosts || []).length;
  const place = hosts ? `on one of ${plural(hosts, "host")}` : "on this host";
  const paused = state.verdict?.cause === "paused", ratio = run.spi_target;
  return [
    paused ? ["Let the run go on", "Actors and learners go on where they stopped.", {order: "go"}]
      : ["Pause the run", `${plural(run.actors, "actor")} and ${plural(run.learners, "learner")} wait until the run goes on: nothing is inserted or sampled. Processes, connections and items stay; stop.time goes on.`, {order: "pause"}],
    ["Actors −", `Actors ${actors} → ${actors - 1}: ends actor-${actors - 1} in order.`, actors > 1 ? {order: `actors=${actors - 1}`} : null],
    ["Actors +", `Actors ${actors} → ${actors + 1}: starts one more process ${place}.`, actors > 0 ? {order: `actors=${actors + 1}`} : null],
    ["Evaluate now", `The evaluator measures the newest parameters, of learner step ${exact(run.learner_steps)}; the result is the next return.`, {order: "evaluate"}],
    ["Checkpoint now", `The learner saves its state of step ${exact(run.learner_steps)}, and the broker its ${plural(run.size, "item")} if it has a folder: a resumed run goes on from there.`, {order: "checkpoint"}],
    ["Ratio", `Samples per insert, now ${number(ratio)}: more lets learners train longer on the same items, less lets actors run ahead sooner. Items that were inserted before do not count.`,
      known(ratio) && ratio > 0 ? {order: "ratio="} : null, "", {name: "ratio", label: "samples per insert", value: ratio}],
    ["Stop the run", `Ends the run in order, after ${exact(run.steps)} steps: its processes, then the broker; the report is written, and replay-launch resume goes on later.`, {action: "stop"}, "danger"],
  ];
}

export function controls(store, page) {
  const state = store.state;
  if (!state?.run || !state.run_alive || store.lost || state.can?.stop !== "run") return [];
  return list(state).map(([label, text, wish, kind, field]) => h("button", {type: "button", class: kind || null, title: wish ? text : `Not possible now. ${text}`, disabled: !wish,
    onclick: () => page.order(text, wish, field)}, label));
}
