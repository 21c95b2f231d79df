"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const facts = JSON.parse(byId("facts").textContent);
  const space = byId("space").namespaceURI;
  const hidden = new Set((facts.starts ?? []).filter((start) => start.off).map((start) => start.name));
  const W = 480, H = 320, LEFT = 50, RIGHT = 470, TOP = 26, BOTTOM = 280;

  // Text reaches the page through append and textContent alone, never as HTML.
  const fill = (made, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
    made.append(...children);
    return made;
  };
  const tag = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
  const shape = (name, attributes, ...children) => fill(document.createElementNS(space, name), attributes, children);
  const fixed = (value, digits = 4) => (value === null ? "" : value.toFixed(digits));
  const spread = (cell) => fixed(cell.mean) + (cell.sd === null ? "" : " ± " + fixed(cell.sd));
  const broken = (value) => typeof value === "number" && !Number.isInteger(value);
  const brief = (value) => String(broken(value) ? Number(value.toPrecision(4)) : value ?? "");
  const several = (count, word) => count + " " + word + (count === 1 ? "" : "s");

  const chosen = (id, all) => (byId(id).value === "all" ? all : all.filter((each) => each === byId(id).value));
  const nets = () => chosen("net", facts.architectures);
  const rates = () => chosen("rate", facts.rates);
  const timed = () => byId("across").value === "seconds";
  const cut = () => byId("scale").value === "ends";
  const logarithmic = () => byId("scale").value === "error";
  const find = (net, start, rate) =>
    facts.cells.find((cell) => cell.net === net && cell.start === start && cell.rate === rate);

  // A table that is wider than its box says so, and can be scrolled with the keyboard.
  const scrolling = { tabindex: 0, role: "region", "aria-label": "Table that scrolls sideways" };
  const watch = new ResizeObserver((entries) => requestAnimationFrame(() => {
    for (const { target } of entries)
      if (target.scrollWidth > target.clientWidth) fill(target, scrolling, []);
      else for (const name of Object.keys(scrolling)) target.removeAttribute(name);
  }));

  // `groups`: for each row the title of its group, if rows have groups.
  function grid(title, head, rows, texts = [], groups = []) {
    const kind = (name) => ({ scope: "col", ...(texts.includes(name) ? { class: "text" } : {}) });
    const heads = tag("tr", {}, ...head.map((name) => tag("th", kind(name), name)));
    const bodies = [];
    rows.forEach(([name, ...cells], index) => {
      if (!index || groups[index] !== groups[index - 1]) bodies.push(tag("tbody", {}, ...group(groups[index], head.length)));
      bodies.at(-1).append(tag("tr", {}, tag("th", { scope: "row" }, name), ...cells));
    });
    const caption = title ? [tag("caption", {}, tag("span", {}, title))] : [];
    const made = tag("div", { class: "scroll" }, tag("table", {}, ...caption, tag("thead", {}, heads), ...bodies));
    watch.observe(made);
    return made;
  }

  const group = (title, width) => (title === undefined ? []
    : [tag("tr", { class: "group" }, tag("th", { scope: "rowgroup", colspan: width }, tag("span", {}, title)))]);

  // Every cell of a table with figures of the paper has space for one, so that figures are aligned.
  function entry(cell, top, most, beside) {
    if (!cell) return tag("td", {});
    const told = spread(cell), made = tag("td", { title: several(cell.n, "seed") });
    made.append(cell.mean === top ? tag("strong", {}, told) : told);
    if (cell.n < most) made.append(tag("small", {}, " (" + several(cell.n, "seed") + ")"));
    if (beside && cell.paper !== null) made.append(" ");
    if (beside) made.append(tag("span", { class: "paper" }, cell.paper === null ? "" : "[" + cell.paper + "]"));
    return made;
  }

  // One row for each start, since there are many, and one column for each architecture. `seen` is what is shown of a cell.
  function accuracies(title, rate, starts, phases, seen = (cell) => cell) {
    const most = Math.max(...facts.cells.map((cell) => cell.n));
    const alone = (name) => nets().map((net) => facts.alone.find((cell) => cell.net === net && cell.start === name));
    const trained = (name) => nets().map((net) => find(net, name, rate)).map((cell) => cell && seen(cell));
    const rows = [...phases.map((name) => [facts.phases[name], ...alone(name)]),
      ...starts.map((name) => [name, ...trained(name)])].filter(([, ...cells]) => cells.some(Boolean));
    const tops = nets().map((_, place) => Math.max(...rows.map((row) => row[place + 1]?.mean ?? -1)));
    const beside = rows.some(([, ...cells]) => cells.some((cell) => cell && cell.paper !== null));
    const told = (cell, place) => entry(cell, tops[place], most, beside);
    const shown = rows.map(([name, ...cells]) => [name, ...cells.map(told)]);
    return grid(title, ["Initial weights", ...nets()], shown);
  }

  // A network's time depends on its rate in nothing but noise: of equal starts, the first rate that has one.
  function seconds() {
    const some = (net, start) => facts.cells.find((cell) => cell.net === net && cell.start === start);
    const epochs = (cell) => cell.medians.length - 1, fewest = Math.min(...facts.cells.map(epochs));
    const told = (cell) => [...(epochs(cell) > fewest ? [tag("small", {}, several(epochs(cell), "epoch") + ", ")] : []),
      fixed(cell.start_seconds + epochs(cell) * cell.epoch_seconds, 2)];
    const cells = (name) => nets().map((net) => tag("td", {}, ...(some(net, name) ? told(some(net, name)) : [])));
    const rows = facts.starts.map(({ name }) => [name, ...cells(name)]);
    byId("seconds").replaceChildren(grid(several(fewest, "epoch"), ["Initial weights", ...nets()], rows));
  }

  function tables() {
    const literal = rates().filter((rate) =>
      facts.cells.some((cell) => cell.rate === rate && facts.literal.includes(cell.start)));
    byId("tables").replaceChildren(
      ...rates().map((rate) => accuracies("Rate " + rate, rate, facts.columns, Object.keys(facts.phases))),
      ...literal.map((rate) => accuracies("Rate " + rate + ", by stochastic gradients", rate, facts.literal, [])));
    const after = (cell) => cell.first && { ...cell, ...cell.first, paper: null };
    byId("first").replaceChildren(...rates().map((rate) => accuracies("Rate " + rate, rate, facts.early, [], after)));
  }

  // Round numbers, about five of them, that lie between two values.
  function ticks(low, high, least = 0) {
    const raw = (high - low) / 5, power = 10 ** Math.floor(Math.log10(raw));
    const step = Math.max(least, power * [1, 2, 5, 10].find((each) => each * power >= raw * 0.999));
    const first = Math.ceil(low / step - 1e-9), count = Math.floor(high / step + 1e-9) - first + 1;
    return Array.from({ length: count }, (_, place) => Number(((first + place) * step).toPrecision(8)));
  }

  function points(cell) {
    return cell.medians.map((median, epoch) => {
      const seconds = cell.start_seconds + epoch * cell.epoch_seconds;
      return { cell, epoch, seconds, median, low: cell.lows[epoch], high: cell.highs[epoch], x: timed() ? seconds : epoch };
    });
  }

  // The ends take the upper half: what is far below them, as most first guesses are, would press them together.
  function floor(lines) {
    const ends = lines.flatMap(({ seen }) => seen.slice(-1)).map((point) => point.median), low = Math.min(...ends);
    return low - Math.max(0.02, Math.max(...ends) - low);
  }

  function scales(lines) {
    const all = lines.flatMap(({ seen }) => seen);
    const far = Math.max(...all.map((point) => point.x)) || 1;
    const low = Math.max(0, Math.min(...all.map((point) => point.low)), cut() ? floor(lines) : 0);
    // Where all are right, an error of one in 10,000 is as near to none as a logarithm gets.
    const most = logarithmic() ? 0.9999 : 1;
    const high = Math.max(low + 0.01, Math.min(most, Math.max(...all.map((point) => point.high))));
    const level = (value) => (logarithmic() ? -Math.log(1 - Math.min(value, most)) : value);
    return {
      far, low, high,
      x: (value) => LEFT + (value / far) * (RIGHT - LEFT),
      y: (value) => BOTTOM - ((level(value) - level(low)) / (level(high) - level(low))) * (BOTTOM - TOP),
    };
  }

  // Accuracies to mark, and what stands there: themselves, or the errors 1, 0.5, 0.2, 0.1, 0.05 and so on.
  function levels(scale) {
    if (!logarithmic()) return ticks(scale.low, scale.high).map((value) => [value, brief(value)]);
    const errors = [0, 1, 2, 3, 4].flatMap((power) => [1, 0.5, 0.2].map((each) => each * 10 ** -power));
    const within = errors.filter((error) => 1 - error >= scale.low - 1e-9 && 1 - error <= scale.high + 1e-9);
    return within.map((error) => [1 - error, brief(error)]);
  }

  function axes(drawing, scale) {
    for (const [value, told] of levels(scale)) {
      const y = scale.y(value);
      drawing.append(shape("line", { class: "grid", x1: LEFT, x2: RIGHT, y1: y, y2: y }),
        shape("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, told));
    }
    for (const value of ticks(0, scale.far, timed() ? 0 : 1)) {
      const x = scale.x(value);
      drawing.append(shape("line", { class: "grid", x1: x, x2: x, y1: TOP, y2: BOTTOM }),
        shape("text", { x, y: BOTTOM + 16, "text-anchor": "middle" }, brief(value)));
    }
  }

  const stroke = (start) => ({
    fill: "none", stroke: start.colour,
    "stroke-dasharray": start.dash || "none", "stroke-width": start.heavy ? 2.4 : 1.4,
  });

  function line(start, seen, scale) {
    const at = (key) => seen.map((point) => scale.x(point.x).toFixed(1) + "," + scale.y(point[key]).toFixed(1));
    const band = [...at("high"), ...at("low").reverse()].join(" ");
    return [shape("polygon", { points: band, fill: start.colour, "fill-opacity": 0.15 }),
      shape("polyline", { points: at("median").join(" "), ...stroke(start) })];
  }

  function panel(net, rate) {
    const title = net + ", rate " + rate, label = timed() ? "seconds" : "epoch";
    const drawing = shape("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Test accuracy of " + title });
    drawing.append(shape("text", { x: LEFT, y: 16, class: "title" }, title));
    const shown = facts.starts.filter((start) => !hidden.has(start.name) && find(net, start.name, rate));
    const lines = shown.map((start) => ({ start, seen: points(find(net, start.name, rate)) }));
    const all = lines.flatMap((each) => each.seen);
    if (!all.length) {
      drawing.append(shape("text", { x: W / 2, y: H / 2, "text-anchor": "middle" }, "nothing to show"));
      return drawing;
    }
    const scale = scales(lines);
    axes(drawing, scale);
    drawing.append(shape("text", { x: (LEFT + RIGHT) / 2, y: H - 6, "text-anchor": "middle" }, label));
    const curves = new Map(lines.map(({ start, seen }) => [start.name, line(start, seen, scale)]));
    // A drawing in the drawing, which ends at its edges: what lies outside the scale is not shown.
    const [width, height] = [RIGHT - LEFT, BOTTOM - TOP];
    const inner = { x: LEFT, y: TOP, width, height, viewBox: `${LEFT} ${TOP} ${width} ${height}` };
    drawing.append(shape("svg", inner, ...[...curves.values()].flat()));
    hover(drawing, all.filter((point) => point.median >= scale.low), scale, curves);
    return drawing;
  }

  function hover(drawing, all, scale, curves) {
    const mark = shape("circle", { r: 4, class: "mark", visibility: "hidden" });
    drawing.append(mark);
    const stress = (chosen) => {
      for (const [name, parts] of curves)
        for (const part of parts) part.setAttribute("opacity", chosen === null || chosen === name ? 1 : 0.25);
    };
    const leave = () => {
      byId("tip").hidden = true;
      mark.setAttribute("visibility", "hidden");
      stress(null);
    };
    const move = (event) => {
      const box = drawing.getBoundingClientRect(), unit = W / box.width;
      const x = (event.clientX - box.left) * unit, y = (event.clientY - box.top) * unit;
      const far = (point) => Math.hypot(scale.x(point.x) - x, scale.y(point.median) - y);
      const near = all.reduce((best, point) => (far(point) < far(best) ? point : best));
      if (far(near) > 40) return leave();
      fill(mark, { cx: scale.x(near.x), cy: scale.y(near.median), visibility: "visible" }, []);
      stress(near.cell.start);
      tell(near, event);
    };
    drawing.addEventListener("pointermove", move);
    drawing.addEventListener("pointerdown", move);
    drawing.addEventListener("pointerleave", leave);
  }

  function tell(point, event) {
    const tip = byId("tip"), seeds = several(point.cell.n, "seed");
    const range = point.cell.n > 1 ? `${fixed(point.low)} to ${fixed(point.high)} (${seeds})` : seeds;
    tip.textContent = [point.cell.start, `epoch ${point.epoch}, ${brief(point.seconds)} s`,
      `median accuracy ${fixed(point.median)}`, range].join("\n");
    tip.hidden = false;
    const right = window.innerWidth - tip.offsetWidth - 8;
    tip.style.left = Math.max(0, Math.min(event.clientX + 14, right)) + "px";
    tip.style.top = Math.max(0, event.clientY - tip.offsetHeight - 10) + "px";
  }

  function picture() {
    byId("tip").hidden = true;
    byId("measure").textContent = logarithmic() ? "Test error" : "Test accuracy";
    byId("axis").textContent = timed() ? "seconds" : "epochs";
    byId("figure").replaceChildren(...nets().flatMap((net) => rates().map((rate) => panel(net, rate))));
  }

  function legend() {
    byId("legend").append(...facts.starts.map((start) => {
      const sample = shape("svg", { width: 34, height: 10, "aria-hidden": "true" });
      sample.append(shape("line", { x1: 0, x2: 34, y1: 5, y2: 5, ...stroke(start) }));
      const button = tag("button", { type: "button", "aria-pressed": !hidden.has(start.name) }, sample, start.name);
      button.addEventListener("click", () => {
        if (!hidden.delete(start.name)) hidden.add(start.name);
        button.setAttribute("aria-pressed", String(!hidden.has(start.name)));
        picture();
      });
      return button;
    }));
  }

  // Rows that need not have the same fields: a blank where one is missing.
  function records(title, rows, bold = () => false) {
    if (!rows.length) return tag("p", {}, "None is stored.");
    const head = [...new Set(rows.flatMap(Object.keys))].filter((name) => name !== "best");
    const texts = head.filter((name) => rows.some((row) => typeof row[name] === "string"));
    const cell = (row, name) => tag("td", texts.includes(name) ? { class: "text" } : {},
      bold(row, name) ? tag("strong", {}, brief(row[name])) : brief(row[name]));
    const lines = rows.map((row) => [brief(row[head[0]]), ...head.slice(1).map((name) => cell(row, name))]);
    const words = (names) => names.map((name) => name.replaceAll("_", " "));
    return grid(title, words(head), lines, words(texts));
  }

  function details() {
    const own = (rows) => rows.filter((row) => nets().includes(row.architecture));
    const best = (row, name) => row.best.includes(name);
    byId("settings").replaceChildren(records("By architecture and start", own(facts.settings)));
    byId("trials").replaceChildren(records("In the order in which they were run", own(facts.trials), best));
  }

  // Texts and tables of other commands, as they were rendered: two stars around a cell make it bold.
  const wordy = (text) => /[a-z]{2}/i.test(text);
  const plain = (text) => text.replace(/^\*\*(.*)\*\*$/, "$1");
  function printed(text, name, columns) {
    if (name === "verdict") return tag("td", { class: "verdict text" }, tag("span", { class: text }, text));
    const made = tag("td", columns.includes(name) ? { class: "text" } : {});
    made.append(plain(text) === text ? text : tag("strong", {}, plain(text)));
    return made;
  }

  function copied({ head, rows, groups }) {
    const texts = head.filter((_, column) => rows.some((row) => wordy(row[column])));
    return grid("", head, rows.map(([name, ...rest]) => [name, ...rest.map((text, at) => printed(text, head[at + 1], texts))]),
      texts, groups);
  }

  // In a document with verdicts, a table without them is a detail.
  function blocks(all, id) {
    const judged = all.some(({ head }) => head?.includes("verdict"));
    const table = (block) => (judged && !block.head.includes("verdict")
      ? tag("details", {}, tag("summary", {}, "Show the table"), copied(block)) : copied(block));
    return all.map((block, number) => (block.heading ? tag("h4", { id: id + "-" + number }, block.heading)
      : block.text ? tag("p", {}, block.text) : table(block)));
  }

  const link = (id, text) => tag("a", { href: "#" + id }, text);
  function others(documents) {
    const id = (number) => "document-" + number;
    for (const part of ["elsewhere", "contents-others"]) byId(part).hidden = !documents.length;
    byId("others").append(...documents.flatMap(({ title, blocks: all }, number) =>
      [tag("h3", { id: id(number) }, title), ...blocks(all, id(number))]));
    byId("contents-others").append(...documents.map(({ title }, number) =>
      tag("li", {}, link(id(number), title.split(":")[0]))));
  }

  // The bar shows what the words beside it say.
  const outcomes = ["leads", "even", "loses"];
  function verdict(line) {
    const total = outcomes.reduce((sum, name) => sum + line[name], 0);
    const part = (name) => tag("span", { class: name, style: "flex-grow:" + line[name] }, String(line[name]));
    const bar = tag("div", { class: "bar", "aria-hidden": "true" }, ...outcomes.filter((name) => line[name]).map(part));
    const [first, ...rest] = outcomes.filter((name) => line[name]).map((name) => name + " in " + line[name]);
    const words = tag("span", {}, [first + " of " + total, ...rest].join(", "));
    return tag("li", {}, link(line.at, line.title), " ", words, bar, tag("small", {}, line.largest));
  }

  function verdicts(parts) {
    byId("summary").hidden = !parts.length;
    byId("rule").textContent = "How networks that start from lifted weights compare with the best of the other initial weights. " +
      `They lead or lose where the difference is more than ${facts.threshold} standard deviations; otherwise they are even. ` +
      "In brackets: the difference in standard deviations.";
    byId("verdicts").append(...parts.flatMap(({ source, text, lines }) => [tag("h3", {}, source),
      ...(text ? [tag("p", {}, text)] : []), tag("ul", {}, ...lines.map(verdict))]));
  }

  function options(id, names, first) {
    byId(id).append(...["all", ...names].map((name) => tag("option", { value: name }, name)));
    byId(id).value = first;
  }

  function about() {
    const count = facts.cells.reduce((sum, cell) => sum + cell.n, 0);
    const paper = [...facts.cells, ...facts.alone].some((cell) => cell.paper !== null);
    byId("about").textContent =
      `Run ${facts.run}: ${several(count, "standard network")} in ${several(facts.architectures.length, "architecture")}, ` +
      `trained at ${several(facts.rates.length, "rate")} from ${several(facts.starts.length, "kind")} of initial weights.`;
    byId("reading").textContent = "After the last epoch: mean ± standard deviation over seeds, the best of a column in bold" +
      (paper ? ", the paper's figure in brackets. " : ". ") +
      Object.values(facts.phases).join(" and ") + ": the lifted phase with no epoch after it.";
  }

  function table1() {
    about();
    options("net", facts.architectures, "all");
    options("rate", facts.rates, facts.rates[0]);
    legend();
    byId("key").open = window.innerWidth >= 800;
    byId("versions").append(records("", facts.versions));
    if (Object.keys(facts.plan).length) byId("versions").append(records("Plan", [facts.plan]));
    const draw = () => { tables(); seconds(); details(); picture(); };
    for (const id of ["net", "rate", "across", "scale"]) byId(id).addEventListener("change", draw);
    draw();
  }

  others(facts.others ?? []);
  verdicts(facts.verdicts ?? []);
  if (facts.cells) table1();
  else for (const id of ["own", "contents-own"]) byId(id).hidden = true;
})();
