/**
 * JSON (RFC 8259) in which no object has the same name twice and nesting is limited. Parsers disagree about repeated names,
 * so two checks could see two different messages. Objects have no prototype.
 */
class JsonError extends Error {}

export type Json = string | number | boolean | null | readonly Json[] | { readonly [name: string]: Json };
export type JsonObject = { readonly [name: string]: Json };

const MAX_DEPTH = 32;
const QUOTE = 0x22;
const COLON = 0x3a;
const BACKSLASH = 0x5c;

/** Takes time linear in the length of the text, also if it is malformed: it comes from unauthenticated clients. */
export function parseStrictJson(text: string): Json {
  let value: Json;
  try {
    value = JSON.parse(text) as Json;
  } catch {
    throw new JsonError('not valid JSON');
  }
  // JSON.parse keeps only one of several members with the same name.
  if (removePrototypes(value, 0) !== countMembers(text)) throw new JsonError('the same name twice in one object');
  return value;
}

/** Returns the number of members of all objects. */
function removePrototypes(value: Json, depth: number): number {
  if (typeof value !== 'object' || value === null) return 0;
  if (depth === MAX_DEPTH) throw new JsonError('nested too deeply');
  let members = 0;
  if (Array.isArray(value)) {
    for (const element of value as readonly Json[]) members += removePrototypes(element, depth + 1);
    return members;
  }
  Object.setPrototypeOf(value, null);
  const object = value as JsonObject;
  for (const name in object) members += 1 + removePrototypes(object[name] as Json, depth + 1);
  return members;
}

/** Each member of an object in valid JSON has exactly one colon outside strings. */
function countMembers(text: string): number {
  let members = 0;
  let isInString = false;
  for (let index = 0; index < text.length; index += 1) {
    const code = text.charCodeAt(index);
    if (code === QUOTE) isInString = !isInString;
    else if (code === BACKSLASH) index += 1;
    else if (code === COLON && !isInString) members += 1;
  }
  return members;
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
