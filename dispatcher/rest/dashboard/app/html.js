// Preact, its hooks and htm, under one name.
import { h, render, Fragment } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export { h, render, Fragment };
export {
  useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState,
} from "../vendor/preact-hooks.js";
export const html = htm.bind(h);
