// The figures at the top, and the line chart.
import { el, svg } from "./dom";
import { bytes, clock, count, gpus } from "./format";
import type { Model, Point, Totals } from "./types";

const LINES: readonly { key: "allocated" | "used" | "stranded" | "waiting"; text: string; unit: string }[] = [
  { key: "allocated", text: "allocated", unit: "GPUs" },
  { key: "used", text: "used", unit: "GPUs" },
  { key: "stranded", text: "stranded", unit: "GPUs" },
  { key: "waiting", text: "waiting", unit: "pods" },
];

// Of the chart's width, for what was told of the time before; what the page has seen counts more, so that it is seen.
const [LEAST_LABELLED, LEAST_TOLD, SEEN_WEIGHT] = [0.15, 0.4, 10];

export function strip(model: Model, open: (status: "idle" | "trouble") => void): HTMLElement[] {
  const { totals, queue, absent } = model;
  const na = (why: string): HTMLElement => el("span", { class: "na", title: `n/a, because ${why}` }, "n/a");
  const dark = absent.used ?? "no GPU is measured";
  return [
    figure("Allocated", ratio(totals.allocated[0] / 100, totals.allocated[1] / 100), "GPUs", meter(totals.allocated)),
    figure("Memory", `${bytes(totals.memory[0])} / ${bytes(totals.memory[1])}`, "", meter(totals.memory, "memory")),
    figure("In use", totals.used ? `${totals.used.least ? "≥ " : ""}${gpus(totals.used.gpus)}` : na(dark), totals.used ? usedNote(totals) : "", absentNote(totals.used, dark)),
    button("Held, idle", totals.idle ? gpus(totals.idle.gpus) : na(dark), totals.idle ? "GPUs" : "", totals.idle?.shares ? "warn" : "", () => open("idle"), idleNote(totals, dark)),
    figure("Free compute, memory", `${gpus(totals.free[0] / 100)}, ${bytes(totals.free[1])}`, "", el("span", { class: "note" }, `${gpus(totals.stranded)} GPUs stranded; ${totals.largest ? `largest ${totals.largest.replace("+", " + ")}` : "no hole"}`)),
    figure("Waiting", queue.why ? na(queue.why) : count(queue.pods.length + (queue.more ?? 0)), queue.why ? "" : queue.pods.length === 1 ? "pod" : "pods", el("span", { class: "note" }, queue.why ? `because ${queue.why}` : queue.percent ? `for ${gpus(queue.percent / 100)} GPUs` : "none")),
    button("Trouble", count(totals.trouble), totals.trouble === 1 ? "GPU" : "GPUs", totals.trouble ? "bad" : "", () => open("trouble"), null),
    el("div", { class: "spark" }, chart(model.points, 200, 44, false), legend()),
  ];
}

function usedNote(totals: Totals): string {
  return totals.used && totals.used.of < totals.shared ? `GPUs, of ${totals.used.of} measured` : "GPUs";
}

function absentNote(known: unknown, why: string): HTMLElement | null {
  return known ? null : el("span", { class: "note" }, `because ${why}`);
}

function idleNote({ idle }: Totals, dark: string): HTMLElement | null {
  return idle ? el("span", { class: "note" }, `${idle.shares} ${idle.shares === 1 ? "share" : "shares"} below 1%`) : absentNote(idle, dark);
}

function ratio(part: number, whole: number): string {
  return `${gpus(part)} / ${gpus(whole)}`;
}

function figure(label: string, value: string | HTMLElement, unit: string, below: HTMLElement | null): HTMLElement {
  return el("div", { class: label === "Waiting" ? "figure urgent" : "figure" }, ...inside(label, value, unit, below));
}

function button(label: string, value: string | HTMLElement, unit: string, style: string, open: () => void, below: HTMLElement | null): HTMLElement {
  return el("button", { type: "button", id: label === "Trouble" ? "figure-trouble" : "figure-idle", class: `figure ${style} ${label === "Trouble" ? "urgent" : ""}`, click: open, title: "Show them" }, ...inside(label, value, unit, below));
}

function inside(label: string, value: string | HTMLElement, unit: string, below: HTMLElement | null): (HTMLElement | null)[] {
  return [
    el("span", { class: "label" }, label),
    el("span", { class: "value" }, el("b", {}, value), " ", el("span", { class: "unit" }, unit)),
    below,
  ];
}

