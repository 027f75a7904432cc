/**
 * JSON as RFC 8259 has it, minus its ambiguities: a name that occurs twice in one object is an error (parsers
 * disagree about which one counts, and that is how two checks come to see two different messages), and nesting
 * has an end. Objects have no prototype.
 */
export class JsonError extends Error {}

export type Json = string | number | boolean | null | readonly Json[] | { readonly [name: string]: Json };
export type JsonObject = { readonly [name: string]: Json };

const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const SPACE = /[ \t\n\r]*/y;
const WORDS: readonly (readonly [string, Json])[] = [
  ['true', true],
  ['false', false],
  ['null', null],
];
const MAX_DEPTH = 32;

export function parseStrictJson(text: string): Json {
  let at = 0;

  const fail = (): never => {
    throw new JsonError(`not strict JSON at character ${at + 1}`);
  };
  const skip = (): void => {
    SPACE.lastIndex = at;
    SPACE.exec(text);
    at = SPACE.lastIndex;
  };
  const take = (char: string): boolean => {
    if (text[at] !== char) return false;
    at += 1;
    return true;
  };
  const string = (): string => {
    STRING.lastIndex = at;
    const found = STRING.exec(text)?.[0];
    if (found === undefined) return fail();
    at += found.length;
    return found.includes('\\') ? (JSON.parse(found) as string) : found.slice(1, -1);
  };
  const object = (depth: number): JsonObject => {
    const made: Record<string, Json> = Object.create(null);
    skip();
    if (take('}')) return made;
    do {
      skip();
      const name = string();
      if (name in made) throw new JsonError('the same name twice in one object');
      skip();
      if (!take(':')) fail();
      made[name] = value(depth);
      skip();
    } while (take(','));
    return take('}') ? made : fail();
  };
  const array = (depth: number): Json[] => {
    const made: Json[] = [];
    skip();
    if (take(']')) return made;
    do {
      made.push(value(depth));
      skip();
    } while (take(','));
    return take(']') ? made : fail();
  };
  const value = (depth: number): Json => {
    if (depth > MAX_DEPTH) throw new JsonError('nested too deeply');
    skip();
    if (text[at] === '"') return string();
    if (take('{')) return object(depth + 1);
    if (take('[')) return array(depth + 1);
    for (const [word, meaning] of WORDS)
      if (text.startsWith(word, at)) {
        at += word.length;
        return meaning;
      }
    NUMBER.lastIndex = at;
    const found = NUMBER.exec(text)?.[0];
    if (found === undefined) return fail();
    at += found.length;
    return Number(found);
  };

  const result = value(0);
  skip();
  return at === text.length ? result : fail();
}

export const isJsonObject = (value: Json): value is JsonObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
