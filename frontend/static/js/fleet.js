/* "Fleet now": keeps the page equal to the newest state. platform/console/fleet.py paints it first. */
import { LiveChart } from "./charts.js";
import { replicaRows, queueRows, gatewayRows, tileFigures } from "./fleet_figures.js";
import { clockText, countText, durationText, rateText } from "./format.js";
import { LiveSocket } from "./live.js";
import { meterSet, rowsSet } from "./rows.js";

const STALE_MS = 3000;
const WINDOW_MS = 300_000;
const ANNOUNCE_MS = 30_000;
const CLOCK_SET_BACK_MS = 30_000; // the stored history's rule, too

const one = (selector) => document.querySelector(selector);
const view = one('[data-view="fleet"]');
const connection = one("[data-connection]");
const charts = {
  rate: new LiveChart(one('[data-chart="rate"]'), { names: ["Tokens per second"], text: rateText }),
  running: new LiveChart(one('[data-chart="running"]'), { names: ["Sequences"], text: countText, stepped: true }),
  queued: new LiveChart(one('[data-chart="queued"]'), { names: ["Interactive", "Batch"], text: countText, stepped: true }),
};

let points = []; // {at_ms, tokens_per_s, running, queued: {class: depth}}, oldest first
let line = "connecting";
let waitSeconds = 0;
let problem = "";
let newest = null; // {at_ms, age_ms, heard}: age when it arrived by the server's clock, and when that was
let lastAnnounced = -Infinity;

const ageMs = () => (newest ? newest.age_ms + performance.now() - newest.heard : Infinity);

function receive(message) {
  problem = message.type === "unavailable" ? message.message : "";
  if (message.type === "snapshot") points = message.history;
  if (message.state) show(message.state, message.now_ms);
  else if (message.type === "snapshot") one('[data-view="unpublished"]').hidden = view.checkVisibility();
  showStatus();
}

function show(state, nowMs) {
  newest = { at_ms: state.at_ms, age_ms: Math.max(0, nowMs - state.at_ms), heard: performance.now() };
  one('[data-view="unpublished"]').hidden = true;
  view.hidden = false;
  for (const [key, figure] of Object.entries(tileFigures(state))) {
    const tile = one(`[data-tile="${key}"]`);
    for (const field of ["value", "unit", "note"]) tile.querySelector(`[data-field="${field}"]`).textContent = figure[field];
    if (figure.share !== undefined) meterSet(tile.querySelector("[data-meter]"), figure.share);
  }
  rowsSet("replicas", replicaRows(state));
  rowsSet("queues", queueRows(state));
  rowsSet("gateways", gatewayRows(state));
  one('[data-counter="submitted"]').textContent = countText(state.submitted);
  one('[data-counter="refused"]').textContent = countText(state.refused);
  remember(state);
}

function remember(state) {
  const running = state.workers.reduce((sum, worker) => sum + worker.running, 0);
  const queued = {};
  for (const queue of state.queues) queued[queue.klass] = (queued[queue.klass] ?? 0) + queue.depth;
  if (points.length && points.at(-1).at_ms - state.at_ms > CLOCK_SET_BACK_MS) points = [];
  if (!points.length || state.at_ms > points.at(-1).at_ms) {
    points.push({ at_ms: state.at_ms, tokens_per_s: state.tokens_per_s, running, queued });
  }
  points = points.filter((point) => point.at_ms > state.at_ms - WINDOW_MS);
  const now = state.at_ms / 1000;
  const plotted = (values) => points.map((point) => [point.at_ms / 1000, ...values(point)]);
  charts.rate.update(plotted((p) => [p.tokens_per_s]), now);
  charts.running.update(plotted((p) => [p.running]), now);
  charts.queued.update(plotted((p) => [p.queued.interactive ?? 0, p.queued.batch ?? 0]), now);
}

/* One place decides what the viewer is told about how fresh the figures are. */
function showStatus() {
  const age = ageMs();
  const stale = newest !== null && age > STALE_MS;
  const broken = line === "waiting" || line === "signed-out";
  view.classList.toggle("is-stale", newest ? stale || broken : broken);
  showAge(stale || broken);
  const told = {
    connecting: ["neutral", "Connecting"],
    waiting: ["warn", `Reconnecting in ${waitSeconds} s`],
    "signed-out": ["bad", "Logged out"],
    live: !newest ? ["neutral", "Connected, waiting for data"] : stale ? ["warn", `No update for ${durationText(1000 * Math.floor(age / 1000))}`] : ["ok", "Live"],
  }[line];
  connection.dataset.tone = told[0];
  one("[data-connection-text]").textContent = told[1];
  one("[data-reconnect]").hidden = line !== "waiting";
  showProblem();
  announce(line === "live" && !stale ? "Live" : told[1], line !== "live" || stale);
}

function showAge(told) {
  if (!newest) return; // the server's own first paint stays
  const updated = one("[data-updated]");
  const age = told ? `, ${durationText(1000 * Math.floor(ageMs() / 1000))} ago` : "";
  updated.textContent = `Updated ${clockText(newest.at_ms)}${age}`;
  updated.title = new Date(newest.at_ms).toLocaleString();
}

function showProblem() {
  const signedOut = line === "signed-out";
  one("[data-problem]").hidden = !(problem || signedOut);
  one("[data-problem-title]").textContent = signedOut ? "You are logged out." : "The fleet's state is not available.";
  one("[data-problem-text]").textContent = signedOut ? "The figures below no longer change." : problem;
  one("[data-problem-login]").hidden = !signedOut;
}

/* Spoken when the connection changes kind, and the figures at most twice a minute. */
let spokenKind = "";
function announce(text, disturbed) {
  const kind = disturbed ? (line === "waiting" ? "reconnecting" : text.replace(/\d.*/, "")) : "live";
  const changed = kind !== spokenKind;
  if (!changed && (disturbed || performance.now() - lastAnnounced < ANNOUNCE_MS)) return;
  spokenKind = kind;
  lastAnnounced = performance.now();
  const figures = [...document.querySelectorAll("[data-tile]")].map((tile) => `${tile.querySelector("dt").textContent.trim()} ${tile.querySelector('[data-field="value"]').textContent}`);
  one("[data-announce]").textContent = disturbed ? text : `${text}. ${figures.join(", ")}.`;
}

const socket = new LiveSocket("/ws/console/fleet/", {
  sessionUrl: "/console/session/",
  message: receive,
  status(name, seconds = 0) {
    line = name;
    waitSeconds = seconds;
    showStatus();
  },
});
one("[data-reconnect]").addEventListener("click", () => socket.retryNow());
setInterval(showStatus, 1000);
