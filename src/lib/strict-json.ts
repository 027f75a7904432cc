/**
 * JSON (RFC 8259) in which no object has the same name twice and nesting is limited. Parsers disagree about repeated names,
 * so two checks could see two different messages. Objects have no prototype.
 */
export class JsonError extends Error {}

export type Json = string | number | boolean | null | readonly Json[] | { readonly [name: string]: Json };
export type JsonObject = { readonly [name: string]: Json };

const MAX_DEPTH = 32;

export function parseStrictJson(text: string): Json {
  const names = countNames(text);
  let value: Json;
  try {
    value = JSON.parse(text) as Json;
  } catch {
    throw new JsonError('not valid JSON');
  }
  // Of a repeated name, `JSON.parse` keeps the last value only.
  if (removePrototypes(value) !== names) throw new JsonError('the same name twice in one object');
  return value;
}

const [QUOTE, BACKSLASH, COLON] = [0x22, 0x5c, 0x3a];
const [OPENING_BRACKET, CLOSING_BRACKET, OPENING_BRACE, CLOSING_BRACE] = [0x5b, 0x5d, 0x7b, 0x7d];

/** Of valid JSON: how many names its objects have. Throws if it is nested too deeply. */
function countNames(text: string): number {
  let names = 0;
  let depth = 0;
  for (let at = 0; at < text.length; at += 1) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) at = findStringEnd(text, at + 1);
    else if (code === COLON) names += 1;
    else if (code === CLOSING_BRACE || code === CLOSING_BRACKET) depth -= 1;
    else if (code === OPENING_BRACE || code === OPENING_BRACKET) {
      depth += 1;
      if (depth > MAX_DEPTH) throw new JsonError('nested too deeply');
    }
  }
  return names;
}

function findStringEnd(text: string, start: number): number {
  let at = start;
  for (; at < text.length; at += 1) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) break;
    if (code === BACKSLASH) at += 1;
  }
  return at;
}

/** Returns how many names the objects have. */
function removePrototypes(value: Json): number {
  if (typeof value !== 'object' || value === null) return 0;
  let names = 0;
  if (Array.isArray(value)) {
    for (const item of value as readonly Json[]) names += removePrototypes(item);
    return names;
  }
  const object = Object.setPrototypeOf(value, null) as JsonObject;
  for (const name in object) names += 1 + removePrototypes(object[name] as Json);
  return names;
}

/** Undefined unless the text is a JSON object. */
export function parseStrictJsonObject(text: string): JsonObject | undefined {
  try {
    const value = parseStrictJson(text);
    return isJsonObject(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

export const isJsonObject = (value: Json): value is JsonObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
