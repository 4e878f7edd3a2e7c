/* What the page says about a fleet state, as text: the twin of platform/console/fleet.py. */
import { countText, durationText, percentText, rateText } from "./format.js";

const TONES = { warming: "info", ready: "ok", suspect: "warn", draining: "info" };
const names = new Intl.Collator("en", { numeric: true });
const sum = (items, field) => items.reduce((total, item) => total + item[field], 0);

export function tileFigures(state) {
  const { workers, queues } = state;
  const waiting = sum(workers, "waiting");
  const queued = sum(queues, "depth");
  const oldest = Math.max(0, ...queues.filter((queue) => queue.depth).map((queue) => queue.oldest_ms));
  const blocks = sum(workers, "blocks");
  const used = blocks - sum(workers, "free_blocks");
  return {
    ready: { value: countText(workers.filter((w) => w.state === "ready").length), unit: `of ${countText(workers.length)}`, note: absent(workers) },
    running: { value: countText(sum(workers, "running")), unit: "", note: waiting ? `${countText(waiting)} waiting on replicas` : "none waiting" },
    queued: { value: countText(queued), unit: "", note: queued ? `oldest ${durationText(oldest)}` : "nothing waits" },
    rate: { value: rateText(state.tokens_per_s), unit: "per second", note: workers.length ? `${rateText(state.tokens_per_s / workers.length)} per replica` : "no replica" },
    kv: { value: blocks ? percentText(used / blocks) : "–", unit: "", note: blocks ? `${countText(used)} of ${countText(blocks)} blocks` : "no replica", share: blocks ? used / blocks : 0 },
  };
}

function absent(workers) {
  if (!workers.length) return "none connected";
  const others = ["warming", "suspect", "draining"]
    .map((state) => [workers.filter((worker) => worker.state === state).length, state])
    .filter(([number]) => number);
  return others.map(([number, state]) => `${number} ${state}`).join(", ") || "all answering";
}

export function replicaRows(state) {
  return state.workers.toSorted((a, b) => names.compare(a.id, b.id)).map((worker) => {
    const used = worker.blocks - worker.free_blocks;
    const share = worker.blocks ? used / worker.blocks : 0;
    return {
      key: worker.incarnation,
      share,
      tones: { state: TONES[worker.state] ?? "neutral" },
      titles: { digest: worker.digest, kv_line: `${countText(used)} of ${countText(worker.blocks)} blocks` },
      fields: {
        id: worker.id,
        state: worker.state,
        model: worker.model,
        digest: worker.digest.slice(0, 8),
        rows: countText(worker.batch_rows),
        running: countText(worker.running),
        waiting: countText(worker.waiting),
        pending: countText(worker.pending_prefill_tokens),
        kv: percentText(share),
        step: durationText(worker.step_ms),
        rate: rateText(worker.tokens_per_s),
        preemptions: preemptionsText(worker),
        age: durationText(worker.age_ms),
      },
    };
  });
}

function preemptionsText(worker) {
  const total = countText(worker.preemptions), perMinute = worker.preemptions_per_min;
  return perMinute ? `${total}, ${rateText(perMinute)}/min` : total;
}

export function queueRows(state) {
  const order = (queue) => `${queue.model}\n${queue.klass === "interactive" ? 0 : 1}${queue.klass}`;
  return state.queues.toSorted((a, b) => (order(a) < order(b) ? -1 : 1)).map((queue, number) => ({
    key: String(number),
    fields: {
      model: queue.model,
      klass: queue.klass,
      depth: countText(queue.depth),
      oldest: queue.depth ? durationText(queue.oldest_ms) : "–",
    },
  }));
}

export function gatewayRows(state) {
  return state.gateways.toSorted((a, b) => names.compare(a.id, b.id)).map((gateway) => ({
    key: gateway.incarnation,
    fields: { id: gateway.id, incarnation: gateway.incarnation.slice(0, 8), streams: countText(gateway.streams) },
  }));
}
