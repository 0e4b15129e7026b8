"use strict";
const $ = (id) => document.getElementById(id);

// ---- data, unpacked when it is first asked for
let unpacked = null;
function data() {
  if (!unpacked) {
    const bytes = Uint8Array.from(atob($("data").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    unpacked = new Response(stream).json();
  }
  return unpacked;
}

// ---- tabs
const tabs = [...document.querySelectorAll(".tabs [role=tab]")];
function openTab(tab, focus) {
  for (const each of tabs) {
    const chosen = each === tab;
    each.setAttribute("aria-selected", chosen);
    each.tabIndex = chosen ? 0 : -1;
    $(each.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (focus) tab.focus();
  if (tab.id === "tab-graph") requestAnimationFrame(apply);
}
tabs.forEach((tab, at) => {
  tab.addEventListener("click", () => openTab(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) openTab(tabs[(at + step + tabs.length) % tabs.length], true);
  });
});

// ---- the graph: moved and scaled as a whole
const svg = $("graph-svg"), view = $("view");
const size = { width: +svg.dataset.width, height: +svg.dataset.height };
let at = { x: 0, y: 0, scale: 1 };
function apply() {
  view.setAttribute("transform", `translate(${at.x} ${at.y}) scale(${at.scale})`);
  requestAnimationFrame(label);
}
// Boxes of large graphs get their text when they come into view: laying out text takes longest.
const READABLE = 0.2, LABEL = 26;
let bare = [...svg.querySelectorAll(".box")].filter((box) => box.childElementCount === 1).map((box) => {
  const [x, y] = box.getAttribute("transform").match(/-?\d+/g).map(Number);
  return { box, x, y, width: +box.firstElementChild.getAttribute("width") };
});
function label() {
  if (!bare.length || at.scale < READABLE) return;
  const frame = svg.getBoundingClientRect();
  bare = bare.filter(({ box, x, y, width }) => {
    const left = at.x + x * at.scale, top = at.y + y * at.scale, reach = width * at.scale;
    if (left > frame.width || top > frame.height || left + reach < 0 || top + reach < 0) return true;
    const told = box.getAttribute("aria-label"), cut = told.lastIndexOf(": ");
    const name = told.slice(0, cut);
    write(box, name.length > LABEL ? `${name.slice(0, LABEL - 1)}…` : name, width / 2, 18, "");
    write(box, told.slice(cut + 2), width / 2, 35, "small");
    return false;
  });
}
function write(box, text, x, y, kind) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "text");
  made.textContent = text;
  for (const [key, value] of Object.entries({ x, y, class: kind })) made.setAttribute(key, value);
  box.appendChild(made);
}
function place(scale) {
  const box = svg.getBoundingClientRect();
  at.scale = Math.min(1, Math.max(0.01, scale(box)));
  at.x = (box.width - size.width * at.scale) / 2;
  at.y = Math.max(0, (box.height - size.height * at.scale) / 2);
  apply();
}
const fit = () => place((box) => Math.min(box.width / size.width, box.height / size.height));
// At first as wide as the frame, from the top, and large enough to read.
const begin = () => place((box) => Math.max(0.45, box.width / size.width));
function zoom(factor, x, y) {
  const box = svg.getBoundingClientRect();
  x = x === undefined ? box.width / 2 : x;
  y = y === undefined ? box.height / 2 : y;
  const scale = Math.min(4, Math.max(0.01, at.scale * factor));
  at.x = x - ((x - at.x) * scale) / at.scale;
  at.y = y - ((y - at.y) * scale) / at.scale;
  at.scale = scale;
  apply();
}
svg.addEventListener("wheel", (event) => {
  event.preventDefault();
  const box = svg.getBoundingClientRect();
  zoom(Math.exp(-event.deltaY / 400), event.clientX - box.left, event.clientY - box.top);
}, { passive: false });
const pointers = new Map();
let moved = 0;
svg.addEventListener("pointerdown", (event) => {
  pointers.set(event.pointerId, event);
  if (pointers.size === 1) moved = 0;
});
window.addEventListener("pointermove", (event) => {
  const before = pointers.get(event.pointerId);
  if (!before) return;
  if (pointers.size === 1) {
    at.x += event.clientX - before.clientX;
    at.y += event.clientY - before.clientY;
    moved += Math.abs(event.clientX - before.clientX) + Math.abs(event.clientY - before.clientY);
    apply();
  } else {
    const [a, b] = [...pointers.values()];
    const other = a.pointerId === event.pointerId ? b : a;
    const far = (p) => Math.hypot(p.clientX - other.clientX, p.clientY - other.clientY);
    const box = svg.getBoundingClientRect();
    zoom(far(event) / (far(before) || 1), other.clientX - box.left, other.clientY - box.top);
    moved = 99;
  }
  pointers.set(event.pointerId, event);
});
for (const name of ["pointerup", "pointercancel"])
  window.addEventListener(name, (event) => pointers.delete(event.pointerId));
$("zoom-in").addEventListener("click", () => zoom(1.4));
$("zoom-out").addEventListener("click", () => zoom(1 / 1.4));
$("fit").addEventListener("click", fit);
svg.addEventListener("keydown", (event) => {
  const step = 60;
  const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
  if (moves[event.key]) {
    at.x += moves[event.key][0];
    at.y += moves[event.key][1];
    apply();
  } else if (event.key === "+" || event.key === "=") zoom(1.4);
  else if (event.key === "-") zoom(1 / 1.4);
  else if (event.key === "0") fit();
  else return;
  event.preventDefault();
});

// A box that the keyboard reaches comes into view.
function reveal(box) {
  const where = box.getBoundingClientRect(), frame = svg.getBoundingClientRect();
  if (where.left < frame.left || where.right > frame.right || where.top < frame.top || where.bottom > frame.bottom) {
    at.x += frame.left + frame.width / 2 - (where.left + where.width / 2);
    at.y += frame.top + frame.height / 2 - (where.top + where.height / 2);
    apply();
  }
  svg.scrollLeft = svg.scrollTop = 0;
}
svg.addEventListener("focusin", (event) => {
  const box = event.target.closest(".box");
  if (box && box.matches(":focus-visible")) reveal(box);
});
svg.addEventListener("click", (event) => {
  const box = event.target.closest(".box");
  if (box && moved < 6) choose(+box.id.slice(4));
});
svg.addEventListener("keydown", (event) => {
  const box = event.target.closest(".box");
  if (box && (event.key === "Enter" || event.key === " ")) {
    event.preventDefault();
    choose(+box.id.slice(4), true);
  }
});
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#box-"], a[*|href^="#box-"]');
  if (!link) return;
  event.preventDefault();
  const target = link.getAttribute("href") || link.getAttributeNS("http://www.w3.org/1999/xlink", "href");
  choose(+target.slice(5), true);
});

