// A report's own script: sorts and filters tables, zooms and searches graphs.  The page is whole
// without it.  Sets attributes and moves elements; makes no markup of texts.
"use strict";

const number = (cell) => {
  const data = cell.querySelector("data");
  const value = data ? Number(data.value) : parseFloat(cell.textContent.replaceAll(",", ""));
  return Number.isNaN(value) ? null : value;
};

function compare(a, b, column, sign) {
  const [one, other] = [a.cells[column], b.cells[column]];
  const [x, y] = [number(one), number(other)];
  if (x !== null && y !== null) return sign * (x - y);
  if (x === null && y === null)
    return sign * one.textContent.trim().localeCompare(other.textContent.trim());
  return x === null ? 1 : -1; // what has no number comes last
}

function sortable(table) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    if (!head.textContent.trim()) return;
    head.tabIndex = 0;
    head.classList.add("sorts");
    const sort = () => {
      const state = { none: "descending", descending: "ascending" }[head.ariaSort ?? "none"];
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (state) head.setAttribute("aria-sort", state);
      const sign = state === "ascending" ? 1 : -1;
      const order = state ? [...rows].sort((a, b) => compare(a, b, column, sign)) : rows;
      body.append(...order);
      limit(table);
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
  });
}

function limit(table) {
  const tools = table.closest(".scroll").previousElementSibling;
  const word = tools.querySelector("input").value.toLowerCase();
  const most = Number(tools.querySelector("select").value) || Infinity;
  let shown = 0;
  for (const row of table.tBodies[0].rows) {
    row.hidden = !row.textContent.toLowerCase().includes(word) || shown >= most;
    shown += row.hidden ? 0 : 1;
  }
  tools.querySelector("output").textContent = `${shown} of ${table.tBodies[0].rows.length}`;
}

function searchable(tools) {
  tools.hidden = false;
  const graph = tools.nextElementSibling.querySelector("svg");
  const width = Number(graph.getAttribute("width"));
  let zoom = 1;
  const scale = (factor) => {
    zoom = factor === 0 ? 1 : Math.min(4, Math.max(0.1, zoom * factor));
    graph.style.width = `${width * zoom}px`;
    graph.style.height = "auto";
  };
  tools.querySelectorAll("button").forEach((button) => {
    button.addEventListener("click", () => scale(Number(button.value)));
  });
  tools.querySelector("input").addEventListener("input", (event) => {
    const word = event.target.value.toLowerCase();
    let first = null;
    for (const node of graph.querySelectorAll(".node")) {
      const found = word !== "" && node.textContent.toLowerCase().includes(word);
      node.classList.toggle("found", found);
      first ??= found ? node : null;
    }
    first?.scrollIntoView({ block: "center", inline: "center" });
  });
}

document.querySelectorAll(".tools.table").forEach((tools) => {
  tools.hidden = false;
  const table = tools.nextElementSibling.querySelector("table");
  sortable(table);
  tools.addEventListener("input", () => limit(table));
  limit(table);
});
document.querySelectorAll(".tools.of-graph").forEach(searchable);
