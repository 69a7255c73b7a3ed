// Lines of logs, coloured by level.
import { html, useEffect, useRef } from "../html.js";

const TONES = { critical: "bad", error: "bad", warning: "warn" };
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 });

/** `follow`: scrolls to the last line whenever lines arrive; `onLeave` is called when the reader
 * scrolls up. `marked`: the time of an event, in milliseconds, at which a line is drawn.
 */
export function LogLines({ lines, label, follow = false, onLeave, marked }) {
  const box = useRef(null);
  useEffect(() => {
    if (follow) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, follow]);
  const after = marked === undefined ? -1 : lines.findIndex(({ time_ms: ms }) => ms > marked);
  return html`<div class="log" ref=${box} tabindex="0" role="log" aria-live="off" aria-label=${label}
    onWheel=${({ deltaY }) => deltaY < 0 && onLeave?.()} onKeyDown=${({ key }) => ["ArrowUp", "PageUp", "Home"].includes(key) && onLeave?.()}>
    ${lines.map((line, index) => html`<div key=${line.key ?? index} class=${`log-line tone-${TONES[line.level] ?? "none"}${index === after ? " mark" : ""}`}>
      <span class="log-time">${line.time_ms ? CLOCK.format(line.time_ms) : ""}</span>
      <span class="log-level">${line.level}</span>
      <span class="log-text"><span class="log-source">${line.source}</span> ${line.text}</span></div>`)}
  </div>`;
}
