/*
 * The page of a monitor. It gets a View (../view.py) and shows it; it computes no figures of its own.
 *
 *   words        numbers, durations and times as text
 *   nodes        making and keeping nodes; texts of others become text nodes, never HTML
 *   parts        bars, histograms, tables, charts
 *   sections     which part of the view goes where
 *   connection   the event stream, polling where a proxy holds the stream back, and the end
 *
 * One file, because the report holds it inline, where modules cannot import each other.
 */

const $ = (id) => document.getElementById(id);

/* ---- words ---- */

const NONE = "–";
const integers = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const minute = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const second = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "long" });

const known = (value) => typeof value === "number" && Number.isFinite(value);
const number = (value) => (known(value) ? integers.format(value) : NONE);
const rate = (value) => (known(value) && value > 0 && value < 10 ? value.toFixed(1) : number(value));
const clock = (at) => second.format(at * 1000);
const capital = (words) => words.charAt(0).toUpperCase() + words.slice(1);
const many = (value, one, more = `${one}s`) => `${number(value)} ${value === 1 ? one : more}`;

function percent(share) {
  if (!known(share)) return NONE;
  return share > 0 && share < 0.01 ? "<1 %" : `${Math.round(share * 100)} %`;
}

function duration(value) {
  if (!known(value)) return NONE;
  if (value === 0) return "0 s";
  if (value < 0.001) return `${Number((value * 1e6).toPrecision(2))} µs`;
  if (value < 0.9995) return `${Number((value * 1000).toPrecision(value < 0.1 ? 2 : 3))} ms`;
  if (value < 10) return `${Number(value.toPrecision(2))} s`;
  const whole = Math.round(value);
  if (whole < 60) return `${whole} s`;
  const [size, unit, smaller, part] =
    whole < 3600 ? [60, "min", 1, "s"] : whole < 86400 ? [3600, "h", 60, "min"] : [86400, "d", 3600, "h"];
  const rest = Math.floor((whole % size) / smaller);
  return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${part}` : ""}`;
}

function bytes(value) {
  if (!known(value)) return NONE;
  const step = Math.min(4, Math.floor(Math.log10(Math.max(value, 1)) / 3));
  return step ? `${(value / 1000 ** step).toFixed(1)} ${["kB", "MB", "GB", "TB"][step - 1]}` : `${value} bytes`;
}

function money(value) {
  return known(value) ? Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 8 }) : NONE;
}

/** Names and amounts of what the calls of a source have cost; none if the source reports no costs. */
function costs(spending) {
  if (!spending) return [];
  const { spent, per_second: perSecond, unknown, saved } = spending;
  const words = { tokens_in: "tokens read", tokens_out: "tokens written" };
  const pairs = Object.entries(spent).map(([unit, amount]) => [
    words[unit] ?? unit,
    unit === "cost" ? money(amount) : number(amount),
  ]);
  if (known(perSecond.tokens)) pairs.push(["tokens per second", rate(perSecond.tokens)]);
  if (unknown) pairs.push(["calls of unknown cost", number(unknown)]);
  for (const { by, rows, spent: would } of saved) {
    const amount = known(would.cost) ? money(would.cost) : `${number(would.tokens)} tokens`;
    pairs.push([`saved by ${by}, estimated`, `${amount} (${many(rows, "row")})`]);
  }
  return pairs;
}

function moment(at, now) {
  return now - at > 64800 ? `${day.format(at * 1000)}, ${minute.format(at * 1000)}` : clock(at);
}

/* ---- nodes ---- */

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function draw(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function say(node, words) {
  if (node.textContent !== words) node.textContent = words;
}

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }
}

/** Give *parent* one node for each of *items*; the node of a key stays the same, and with it focus and selection. */
function keep(parent, items, key, create, update) {
  const had = parent.kept ?? new Map();
  const has = new Map();
  let place = parent.firstElementChild;
  items.forEach((item, index) => {
    let name = String(key(item, index));
    while (has.has(name)) name += "'";
    const node = had.get(name) ?? create(item, index);
    had.delete(name);
    has.set(name, node);
    update(node, item, index);
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
  });
  for (const node of had.values()) node.remove();
  parent.kept = has;
}

/* ---- parts: shares of time ---- */

function drawBar(node, parts) {
  if (!node.classList.contains("bar")) node.classList.add("bar");
  set(node, { role: "img", "aria-label": parts.map((part) => `${percent(part.share)} ${part.label}`).join(", ") });
  keep(
    node,
    parts,
    (part) => part.name,
    () => make("span", {}, make("b")),
    (piece, part) => {
      set(piece, { class: `piece fill-${part.name}`, title: `${capital(part.label)}: ${percent(part.share)}` });
      piece.style.flexGrow = part.share;
      piece.hidden = !(part.share > 0);
      say(piece.firstChild, part.share >= 0.05 ? percent(part.share) : "");
    },
  );
}

/** Draw the bar with a legend below it. */
function drawShare(node, parts) {
  node.hidden = !parts.some((part) => part.share > 0);
  if (!node.firstChild) node.append(make("div"), make("ul", { class: "legend" }));
  const [bar, legend] = node.children;
  drawBar(bar, parts);
  keep(
    legend,
    parts,
    (part) => part.name,
    () => make("li", {}, make("i"), make("b"), make("span")),
    (item, part) => {
      const [swatch, share, label] = item.children;
      set(swatch, { class: `swatch fill-${part.name}` });
      say(share, percent(part.share));
      say(label, part.label);
    },
  );
}

