/* What moves on the page of a report: tables that sort, charts, colours. It asks nobody for anything. */
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

  function remembered(theme) {
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
    for (const chart of charts) chart.redraw();
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

  // --- the charting library ---------------------------------------------------------------------

  let library = null;

  async function unpack() {
    const packed = atob(document.getElementById("library").textContent);
    const bytes = new Uint8Array(packed.length);
    for (let at = 0; at < packed.length; at += 1) bytes[at] = packed.charCodeAt(at);
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(plain).text();
    document.head.append(script);
    if (!window.Plotly) throw new Error("the charting library did not start");
    return window.Plotly;
  }

  const plotly = () => (library ??= unpack());

  // --- charts -----------------------------------------------------------------------------------

  const charts = [];
  const byElement = new Map();

  function mixed(share) {
    const parts = (name) => colour(name).match(/[0-9a-f]{2}/gi).map((each) => parseInt(each, 16));
    const [best, worst] = [parts("ramp-best"), parts("ramp-worst")];
    return `rgb(${best.map((each, at) => Math.round(each + share * (worst[at] - each))).join(",")})`;
  }

  function coloured(trace, isNarrow) {
    const { slot, slots, ramp, role, short } = trace.meta;
    const series = (place) => colour(`series-${place % COLOURS}`);
    const found = slots ? slots.map(series)
      : slot !== undefined ? series(slot)
      : ramp !== undefined ? mixed(ramp) : colour("edge");
    const single = Array.isArray(found) ? colour("edge") : found;
    const result = { ...trace };
    if (trace.line) result.line = { ...trace.line, color: single };
    if (trace.marker) {
      result.marker = { ...trace.marker, color: found, line: { width: 1, color: colour("card") } };
    }
    if (trace.error_y) result.error_y = { ...trace.error_y, color: single };
    if (short && isNarrow) result.text = short;
    if (role === "points") result.textfont = { color: colour("ink"), size: 12 };
    return result;
  }

  function layoutOf(own) {
    const [ink, soft, line, card] = ["ink", "soft", "line", "card"].map(colour);
    const axis = {
      gridcolor: line, linecolor: colour("edge"), zerolinecolor: line, tickcolor: line,
      automargin: true, tickfont: { color: soft }, hoverformat: ".4~g",
    };
    const touched = matchMedia("(pointer: coarse)").matches;
    const of = (name) => ({ ...axis, ...own[name], title: { standoff: 10, ...own[name]?.title } });
    return {
      hovermode: "closest", showlegend: false, uirevision: "kept",
      // A finger that moves over a chart scrolls the page.
      dragmode: touched ? false : "zoom",
      paper_bgcolor: card, plot_bgcolor: card,
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: ink },
      hoverlabel: { bgcolor: card, bordercolor: colour("edge"), font: { color: ink }, align: "left" },
      legend: {
        orientation: "h", y: 1.02, yanchor: "bottom", x: 0, itemclick: false, itemdoubleclick: false,
      },
      ...own,
      margin: { l: 48, r: 12, t: 12, b: 44, ...own.margin },
      xaxis: of("xaxis"), yaxis: of("yaxis"),
      shapes: (own.shapes ?? []).map((each) => ({ ...each, line: { color: colour("edge"), width: 1 } })),
      annotations: (own.annotations ?? []).map((each) => (
        { ...each, font: { size: 11, color: ink }, bgcolor: card, borderpad: 1, opacity: 0.92 }
      )),
    };
  }

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.plot = figure.querySelector(".plot");
      this.choice = figure.querySelector("select.view");
      this.share = figure.querySelector("select.share");
      this.numbers = figure.querySelector(".numbers");
      this.views = null;
      this.isDrawn = false;
      for (const each of [this.choice, this.share]) {
        each?.addEventListener("change", () => this.redraw());
      }
      figure.querySelector("button.save").addEventListener("click", () => this.save());
      figure.querySelector("details").addEventListener("toggle", () => this.list());
    }

    view() {
      // Parsed when it is first looked at: hundreds of runs are a lot to read at once.
      this.views ??= JSON.parse(this.figure.querySelector("script").textContent);
      return this.views[this.choice ? Number(this.choice.value) : 0];
    }

    traces() {
      const visible = visibleGroups(this.figure.dataset.legend);
      const share = this.share ? Number(this.share.value) : 1;
      return this.view().traces.filter(({ meta }) => (
        (meta.group === undefined || !visible || visible.has(meta.group))
        && (meta.ramp === undefined || share === 1 || meta.ramp < share)
      ));
    }

    async draw() {
      try {
        const Plotly = await plotly();
        const settings = { displayModeBar: false, responsive: true, doubleClick: "reset" };
        const isNarrow = this.plot.clientWidth < NARROW;
        const traces = this.traces().map((each) => coloured(each, isNarrow));
        await Plotly.react(this.plot, traces, layoutOf(this.view().layout), settings);
        this.isDrawn = true;
      } catch (error) {
        this.plot.classList.add("failed");
        this.plot.textContent = "This browser cannot draw the chart; its numbers are below.";
        console.error(error);
      }
      this.list();
    }

    redraw() {
      if (this.isDrawn) this.draw();
    }

    /** List the lines that are visible: a row for each step, at most a few dozen. */
    list() {
      if (!this.numbers || !this.figure.querySelector("details").open) return;
      const lines = this.traces().filter(({ meta }) => meta.role === "mean");
      const steps = [...new Set(lines.flatMap(({ x }) => x))].sort((a, b) => a - b);
      const stride = Math.ceil(steps.length / 40);
      const kept = steps.filter((_, at) => at % stride === 0 || at === steps.length - 1);
      const found = lines.map(({ x, y }) => new Map(x.map((step, at) => [step, y[at]])));
      const head = ["step", ...lines.map(({ name }) => plain(name))];
      const rows = kept.map((step) => [step, ...found.map((line) => line.get(step) ?? "–")]);
      this.numbers.replaceChildren(tableOf(head, rows, `${this.view().name} by step`));
    }

    async save() {
      const Plotly = await plotly();
      if (!this.isDrawn) await this.draw();
      const { width, height } = this.plot.getBoundingClientRect();
      Plotly.downloadImage(this.plot, { format: "svg", filename: this.figure.id, width, height });
    }
  }

  function plain(text) {
    // Names are escaped for Plotly, which reads tags in them.
    const parsed = new DOMParser().parseFromString(text, "text/html");
    return parsed.documentElement.textContent;
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

  function visibleGroups(name) {
    return name ? legends.get(name) : undefined;
  }

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
        for (const chart of charts) if (chart.figure.dataset.legend === name) chart.redraw();
      });
    }
  }

  const pause = () => new Promise((go) => { setTimeout(go); });
  let queue = Promise.resolve();

  const near = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      // One at a time, with a pause: the first is seen, and the page can be used, before the last.
      queue = queue.then(() => byElement.get(target).draw()).then(pause);
    }
  }, { rootMargin: "300px" });

  for (const figure of all("figure.chart")) {
    const chart = new Chart(figure);
    charts.push(chart);
    byElement.set(figure, chart);
    near.observe(figure);
  }

  // --- confusion --------------------------------------------------------------------------------

  function confusionTable(found, labels, corner) {
    const counts = labels.map(() => labels.map(() => 0));
    for (const [label, said, count] of found.cells) counts[label][said] = count;
    const table = element("table", null, { class: "cells" });
    const runs = found.runs === 1 ? "1 run" : `${found.runs} runs`;
    table.append(element("caption", `Confusion on ${found.split}, ${runs}`));
    const top = table.createTHead().insertRow();
    const heads = [...labels, "right"].map((each) => element("th", each, { scope: "col" }));
    top.append(corner.cloneNode(true), ...heads);
    const body = table.createTBody();
    counts.forEach((row, label) => {
      const sum = row.reduce((one, other) => one + other, 0);
      const line = body.insertRow();
      line.append(element("th", labels[label], { scope: "row" }));
      row.forEach((count, said) => {
        const kind = count ? `${said === label ? "right" : "wrong"} full` : "none";
        const cell = element("td", count || "·", { class: kind });
        if (count) cell.style.setProperty("--share", (count / sum).toFixed(3));
        line.append(cell);
      });
      line.append(element("td", sum ? `${Math.round((100 * row[label]) / sum)} %` : "–"));
    });
    return table;
  }

  for (const box of all(".confusion")) {
    const choice = box.querySelector("select");
    choice?.addEventListener("change", () => {
      const { labels, groups } = JSON.parse(box.querySelector("script").textContent);
      const found = groups[choice.value];
      const table = box.querySelector(".shown table");
      table.replaceWith(confusionTable(found, labels, table.tHead.rows[0].cells[0]));
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
    for (const chart of charts) chart.draw();
  });
  addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before;
    else delete root.dataset.theme;
    showTheme();
  });

  root.dataset.theme = remembered() ?? "";
  if (!["dark", "light"].includes(root.dataset.theme)) delete root.dataset.theme;
  themeButton.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remembered(root.dataset.theme);
    showTheme();
  });
  prefersDark.addEventListener("change", showTheme);
  showTheme();
})();
