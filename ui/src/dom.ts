// Makes elements. Text is only ever set as text: names of pods, nodes and models are hostile input.

/** Text with � for each character that is not printable: controls, and marks that reverse the text after them. */
export function shown(text: string): string {
  return text.replace(/[^\P{C}\n]|[\u2028\u2029]/gu, "�");
}

/** Set an element's text. */
export function write(element: Element, text: string): void {
  element.textContent = shown(text);
}

type Child = Node | string | null | undefined | false;
type Attributes = Record<string, string | number | boolean | undefined | ((event: never) => void)>;

const SPOKEN = new Set(["title", "aria-label", "aria-valuetext"]);

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") {
      element.addEventListener(name, value as (event: Event) => void);
    } else {
      element.setAttribute(name, value === true ? "" : typeof value === "string" && SPOKEN.has(name) ? shown(value) : String(value));
    }
  }
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    element.append(typeof child === "string" ? shown(child) : child);
  }
  return element;
}

/**
 * Replace only the children that differ, and keep the focus: what a person reads, or hears read, stays as it is.
 * Elements with the same `data-same` stay, and are changed in place; so their listeners may not depend on what changes.
 */
export function patch(parent: Element, children: readonly Element[]): void {
  const active = document.activeElement;
  const focused = active && parent.contains(active) ? active.id : "";
  children.forEach((made, position) => {
    const there = parent.children[position];
    if (!there) parent.append(made);
    else if (there.isEqualNode(made)) return;
    else if (there instanceof HTMLElement && made instanceof HTMLElement && made.dataset["same"] && there.dataset["same"] === made.dataset["same"]) change(there, made);
    else there.replaceWith(made);
  });
  while (parent.children.length > children.length) parent.lastElementChild?.remove();
  if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function change(there: HTMLElement, made: HTMLElement): void {
  for (const name of there.getAttributeNames()) if (!made.hasAttribute(name)) there.removeAttribute(name);
  for (const name of made.getAttributeNames()) there.setAttribute(name, made.getAttribute(name) ?? "");
  patch(there, [...made.children]);
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag: string, attributes: Record<string, string | number>, ...children: Node[]): SVGElement {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** A button that copies a command; the command is shown, so that it is never a surprise. */
export function command(text: string): HTMLElement {
  const button = el("button", { type: "button", class: "copy", "aria-label": `Copy: ${text}` }, "Copy");
  button.addEventListener("click", () => {
    void copied(text).then((done) => {
      button.textContent = done ? "Copied" : "Select it";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
  });
  return el("div", { class: "command" }, el("code", {}, text), button);
}

async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // a saved file is no secure context
  }
}