function drawProgress(node, progress) {
  if (!node.firstChild) node.append(make("div", { role: "progressbar" }, make("span")), make("p"));
  const [bar, words] = node.children;
  node.classList.add("progress");
  bar.hidden = !known(progress.share);
  if (!bar.hidden) {
    set(bar, {
      "aria-label": "Progress",
      "aria-valuemin": 0,
      "aria-valuemax": 100,
      "aria-valuenow": Math.round(progress.share * 100),
    });
    bar.firstChild.style.width = `${Math.min(1, progress.share) * 100}%`;
  }
  const rows = known(progress.total)
    ? `${number(progress.rows)} of about ${number(progress.total)} rows`
    : many(progress.rows, "row");
  const parts = [rows];
  if (known(progress.share)) parts.push(percent(progress.share));
  if (known(progress.eta) && progress.eta > 0) parts.push(`about ${duration(progress.eta)} left`);
  say(words, parts.join(" · "));
}

/* ---- parts: a picture in which a pointer or the arrow keys choose one of several places ---- */

const KEYS = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1, PageDown: -10, PageUp: 10 };

/**
 * *at(x)* is the index under the pointer, *count()* the number of places, *choose(index)* shows a place (null: none),
 * *tell()* is the text for a screen reader.
 */
function choosable(picture, label, { at, count, choose, tell }) {
  let chosen = null;
  const go = (index) => {
    chosen = index === null || !count() ? null : Math.max(0, Math.min(count() - 1, index));
    choose(chosen);
  };
  const announce = () => {
    set(picture, {
      "aria-valuemin": 0,
      "aria-valuemax": Math.max(0, count() - 1),
      "aria-valuenow": chosen ?? Math.max(0, count() - 1),
      "aria-valuetext": tell(),
    });
  };
  set(picture, { tabindex: 0, role: "slider", "aria-label": label, "aria-orientation": "horizontal" });
  announce();
  picture.addEventListener("pointermove", (event) => go(at(event.clientX - picture.getBoundingClientRect().left)));
  picture.addEventListener("pointerdown", (event) => go(at(event.clientX - picture.getBoundingClientRect().left)));
  picture.addEventListener("pointerleave", () => go(null));
  picture.addEventListener("focus", announce);
  picture.addEventListener("blur", () => go(null));
  picture.addEventListener("keydown", (event) => {
    if (event.key in KEYS) go((chosen ?? count() - 1) + KEYS[event.key]);
    else if (event.key === "Home") go(0);
    else if (event.key === "End") go(count() - 1);
    else if (event.key === "Escape") go(null);
    else return;
    event.preventDefault();
    announce();
  });
}

/* ---- parts: histograms ---- */

const BINS = 30; // at most
const BIN = Math.log2(9 / 8); // at least: the widest bar, as part of a doubling

/** Bins of one width on a logarithmic scale, from bars of any width of which those without values are left out. */
function rebin(bars) {
  const spans = bars
    .filter((bar) => bar.count > 0)
    .map(({ low, high, count }) => ({ from: Math.log2(low > 0 ? low : high / 2), until: Math.log2(high), count }));
  if (!spans.length) return [];
  let from = Math.min(...spans.map((span) => span.from));
  let until = Math.max(...spans.map((span) => span.until));
  const wanted = Math.max(BIN, (until - from) / BINS);
  const margin = Math.max(0, 5 * wanted - (until - from)) / 2;
  [from, until] = [from - margin, until + margin];
  const size = Math.round((until - from) / wanted);
  const width = (until - from) / size;
  const bins = Array.from({ length: size }, (_, index) => ({
    low: 2 ** (from + index * width),
    high: 2 ** (from + (index + 1) * width),
    count: 0,
  }));
  for (const span of spans) {
    bins.forEach((bin, index) => {
      const [start, end] = [from + index * width, from + (index + 1) * width];
      const shared = Math.min(end, span.until) - Math.max(start, span.from);
      if (shared > 0) bin.count += (span.count * shared) / (span.until - span.from);
    });
  }
  return bins;
}

class Histogram {
  constructor(title, format) {
    this.format = format;
    this.bars = [];
    this.chosen = null;
    this.picture = draw("svg", { class: "histogram", preserveAspectRatio: "none" });
    this.low = make("span");
    this.high = make("span");
    this.readout = make("span");
    this.node = make(
      "figure",
      { class: "panel" },
      make("figcaption", {}, title),
      this.picture,
      make("p", { class: "scale" }, this.low, this.readout, this.high),
    );
    choosable(this.picture, title, {
      at: (x) => Math.floor((x / this.picture.clientWidth) * this.bars.length),
      count: () => this.bars.length,
      choose: (index) => {
        this.chosen = index;
        this.show();
      },
      tell: () => this.readout.textContent,
    });
  }

  update(bars) {
    this.bars = rebin(bars);
    this.node.hidden = !this.bars.length;
    const { bars: shown, picture } = this;
    const most = Math.max(...shown.map((bar) => bar.count));
    set(picture, { viewBox: `0 0 ${Math.max(1, shown.length)} 100` });
    keep(
      picture,
      shown,
      (_, index) => index,
      () => draw("rect"),
      (node, bar, index) => {
        const height = bar.count ? Math.max(1.5, (bar.count / most) * 100) : 0;
        set(node, { x: index + 0.06, y: 100 - height, width: 0.88, height });
      },
    );
    this.show();
  }

