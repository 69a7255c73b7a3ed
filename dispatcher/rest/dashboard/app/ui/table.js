// A table whose columns can be sorted, by mouse and keyboard.
import { Fragment, html, useMemo, useState } from "../html.js";
import { Empty } from "./views.js";

/** `columns`: `{key, title, cell(row), value?(row), align?: "right", numeric?, className?, wide?, help?}`;
 * `after(row)`: what stands below a row, or null.
 *
 * A column with `value` can be sorted by it, numbers (`numeric`, or aligned right) downwards first.
 * Unknown values sort last. `wide` columns are hidden on phones. If the server sorts, pass `sort` and
 * `onSort` (`{key, descending}`), and `sortable: true` in the columns that it can sort by. `caption`
 * names the table for screen readers.
 */
export function Table({
  columns,
  rows,
  rowKey,
  caption,
  initialSort = null,
  sort,
  onSort,
  empty,
  rowClass,
  after,
}) {
  const [own, setOwn] = useState(initialSort);
  const order = onSort ? sort : own;
  const sorted = useMemo(() => (onSort ? rows : sortRows(rows, columns, order)), [rows, order, onSort]);

  function sortBy(column) {
    const again = order?.key === column.key;
    const descending = again ? !order.descending : (column.numeric ?? column.align === "right");
    (onSort ?? setOwn)({ key: column.key, descending });
  }

  if (!rows.length) return empty ?? html`<${Empty} title="None" />`;
  return html`<div class="table-scroll" tabindex="0" role="group" aria-label=${caption}><table>
    <caption class="sr-only">${caption}</caption>
    <thead><tr>${columns.map((column) => {
      const active = order?.key === column.key;
      const can = onSort ? column.sortable : column.value;
      return html`<th key=${column.key} scope="col" class=${classes(column)} title=${column.help}
        aria-sort=${active ? (order.descending ? "descending" : "ascending") : undefined}>
        ${
          can
            ? html`<button type="button" class="sort" onClick=${() => sortBy(column)}>${column.title}</button>`
            : column.title || html`<span class="sr-only">${column.key}</span>`
        }
      </th>`;
    })}</tr></thead>
    <tbody>${sorted.map((row, index) => {
      const key = rowKey(row, index);
      const below = after?.(row);
      return html`<${Fragment} key=${key}>
        <tr class=${rowClass?.(row)}>${columns.map(
          (column) => html`
          <td key=${column.key} class=${classes(column)}>${column.cell(row)}</td>`,
        )}</tr>
        ${below && html`<tr class="below"><td colspan=${columns.length}>${below}</td></tr>`}
      <//>`;
    })}</tbody>
  </table></div>`;
}

/** A table that shows `limit` rows at a time. */
export function PagedTable({ rows, columns, initialSort = null, limit = 20, noun, ...rest }) {
  const [order, setOrder] = useState(initialSort);
  const [offset, setOffset] = useState(0);
  const sorted = useMemo(() => sortRows(rows, columns, order), [rows, order]);
  const start = Math.min(offset, Math.max(0, rows.length - 1));
  return html`
    <${Table} ...${rest} columns=${columns.map((column) => ({ ...column, sortable: Boolean(column.value) }))}
      rows=${sorted.slice(start, start + limit)} sort=${order} onSort=${(sort) => { setOrder(sort); setOffset(0); }} />
    ${rows.length > limit && html`<footer><${Pager} offset=${start} limit=${limit} total=${rows.length} onOffset=${setOffset} noun=${noun} /></footer>`}`;
}

function classes(column) {
  return (
    [column.align === "right" && "right", column.className, column.wide && "wide"]
      .filter(Boolean)
      .join(" ") || undefined
  );
}

function sortRows(rows, columns, order) {
  const value = order && columns.find((column) => column.key === order.key)?.value;
  if (!value) return rows;
  const sign = order.descending ? -1 : 1;
  const unknown = (item) => item === null || item === undefined || Number.isNaN(item);
  return [...rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (unknown(x) || unknown(y)) return unknown(x) - unknown(y);
    if (typeof x === "string") return sign * x.localeCompare(y, undefined, { numeric: true });
    return sign * (x - y);
  });
}

/** Pages of a list that the server cuts: `offset`, `limit` and `total` count rows. */
export function Pager({ offset, limit, total, onOffset, noun = "rows" }) {
  if (total <= limit && offset === 0) return html`<div class="pager muted small">${total} ${total === 1 ? noun.replace(/s$/, "") : noun}</div>`;
  const last = Math.min(total, offset + limit);
  const end = Math.max(0, Math.floor((total - 1) / limit) * limit);
  const button = (label, to, disabled) => html`<button type="button" class="button compact"
    disabled=${disabled} onClick=${() => onOffset(to)}>${label}</button>`;
  return html`<nav class="pager" aria-label=${`Pages of ${noun}`}>
    <span class="muted small">${offset + 1}–${last} of ${total.toLocaleString("en-US")} ${noun}</span>
    ${button("First", 0, offset === 0)}
    ${button("Previous", Math.max(0, offset - limit), offset === 0)}
    ${button("Next", offset + limit, last >= total)}
    ${button("Last", end, last >= total)}
  </nav>`;
}
