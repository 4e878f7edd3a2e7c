/* How numbers look on every page; platform/console/formats.py is its twin. */
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const two = (value) => String(value).padStart(2, "0");

export const countText = (value) => whole.format(value);

export const rateText = (value) => (value > 0 && value < 9.95 ? value.toFixed(1) : whole.format(value));

export const percentText = (share) => `${(share * 100).toFixed(0)} %`;

export function durationText(ms) {
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 59950) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(seconds / 3600);
  if (minutes < 60) return `${minutes} min ${two(seconds % 60)} s`;
  if (hours < 24) return `${hours} h ${two(minutes % 60)} min`;
  return `${Math.floor(hours / 24)} d ${two(hours % 24)} h`;
}

export const clockText = (ms) => clock.format(ms);