  show() {
    const { bars: shown, format } = this;
    if (!shown.length) return;
    say(this.low, format(shown[0].low));
    say(this.high, format(shown.at(-1).high));
    [...this.picture.children].forEach((node, index) => node.classList.toggle("chosen", index === this.chosen));
    const all = shown.reduce((sum, bar) => sum + bar.count, 0);
    const most = shown.reduce((best, bar) => (bar.count > best.count ? bar : best));
    const bar = shown[this.chosen] ?? most;
    const ends = [...new Set([format(bar.low), format(bar.high)])];
    say(this.readout, `${this.chosen === null ? "most: " : ""}${ends.join(" to ")}, ${percent(bar.count / all)}`);
  }
}

/* ---- parts: tables ---- */

class Table {
  /** Columns: `{label, value, show, draw, left}`; one with `value` can be sorted by. */
  constructor(caption, columns, { key, note = () => null, limit = 100 }) {
    Object.assign(this, { columns, key, note, limit, sorted: null, down: true, items: [], all: false });
    this.head = make("tr");
    this.body = make("tbody");
    this.more = make("button", { type: "button", class: "more" });
    this.more.addEventListener("click", () => {
      this.all = !this.all;
      this.update(this.items);
    });
    const table = make("table", {}, make("caption", { class: "unseen" }, caption), make("thead", {}, this.head), this.body);
    const box = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, table);
    this.node = make("div", {}, box, this.more);
    columns.forEach((column, index) => {
      const cell = make("th", { scope: "col", class: column.left ? "left" : "" });
      if (column.value) {
        const button = make("button", { type: "button" }, column.label, make("i", { "aria-hidden": "true" }));
        button.addEventListener("click", () => {
          this.down = this.sorted === index ? !this.down : !column.left;
          this.sorted = index;
          this.update(this.items);
        });
        cell.append(button);
      } else {
        cell.append(column.label);
      }
      this.head.append(cell);
    });
  }

  update(items) {
    this.items = items;
    [...this.head.children].forEach((cell, index) => {
      if (index !== this.sorted) cell.removeAttribute("aria-sort");
      else set(cell, { "aria-sort": this.down ? "descending" : "ascending" });
    });
    const rows = [];
    const sorted = this.order(items);
    for (const item of this.all ? sorted : sorted.slice(0, this.limit)) {
      rows.push({ item, name: `row ${this.key(item)}` });
      const words = this.note(item);
      if (words) rows.push({ item, words, name: `note ${this.key(item)}` });
    }
    keep(
      this.body,
      rows,
      (row) => row.name,
      (row) => (row.words ? this.makeNote() : this.makeRow()),
      (node, row) => (row.words ? say(node.firstChild.firstChild, row.words) : this.fill(node, row.item)),
    );
    this.more.hidden = items.length <= this.limit;
    say(this.more, this.all ? `Show the first ${this.limit}` : `Show all ${items.length}`);
  }

  order(items) {
    if (this.sorted === null) return items;
    const { value } = this.columns[this.sorted];
    const sign = this.down ? -1 : 1;
    const compare = (a, b) => {
      if (a === null || b === null) return (a === null) - (b === null); // what is not known comes last
      return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
    };
    return [...items].sort((a, b) => compare(value(a), value(b)));
  }

  makeNote() {
    return make("tr", { class: "under" }, make("td", { colspan: this.columns.length }, make("p")));
  }

  makeRow() {
    const cells = this.columns.map((column, index) =>
      index ? make("td", { class: column.left ? "left" : "" }) : make("th", { scope: "row", class: "left" }),
    );
    return make("tr", {}, ...cells);
  }

  fill(row, item) {
    this.columns.forEach((column, index) => {
      const cell = row.children[index];
      if (column.draw) column.draw(cell, item);
      else say(cell, column.show(item));
    });
  }
}

/** A small table of names and numbers, with a caption that can be seen. */
function drawPairs(node, caption, pairs) {
  node.hidden = !pairs.length;
  if (!node.firstChild) {
    node.append(make("table", { class: "pairs" }, make("caption", {}, caption), make("tbody")));
    node.classList.add("panel");
  }
  keep(
    node.querySelector("tbody"),
    pairs,
    ([name]) => name,
    () => make("tr", {}, make("th", { scope: "row" }), make("td")),
    (row, [name, value]) => {
      say(row.children[0], name);
      say(row.children[1], value);
      row.classList.toggle("zero", value === "0");
    },
  );
}

/* ---- parts: charts over time ---- */

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
const MARGIN = { left: 52, right: 10, top: 8, bottom: 20 };

/** The smallest number with a short half that is not below *value*: 1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10, 12, ... */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.9999) ?? value;
}

/** Join points until there are at most *limit*; a joined point has the mean, in a `peak` series the largest value. */
function thin(points, limit, series) {
  if (points.length <= limit) return points;
  const size = Math.ceil(points.length / limit);
  const joined = [];
  for (let from = 0; from < points.length; from += size) {
    const group = points.slice(from, from + size);
    const point = { ...group.at(-1) };
    for (const { name, peak } of series) {
      const values = group.map((each) => each[name]).filter(known);
      if (!values.length) point[name] = null;
      else point[name] = peak ? Math.max(...values) : values.reduce((sum, value) => sum + value) / values.length;
    }
    joined.push(point);
  }
  return joined;
}

class Chart {
  static all = [];
  static at = null; // the time that all charts point at; null is the latest

