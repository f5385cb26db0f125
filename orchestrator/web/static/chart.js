"use strict";
/* A line chart as SVG: for each series the mean, and a band from the least to the greatest value of each bucket. */
const SVG = "http://www.w3.org/2000/svg";

function shape(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function short(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e15)) return value.toExponential(2);
  for (const [least, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= least) return Number((value / least).toPrecision(4)) + unit;
  return String(Number(value.toPrecision(4)));
}

function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(value);
  return found;
}

class Chart {
  /* series: [{name, points: [[step, least, greatest, mean], ...]}] */
  constructor(title) {
    this.series = [];
    this.at = null;
    this.title = title;
    this.key = document.createElement("figcaption");
    this.svg = shape("svg", { role: "img", tabindex: "0" });
    this.node = document.createElement("figure");
    this.node.append(this.key, this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event.clientX - this.svg.getBoundingClientRect().left));
    this.svg.addEventListener("pointerleave", () => this.mark(null));
    this.svg.addEventListener("blur", () => this.mark(null));
    this.svg.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  show(series) {
    this.series = series;
    this.draw();
  }

  draw() {
    const width = this.svg.clientWidth, height = this.svg.clientHeight, points = this.series.flatMap((each) => each.points);
    this.svg.replaceChildren();
    if (!width || !points.length) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    let first = Infinity, last = -Infinity, low = Infinity, high = -Infinity;
    for (const [step, least, greatest] of points) {
      first = Math.min(first, step); last = Math.max(last, step);
      low = Math.min(low, least); high = Math.max(high, greatest);
    }
    if (last === first) last = first + 1;
    if (high === low) { const margin = Math.abs(high) * 0.05 || 1; low -= margin; high += margin; }
    const box = { left: 48, right: width - 10, top: 8, bottom: height - 20 };
    this.x = (step) => box.left + (step - first) / (last - first) * (box.right - box.left);
    this.y = (value) => box.bottom - (value - low) / (high - low) * (box.bottom - box.top);
    this.box = box;
    for (const value of ticks(low, high, Math.max(2, Math.floor(height / 50)))) {
      const y = this.y(value);
      this.svg.append(shape("line", { class: "grid", x1: box.left, x2: box.right, y1: y, y2: y }));
      this.svg.append(shape("text", { x: box.left - 6, y: y + 4, "text-anchor": "end" }, short(value)));
    }
    for (const value of ticks(first, last, Math.max(2, Math.floor(width / 110))))
      this.svg.append(shape("text", { x: this.x(value), y: height - 5, "text-anchor": "middle" }, short(value)));
    this.series.forEach((each, index) => this.line(each.points, index));
    this.cursor = shape("line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" });
    this.svg.append(this.cursor);
    this.mark(this.at);
  }

  line(points, index) {
    const at = (place, column) => `${this.x(place[0]).toFixed(1)},${this.y(place[column]).toFixed(1)}`;
    if (!points.length) return;
    if (points.length === 1) {
      this.svg.append(shape("circle", { class: `s${index}`, cx: this.x(points[0][0]), cy: this.y(points[0][3]), r: 3 }));
      return;
    }
    const band = [...points.map((each) => at(each, 2)), ...points.map((each) => at(each, 1)).reverse()];
    if (points.some((each) => each[1] !== each[2]))
      this.svg.append(shape("path", { class: `band s${index}`, d: `M${band.join("L")}Z` }));
    this.svg.append(shape("path", { class: `mean s${index}`, d: `M${points.map((each) => at(each, 3)).join("L")}` }));
  }

  nearest(points, step) {
    return points.reduce((best, each) => Math.abs(each[0] - step) < Math.abs(best[0] - step) ? each : best);
  }

  steps() {
    return [...new Set(this.series.flatMap((each) => each.points.map((point) => point[0])))].sort((one, two) => one - two);
  }

  point(left) {
    const steps = this.steps();
    if (!steps.length || !this.x) return;
    this.mark(steps.reduce((best, each) => Math.abs(this.x(each) - left) < Math.abs(this.x(best) - left) ? each : best));
  }

  press(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity }[event.key];
    const steps = this.steps();
    if (move === undefined || !steps.length) return;
    event.preventDefault();
    const now = this.at === null ? steps.length - 1 : Math.max(0, steps.findIndex((each) => each >= this.at));
    this.mark(steps[Math.min(steps.length - 1, Math.max(0, now + move))]);
  }

  mark(step) {
    /* The values at a step, or the last ones, are in the caption. */
    this.at = step;
    if (this.cursor && step !== null) {
      this.cursor.setAttribute("x1", this.x(step));
      this.cursor.setAttribute("x2", this.x(step));
    }
    if (this.cursor) this.cursor.setAttribute("visibility", step === null ? "hidden" : "visible");
    const shown = this.series.filter((each) => each.points.length).map((each, index) => {
      const [at, least, greatest, mean] = step === null ? each.points[each.points.length - 1] : this.nearest(each.points, step);
      const spread = least === greatest ? "" : ` (${short(least)} to ${short(greatest)})`;
      const text = document.createElement("span");
      text.className = `key${index}`;
      text.textContent = `${each.name} ${short(mean)}${spread} at step ${at}`;
      return text;
    });
    this.key.replaceChildren(...shown);
    this.svg.setAttribute("aria-label", `${this.title}: ${shown.map((each) => each.textContent).join(", ")}`);
  }
}
