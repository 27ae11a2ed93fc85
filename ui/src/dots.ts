// Many GPUs: a dot each, on a canvas that is as large as the window and drawn again while it scrolls.
import { shown } from "./dom";
import type { Ref, Store } from "./store";

export const DOT = 13;
export const CELL_HEIGHT = 38;

export interface Cell {
  label: string;
  refs: Ref[];
  x: number;
  y: number;
}

interface Colours {
  line: string;
  ink: string;
  dim: string;
  compute: string;
  used: string;
  bad: string;
  warn: string;
  idle: string;
  accent: string;
  paper: string;
}

export function colours(): Colours {
  const style = getComputedStyle(document.documentElement);
  const read = (name: string): string => style.getPropertyValue(name).trim();
  return {
    line: read("--line"),
    ink: read("--ink"),
    dim: read("--dim"),
    compute: read("--compute-held"),
    used: read("--compute"),
    bad: read("--bad"),
    warn: read("--warn"),
    idle: read("--warn"),
    accent: read("--accent"),
    paper: read("--paper"),
  };
}

export function drawDots(canvas: HTMLCanvasElement, cells: Iterable<Cell>, top: number, store: Store, cursor: string): void {
  const scale = devicePixelRatio;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const colour = colours();
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px ui-sans-serif, system-ui, sans-serif";
  pen.textBaseline = "top";
  for (const cell of cells) {
    pen.fillStyle = colour.dim;
    pen.globalAlpha = 1;
    pen.fillText(shortened(shown(cell.label), Math.max(14, Math.floor((cell.refs.length * DOT) / 6))), cell.x, cell.y - top);
    cell.refs.forEach((ref, position) => dot(pen, ref, cell.x + position * DOT, cell.y - top + 15, colour, store, cursor));
  }
  pen.globalAlpha = 1;
}

function dot(pen: CanvasRenderingContext2D, ref: Ref, x: number, y: number, colour: Colours, store: Store, cursor: string): void {
  const { gpu } = ref;
  const side = DOT - 3;
  const fits = store.fits(ref);
  const isLit = store.lit.has(ref.name);
  pen.globalAlpha = fits === false || (store.lit.size > 0 && !isLit) ? 0.3 : 1;
  pen.fillStyle = colour.line;
  pen.fillRect(x, y, side, side);
  if (gpu.mode) {
    pen.fillStyle = colour.paper;
    pen.fillRect(x + 2, y + 2, side - 4, side - 4);
  }
  const held = Math.min(1, Math.max((gpu.held?.[0] ?? 0) / 100, gpu.bytes ? (gpu.held?.[1] ?? 0) / gpu.bytes : 0));
  const filled = Math.round(held * side);
  if (filled) {
    pen.fillStyle = colour.compute;
    pen.fillRect(x, y + side - filled, side, filled);
    const used = Math.round((Math.min(100, gpu.used?.[0] ?? 0) / 100) * side);
    pen.fillStyle = colour.used;
    if (used) pen.fillRect(x, y + side - used, side, used);
  }
  if (gpu.trouble) {
    pen.strokeStyle = colour.bad;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.moveTo(x + 1, y + 1);
    pen.lineTo(x + side - 1, y + side - 1);
    pen.moveTo(x + side - 1, y + 1);
    pen.lineTo(x + 1, y + side - 1);
    pen.stroke();
  } else if (gpu.status?.length) {
    pen.strokeStyle = colour.ink;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(x + 1, y + side - 1);
    pen.lineTo(x + side - 1, y + 1);
    pen.stroke();
  }
  if ((gpu.shares ?? []).some((share) => share.idle)) {
    pen.fillStyle = colour.idle;
    pen.fillRect(x + side - 4, y, 4, 4);
  }
  if (isLit || fits === true || store.view.sel === `gpu:${ref.name}` || cursor === ref.name) {
    pen.strokeStyle = cursor === ref.name ? colour.ink : colour.accent;
    pen.lineWidth = fits === true && !isLit && cursor !== ref.name ? 1.25 : 2;
    pen.strokeRect(x - 0.5, y - 0.5, side + 1, side + 1);
  }
}

function shortened(text: string, most: number): string {
  return text.length <= most ? text : `…${text.slice(1 - most)}`;
}