  /** Series: `{name, label, kind, peak, silent}`, of kind `line`, `area`, `step` or `stack`; `silent` is only read out. */
  constructor({ title, series, format, axis = format, highest, wide = false }) {
    Object.assign(this, { title, series, format, axis, highest, points: [], outages: [], width: 0 });
    this.drawn = series.filter((each) => !each.silent);
    this.height = wide ? 150 : 160;
    this.time = make("span", { class: "at" });
    this.values = make("ul", { class: "legend" });
    this.frame = draw("g");
    this.spans = draw("g");
    this.marks = draw("g");
    this.line = draw("line", { class: "cursor" });
    this.dots = draw("g");
    this.fills = this.drawn.map(({ kind, name }) =>
      draw("path", { class: `${kind} series-${name}`, fill: kind === "stack" ? `url(#texture-${name})` : "none" }),
    );
    this.lines = this.drawn.map(({ kind, name }) => draw("path", { class: `line ${kind}-line series-${name}` }));
    this.picture = draw("svg", { class: "chart", height: this.height });
    this.picture.append(this.frame, ...this.fills, this.spans, ...this.lines, this.marks, this.line, this.dots);
    this.node = make(
      "figure",
      { class: wide ? "card wide" : "card" },
      make("figcaption", {}, make("h3", {}, title), this.time),
      this.values,
      this.picture,
    );
    choosable(this.picture, title, {
      at: (x) => this.nearest(this.start + ((x - MARGIN.left) / this.inner) * this.span),
      count: () => this.points.length,
      choose: (index) => {
        Chart.at = index === null ? null : this.points[index].at;
        for (const chart of Chart.all) chart.point();
      },
      tell: () => `${this.time.textContent}: ${[...this.values.children].map((item) => item.textContent).join(", ")}`,
    });
    Chart.all.push(this);
    new ResizeObserver(() => this.resize()).observe(this.node);
  }

  resize() {
    const width = Math.floor(this.picture.parentNode.clientWidth - 2 * 14);
    if (width === this.width || width < 50) return;
    this.width = width;
    this.redraw();
  }

  update(points, outages) {
    this.points = points;
    this.outages = outages;
    this.redraw();
  }

  nearest(at) {
    let low = 0;
    let high = this.points.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.points[middle].at < at) low = middle + 1;
      else high = middle;
    }
    return low && at - this.points[low - 1].at < this.points[low].at - at ? low - 1 : low;
  }

  x(at) {
    return MARGIN.left + ((at - this.start) / this.span) * this.inner;
  }

  y(value) {
    return this.height - MARGIN.bottom - (Math.min(value, this.top) / this.top) * (this.height - MARGIN.top - MARGIN.bottom);
  }

  redraw() {
    if (!this.width || !this.points.length) return;
    set(this.picture, { width: this.width, viewBox: `0 0 ${this.width} ${this.height}` });
    this.inner = this.width - MARGIN.left - MARGIN.right;
    this.start = this.points[0].at;
    this.span = Math.max(20, this.points.at(-1).at - this.start);
    this.thinned = thin(this.points, this.inner / 1.5, this.drawn);
    const values = this.thinned.flatMap((point) => this.drawn.map(({ name }) => point[name])).filter(known);
    this.top = this.highest ?? roundUp(Math.max(1e-6, ...values) * 1.05);
    this.drawFrame();
    this.drawOutages();
    this.drawSeries();
    this.point();
  }

  drawFrame() {
    const levels = [0, this.top / 2, this.top];
    keep(
      this.frame,
      levels,
      (_, index) => `level ${index}`,
      () => draw("g", {}, draw("line"), draw("text", { class: "tick", "text-anchor": "end" })),
      (node, level) => {
        const [line, label] = node.children;
        set(line, { x1: MARGIN.left, x2: this.width - MARGIN.right, y1: this.y(level), y2: this.y(level) });
        set(label, { x: MARGIN.left - 6, y: this.y(level) + 4 });
        say(label, this.axis(level));
      },
    );
    const step = STEPS.find((each) => (each / this.span) * this.inner >= (each < 60 ? 84 : 62)) ?? STEPS.at(-1);
    const format = step < 60 ? second : minute;
    const ticks = [];
    const offset = new Date(this.start * 1000).getTimezoneOffset() * 60;
    for (let at = Math.ceil((this.start - offset) / step) * step + offset; at <= this.start + this.span; at += step) {
      if (this.x(at) > MARGIN.left + 18 && this.x(at) < this.width - 24) ticks.push(at);
    }
    keep(
      this.marks,
      ticks,
      (at) => at,
      () => draw("text", { class: "tick", "text-anchor": "middle" }),
      (node, at) => {
        set(node, { x: this.x(at), y: this.height - 4 });
        say(node, format.format(at * 1000));
      },
    );
  }

  drawOutages() {
    const end = this.start + this.span;
    keep(
      this.spans,
      this.outages.filter((outage) => (outage.until ?? end) >= this.start && outage.since <= end),
      (outage) => `${outage.source} ${outage.since}`,
      () => draw("rect", { class: "outage", fill: "url(#texture-outage)" }, draw("title")),
      (node, outage) => {
        const from = this.x(Math.max(outage.since, this.start));
        const until = this.x(Math.min(outage.until ?? end, end));
        set(node, {
          x: from,
          width: Math.max(2, until - from),
          y: MARGIN.top,
          height: this.height - MARGIN.top - MARGIN.bottom,
        });
        say(node.firstChild, `${outage.source} was away`);
      },
    );
  }

  drawSeries() {
    const floor = this.thinned.map(() => 0);
    this.drawn.forEach(({ name, kind }, index) => {
      if (kind === "stack") {
        const places = (values) => this.thinned.map(({ at }, place) => `${this.x(at).toFixed(1)} ${this.y(values[place]).toFixed(1)}`);
        const lower = places(floor);
        this.thinned.forEach((point, place) => (floor[place] += point[name] ?? 0));
        set(this.fills[index], { d: `M${places(floor).join("L")}L${lower.reverse().join("L")}Z` });
      } else {
        const pieces = this.pieces(name, kind === "step");
        set(this.lines[index], { d: pieces.map((piece) => `M${piece.join("L")}`).join("") });
        if (kind === "area") set(this.fills[index], { d: pieces.map((piece) => this.closed(piece)).join("") });
      }
    });
  }

  /** The line through the known values, in pieces where some are not known. */
  pieces(name, steps) {
    const pieces = [];
    let piece = null;
    for (const point of this.thinned) {
      if (!known(point[name])) {
        piece = null;
        continue;
      }
      if (!piece) pieces.push((piece = []));
      const [x, y] = [this.x(point.at).toFixed(1), this.y(point[name]).toFixed(1)];
      if (steps && piece.length) piece.push(`${x} ${piece.at(-1).split(" ")[1]}`);
      piece.push(`${x} ${y}`);
    }
    return pieces.map((each) => (each.length > 1 ? each : [each[0], each[0]])); // a single value is a dot
  }

  closed(piece) {
    const [first, last] = [piece[0], piece.at(-1)].map((each) => each.split(" ")[0]);
    const floor = this.y(0).toFixed(1);
    return `M${piece.join("L")}L${last} ${floor}L${first} ${floor}Z`;
  }

  /** Read out the point that all charts point at, or the latest one. */
  point() {
    if (!this.points.length || !this.width) return;
    const latest = Chart.at === null;
    const point = latest ? this.points.at(-1) : this.points[this.nearest(Chart.at)];
    say(this.time, latest ? "latest" : clock(point.at));
    this.node.classList.toggle("pointing", !latest);
    keep(
      this.values,
      this.series,
      (each) => each.name,
      (each) => make("li", {}, make("i", { class: `swatch ${each.silent ? "silent" : `${each.kind} fill-${each.name}`}` }), make("b"), make("span")),
      (item, { name, label }) => {
        say(item.children[1], this.format(point[name]));
        say(item.children[2], ` ${label}`);
      },
    );
    const x = this.x(point.at);
    set(this.line, { x1: x, x2: x, y1: MARGIN.top, y2: this.height - MARGIN.bottom });
    const dots = latest ? [] : this.drawn.filter((each) => each.kind !== "stack" && known(point[each.name]));
    keep(
      this.dots,
      dots,
      (each) => each.name,
      (each) => draw("circle", { r: 3.5, class: `dot series-${each.name}` }),
      (node, { name }) => set(node, { cx: x, cy: this.y(point[name]) }),
    );
  }
}

