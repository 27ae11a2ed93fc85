// The request as a brick that a person drags over the map: the GPU under it says whether it fits, and why not.
import { el, write } from "./dom";
import type { GpuMap } from "./map";
import type { Panel } from "./panel";
import type { Store } from "./store";

export function brick(store: Store, map: GpuMap, panel: Panel): HTMLElement {
  const handle = el("button", { type: "button", class: "brick", "aria-label": "Drag this request over the map to see where it fits", title: "Drag over the map" }, "⠿");
  let ghost: HTMLElement | null = null;
  let over = "";

  const judge = (name: string): void => {
    if (!ghost || name === over) return;
    over = name;
    const ref = name ? store.find(name) : undefined;
    const fits = ref ? store.fits(ref) : undefined;
    ghost.className = `ghost ${fits === undefined ? "" : fits ? "yes" : "no"}`;
    const text = store.view.fit;
    write(ghost, fits === undefined ? text : `${text} ${fits ? "fits" : "does not fit"} on ${name}`);
    if (fits === false) {
      void panel.verdict(text, name).then((why) => {
        if (ghost && over === name) write(ghost, `${name} ${why}`);
      });
    }
  };
  handle.addEventListener("pointerdown", (event) => {
    if (!store.view.fit) void panel.askFit("0.5");
    handle.setPointerCapture(event.pointerId);
    ghost = el("div", { class: "ghost" }, store.view.fit);
    document.body.append(ghost);
    over = "";
    move(event);
  });
  const move = (event: PointerEvent): void => {
    if (!ghost) return;
    ghost.style.left = `${event.clientX + 12}px`;
    ghost.style.top = `${event.clientY + 10}px`;
    judge(map.under(event.clientX, event.clientY) ?? "");
  };
  handle.addEventListener("pointermove", move);
  handle.addEventListener("pointerup", (event) => {
    ghost?.remove();
    ghost = null;
    const name = map.under(event.clientX, event.clientY);
    if (!name) return;
    map.cursor = name;
    const ref = store.find(name);
    void panel.verdict(store.view.fit, name).then((why) => {
      store.lit.clear();
      store.lit.set(name, ref && store.fits(ref) ? `${store.view.fit} fits` : why);
      store.set({ tab: "fit" });
    });
  });
  handle.addEventListener("pointercancel", () => {
    ghost?.remove();
    ghost = null;
  });
  return handle;
}