function meter([part, whole]: [number, number], kind = "compute"): HTMLElement {
  const fill = el("i", {});
  fill.style.width = `${whole ? Math.min(100, (part / whole) * 100) : 0}%`;
  return el("span", { class: `meter ${kind}` }, fill);
}

function legend(): HTMLElement {
  return el("div", { class: "legend" }, ...LINES.map((line) => el("span", { class: `line-${line.key}` }, line.text)));
}

/** Lines of allocated, used, stranded GPUs and waiting pods; what is unknown is a gap. `told`: by Events alone. */
export function chart(points: Point[], width: number, height: number, isLarge: boolean, at?: number): SVGElement {
  const pad = isLarge ? 26 : 3;
  const picture = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img" });
  const label = svg("title", {});
  label.textContent = summary(points);
  picture.append(label);
  const [first, last] = [points[0]?.at ?? 0, points.at(-1)?.at ?? 1];
  const most = points.reduce((all, point) => Math.max(all, point.allocated, point.used ?? 0, point.stranded ?? 0, point.waiting ?? 0), 1);
  const told = points.filter((point) => point.told).at(-1)?.at;
  const turn = told ?? first;
  const [before, since] = [turn - first, last - turn];
  const share = before && Math.min(before / (before + since), Math.max(LEAST_TOLD, before / (before + SEEN_WEIGHT * since)));
  const along = (moment: number): number =>
    moment <= turn ? (share * (moment - first)) / Math.max(1, before) : share + ((1 - share) * (moment - turn)) / Math.max(1, since);
  const x = (moment: number): number => pad + along(moment) * (width - pad - 4);
  const y = (value: number): number => height - (isLarge ? 18 : 3) - (value / most) * (height - (isLarge ? 26 : 8));
  if (told !== undefined) picture.append(svg("rect", { x: x(first), y: 0, width: Math.max(0, x(told) - x(first)), height, class: "told" }));
  if (isLarge) {
    for (const part of [0, 0.5, 1]) {
      picture.append(svg("line", { x1: pad, x2: width - 4, y1: y(most * part), y2: y(most * part), class: "rule" }));
      picture.append(words(pad - 4, y(most * part) + 3, gpus(most * part), "end"));
    }
    picture.append(words(pad, height - 4, clock(first).slice(0, 5), "start"), words(width - 4, height - 4, clock(last).slice(0, 5), "end"));
    if (share > LEAST_LABELLED && share < 1 - LEAST_LABELLED) picture.append(words(x(turn), height - 4, clock(turn).slice(0, 5), "middle"));
  }
  for (const line of LINES) {
    let path = "";
    let [isOpen, isTold] = [false, false];
    for (const point of points) {
      const value = point[line.key];
      // What happened between the last Event and the first look is unknown: a slope would be made up.
      if (value !== null && isOpen && isTold && !point.told) path += `H${x(point.at).toFixed(1)}`;
      if (value !== null) path += `${isOpen ? "L" : "M"}${x(point.at).toFixed(1)} ${y(value).toFixed(1)}`;
      [isOpen, isTold] = [value !== null, point.told ?? false];
    }
    if (points.filter((point) => point[line.key] !== null).length === 1) path += "h3";
    picture.append(svg("path", { d: path, class: `line line-${line.key}` }));
  }
  if (at !== undefined) picture.append(svg("line", { x1: x(at), x2: x(at), y1: 0, y2: height - 18, class: "now" }));
  return picture;
}

function words(x: number, y: number, text: string, anchor: string): SVGElement {
  const made = svg("text", { x, y, class: "axis", "text-anchor": anchor });
  made.textContent = text;
  return made;
}

function summary(points: Point[]): string {
  const last = points.at(-1);
  return last ? `Over time, now: ${reading(last, "")}` : "No history yet";
}

/** A point of the chart in words. */
export function reading(point: Point, whyNoUse: string): string {
  const parts = LINES.map((line) => {
    const value = point[line.key];
    const why = point.told ? "the page was not open" : whyNoUse;
    return value === null ? `${line.text} n/a${why ? `, because ${why}` : ""}` : `${line.text} ${gpus(value)}`;
  });
  return `${clock(point.at)}: ${point.told ? "at least " : ""}${parts.join("; ")}`;
}
