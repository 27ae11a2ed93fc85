// A request as people write it on the page: `0.5`, `0.5 + 16Gi`, `2 × 1`, `8Gi`. The webhook's engine judges the values.

export function request(text: string): Record<string, string> {
  const many = /^\s*(\d+)\s*[x×*]\s*(.*)$/.exec(text);
  const parts = (many?.[2] ?? text).split("+").map((part) => part.trim()).filter(Boolean);
  const asked: Record<string, string> = {};
  for (const part of parts) {
    const isMemory = /[KMGTPE]i?$|^\d{6,}$/.test(part) || "request" in asked;
    asked[isMemory ? "memory" : "request"] = part;
  }
  if (many?.[1]) asked["gpus"] = many[1];
  return asked;
}