/* ---- sections ---- */

const STATES = { waiting: "Waiting", running: "Running", idle: "Idle", closed: "Ended" };
const TOTALS = [
  ["Rows and keys", ["rows", "keys", "distinct", "sent", "bytes"]],
  ["Answered without a call", ["cached", "shared", "preloaded", "reused", "journaled", "tiered", "stale"], true],
  ["Outcomes", ["ok", "missing", "errors", "timeouts", "rejected", "over_budget", "returned"]],
  ["Calls and tasks", ["calls", "failed_calls", "retries", "late", "abandoned", "zombies", "tasks", "failed_tasks"]],
];
const NAMES = {
  distinct: "distinct keys",
  cached: "from the cache",
  shared: "joined another lookup",
  preloaded: "from the table in memory",
  reused: "found by this task before",
  journaled: "from the journal",
  tiered: "from a tier",
  stale: "from the cache, beyond its time",
  sent: "keys sent",
  bytes: "received",
  ok: "found",
  timeouts: "timed out",
  returned: "waited for an outage",
  failed_calls: "failed calls",
  late: "late calls",
  abandoned: "abandoned calls",
  zombies: "calls that never ended",
  failed_tasks: "failed tasks",
};
const RANKS = ["failed", "lost", "running", "stopped", "ok"];

const perSecond = (value) => rate(value);
const charts = [
  new Chart({
    title: "Where the time went",
    wide: true,
    highest: 1,
    format: percent,
    series: [
      { name: "source", label: "source", kind: "stack" },
      { name: "limit", label: "limit", kind: "stack" },
      { name: "input", label: "input", kind: "stack" },
      { name: "output", label: "output", kind: "stack" },
      { name: "cpu", label: "computing", kind: "stack" },
    ],
  }),
  new Chart({
    title: "Throughput",
    format: perSecond,
    axis: (value) => compact.format(value),
    series: [
      { name: "rows", label: "rows/s", kind: "area" },
      { name: "calls", label: "calls/s", silent: true },
    ],
  }),
  new Chart({
    title: "Calls in flight",
    format: number,
    axis: (value) => compact.format(value),
    series: [
      { name: "in_flight", label: "in flight", kind: "area" },
      { name: "capacity", label: "capacity", kind: "step" },
    ],
  }),
  new Chart({
    title: "Latency of calls",
    format: duration,
    series: [
      { name: "p50", label: "p50", kind: "line" },
      { name: "p99", label: "p99", kind: "line", peak: true },
    ],
  }),
  new Chart({
    title: "Errors and retries",
    format: perSecond,
    axis: (value) => compact.format(value),
    series: [
      { name: "errors", label: "errors/s", kind: "line", peak: true },
      { name: "retries", label: "retries/s", kind: "line", peak: true },
    ],
  }),
];
$("charts").append(...charts.map((chart) => chart.node));

