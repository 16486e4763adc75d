/* Where heads look: what is drawn follows the text, block, head and token that are chosen. */
(() => {
  "use strict";

  const UNITS = 255;
  const SMALLEST = 15;
  const LARGEST = 38;
  const SMALL = 28;
  const MOST_NAMED = 5;
  const SCALE = [0.01, 0.05, 0.2, 0.5, 1];
  const STRONGEST_BEHIND_TEXT = 0.5;

  const root = document.documentElement;
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const percent = (share) => (share && share < 0.005 ? "<1 %" : `${Math.round(share * 100)} %`);
  // Roots, so that small shares can be seen beside large ones.
  const strength = (share) => Math.sqrt(share);

  function bytes(text) {
    return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  }

  function element(parent, name, attributes = {}, text = "") {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    parent.append(made);
    return made;
  }

  /** Let one of several buttons be reached by Tab, and the others from it by arrow keys. */
  function moveByArrowKeys(box, columns, choose) {
    box.addEventListener("keydown", (event) => {
      const all = [...box.querySelectorAll("button")];
      const at = all.indexOf(document.activeElement);
      const [last, across] = [all.length - 1, columns()];
      const next = {
        ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - across, ArrowDown: at + across,
        Home: 0, End: last,
      }[event.key];
      if (at < 0 || next === undefined) return;
      event.preventDefault();
      if (next < 0 || next > last) return;
      choose(next);
      all[next].focus();
    });
  }

  function showAttention(box) {
    const { texts, heads, kinds, start } = JSON.parse(box.querySelector("script").textContent);
    const find = (selector) => box.querySelector(selector);
    const blocks = 1 + Math.max(...heads.map((each) => each.block));
    const across = heads.length / blocks;
    const chosen = { text: 0, block: 0, head: 0, token: 0, way: "from" };
    const opened = new Map();

    /** Return a text with its maps as bytes. */
    function text() {
      const found = texts[chosen.text];
      if (!opened.has(found)) {
        opened.set(found, { maps: bytes(found.maps), rollout: bytes(found.rollout) });
      }
      return { ...found, size: found.pieces.length, ...opened.get(found) };
    }

    /** Return a matrix of a text: that of a head, or without one the rollout up to a block. */
    function matrix(found, block, head) {
      const cells = found.is_lower ? (found.size * (found.size + 1)) / 2 : found.size ** 2;
      const [all, at] = head === undefined
        ? [found.rollout, block] : [found.maps, block * across + head];
      const part = all.subarray(at * cells, (at + 1) * cells);
      if (!found.is_lower) return (row, column) => part[row * found.size + column] / UNITS;
      return (row, column) => (column > row ? 0 : part[(row * (row + 1)) / 2 + column] / UNITS);
    }

    function paint(canvas, found, share, cell) {
      const size = found.size * cell;
      if (canvas.width !== size) canvas.width = canvas.height = size;
      const pen = canvas.getContext("2d");
      const shade = colour("shade");
      pen.clearRect(0, 0, size, size);
      for (let row = 0; row < found.size; row += 1) {
        for (let column = 0; column < found.size; column += 1) {
          const here = share(row, column);
          if (!here) continue;
          pen.fillStyle = `rgba(${shade}, ${strength(here)})`;
          pen.fillRect(column * cell, row * cell, cell, cell);
        }
      }
      return pen;
    }

    // --- one matrix -----------------------------------------------------------------------------

    function labels(parent, name, pieces) {
      const made = element(parent, "div", { class: name });
      pieces.forEach((piece, at) => {
        element(made, "span", { "data-at": at, title: piece }, piece);
      });
    }

    function drawMatrix(place, share, title) {
      const found = text();
      const { scrollLeft, scrollTop } = place;
      place.replaceChildren();
      const inner = element(place, "div", { class: "inner" });
      element(inner, "div", { class: "corner" });
      labels(inner, "columns", found.pieces);
      labels(inner, "rows", found.pieces);
      const canvas = element(inner, "canvas");
      const room = place.clientWidth - inner.querySelector(".rows").offsetWidth - 4;
      const cell = Math.max(SMALLEST, Math.min(LARGEST, Math.floor(room / found.size)));
      const sharp = Math.max(1, Math.round(devicePixelRatio));
      place.style.setProperty("--cell", `${cell}px`);
      const pen = paint(canvas, found, share, cell * sharp);
      canvas.style.width = canvas.style.height = `${found.size * cell}px`;
      pen.strokeStyle = colour("series-1");
      pen.lineWidth = 1.5 * sharp;
      const [at, wide] = [chosen.token * cell * sharp, found.size * cell * sharp];
      pen.strokeRect(1, at + 1, wide - 2, cell * sharp - 2);
      pen.strokeRect(at + 1, 1, cell * sharp - 2, wide - 2);
      for (const each of inner.querySelectorAll("span")) {
        each.classList.toggle("is-chosen", Number(each.dataset.at) === chosen.token);
      }
      place.scrollTo(scrollLeft, scrollTop);
      bringToSight(place, cell);
      place.setAttribute("aria-label", `${title}. ${describe(found, share, "from")} Arrow keys move.`);

      const named = place.parentElement.querySelector(".cell");
      const name = (row, column) => {
        named.textContent = `${found.pieces[row]} → ${found.pieces[column]}: ${percent(share(row, column))}`;
      };
      name(chosen.token, strongest(found, share, "from")[0]?.at ?? chosen.token);
      const under = ({ offsetX, offsetY }) => [offsetY, offsetX]
        .map((each) => Math.max(0, Math.min(found.size - 1, Math.floor(each / cell))));
      canvas.addEventListener("pointermove", (event) => name(...under(event)));
      canvas.addEventListener("click", (event) => {
        const [row, column] = under(event);
        choose({ token: row });
        name(row, column);
      });
    }

    /** Scroll a matrix so far that the row and the column of the chosen token are in it. */
    function bringToSight(place, cell) {
      const at = chosen.token * cell;
      const [columns, rows] = [".columns", ".rows"].map((each) => place.querySelector(each));
      const below = at + cell + columns.offsetHeight - place.clientHeight;
      const beyond = at + cell + rows.offsetWidth - place.clientWidth;
      place.scrollTop = Math.min(at, Math.max(place.scrollTop, below));
      place.scrollLeft = Math.min(at, Math.max(place.scrollLeft, beyond));
    }

    for (const place of box.querySelectorAll(".matrix")) {
      place.addEventListener("click", ({ target }) => {
        if (target.dataset.at) choose({ token: Number(target.dataset.at) });
      });
      place.addEventListener("keydown", (event) => {
        const step = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[event.key];
        if (!step) return;
        event.preventDefault();
        const next = chosen.token + step;
        if (next >= 0 && next < text().size) choose({ token: next });
      });
    }

    // --- words ----------------------------------------------------------------------------------

    /** Return the share of each token with the chosen one: where it looks, or who looks at it. */
    function shares(found, share, way) {
      return found.pieces.map((piece, at) => ({
        piece, at, share: way === "from" ? share(chosen.token, at) : share(at, chosen.token),
      }));
    }

    function strongest(found, share, way) {
      return shares(found, share, way).filter((each) => each.share)
        .sort((one, other) => other.share - one.share || one.at - other.at).slice(0, MOST_NAMED);
    }

    function describe(found, share, way) {
      const named = strongest(found, share, way)
        .map((each) => `${each.piece} ${percent(each.share)}`).join(" · ");
      const token = found.pieces[chosen.token];
      if (way === "from") return `${token} looks at: ${named}.`;
      return named ? `${token} gets of the attention of: ${named}.` : `Nobody looks at ${token}.`;
    }

    function drawWords(found, share) {
      const place = find(".pieces");
      if (place.children.length !== found.size || place.dataset.of !== String(chosen.text)) {
        place.replaceChildren();
        place.dataset.of = chosen.text;
        for (const piece of found.pieces) element(place, "button", { type: "button" }, piece);
      }
      shares(found, share, chosen.way).forEach(({ at, share: here }) => {
        const button = place.children[at];
        const strong = STRONGEST_BEHIND_TEXT * strength(here);
        button.style.backgroundColor = `rgba(var(--shade), ${strong})`;
        button.title = percent(here);
        button.tabIndex = at === chosen.token ? 0 : -1;
        button.setAttribute("aria-pressed", String(at === chosen.token));
      });
      find(".said").textContent = describe(found, share, chosen.way);
    }

    // --- all heads ------------------------------------------------------------------------------

    function drawHeads(found) {
      const place = find(".heads");
      place.style.setProperty("--across", across);
      if (!place.children.length) {
        for (let block = 0; block < blocks; block += 1) {
          element(place, "span", {}, block);
          for (let head = 0; head < across; head += 1) {
            const button = element(place, "button", { type: "button", title: `block ${block}, head ${head}` });
            element(button, "span", { class: "hidden" }, `block ${block}, head ${head}`);
            element(button, "canvas");
          }
        }
      }
      place.querySelectorAll("button").forEach((button, at) => {
        const [block, head] = [Math.floor(at / across), at % across];
        const canvas = button.querySelector("canvas");
        paint(canvas, found, matrix(found, block, head), 1);
        // A line of one pixel would get lost where a picture is made smaller by leaving out some.
        canvas.style.imageRendering = found.size > SMALL ? "auto" : "pixelated";
      });
    }

    function markHead() {
      find(".heads").querySelectorAll("button").forEach((button, at) => {
        const isChosen = at === chosen.block * across + chosen.head;
        button.tabIndex = isChosen ? 0 : -1;
        button.setAttribute("aria-pressed", String(isChosen));
      });
    }

    function facts() {
      const found = heads[chosen.block * across + chosen.head];
      const words = Object.keys(kinds).filter((kind) => found[kind])
        .sort((one, other) => found[other] - found[one])
        .map((kind) => `${percent(found[kind])} at ${kinds[kind]}`).join(", ");
      return `Over all texts head ${found.head} of block ${found.block} looks ${words}; `
        + `${found.distance.toFixed(1)} tokens away, with an entropy of ${found.entropy.toFixed(2)} nats.`;
    }

    // --- choosing -------------------------------------------------------------------------------

    function draw(changed) {
      const found = text();
      const share = matrix(found, chosen.block, chosen.head);
      const { block, head } = chosen;
      find(".of-text").value = chosen.text;
      find(".of-block").value = block;
      find(".of-head").value = head;
      find(".cut").textContent = found.tokens > found.size
        ? `Cut: the model reads ${found.size} of its ${found.tokens} tokens here.` : "";
      find(".cut").hidden = !find(".cut").textContent;
      for (const button of box.querySelectorAll("[data-way]")) {
        button.setAttribute("aria-pressed", String(button.dataset.way === chosen.way));
      }
      drawWords(found, share);
      find(".chosen").textContent = `Block ${block}, head ${head}`;
      find(".rolled").textContent = block ? `Rollout of blocks 0 to ${block}` : "Rollout of block 0";
      drawMatrix(find(".of-head-map"), share, find(".chosen").textContent);
      drawMatrix(find(".of-rollout"), matrix(found, block), find(".rolled").textContent);
      if ("text" in changed) drawHeads(found);
      markHead();
      find(".facts").textContent = facts();
    }

    function choose(changed) {
      Object.assign(chosen, changed);
      chosen.token = Math.min(chosen.token, text().size - 1);
      draw(changed);
    }

    const fill = (selector, amount, key) => {
      for (let at = 0; at < amount; at += 1) element(find(selector), "option", { value: at }, at);
      find(selector).addEventListener("change", ({ target }) => choose({ [key]: Number(target.value) }));
    };
    fill(".of-block", blocks, "block");
    fill(".of-head", across, "head");
    fill(".of-text", 0, "text");
    for (const button of box.querySelectorAll("[data-way]")) {
      button.addEventListener("click", () => choose({ way: button.dataset.way }));
    }
    const ofHead = (at) => choose({ block: Math.floor(at / across), head: at % across });
    for (const [selector, columns, pick] of [
      [".pieces", () => 1, (at) => choose({ token: at })],
      [".heads", () => across, ofHead],
    ]) {
      moveByArrowKeys(find(selector), columns, pick);
      find(selector).addEventListener("click", ({ target }) => {
        const button = target.closest("button");
        if (button) pick([...find(selector).querySelectorAll("button")].indexOf(button));
      });
    }

    for (const share of SCALE) {
      const step = element(find(".scale"), "span", {}, percent(share));
      step.style.setProperty("--share", strength(share));
    }
    choose({ text: 0, ...start, token: Math.floor(text().size / 2) });
    const again = () => draw({ text: chosen.text });
    new MutationObserver(again).observe(root, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    let width = box.clientWidth;
    new ResizeObserver(() => {
      if (box.clientWidth === width) return;
      width = box.clientWidth;
      requestAnimationFrame(() => draw({}));
    }).observe(box);
  }

  document.querySelectorAll(".attention").forEach(showAttention);
})();
