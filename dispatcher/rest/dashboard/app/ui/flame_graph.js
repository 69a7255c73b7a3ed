// A flame graph: callers above, the functions that they call below, as wide as their share of the
// samples. Arrow keys move, Enter or a click zooms, Escape zooms out.
import * as format from "../format.js";
import { html, useEffect, useMemo, useRef, useState } from "../html.js";

const ROW = 20;
const LEAST = 0.001; // of the width; narrower frames are not drawn
const KINDS = ["python", "jvm", "native"];

export function FlameGraph({ graph, title, search }) {
  const root = useMemo(() => linked(graph.root), [graph]);
  const [zoomed, setZoomed] = useState(root);
  const [focused, setFocused] = useState(root);
  const box = useRef(null);
  useEffect(() => { setZoomed(root); setFocused(root); }, [root]);
  const frames = useMemo(() => layout(zoomed), [zoomed]);
  const wanted = search.trim().toLowerCase();
  const matches = ({ name }) => wanted !== "" && name.toLowerCase().includes(wanted);
  const matched = wanted === "" ? null : matchedValue(root, matches) / Math.max(1, root.value);
  const depth = Math.max(...frames.map(({ row }) => row)) + 1;

  function zoom(node) {
    setZoomed(node);
    setFocused(node);
  }
  function move(event) {
    const to = {
      ArrowUp: () => focused.parent,
      ArrowDown: () => focused.children[0],
      ArrowLeft: () => sibling(focused, -1),
      ArrowRight: () => sibling(focused, 1),
      Escape: () => root,
    }[event.key]?.();
    if (!to) return;
    event.preventDefault();
    if (event.key === "Escape" || !frames.some(({ node }) => node === to)) zoom(to);
    else setFocused(to);
    requestAnimationFrame(() => box.current?.querySelector('[tabindex="0"]')?.focus());
  }

  return html`<div class="card-body stack">
    <div class="row"><b>${title}</b><span class="muted">${format.counted(graph.samples, "sample")} in ${format.duration(graph.seconds * 1000)}</span>
      <ul class="legend" aria-label="Colours">${KINDS.map((kind) => html`<li key=${kind}><i class=${`swatch frame-${kind}`} />${{ python: "Python", jvm: "JVM", native: "native" }[kind]}</li>`)}</ul>
      ${matched !== null && html`<span role="status">Matches: <b>${format.percent(matched)}</b></span>`}
      <button type="button" class="button compact push" disabled=${zoomed === root} onClick=${() => zoom(root)}>Whole graph</button></div>
    <div class="flames" ref=${box} style=${{ height: `${depth * ROW}px` }} role="group" aria-label="Frames" onKeyDown=${move}>
      ${frames.map(({ node, row, left, width }) => {
    const text = `${node.name}: ${format.percent(node.value / Math.max(1, root.value))}, ${format.counted(node.value, "sample")}`;
    return html`<button key=${node.index} type="button" title=${text} aria-label=${text} tabindex=${node === focused ? 0 : -1}
        class=${`flame frame-${node.kind}${node === zoomed ? " zoomed" : ""}${matches(node) ? " match" : wanted ? " other" : ""}`}
        style=${{ top: `${row * ROW}px`, left: `${100 * left}%`, width: `${100 * width}%` }}
        onFocus=${() => setFocused(node)} onClick=${() => zoom(node)}>${width > 0.02 ? node.name : ""}</button>`;
  })}
    </div>
    <div class="small flame-detail" aria-hidden="true"><b class="wrap">${focused.name}</b> ${format.percent(focused.value / Math.max(1, root.value))} of the samples, ${format.percent(own(focused) / Math.max(1, root.value))} itself</div>
  </div>`;
}

/** A copy with parents and numbers, the widest children first by name. */
function linked(root) {
  let index = 0;
  const copy = (node, parent) => {
    const own = { ...node, parent, index: index++ };
    own.children = (node.children ?? []).map((child) => copy(child, own));
    return own;
  };
  return copy(root, null);
}

function own(node) {
  return node.value - node.children.reduce((sum, { value }) => sum + value, 0);
}

function sibling(node, by) {
  const all = node.parent?.children ?? [];
  return all[all.indexOf(node) + by];
}

/** The frames to draw: the callers of the zoomed one at full width, then what it calls. */
function layout(zoomed) {
  const callers = [];
  for (let node = zoomed.parent; node; node = node.parent) callers.unshift(node);
  const frames = callers.map((node, row) => ({ node, row, left: 0, width: 1 }));
  const place = (node, row, left, width) => {
    if (width < LEAST) return;
    frames.push({ node, row, left, width });
    let at = left;
    for (const child of node.children) {
      const share = (width * child.value) / Math.max(1, node.value);
      place(child, row + 1, at, share);
      at += share;
    }
  };
  place(zoomed, callers.length, 0, 1);
  return frames;
}

/** Samples in frames that match; those below a match count once. */
function matchedValue(node, matches) {
  return matches(node) ? node.value : node.children.reduce((sum, child) => sum + matchedValue(child, matches), 0);
}