// ---- finding
$("find").addEventListener("input", async (event) => {
  const wanted = event.target.value.trim().toLowerCase();
  const all = (await data()).boxes;
  let first = null, count = 0;
  all.forEach((box, index) => {
    const text = [box.label, ...box.nodes, ...box.kernels].join(" ").toLowerCase();
    const hit = !wanted || text.includes(wanted);
    $(`box-${index}`).classList.toggle("miss", !hit);
    if (hit && wanted) {
      count += 1;
      first = first || $(`box-${index}`);
    }
  });
  $("found").textContent = wanted ? `${count} found` : "";
  if (first) reveal(first);
});

// ---- one kernel
const TITLES = { graph: "Graph", loops: "Loop IR", scheduled: "Scheduled", lowered: "Lowered", llvm: "LLVM", assembly: "Assembly" };
function make(tag, text, parent, attributes) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (parent) parent.appendChild(made);
  return made;
}
function row(table, name, text) {
  if (!text) return;
  const made = make("tr", undefined, table);
  make("th", name, made, { scope: "row" });
  make("td", text, made);
}
const number = (value) => value.toLocaleString("en", { maximumSignificantDigits: 3 });
async function choose(index, focus) {
  const all = await data();
  const box = all.boxes[index], detail = $("detail");
  document.querySelectorAll(".box.chosen").forEach((each) => each.classList.remove("chosen"));
  $(`box-${index}`).classList.add("chosen");
  detail.replaceChildren();
  make("h2", box.label, detail);
  const table = make("table", undefined, detail);
  row(table, "kind", box.kind);
  if (box.ns) {
    row(table, "measured", `${number(box.ns / 1e3)} µs, ${number((100 * box.ns) / all.total)}% of all kernels`);
    const speed = box.flops / box.ns, rate = box.bytes / box.ns;
    row(table, "speed", `${number(speed)} GFLOP/s, ${number(rate)} GB/s`);
    const intensity = box.flops / box.bytes;
    const roof = Math.min(all.peak.gflops, intensity * all.peak.gbytes);
    if (box.flops && box.bytes)
      row(table, "roofline", `${number(intensity)} operations per byte; ${number((100 * speed) / roof)}% of ${number(roof)} GFLOP/s`);
  }
  row(table, "gives", box.outputs.join(", "));
  row(table, "operators", box.ops.join(", "));
  row(table, "nodes of the model", box.nodes.join(", "));
  for (const name of box.kernels) showKernel(name, all.kernels[name], detail, box);
  if (focus) detail.focus();
  if (matchMedia("(max-width: 860px)").matches) detail.scrollIntoView({ behavior: "smooth" });
}
function showKernel(name, kernel, detail, box) {
  if (!kernel) return;
  make("h3", name, detail);
  const table = make("table", undefined, detail);
  let predicted = 0;
  for (const one of kernel.decisions) {
    row(table, `rule for ${one.block}`, `${one.rule}${one.plan ? `: ${one.plan}` : ""}`);
    predicted += one.predicted_ns || 0;
  }
  if (predicted > 0) row(table, "predicted", `${number(predicted / 1e3)} µs`);
  const bar = make("div", undefined, detail, { role: "tablist", class: "stages", "aria-label": `stages of ${name}` });
  const text = make("pre", "", detail, { tabindex: 0, role: "tabpanel", "aria-label": `program of ${name}` });
  const buttons = Object.keys(TITLES).filter((stage) => kernel.texts[stage]).map((stage) => {
    const button = make("button", TITLES[stage], bar, { role: "tab", "data-stage": stage });
    button.addEventListener("click", () => {
      buttons.forEach((each) => each.setAttribute("aria-selected", each === button));
      text.textContent = kernel.texts[stage];
    });
    return button;
  });
  (buttons.find((each) => each.dataset.stage === "scheduled") || buttons[0]).click();
}

begin();
window.addEventListener("resize", begin);
