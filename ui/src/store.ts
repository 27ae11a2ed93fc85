// The state of the page: the model, what is chosen, and what is lit up. The address keeps what a person chose.
import { gpuName, isShared } from "./format";
import type { Difference, FitAnswer, Gpu, Model, NodeItem, PlanAnswer, Point } from "./types";

export type Grouping = "node" | "pool" | "model";
export type Zoom = "tiles" | "dots";
export type Status = "all" | "room" | "full" | "idle" | "trouble" | "other";
export type Tab = "queue" | "fit" | "plan" | "history" | "details";

/** What the address keeps; the keys are those of the fragment. */
export interface View {
  q: string;
  ns: string;
  group: Grouping;
  zoom: Zoom | "auto";
  show: Status;
  tab: Tab;
  sel: string; // gpu:NODE/INDEX, node:NAME or pod:NAMESPACE/NAME
  fit: string;
  theme: "auto" | "light" | "dark";
  at: string; // the GPU or group at the top of the map
}

export interface Ref {
  node: NodeItem;
  gpu: Gpu;
  name: string;
}

const DEFAULTS: View = {
  q: "",
  ns: "",
  group: "node",
  zoom: "auto",
  show: "all",
  tab: "queue",
  sel: "",
  fit: "",
  theme: "auto",
  at: "",
};
const CHOICES: Partial<Record<keyof View, readonly string[]>> = {
  group: ["node", "pool", "model"],
  zoom: ["auto", "tiles", "dots"],
  show: ["all", "room", "full", "idle", "trouble", "other"],
  tab: ["queue", "fit", "plan", "history", "details"],
  theme: ["auto", "light", "dark"],
};
const [MAX_POINTS, FINE_SECONDS, COARSE_SECONDS] = [2000, 3600, 60]; // as page_history.py thins them
const TILES_UP_TO = 400; // GPUs; beyond, each is a dot until a person zooms in

export class Store {
  view: View = fromFragment(location.hash);
  model: Model | null = null;
  nodes = new Map<string, NodeItem>();
  lit = new Map<string, string>(); // GPUs that an answer names, with what is missing there
  fit: FitAnswer | null = null;
  plan: PlanAnswer | null = null;
  planAfter = false; // the map shows the GPUs after the plan's moves
  heardAt = 0; // when the last state arrived, by Date.now(): its own time is that of another clock
  lost = ""; // why no changes arrive
  private readonly refs = new WeakMap<NodeItem, Ref[]>();
  private readonly texts = new WeakMap<Ref, string>();
  private readonly listeners: (() => void)[] = [];
  private isQueued = false;

  onChange(listener: () => void): void {
    this.listeners.push(listener);
  }

  /** Draw again, once for all changes until the next frame. */
  changed(): void {
    if (this.isQueued) return;
    this.isQueued = true;
    requestAnimationFrame(() => {
      this.isQueued = false;
      for (const listener of this.listeners) listener();
    });
  }

  set(change: Partial<View>): void {
    this.remember(change);
    this.changed();
  }

  /** Keep a choice in the address, where nothing has to be drawn again. */
  remember(change: Partial<View>): void {
    this.view = { ...this.view, ...change };
    const fragment = toFragment(this.view);
    if (fragment !== location.hash) history.replaceState(null, "", fragment || location.pathname + location.search);
  }

  replace(model: Model): void {
    this.model = model;
    this.heardAt = Date.now();
    this.nodes = new Map(model.nodes.map((node) => [node.name, node]));
    this.changed();
  }

  apply(difference: Difference): void {
    if (!this.model) return;
    const { changed, gone, point, changes, ...rest } = difference;
    for (const name of gone ?? []) this.nodes.delete(name);
    const isNew = changed?.some((node) => !this.nodes.has(node.name)) ?? false;
    for (const node of changed ?? []) this.nodes.set(node.name, node);
    if (isNew) this.nodes = new Map([...this.nodes].sort(([one], [other]) => natural(one, other)));
    const points = this.model.points.filter((known) => known.told === true || known.at !== point.at);
    this.heardAt = Date.now();
    this.model = {
      ...this.model,
      ...rest,
      nodes: [...this.nodes.values()],
      points: thinned([...points, point]),
      changes: [...this.model.changes, ...changes].slice(-200),
    };
    if (changed?.length || gone?.length) {
      this.plan = null;
      this.planAfter = false;
    }
    this.changed();
  }

