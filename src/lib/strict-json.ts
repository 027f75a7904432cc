/**
 * JSON (RFC 8259) in which no object has the same name twice and nesting is limited. Parsers disagree about repeated names,
 * so two checks could see two different messages. Objects have no prototype.
 */
export class JsonError extends Error {}

export type Json = string | number | boolean | null | readonly Json[] | { readonly [name: string]: Json };
export type JsonObject = { readonly [name: string]: Json };

/** A string, with the colon behind it if it is a name, or a bracket. */
const TOKEN = /"([^"\\]*(?:\\.[^"\\]*)*)"(?:[ \t\n\r]*(:))?|[{}[\]]/gs;
const MAX_DEPTH = 32;

export function parseStrictJson(text: string): Json {
  try {
    checkNamesAndDepth(text);
    return JSON.parse(text, removePrototype) as Json;
  } catch (error) {
    throw error instanceof JsonError ? error : new JsonError('not valid JSON');
  }
}

const removePrototype = (_name: string, value: Json): Json =>
  isJsonObject(value) ? (Object.setPrototypeOf(value, null) as JsonObject) : value;

function checkNamesAndDepth(text: string): void {
  /** The names in each open object, and nothing for open arrays. */
  const open: (Set<string> | undefined)[] = [];
  for (const [token, raw = '', colon] of text.matchAll(TOKEN)) {
    if (token === '}' || token === ']') open.pop();
    else if (token === '{' || token === '[') {
      if (open.length === MAX_DEPTH) throw new JsonError('nested too deeply');
      open.push(token === '{' ? new Set() : undefined);
    } else if (colon !== undefined) {
      const name = raw.includes('\\') ? (JSON.parse(`"${raw}"`) as string) : raw;
      if (open.at(-1)?.has(name) === true) throw new JsonError('the same name twice in one object');
      open.at(-1)?.add(name);
    }
  }
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
