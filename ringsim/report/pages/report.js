// Tables that a click on a heading sorts, and #sort=TABLE:COLUMN or #sort=TABLE:COLUMN:desc in the page's address.
"use strict";

function keyOf(row, column) {
  const cell = row.cells[column];
  return cell.dataset.key === undefined ? cell.textContent : Number(cell.dataset.key);
}

function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one < other ? -1 : one > other ? 1 : 0;
  return String(one).localeCompare(String(other), undefined, { numeric: true });
}

function sortTable(table, column, descending) {
  const rows = [...table.tBodies[0].rows];
  rows.sort((one, other) => compare(keyOf(one, column), keyOf(other, column)) * (descending ? -1 : 1));
  table.tBodies[0].append(...rows);
  for (const heading of table.tHead.rows[0].cells) heading.removeAttribute("aria-sort");
  table.tHead.rows[0].cells[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
}

function sortAsAsked() {
  const asked = /^#sort=([\w-]+):(\d+)(:desc)?$/.exec(location.hash);
  const table = asked && document.querySelector(`table[data-name="${asked[1]}"]`);
  if (table && Number(asked[2]) < table.tHead.rows[0].cells.length) sortTable(table, Number(asked[2]), Boolean(asked[3]));
}

for (const table of document.querySelectorAll("table.sortable")) {
  for (const [column, heading] of [...table.tHead.rows[0].cells].entries()) {
    heading.querySelector("button").addEventListener("click", () => {
      const descending = heading.getAttribute("aria-sort") === "ascending";
      sortTable(table, column, descending);
      history.replaceState(null, "", `#sort=${table.dataset.name}:${column}${descending ? ":desc" : ""}`);
    });
  }
}
window.addEventListener("hashchange", sortAsAsked);
sortAsAsked();