  refsOf(node: NodeItem): Ref[] {
    let refs = this.refs.get(node);
    if (!refs) {
      refs = node.gpus.map((gpu) => ({ node, gpu, name: gpuName(node, gpu) }));
      this.refs.set(node, refs);
    }
    return refs;
  }

  /** The GPUs of every node, in order; after the plan's moves, if the page shows those. */
  *all(): Generator<Ref> {
    const after = new Map(this.planAfter ? this.plan?.after.map((node) => [node.name, node]) : []);
    for (const node of this.nodes.values()) yield* this.refsOf(after.get(node.name) ?? node);
  }

  find(name: string): Ref | undefined {
    const node = this.nodes.get(name.slice(0, name.lastIndexOf("/")));
    return node && this.refsOf(node).find((ref) => ref.name === name);
  }

  private textOf(ref: Ref): string {
    let text = this.texts.get(ref);
    if (text === undefined) {
      const { gpu, node } = ref;
      const pods = (gpu.shares ?? []).map((share) => share.pod);
      text = [ref.name, gpu.uuid, gpu.model, gpu.mode ?? "", gpu.isolation ?? "", node.pool, ...(gpu.status ?? []), ...pods]
        .join("\n")
        .toLowerCase();
      this.texts.set(ref, text);
    }
    return text;
  }

  /** The GPUs that search and namespace leave, before the status tabs. */
  found(): Ref[] {
    const words = this.view.q.toLowerCase().split(/\s+/).filter(Boolean);
    const prefix = this.view.ns && `${this.view.ns}/`;
    return [...this.all()].filter(
      (ref) =>
        words.every((word) => this.textOf(ref).includes(word)) &&
        (!prefix || (ref.gpu.shares ?? []).some((share) => share.pod.startsWith(prefix))),
    );
  }

  get zoom(): Zoom {
    if (this.view.zoom !== "auto") return this.view.zoom;
    return (this.model?.totals.gpus ?? 0) > TILES_UP_TO ? "dots" : "tiles";
  }

  /** Whether the request of the page fits this GPU by every filter of the webhook; undefined without a request. */
  fits(ref: Ref): boolean | undefined {
    const digits = this.fit?.fits[ref.node.name];
    if (digits === undefined) return undefined;
    const position = ref.node.gpus.filter((gpu) => !gpu.gone).indexOf(ref.gpu);
    return position < 0 ? false : digits[position] === "1";
  }
}

export function hasStatus(ref: Ref, status: Status): boolean {
  const { gpu } = ref;
  switch (status) {
    case "all":
      return true;
    case "room":
      return Boolean(gpu.fits);
    case "full":
      return isShared(gpu) && !gpu.fits && Boolean(gpu.held);
    case "idle":
      return (gpu.shares ?? []).some((share) => share.idle);
    case "trouble":
      return Boolean(gpu.trouble);
    case "other":
      return Boolean(gpu.mode);
  }
}

/** Keep all points of the last hour, one a minute before, and no more than a page can draw. */
function thinned(points: Point[]): Point[] {
  const fine = (points.at(-1)?.at ?? 0) - FINE_SECONDS;
  let minute = -1;
  return points
    .filter((point) => {
      const its = Math.floor(point.at / COARSE_SECONDS);
      const isKept = point.at >= fine || its !== minute;
      minute = its;
      return isKept;
    })
    .slice(-MAX_POINTS);
}

export function natural(one: string, other: string): number {
  return one.localeCompare(other, "en", { numeric: true });
}

function fromFragment(hash: string): View {
  const view: Record<string, string> = { ...DEFAULTS };
  for (const [key, value] of new URLSearchParams(hash.slice(1))) {
    const choices = CHOICES[key as keyof View];
    if (key in DEFAULTS && (!choices || choices.includes(value))) view[key] = value;
  }
  return view as unknown as View;
}

function toFragment(view: View): string {
  const kept = Object.entries(view).filter(([key, value]) => value !== DEFAULTS[key as keyof View]);
  const text = new URLSearchParams(kept as [string, string][]).toString();
  return text && `#${text}`;
}