function chip(node, state, words) {
  set(node, { "data-state": state });
  say(node, words);
}

function drawHead(view) {
  chip($("state"), view.state, STATES[view.state] ?? view.state);
  const ran = view.at - view.started;
  say($("since"), `since ${moment(view.started, view.at)}${ran >= 1 ? ` · ${duration(Math.round(ran))}` : ""}`);
  say($("sentence"), view.sentence);
  // A screen reader hears of another sentence, but not of each new figure in it.
  const digits = /[\d.,]+/g;
  if ($("spoken").textContent.replace(digits, "") !== view.sentence.replace(digits, "")) say($("spoken"), view.sentence);
  const share = view.progress.share;
  document.title = `${known(share) ? `${percent(share)} ` : ""}${(STATES[view.state] ?? view.state).toLowerCase()} · enrichkit`;
  say($("as-of"), `As of ${moment(view.at, Date.now() / 1000)}`);
}

function drawTiles(view) {
  const { totals } = view;
  const bad = totals.failed_tasks > 0;
  const tiles = [
    { name: "rows", label: "Rows per second", figures: [[rate(view.rows_per_second), ""]] },
    { name: "calls", label: "Calls per second", figures: [[rate(view.calls_per_second), ""]] },
    {
      name: "flight",
      label: "Calls in flight",
      figures: [[number(view.in_flight), `of ${number(view.capacity)}`]],
      gauge: view.capacity ? view.in_flight / view.capacity : 0,
    },
    {
      name: "latency",
      label: "Latency of calls",
      figures: [[duration(view.p50), "p50"], [duration(view.p90), "p90"], [duration(view.p99), "p99"]],
    },
    {
      name: "trouble",
      label: "Errors",
      figures: [
        [number(totals.without_answer), "errors"],
        [number(totals.retries), "retries"],
        [number(totals.failed_tasks), totals.failed_tasks === 1 ? "failed task" : "failed tasks"],
      ],
    },
  ];
  keep(
    $("tiles"),
    tiles,
    (tile) => tile.name,
    (tile) => make("dl", { class: `card tile tile-${tile.name}` }, make("dt", {}, tile.label), make("dd")),
    (node, tile) => {
      const figures = node.children[1];
      keep(
        figures,
        tile.figures,
        (_, index) => index,
        () => make("span", {}, make("b"), make("small")),
        (each, [value, unit]) => {
          say(each.children[0], value);
          say(each.children[1], unit && ` ${unit}`);
        },
      );
      if (tile.gauge !== undefined) node.style.setProperty("--gauge", `${Math.min(1, tile.gauge) * 100}%`);
      node.classList.toggle("bad", tile.name === "trouble" && bad);
    },
  );
}

function drawAdvice(node, advice) {
  keep(
    node,
    advice,
    (each) => `${each.option} ${each.text}`,
    () => make("li", {}, make("b", { class: "gain" }), make("span"), make("code")),
    (item, each) => {
      const [gain, words, code] = item.children;
      gain.hidden = !known(each.gain);
      say(gain, known(each.gain) ? `${Number(each.gain.toFixed(1))} × as fast` : "");
      say(words, each.text);
      code.hidden = !each.option;
      say(code, each.option ? `${each.option}=${each.value}` : "");
    },
  );
}

function drawHistory(view) {
  $("history").hidden = view.history.length < 2;
  for (const chart of charts) chart.update(view.history, view.outages);
  const told = view.outages.map(({ source, since, until }) =>
    until === null ? `${source} since ${clock(since)}` : `${source} ${clock(since)} to ${clock(until)}`,
  );
  $("outages").hidden = !told.length;
  say($("outages"), `Hatched: a source was away (${told.slice(-6).join("; ")}).`);
}

class Source {
  constructor(open) {
    this.name = make("h3");
    this.badge = make("span", { class: "badge" });
    this.away = make("span", { class: "chip", "data-state": "failed" });
    this.sentence = make("p");
    this.arithmetic = make("p", { class: "arithmetic" });
    this.bar = make("div", { class: "mini" });
    this.figures = make("p", { class: "figures" });
    this.share = make("div", { class: "share" });
    this.progress = make("div");
    this.advice = make("ul", { class: "advice" });
    this.pairs = TOTALS.map(() => make("div"));
    this.costs = make("div");
    this.held = make("div");
    this.errors = make("div");
    this.retries = make("div");
    this.slow = make("div");
    this.hot = make("div");
    this.latency = new Histogram("Latency of calls", duration);
    this.wait = new Histogram("Wait before the call", duration);
    this.fill = new Histogram("Keys in a call", number);
    this.node = make(
      "details",
      { class: "card source" },
      make(
        "summary",
        {},
        make("div", { class: "name" }, this.name, this.badge, this.away),
        this.sentence,
        this.arithmetic,
        this.bar,
        this.figures,
      ),
      this.share,
      this.progress,
      this.advice,
      make("div", { class: "panels" }, this.latency.node, this.wait.node, this.fill.node),
      make("div", { class: "panels" }, ...this.pairs, this.costs, this.held, this.errors, this.retries, this.slow, this.hot),
    );
    this.node.open = open;
    this.node.source = this;
  }

