// One GPU as a tile: compute and memory as bars of shares, the hole labelled, and what is wrong in words.
import { el } from "./dom";
import { bytes, isShared, sentence, severity, takesNothing, trimmed } from "./format";
import type { Ref, Store } from "./store";
import type { Gpu, Share } from "./types";

export function tile(ref: Ref, store: Store, isWithNode: boolean): HTMLElement {
  const { gpu, node } = ref;
  const words = gpu.status ?? [];
  const isWarned = words.some((word) => severity(word) === "warn");
  const fits = store.fits(ref);
  const lit = store.lit.get(ref.name);
  const isBest = store.fit?.best.includes(ref.name) ?? false;
  const classes = [
    "tile",
    gpu.trouble ? "bad" : isWarned ? "warn" : "",
    gpu.cordoned || words.length ? "closed" : "",
    fits === true ? "fits" : fits === false ? "unfit" : "",
    isBest ? "best" : "",
    lit === undefined ? "" : "lit",
    store.view.sel === `gpu:${ref.name}` ? "chosen" : "",
  ];
  return el(
    "div",
    {
      class: classes.filter(Boolean).join(" "),
      role: "option",
      id: idOf(ref.name),
      "data-gpu": ref.name,
      "aria-selected": store.view.sel === `gpu:${ref.name}` ? "true" : "false",
      "aria-label": sentence(node, gpu, store.model?.absent.used ?? ""),
      title: gpu.reason,
    },
    el(
      "div",
      { class: "tile-head" },
      el("b", {}, isWithNode ? ref.name : gpu.gone ? "gone" : String(gpu.index)),
      lit === undefined ? el("span", { class: "model" }, gpu.model) : el("span", { class: "lacks", title: lit }, lit),
      lit === undefined && tag(gpu),
      ...words.slice(0, 2).map((word) => el("span", { class: `word ${severity(word)}` }, word)),
      isBest && el("span", { class: "word best" }, "placed here"),
    ),
    ...(isShared(gpu) || gpu.shares?.length ? bars(gpu, store) : [other(gpu)]),
    foot(gpu),
  );
}

export function idOf(name: string): string {
  return `gpu-${encodeURIComponent(name)}`;
}

function tag(gpu: Gpu): HTMLElement | null {
  const text = gpu.mode ?? gpu.isolation;
  return text ? el("span", { class: "tag" }, text) : null;
}

function other(gpu: Gpu): HTMLElement {
  const said = gpu.gone
    ? "The node no longer has this GPU."
    : gpu.devices?.length
      ? gpu.devices.join("; ")
      : "Shares n/a, because the kubelet hands it out.";
  return el("div", { class: "other" }, said);
}

function bars(gpu: Gpu, store: Store): HTMLElement[] {
  const [percent, held] = gpu.held ?? [0, 0];
  return [
    bar("compute", gpu, 100, percent, (share) => share.percent, (share) => share.used?.[0] ?? null, `${percent}%`, store),
    bar(
      "memory",
      gpu,
      gpu.bytes,
      held,
      (share) => share.bytes,
      (share) => share.used?.[1] ?? null,
      `${trimmed(held / 2 ** 30, held < 10 * 2 ** 30 ? 1 : 0)}/${bytes(gpu.bytes)}`,
      store,
    ),
  ];
}

function bar(
  kind: "compute" | "memory",
  gpu: Gpu,
  whole: number,
  held: number,
  amount: (share: Share) => number,
  used: (share: Share) => number | null,
  label: string,
  store: Store,
): HTMLElement {
  const total = Math.max(whole, held, 1);
  const track = el("div", { class: "track" });
  let at = 0;
  for (const share of gpu.shares ?? []) {
    const part = amount(share);
    const lent = kind === "memory" ? (share.lent ?? 0) : 0;
    const limit = kind === "compute" ? share.limit : share.memoryLimit;
    const its = used(share);
    track.append(block(share, at / total, part / total, its === null ? null : Math.min(its, lent ? part : its), part, total, store));
    if (lent) track.append(loan(share, (at + part) / total, lent / total, its === null ? 0 : Math.max(0, its - part) / lent));
    if (limit !== undefined && limit > part) track.append(placed(el("i", { class: "limit" }), Math.min(1, (at + limit) / total)));
    at += part + lent;
  }
  const free = whole - at;
  if (free > 0 && isShared(gpu)) {
    const hole = el("div", { class: gpu.fits ? "hole" : "hole none" });
    placed(hole, at / total, free / total);
    if (gpu.stranded) {
      const lost = el("div", { class: "stranded" });
      lost.style.width = `${gpu.stranded * 100}%`;
      hole.append(lost);
    }
    track.append(hole);
  }
  return el("div", { class: `bar ${kind}` }, track, el("span", { class: "amount" }, label));
}

function block(share: Share, at: number, width: number, used: number | null, part: number, total: number, store: Store): HTMLElement {
  const classes = ["block", share.hold ? "hold" : "", share.idle ? "idle" : "", used === null ? "unmeasured" : ""];
  if (store.view.sel === `pod:${share.pod}`) classes.push("mine");
  const made = el("div", { class: classes.filter(Boolean).join(" "), "data-pod": share.pod });
  placed(made, at, Math.max(width, 0.012));
  if (used !== null && part > 0) {
    const fill = el("div", { class: "fill" });
    fill.style.width = `${Math.min(1, used / part) * 100}%`;
    made.append(fill);
    if (used > part * 1.02) {
      const over = el("div", { class: "over" });
      over.style.width = `${(Math.min(used, total) / part - 1) * 100}%`;
      made.append(over);
    }
  } else if (used !== null && used > 0) {
    made.append(el("div", { class: "fill whole" }));
  }
  return made;
}

/** The memory lent to a share beyond its own, drawn apart because its unused part goes back. */
function loan(share: Share, at: number, width: number, used: number): HTMLElement {
  const fill = el("div", { class: "fill" });
  fill.style.width = `${Math.min(1, used) * 100}%`;
  return placed(el("div", { class: "lent", "data-pod": share.pod }, fill), at, width);
}

function placed(element: HTMLElement, left: number, width?: number): HTMLElement {
  element.style.left = `${left * 100}%`;
  if (width !== undefined) element.style.width = `${width * 100}%`;
  return element;
}

function foot(gpu: Gpu): HTMLElement {
  const idle = (gpu.shares ?? []).filter((share) => share.idle).length;
  const pods = new Set((gpu.shares ?? []).filter((share) => !share.hold).map((share) => share.pod)).size;
  const says = gpu.fits ? `fits ${gpu.fits}` : isShared(gpu) ? takesNothing(gpu) : "";
  return el(
    "div",
    { class: "tile-foot" },
    el("span", { class: gpu.fits ? "says" : "says none" }, says),
    idle > 0 && el("span", { class: "idle-mark" }, `${idle} idle`),
    pods > 0 && el("span", { class: "count" }, `${pods} ${pods === 1 ? "pod" : "pods"}`),
  );
}
