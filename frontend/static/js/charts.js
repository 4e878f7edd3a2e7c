/* A live chart of the last five minutes: uPlot drawing, a readout of the newest or the pointed-at moment,
   a table of the same figures, and a spoken summary. */
import { clockText } from "./format.js";

const WINDOW_S = 300;
const TABLE_STEP_S = 15;
const SYNC_KEY = "fleet";

/* A canvas cannot use custom properties: resolve one to a colour that it can. */
function colour(name, alpha = 1) {
  const probe = document.createElement("span");
  probe.style.color = `color-mix(in srgb, var(--${name}) ${alpha * 100}%, transparent)`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

export class LiveChart {
  constructor(root, { text, stepped = false, names }) {
    this.root = root;
    this.text = text;
    this.stepped = stepped;
    this.names = names;
    this.plotBox = root.querySelector("[data-chart-plot]");
    this.tableBox = root.querySelector("[data-chart-table]");
    this.values = [...root.querySelectorAll("[data-chart-value]")];
    this.when = root.querySelector("[data-chart-when]");
    this.title = root.querySelector("h2").textContent;
    this.toggle = root.querySelector("[data-chart-toggle]");
    this.toggle.hidden = false;
    this.toggle.addEventListener("click", () => this.showTable(this.tableBox.hidden));
    this.data = [[], ...names.map(() => [])];
    this.nowS = Date.now() / 1000;
    this.draw();
    new ResizeObserver(() => this.resize()).observe(this.plotBox);
    document.addEventListener("themechange", () => this.draw());
  }

  /* points: [seconds, value of each series…], oldest first */
  update(points, nowS) {
    this.nowS = nowS;
    this.data = [points.map((p) => p[0]), ...this.names.map((_, i) => points.map((p) => p[i + 1]))];
    this.plot.setData(this.data, false);
    this.plot.setScale("x", { min: nowS - WINDOW_S, max: nowS });
    this.read();
    if (!this.tableBox.hidden) this.fillTable();
  }

  draw() {
    this.plot?.destroy();
    const axis = { stroke: colour("text-soft"), font: `11px ${getComputedStyle(document.body).fontFamily}`, ticks: { show: false } };
    const grid = { stroke: colour("grid"), width: 1 };
    const series = this.names.map((_, i) => ({
      stroke: colour(`data-${i + 1}`),
      width: 1.5,
      dash: i ? [5, 3] : undefined,
      fill: i ? undefined : colour("data-1", 0.13),
      paths: this.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: false },
    }));
    this.plot = new uPlot(
      {
        ...this.size(),
        legend: { show: false },
        padding: [8, 16, 0, 0],
        cursor: { y: false, drag: { x: false, y: false }, sync: { key: SYNC_KEY }, points: { size: 7, width: 2 } },
        scales: { x: { time: true }, y: { range: (_, low, high) => [0, niceTop(high)] } },
        axes: [
          { ...axis, grid: { show: false }, size: 22, gap: 6, space: 64, values: (_, splits) => splits.map((s) => clockText(s * 1000).slice(0, 5)), incrs: [60, 120, 300] },
          { ...axis, grid, size: 38, gap: 6, space: 34, incrs: [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1e3, 2e3, 2.5e3, 5e3, 1e4, 2e4, 2.5e4, 5e4, 1e5], values: (_, splits) => splits.map(shortNumber) },
        ],
        series: [{}, ...series],
        hooks: { setCursor: [() => this.read()] },
      },
      this.data,
      this.plotBox,
    );
    this.plot.setScale("x", { min: this.nowS - WINDOW_S, max: this.nowS });
  }

  size() {
    return { width: Math.max(120, this.plotBox.clientWidth), height: Math.max(120, this.plotBox.clientHeight) };
  }

  resize() {
    if (!this.tableBox.hidden) return;
    const { width, height } = this.size();
    if (width !== this.plot.width || height !== this.plot.height) this.plot.setSize({ width, height });
  }

  /* The header shows the newest figure, or the one under the pointer with its time. */
  read() {
    if (!this.plot) return; // uPlot reports its cursor while it is still being built
    const last = this.data[0].length - 1;
    const pointed = this.plot.cursor.idx;
    const index = pointed ?? last;
    this.values.forEach((output, i) => (output.textContent = index < 0 ? "–" : this.text(this.data[i + 1][index])));
    this.when.textContent = pointed == null || index < 0 ? "" : `at ${clockText(this.data[0][index] * 1000)}`;
    if (pointed == null) this.describe(last);
  }

  describe(last) {
    if (last < 0) return;
    const parts = this.names.map((name, i) => {
      const column = this.data[i + 1];
      return `${name} now ${this.text(column[last])}, lowest ${this.text(Math.min(...column))}, highest ${this.text(Math.max(...column))}`;
    });
    this.plotBox.setAttribute("aria-label", `${this.title}, the last five minutes. ${parts.join("; ")}.`);
  }

  showTable(show) {
    this.tableBox.hidden = !show;
    this.plotBox.hidden = show;
    this.toggle.setAttribute("aria-pressed", String(show));
    if (show) this.fillTable();
    else this.resize();
  }

  fillTable() {
    const body = this.tableBox.querySelector("tbody");
    const rows = [];
    let next = Infinity;
    for (let i = this.data[0].length - 1; i >= 0; i--) {
      if (this.data[0][i] > next) continue;
      next = this.data[0][i] - TABLE_STEP_S;
      const row = document.createElement("tr");
      const time = document.createElement("th");
      time.scope = "row";
      time.textContent = clockText(this.data[0][i] * 1000);
      row.append(time, ...this.data.slice(1).map((column) => {
        const cell = document.createElement("td");
        cell.className = "number";
        cell.textContent = this.text(column[i]);
        return cell;
      }));
      rows.push(row);
    }
    body.replaceChildren(...rows);
  }
}

/* Room above the highest value, so that a line never touches the frame, and whole steps below ten. */
function niceTop(high) {
  if (!(high > 0)) return 4;
  if (high < 4) return 4;
  const unit = 10 ** Math.floor(Math.log10(high));
  return Math.ceil((high * 1.1) / unit * 2) / 2 * unit;
}

const shortNumber = (value) => (value >= 1000 ? `${value / 1000}k` : String(value));
