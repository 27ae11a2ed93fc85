// The model that kubectl_gpushare/ui/page_model.py builds. A key that is missing is empty, or unknown: then `absent` of
// the cluster has the reason.

/** Compute in per cent of a GPU, null if a part was not measured, and memory in bytes. */
export type Used = [number | null, number];

export interface Share {
  pod: string;
  percent: number;
  bytes: number;
  limit?: number;
  state?: string;
  hold?: boolean; // reserved for the pod
  lent?: number; // bytes beyond its own
  memoryLimit?: number; // the most that it may be lent and own, in bytes
  idle?: boolean;
  isolation?: string;
  since?: number;
  used?: Used;
}

export interface Gpu {
  index: number;
  uuid: string;
  model: string;
  bytes: number;
  mode?: string;
  isolation?: string;
  status?: string[];
  reason?: string;
  gone?: boolean;
  cordoned?: boolean;
  ill?: boolean;
  trouble?: boolean;
  held?: [number, number]; // with the memory that is lent
  free?: [number, number];
  fits?: string;
  stranded?: number;
  strandedGpus?: number;
  shares?: Share[];
  devices?: string[];
  used?: Used;
}

export interface NodeItem {
  name: string;
  pool: string;
  gpus: Gpu[];
  status?: string[];
  reason?: string;
}

export interface Totals {
  gpus: number;
  shared: number;
  pods: number;
  allocated: [number, number];
  memory: [number, number];
  free: [number, number];
  freeGpus: number;
  stranded: number;
  trouble: number;
  largest: string;
  used?: { gpus: number; bytes: number; of: number; least: boolean };
  idle?: { shares: number; gpus: number };
}

export interface Waiting {
  pod: string;
  asks: string[];
  reason: string;
  nearest?: string;
  lacks?: string;
  since?: number;
  priority?: number;
  command: string;
}

export interface Queue {
  pods: Waiting[];
  more?: number;
  percent?: number;
  why?: string;
}

export interface Point {
  at: number;
  allocated: number;
  used: number | null;
  stranded: number | null;
  waiting: number | null;
  told?: boolean;
}

export interface Change {
  at: number;
  kind: string;
  what: string;
  text: string;
  trouble?: boolean;
}

export interface Model {
  version: number;
  at: number;
  cluster: { name: string; live: boolean; namespace?: string; pause?: number };
  trouble: string;
  absent: { used?: string; pods?: string; nodes?: string };
  notes: string[];
  problems: string[];
  totals: Totals;
  empty: string; // why there are no GPUs
  nodes: NodeItem[];
  heard: Record<string, [number, string]>;
  queue: Queue;
  points: Point[];
  changes: Change[];
}

export type Difference = Partial<Omit<Model, "nodes" | "points">> & {
  version: number;
  changed?: NodeItem[];
  gone?: string[];
  point: Point;
  changes: Change[];
};

export interface Field {
  key: string;
  values: string[];
  style: string;
}

export interface Grid {
  columns: string[];
  rows: [string, string][][];
}

export interface Section {
  title: string;
  blocks: (string | Grid | { commands: string[] })[];
  style: string;
}

export type Page = (Field | Section)[];

export interface Answer {
  page: Page;
  command: string;
}

export interface WhyAnswer extends Answer {
  nearest: { gpu: string; why: string; rule: string }[];
  choices: string[];
}

export interface FitAnswer extends Answer {
  best: string[];
  reason: string;
  more: number | null;
  fits: Record<string, string>;
  counts: { phrase: string; gpus: number }[];
  verdict: string;
}

export interface Move {
  pod: string;
  from: string[];
  to: string[];
}

export interface PlanAnswer extends Answer {
  moves: Move[];
  after: NodeItem[];
}
