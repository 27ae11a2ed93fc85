// A request as people write it on the page: `0.5`, `0.5 + 16Gi`, `2 × 1`, `8Gi`, and the flags of `kubectl gpushare fit`
// in words: `0.5 + 16Gi memory-limit=24Gi isolation=mps`. The webhook's engine judges the values.

const WORD = /(?:^|\s)(?:--)?([a-z][a-z-]*)=("[^"]*"|'[^']*'|\S*)/g;
// The names of models have spaces: without quotes, one ends before the next word with "=", or before "+".
const MODEL = /(?<=(?:^|\s)(?:--)?model=)(?!["'\s])[^+]+?(?=\s+(?:--)?[a-z][a-z-]*=|\s*\+|\s*$)/;

export function request(text: string): Record<string, string> {
  const asked: Record<string, string> = {};
  const rest = text.replace(MODEL, '"$&"').replace(WORD, (_, name: string, value: string) => {
    asked[name] = value.replace(/^(["'])(.*)\1$/, "$2");
    return " ";
  });
  const many = /^\s*(\d+)\s*[x×*]\s*(.*)$/.exec(rest);
  const parts = (many?.[2] ?? rest).split("+").map((part) => part.trim()).filter(Boolean);
  for (const part of parts) {
    const isMemory = /[KMGTPE]i?$|^\d{6,}$/.test(part) || "request" in asked;
    asked[isMemory ? "memory" : "request"] = part;
  }
  if (many?.[1]) asked["gpus"] = many[1];
  return asked;
}
