// The words of the verbs as elements: fields, sections, tables and commands.
import { command, el } from "./dom";
import type { Grid, Page } from "./types";

export function note(text: string): HTMLElement {
  return el("p", { class: "note" }, text);
}

export function page(parts: Page): HTMLElement {
  const made = el("div", { class: "page" });
  let list: HTMLElement | null = null;
  for (const part of parts) {
    if ("key" in part) {
      if (!list) made.append((list = el("dl", {})));
      list.append(el("dt", {}, part.key), el("dd", { class: part.style }, ...part.values.map((value) => el("span", {}, value))));
    } else {
      list = null;
      made.append(el("h2", { class: part.style }, part.title));
      for (const block of part.blocks) {
        if (typeof block === "string") made.append(el("p", { class: part.style }, block));
        else if ("commands" in block) made.append(...block.commands.map(command));
        else made.append(table(block));
      }
    }
  }
  return made;
}

function table(grid: Grid): HTMLElement {
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, ...grid.columns.map((column) => (column ? el("th", { scope: "col" }, column) : el("td", {}))))),
      el("tbody", {}, ...grid.rows.map((row) => el("tr", {}, ...row.map(([text, style]) => el("td", { class: style }, text))))),
    ),
  );
}

/** Give an id to what can have the focus, so that it keeps the focus when it is drawn again. */
export function number(made: HTMLElement): void {
  const seen = new Map<string, number>();
  for (const each of made.querySelectorAll("button:not([id]), .scroll")) {
    const label = each.getAttribute("aria-label") ?? each.textContent;
    const count = seen.get(label) ?? 0;
    seen.set(label, count + 1);
    each.id = `in-panel-${encodeURIComponent(label)}-${count}`;
  }
}
