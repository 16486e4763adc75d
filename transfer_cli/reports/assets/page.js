/* What moves on the page of a report: tables, charts, colours. It asks nobody for anything. */
(() => {
  "use strict";

  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const COLOURS = 8;
  const NARROW = 480;

  // --- light and dark ---------------------------------------------------------------------------

  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const themeButton = document.querySelector(".theme");

  function storedTheme(theme) {
    // A page that was opened from a disk may have no memory.
    try {
      if (theme) localStorage.setItem("transfer-theme", theme);
      return localStorage.getItem("transfer-theme");
    } catch {
      return null;
    }
  }

  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches;
  }

  function showTheme() {
    themeButton.setAttribute("aria-pressed", String(isDark()));
    for (const chart of charts) if (chart.picture) chart.draw();
  }

  // --- tables that sort -------------------------------------------------------------------------

  function compare(one, other) {
    const [a, b] = [one, other].map((cell) => cell.dataset.value);
    // Where there is nothing, it comes last, whichever way the rest is sorted.
    if (a === undefined || b === undefined) return null;
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
  }

  function sort(table, head) {
    const column = head.cellIndex;
    const direction = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    const sign = direction === "ascending" ? 1 : -1;
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((one, other) => {
      const [a, b] = [one.cells[column], other.cells[column]];
      const order = compare(a, b);
      if (order !== null) return sign * order;
      return (a.dataset.value === undefined) - (b.dataset.value === undefined);
    });
    for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", direction);
    body.append(...rows);
  }

  for (const table of all("table[data-sortable]")) {
    for (const button of all("button.sort", table)) {
      button.addEventListener("click", () => sort(table, button.closest("th")));
    }
    table.tHead.rows[0].cells[0].setAttribute("aria-sort", "ascending");
  }

  for (const box of all(".filters")) {
    const [input, output] = [box.querySelector("input"), box.querySelector("output")];
    const choices = all("select", box);
    const rows = [...box.nextElementSibling.querySelector("tbody").rows];
    const values = JSON.parse(box.querySelector("script").textContent);
    const show = () => {
      const words = input.value.toLowerCase().split(/\s+/);
      rows.forEach((row, at) => {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word))
          || !choices.every(({ value }, key) => !value || value === values[at][key]);
      });
      output.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
    };
    for (const each of [input, ...choices]) each.addEventListener("input", show);
    box.hidden = false;
    show();
  }

  // --- lines to paste ---------------------------------------------------------------------------

  for (const button of navigator.clipboard ? all("button.copy") : []) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.previousElementSibling.textContent);
      button.textContent = "Copied";
    });
  }

  // --- drawing ----------------------------------------------------------------------------------

  function svg(parent, name, attributes = {}, text = null) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined) made.setAttribute(key, value);
    }
    if (text !== null) made.textContent = text;
    parent?.append(made);
    return made;
  }

  function numberText(number) {
    const size = Math.abs(number);
    if (size && (size < 1e-4 || size >= 1e9)) return number.toExponential(2).replace("e+", "e");
    // Steps and parameters are whole, and stay what they are.
    const digits = Number.isInteger(number) ? 21 : 4;
    return number.toLocaleString("en", { maximumSignificantDigits: digits });
  }

  /** Return round numbers between two, about `most` of them. */
  function roundNumbers(low, high, most) {
    const power = 10 ** Math.floor(Math.log10((high - low) / most));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => (high - low) / each <= most);
    const first = Math.ceil(low / step - 1e-6);
    const amount = Math.floor(high / step + 1e-6) - first + 1;
    return Array.from({ length: amount || 0 }, (_, at) => Number(((first + at) * step).toPrecision(12)));
  }

  /** Return an axis: where a value is, from 0 to 1, its ticks, and what a value is called. */
  function axisOf(own, values) {
    const isLog = own.type === "log";
    const place = (value) => (isLog ? Math.log10(value) : value);
    const found = values.map(place).filter(Number.isFinite);
    const least = found.reduce((one, other) => Math.min(one, other), Infinity);
    const most = found.reduce((one, other) => Math.max(one, other), -Infinity);
    let [low, high] = own.range ?? [least, most];
    if (!own.range) {
      const edge = (high - low) * 0.06 || Math.abs(high) * 0.06 || 0.5;
      low = own.rangemode === "tozero" ? 0 : low - edge;
      high += edge;
    }
    const at = (value) => (place(value) - low) / (high - low);
    const vals = own.tickvals ?? roundNumbers(low, high, 6);
    const ticks = vals.map((value, n) => [at(value), own.ticktext?.[n] ?? numberText(value)])
      // Nothing is less than no error.
      .filter(([share], n) => share > -0.001 && share < 1.001 && (isLog || least < 0 || vals[n] >= 0));
    const words = (value) => own.ticktext?.[own.tickvals.indexOf(value)] ?? numberText(value);
    return { at, ticks, words, title: own.title ?? "" };
  }

  function colourOf({ slot, slots }, at) {
    const place = slots ? slots[at] : slot;
    return colour(place === undefined ? "edge" : `series-${place % COLOURS}`);
  }

  const LETTER = 6.6;

  /** Draw axes; return where a pair of values is, in pixels. */
  function drawAxes(picture, x, y, { width, height }) {
    const [soft, line, edge] = ["soft", "line", "edge"].map(colour);
    const longest = Math.max(1, ...y.ticks.map(([, words]) => words.length));
    const left = 34 + LETTER * longest;
    const [top, right, bottom] = [12, 20, 46];
    const [w, h] = [width - left - right, height - top - bottom];
    const X = (value) => left + w * x.at(value);
    const Y = (value) => top + h * (1 - y.at(value));
    const text = { fill: soft, "font-size": 12 };
    let end = -Infinity;
    for (const [share, words] of x.ticks) {
      const at = left + w * share;
      svg(picture, "line", { x1: at, x2: at, y1: top, y2: top + h, stroke: line });
      const half = (LETTER * words.length) / 2;
      if (at - half <= end) continue;
      svg(picture, "text", { ...text, x: at, y: top + h + 17, "text-anchor": "middle" }, words);
      end = at + half + 6;
    }
    for (const [share, words] of y.ticks) {
      const at = top + h * (1 - share);
      svg(picture, "line", { x1: left, x2: left + w, y1: at, y2: at, stroke: line });
      svg(picture, "text", { ...text, x: left - 7, y: at + 4, "text-anchor": "end" }, words);
    }
    svg(picture, "path", { d: `M${left} ${top}v${h}h${w}`, fill: "none", stroke: edge });
    const title = { ...text, "font-size": 13, "text-anchor": "middle" };
    svg(picture, "text", { ...title, x: left + w / 2, y: height - 6 }, x.title);
    const turned = `translate(13 ${top + h / 2}) rotate(-90)`;
    svg(picture, "text", { ...title, class: "ytitle", transform: turned }, y.title);
    return [X, Y];
  }

  function lineOf(trace, X, Y) {
    let path = "";
    let before = null;
    trace.x.forEach((x, at) => {
      if (x === null || trace.y[at] === null) before = null;
      else {
        const [px, py] = [X(x), Y(trace.y[at])].map((each) => each.toFixed(1));
        const step = trace.line.steps && before ? `H${px}` : "";
        path += before ? `${step}L${px} ${py}` : `M${px} ${py}`;
        before = px;
      }
    });
    return path;
  }

  function drawTrace(picture, trace, X, Y) {
    const { line, marker, meta } = trace;
    if (line) {
      svg(picture, "path", {
        class: "trace", d: lineOf(trace, X, Y), fill: "none", stroke: colourOf(meta),
        "stroke-width": line.width, "stroke-dasharray": line.dashes, "stroke-linejoin": "round",
        opacity: meta.role === "seed" ? 0.35 : null,
      });
    }
    if (!marker) return;
    trace.x.forEach((value, at) => {
      const [x, y, own] = [X(value), Y(trace.y[at]), colourOf(meta, at)];
      const bars = trace.error_y;
      if (bars && bars.array[at] + bars.arrayminus[at] > 0) {
        const [high, low] = [trace.y[at] + bars.array[at], trace.y[at] - bars.arrayminus[at]].map(Y);
        const path = `M${x - 4} ${high}h8M${x} ${high}V${low}M${x - 4} ${low}h8`;
        svg(picture, "path", { class: "bar", d: path, stroke: own, "stroke-width": 1.25 });
      }
      if (trace.ring === at) {
        const ring = { class: "ring", cx: x, cy: y, r: 10, fill: "none", stroke: own };
        svg(picture, "circle", { ...ring, "stroke-width": 2 });
      }
      const shape = Array.isArray(marker.shape) ? marker.shape[at] : marker.shape;
      svg(picture, "path", {
        class: "point", d: shape, fill: own, stroke: colour("card"), "stroke-width": 0.8,
        // A marker is drawn around (14, 6), 7 wide.
        transform: `translate(${x} ${y}) scale(${marker.size / 7}) translate(-14 -6)`,
      });
    });
  }

  function write(picture, words, x, y, side = "right") {
    svg(picture, "text", {
      x: x + (side === "right" ? 9 : -9), y: y + 4, "text-anchor": side === "right" ? "start" : "end",
      "font-size": 11.5, fill: colour("ink"), stroke: colour("card"), "stroke-width": 3,
      "paint-order": "stroke",
    }, words);
  }

  // --- charts -----------------------------------------------------------------------------------

  const charts = [];

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.plot = figure.querySelector(".plot");
      this.choice = figure.querySelector("select.view");
      this.numbers = figure.querySelector(".numbers");
      this.tip = element("div", null, { class: "tip", hidden: "" });
      this.points = [];
      this.views = JSON.parse(figure.querySelector("script").textContent);
      this.choice?.addEventListener("change", () => this.draw());
      figure.querySelector("button.save").addEventListener("click", () => this.save());
      figure.querySelector("details").addEventListener("toggle", () => this.list());
      this.plot.addEventListener("pointermove", (event) => this.point(event));
      this.plot.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    }

    view() {
      return this.views[this.choice ? Number(this.choice.value) : 0];
    }

    traces() {
      const visible = legends.get(this.figure.dataset.legend);
      return this.view().traces.filter(({ meta }) => (
        meta.group === undefined || !visible || visible.has(meta.group)
      ));
    }

    draw() {
      const [width, height] = [this.plot.clientWidth, this.plot.clientHeight];
      const { layout } = this.view();
      const traces = this.traces();
      this.picture = svg(null, "svg", {
        width, height, viewBox: `0 0 ${width} ${height}`,
        "font-family": getComputedStyle(document.body).fontFamily,
      });
      svg(this.picture, "rect", { width, height, fill: colour("card") });
      const x = axisOf(layout.xaxis, traces.flatMap((each) => each.x).filter((each) => each !== null));
      const y = axisOf(layout.yaxis, traces.flatMap((each) => [
        ...each.y.filter((value) => value !== null),
        ...(each.error_y?.array.map((bar, at) => each.y[at] + bar) ?? []),
        ...(each.error_y?.arrayminus.map((bar, at) => each.y[at] - bar) ?? []),
      ]));
      const [X, Y] = drawAxes(this.picture, x, y, { width, height });
      for (const each of traces) drawTrace(this.picture, each, X, Y);
      this.points = [];
      for (const each of traces) this.name(each, x, y, X, Y, width < NARROW);
      this.tip.hidden = true;
      this.plot.replaceChildren(this.picture, this.tip);
      this.list();
    }

    /** Write the names that stand beside points, and keep those that a pointer asks for. */
    name(trace, x, y, X, Y, isNarrow) {
      if (["seed", "quiet"].includes(trace.meta.role)) return;
      trace.x.forEach((value, at) => {
        const [px, py] = [X(value), Y(trace.y[at])];
        const name = Array.isArray(trace.name) ? trace.name[at] : trace.name;
        const words = `${name}\n${y.title}: ${numberText(trace.y[at])}\n${x.title}: ${x.words(value)}`;
        this.points.push([px, py, words]);
        const label = isNarrow && trace.meta.short ? trace.meta.short[at] : trace.labels?.[at];
        if (label) write(this.picture, label, px, py, trace.sides[at]);
      });
    }

    /** Show what is near the pointer. */
    point({ clientX, clientY }) {
      const box = this.plot.getBoundingClientRect();
      const [x, y] = [clientX - box.left, clientY - box.top];
      let [near, found] = [30, null];
      for (const each of this.points) {
        const distance = Math.hypot(each[0] - x, each[1] - y);
        if (distance < near) [near, found] = [distance, each];
      }
      this.tip.hidden = !found;
      if (!found) return;
      this.tip.textContent = found[2];
      const { style, offsetWidth, offsetHeight } = this.tip;
      style.left = `${Math.max(0, Math.min(found[0] + 12, box.width - offsetWidth))}px`;
      style.top = `${Math.max(0, found[1] - offsetHeight - 10)}px`;
    }

    /** List the lines that are visible: a row for each step, at most a few dozen. */
    list() {
      if (!this.numbers || !this.figure.querySelector("details").open) return;
      const lines = this.traces().filter(({ meta }) => meta.role === "mean");
      const steps = [...new Set(lines.flatMap(({ x }) => x))].sort((a, b) => a - b);
      const stride = Math.ceil(steps.length / 40);
      const kept = steps.filter((_, at) => at % stride === 0 || at === steps.length - 1);
      const found = lines.map(({ x, y }) => new Map(x.map((step, at) => [step, y[at]])));
      const head = ["step", ...lines.map(({ name }) => name)];
      const rows = kept.map((step) => [step, ...found.map((line) => line.get(step) ?? "–")]);
      this.numbers.replaceChildren(tableOf(head, rows, `${this.view().name} by step`));
    }

    save() {
      const text = new XMLSerializer().serializeToString(this.picture);
      const href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
      element("a", null, { href, download: `${this.figure.id}.svg` }).click();
      setTimeout(() => URL.revokeObjectURL(href), 1000);
    }
  }

  function element(name, text, attributes = {}) {
    const made = document.createElement(name);
    if (text !== null) made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  function tableOf(head, rows, caption) {
    const table = element("table", null);
    const box = element("div", null, { class: "scroll", tabindex: "0", role: "region", "aria-label": caption });
    table.append(element("caption", caption, { class: "hidden" }));
    const top = table.createTHead().insertRow();
    top.append(...head.map((each) => element("th", each, { scope: "col", class: "number" })));
    const body = table.createTBody();
    for (const [first, ...rest] of rows) {
      const row = body.insertRow();
      row.append(element("th", first, { scope: "row", class: "number" }));
      row.append(...rest.map((each) => element("td", each, { class: "number" })));
    }
    box.append(table);
    return box;
  }

  // --- which groups are in the charts -----------------------------------------------------------

  const legends = new Map();

  for (const legend of all(".legend")) {
    const name = legend.dataset.legendOf;
    const buttons = all("button[data-group]", legend);
    const isOn = (button) => button.getAttribute("aria-pressed") === "true";
    legends.set(name, new Set(buttons.filter(isOn).map(({ dataset }) => Number(dataset.group))));
    for (const button of buttons) {
      button.addEventListener("click", () => {
        const visible = legends.get(name);
        const group = Number(button.dataset.group);
        if (!visible.delete(group)) visible.add(group);
        button.setAttribute("aria-pressed", String(visible.has(group)));
        for (const chart of charts) if (chart.figure.dataset.legend === name) chart.draw();
      });
    }
  }

  for (const figure of all("figure.chart")) charts.push(new Chart(figure));
  // What a chart is drawn for is its width, and that is told at once for each.
  const byPlot = new Map(charts.map((chart) => [chart.plot, chart]));
  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) byPlot.get(target).draw();
  });
  for (const plot of byPlot.keys()) sizes.observe(plot);

  // --- confusion --------------------------------------------------------------------------------

  /** Show the counts of another group in the table that is there. */
  function showConfusion(table, { cells, split, runs }) {
    const rows = [...table.tBodies[0].rows].map((row) => [...row.cells].slice(1));
    const counts = rows.map(() => rows.map(() => 0));
    for (const [label, predicted, count] of cells) counts[label][predicted] = count;
    table.caption.textContent = `Confusion on ${split}, ${runs === 1 ? "1 run" : `${runs} runs`}`;
    rows.forEach((row, label) => {
      const sum = counts[label].reduce((one, other) => one + other, 0);
      counts[label].forEach((count, predicted) => {
        const cell = row[predicted];
        cell.textContent = count || "·";
        cell.className = !count ? "none" : predicted === label ? "right" : "wrong";
        cell.style.setProperty("--share", count ? (count / sum).toFixed(3) : "");
      });
      row.at(-1).textContent = sum ? `${Math.round((100 * counts[label][label]) / sum)} %` : "–";
    });
  }

  for (const box of all(".confusion")) {
    const choice = box.querySelector("select");
    choice?.addEventListener("change", () => {
      const found = JSON.parse(box.querySelector("script").textContent)[choice.value];
      showConfusion(box.querySelector(".shown table"), found);
      box.querySelector(".said").textContent = found.words;
    });
  }

  // --- where one is, and paper ------------------------------------------------------------------

  const links = new Map(all(".bar nav a").map((link) => [link.hash.slice(1), link]));
  const passing = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      const link = links.get(target.id);
      link.setAttribute("aria-current", "true");
      const list = link.closest("nav");
      list.scrollLeft = link.offsetLeft - list.offsetLeft - list.clientWidth / 3;
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const id of links.keys()) passing.observe(document.getElementById(id));

  let before = null;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme ?? null;
    root.dataset.theme = "light";
    for (const each of all("details")) each.open = true;
    showTheme();
  });
  addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before;
    else delete root.dataset.theme;
    showTheme();
  });

  root.dataset.theme = storedTheme() ?? "";
  if (!["dark", "light"].includes(root.dataset.theme)) delete root.dataset.theme;
  themeButton.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    storedTheme(root.dataset.theme);
    showTheme();
  });
  prefersDark.addEventListener("change", showTheme);
  showTheme();
})();