  update(source) {
    say(this.name, source.name);
    say(this.badge, source.connector);
    this.away.hidden = source.away_since === null;
    say(this.away, source.away_since === null ? "" : `away since ${clock(source.away_since)}`);
    say(this.sentence, source.sentence);
    say(this.arithmetic, source.arithmetic);
    drawBar(this.bar, source.time);
    const limit = known(source.rate) ? ` · at most ${rate(source.rate)} calls/s` : "";
    say(
      this.figures,
      `p50 ${duration(source.p50)} · p90 ${duration(source.p90)} · p99 ${duration(source.p99)} · ` +
        `${number(source.in_flight)} of ${number(source.capacity)} in flight · ` +
        `${many(source.running, "task")} · ${many(source.batch_size, "key")} per call${limit}`,
    );
    drawShare(this.share, source.time);
    drawProgress(this.progress, source.progress);
    drawAdvice(this.advice, source.advice);
    this.latency.update(source.latency);
    this.wait.update(source.queue_wait);
    this.fill.update(source.batch_size > 1 ? source.batch_fill : []);
    TOTALS.forEach(([caption, names, onlySome], index) => {
      const shown = onlySome ? names.filter((name) => source.totals[name]) : names;
      const pairs = shown.map((name) => {
        const value = source.totals[name];
        return [NAMES[name] ?? name, name === "bytes" ? bytes(value) : number(value)];
      });
      drawPairs(this.pairs[index], caption, pairs);
    });
    const counts = (reasons) => reasons.map(({ reason, count }) => [reason, number(count)]);
    drawPairs(this.costs, "Costs", costs(source.spending));
    drawPairs(this.held, "Held back by", source.held_back.map(({ reason, seconds }) => [reason, duration(seconds)]));
    drawPairs(this.errors, "Errors by reason", counts(source.errors));
    drawPairs(this.retries, "Retries by reason", counts(source.retries));
    drawPairs(this.slow, "Slowest keys", source.slow.map(({ key, seconds }) => [key, duration(seconds)]));
    drawPairs(this.hot, "Most frequent keys", source.hot.map(({ key, share }) => [key, percent(share)]));
  }
}

let now = 0;
const workers = new Table(
  "Figures of each worker",
  [
    { label: "Worker", left: true, show: (each) => each.id },
    { label: "Last heard", show: (each) => `${duration(Math.max(0, Math.round(now - each.seen)))} ago` },
    { label: "Tasks", show: (each) => number(each.running) },
    { label: "Rows", show: (each) => number(each.rows) },
    { label: "Calls", show: (each) => number(each.calls) },
    { label: "In flight", show: (each) => number(each.in_flight) },
    { label: "CPU", show: (each) => percent(each.cpu) },
    { label: "Lag of the event loop", show: (each) => duration(each.lag) },
  ],
  { key: (each) => each.id },
);
$("worker-table").append(workers.node);

const tasks = new Table(
  "Figures of each task",
  [
    {
      label: "State",
      left: true,
      value: (each) => each.state,
      draw: (cell, each) => {
        if (!cell.firstChild) cell.append(make("span"));
        set(cell.firstChild, { class: "chip" });
        chip(cell.firstChild, each.state, each.state);
      },
    },
    {
      label: "Task",
      left: true,
      value: (each) => each.id,
      show: (each) =>
        `${each.stage}.${each.partition}` +
        (each.attempt ? ` attempt ${each.attempt + 1}` : "") +
        (each.batch === null ? "" : ` batch ${each.batch}`),
    },
    { label: "Source", left: true, value: (each) => each.source, show: (each) => each.source },
    { label: "Worker", left: true, value: (each) => each.worker, show: (each) => each.worker },
    { label: "Time", value: (each) => each.seconds, show: (each) => duration(each.seconds) },
    { label: "Rows", value: (each) => each.rows, show: (each) => number(each.rows) },
    { label: "Calls", value: (each) => each.calls, show: (each) => number(each.calls) },
    {
      label: "In flight",
      value: (each) => each.in_flight,
      show: (each) => `${number(each.in_flight)} / ${number(each.capacity)}`,
    },
    { label: "p50", value: (each) => each.p50, show: (each) => duration(each.p50) },
    { label: "p99", value: (each) => each.p99, show: (each) => duration(each.p99) },
    { label: "Errors", value: (each) => each.errors, show: (each) => number(each.errors) },
    { label: "Retries", value: (each) => each.retries, show: (each) => number(each.retries) },
    {
      label: "Where its time went",
      left: true,
      draw: (cell, each) => {
        if (!cell.firstChild) cell.append(make("div", { class: "mini" }));
        drawBar(cell.firstChild, each.time);
      },
    },
  ],
  { key: (each) => each.id, note: (each) => each.error },
);
$("task-table").append(tasks.node);

function show(view) {
  now = view.at;
  $("main").hidden = false;
  drawHead(view);
  $("overview").hidden = view.state === "waiting" && !view.time.length;
  drawShare($("time"), view.time);
  drawProgress($("progress"), view.progress);
  drawTiles(view);
  $("advice").hidden = !view.advice.length;
  drawAdvice($("advice-list"), view.advice);
  drawHistory(view);
  $("sources").hidden = !view.sources.length;
  const few = view.sources.length <= 4;
  keep(
    $("source-list"),
    view.sources,
    (source) => source.name,
    (_, index) => new Source(few || index === 0).node,
    (node, source) => node.source.update(source),
  );
  $("workers").hidden = !view.workers.length;
  workers.update(view.workers);
  $("tasks").hidden = !view.tasks.length;
  const rank = (task) => (RANKS.indexOf(task.state) + RANKS.length + 1) % (RANKS.length + 1);
  tasks.update([...view.tasks].sort((a, b) => rank(a) - rank(b)));
  $("more-tasks").hidden = !view.more_tasks;
  say($("more-tasks"), `${many(view.more_tasks, "task that has", "tasks that have")} ended long ago ${view.more_tasks === 1 ? "is" : "are"} not shown.`);
}

