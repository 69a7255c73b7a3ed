// The chosen theme: auto, light or dark. early.js applies it before the first paint.
import { createStore } from "../store.js";

const KEY = "firesteel.theme";

export const theme = createStore(document.documentElement.dataset.theme);
theme.subscribe((chosen) => {
  document.documentElement.dataset.theme = chosen;
  localStorage.setItem(KEY, chosen);
});

const dark = matchMedia("(prefers-color-scheme: dark)");
export const systemDark = createStore(dark.matches);
dark.addEventListener("change", () => systemDark.set(dark.matches));
