// The moves of a defrag plan as arrows from GPU to GPU, over the map.
import { svg, write } from "./dom";
import type { Store } from "./store";

type Place = (name: string) => [number, number] | undefined;

export function drawArrows(layer: SVGElement, store: Store, place: Place, height: number): void {
  layer.replaceChildren();
  const moves = store.view.tab === "plan" ? (store.plan?.moves ?? []) : [];
  layer.style.display = moves.length ? "" : "none";
  if (!moves.length) return;
  layer.setAttribute("height", String(height));
  const head = svg("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" });
  head.append(svg("path", { d: "M0 0 L8 4 L0 8 Z", class: "tip" }));
  layer.append(svg("defs", {}, head));
  moves.forEach((move, number) => {
    move.from.forEach((from, position) => {
      const [start, end] = [place(from), place(move.to[position] ?? move.to[0] ?? "")];
      if (!start || !end) return;
      const [x, y] = [(start[0] + end[0]) / 2, (start[1] + end[1]) / 2];
      const bend = Math.min(80, Math.hypot(end[0] - start[0], end[1] - start[1]) / 4);
      const middle = [x + (end[1] === start[1] ? 0 : bend), y - (end[1] === start[1] ? bend : 0)];
      const title = svg("title", {});
      write(title, `${number + 1}: ${move.pod} from ${from} to ${move.to.join(", ")}`);
      layer.append(
        svg("path", { d: `M${start.join(" ")} Q${middle.join(" ")} ${end.join(" ")}`, class: "arrow", "marker-end": "url(#tip)" }, title),
        svg("circle", { cx: start[0], cy: start[1], r: 9, class: "step" }),
      );
      const label = svg("text", { x: start[0], y: start[1] + 4, class: "number", "text-anchor": "middle" });
      label.textContent = String(number + 1);
      layer.append(label);
    });
  });
}