/* ---- connection ---- */

const SILENCE = 4000; // milliseconds without a message after which a proxy is taken to hold the stream back
const LOST = 10000; // milliseconds without an answer after which the page says so
const WAIT_MAX = 10000; // milliseconds between two attempts to connect, at most
const AGAIN = 60000; // milliseconds until the stream is tried again while polling works

class Connection {
  constructor() {
    this.view = null; // what is shown
    this.streamed = null; // what the stream has said last: its next message builds on that
    this.stream = null;
    this.opened = 0; // when the stream was opened, and when it said something
    this.flowed = 0;
    this.heard = Date.now(); // when the program answered, by stream or poll
    this.polling = false; // polling works, and the stream does not
    this.asking = false;
    this.ended = false;
    this.wait = 500; // until the attempt after the next
    this.next = 0; // when the next attempt may be
    this.drawing = false;
    this.poll(); // which is quicker than to notice that a stream is held back
    this.open();
    setInterval(() => this.tick(), 500);
    for (const name of ["online", "pageshow"]) addEventListener(name, () => this.wake());
    addEventListener("offline", () => this.tell());
    document.addEventListener("visibilitychange", () => document.hidden || this.wake());
  }

  open() {
    this.close();
    this.opened = Date.now();
    const stream = new EventSource("events");
    this.stream = stream;
    const listen = (name, react) => stream.addEventListener(name, (event) => this.stream === stream && react(event));
    listen("view", (event) => {
      const { drop, keep: kept, view } = JSON.parse(event.data);
      const before = this.streamed?.history.slice(drop, drop + kept) ?? [];
      this.streamed = { ...view, history: before.concat(view.history) };
      this.flow(this.streamed);
    });
    listen("beat", (event) => this.flow({ ...this.streamed, at: JSON.parse(event.data).at }));
    listen("end", () => {
      this.close();
      this.ended = true;
      this.wait = 1000;
      this.next = Date.now() + this.wait;
      this.tell();
    });
    listen("error", () => this.close()); // the browser would try again without a back-off
  }

  close() {
    this.stream?.close();
    this.stream = null;
    this.streamed = null;
  }

  flow(view) {
    this.flowed = Date.now();
    this.polling = false;
    this.accept(view);
  }

  async poll() {
    this.asking = true;
    const ended = this.ended;
    try {
      const answer = await fetch("view", { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (answer.status === 404) this.ended = true; // another program has the port now
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const view = await answer.json();
      const late = this.ended && !ended; // the stream told the end while this answer was on its way
      this.accept(view);
      this.ended = late;
      return true;
    } catch {
      this.close();
      this.polling = false;
      this.next = Date.now() + this.wait;
      this.wait = Math.min(WAIT_MAX, this.wait * 2);
      return false;
    } finally {
      this.asking = false;
      this.tell();
    }
  }

  async tick() {
    this.tell();
    const time = Date.now();
    const flows = this.stream && time - this.flowed < SILENCE;
    const young = this.stream && time - this.opened < SILENCE && !this.polling;
    if (flows || young || this.asking || time < this.next || (this.polling && time - this.heard < 950)) return;
    if (!(await this.poll())) return;
    // The program answers. If there is a stream, a proxy holds it back; it may yet yield something.
    if (this.stream) this.polling = true;
    if (this.stream && time - this.opened > 3 * SILENCE) this.close();
    if (!this.stream && (!this.polling || time - this.opened > AGAIN)) this.open();
  }

  /** The network or the machine is back: try at once. */
  wake() {
    this.next = 0;
    this.wait = 500;
    this.tick();
  }

  accept(view) {
    this.heard = Date.now();
    this.ended = false;
    this.wait = 500;
    this.next = 0;
    const older = view.started === this.view?.started && view.at < this.view.at; // held back, and overtaken by a poll
    if (!older) this.view = view;
    if (older || this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      show(this.view);
      this.tell();
    });
  }

  tell() {
    const silent = Date.now() - this.heard;
    let state = this.view ? "live" : "connecting";
    let notice = "";
    if (this.ended) {
      state = "ended";
      notice = "The job's program has ended; this is the last state.";
    } else if (silent > SILENCE + 1500 || !navigator.onLine) {
      state = "reconnecting";
      if (silent > LOST) {
        notice = `The job's program has not answered since ${clock(this.heard / 1000)}; this is the last state.`;
      }
    }
    chip($("connection"), state, state);
    document.body.classList.toggle("stale", notice !== "");
    $("notice").hidden = !notice;
    say($("notice"), notice);
  }
}

/* ---- start ---- */

const saved = $("view");
if (saved) {
  const view = JSON.parse(saved.textContent);
  const title = document.title;
  $("save").remove();
  $("links").remove();
  show(view);
  document.title = title;
  chip($("connection"), "ended", "report");
  say($("as-of"), `As of ${day.format(view.at * 1000)}, ${clock(view.at)}`);
} else {
  new Connection();
}
