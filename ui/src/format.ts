// Amounts as the plugin writes them (gpushare/quantity.py), times, and the sentence about one GPU.
import type { Gpu, NodeItem } from "./types";

const UNITS = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];

export function bytes(count: number): string {
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${trimmed(value, value < 10 ? 2 : value < 100 ? 1 : 0)}${UNITS[unit] ?? ""}`;
}

export function trimmed(value: number, digits: number): string {
  return String(Number(value.toFixed(digits)));
}

export function gpus(amount: number): string {
  return amount < 1000 ? trimmed(amount, amount < 10 ? 2 : amount < 100 ? 1 : 0) : count(amount);
}

/** A whole number, with commas: `40,000`. */
export function count(amount: number): string {
  return Math.round(amount).toLocaleString("en");
}

export function ago(at: number, now: number): string {
  const seconds = Math.max(0, Math.round(now - at));
  if (seconds < 120) return `${seconds}s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86400)}d`;
}

export function clock(at: number): string {
  return new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

export function gpuName(node: NodeItem, gpu: Gpu): string {
  return `${node.name}/${gpu.gone ? gpu.uuid : gpu.index}`;
}

/** How words look: red, amber, and the rest, which are facts. Whether a GPU is in trouble, the model says. */
const BAD = new Set(["Unhealthy", "Gone", "OverCommitted", "NotReady", "NoNode", "NoAgent", "Unreadable"]);
const FACTS = new Set(["Excluding", "Held", "Cordoned", "NodeCordoned", "Changing"]);

export function severity(word: string): "bad" | "warn" | "fact" {
  const name = word.split(":")[0] ?? "";
  return BAD.has(name) ? "bad" : FACTS.has(name) ? "fact" : "warn";
}

export function isShared(gpu: Gpu): boolean {
  return !gpu.mode && !gpu.gone;
}

/** Why a GPU that takes shares takes none now: by its own reason; it is full only if something is on it. */
export function takesNothing(gpu: Gpu): string {
  return gpu.reason ?? (gpu.held ? "full" : "takes nothing");
}

/** One GPU as a sentence, for screen readers and as a tooltip. */
export function sentence(node: NodeItem, gpu: Gpu, whyNoUse: string): string {
  const parts = [`${gpuName(node, gpu)}, ${gpu.model}`];
  if (gpu.status?.length) parts.push(`status ${gpu.status.join(", ")}${gpu.reason ? `: ${gpu.reason}` : ""}`);
  if (!isShared(gpu)) {
    parts.push(gpu.gone ? "gone" : `mode ${gpu.mode ?? ""}: the kubelet hands it out`);
  } else {
    const [percent, held] = gpu.held ?? [0, 0];
    const use = gpu.used
      ? `used ${gpu.used[0] === null ? "n/a" : `${trimmed(gpu.used[0], 0)}%`} and ${bytes(gpu.used[1])}`
      : `use n/a, because ${whyNoUse || "nothing measures it"}`;
    parts.push(`compute ${percent}% and memory ${bytes(held)} of ${bytes(gpu.bytes)} allocated; ${use}`);
    const lent = (gpu.shares ?? []).reduce((sum, share) => sum + (share.lent ?? 0), 0);
    if (lent) parts.push(`${bytes(lent)} of it is lent`);
    const why = gpu.status?.length ? "" : takesNothing(gpu);
    parts.push(gpu.fits ? `fits ${gpu.fits}` : `fits nothing new${why && why !== "full" ? `: ${why}` : ""}`);
  }
  const [held, here] = [[] as string[], [] as string[]];
  for (const share of gpu.shares ?? []) {
    const more = share.lent ? ` (lent ${bytes(share.lent)}${share.memoryLimit ? `, limit ${bytes(share.memoryLimit)}` : ""})` : "";
    if (share.hold) held.push(share.pod);
    else here.push(`${share.pod}${share.idle ? " (idle)" : ""}${more}`);
  }
  if (here.length) parts.push(`pods: ${here.join(", ")}`);
  if (held.length) parts.push(`reserved for ${held.join(", ")}`);
  return parts.join("; ");
}
