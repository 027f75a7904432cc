import type { AccessRule, PatternSegment } from './access-rule.ts';
import {
  ALL_DIFFERENCES,
  type Differences,
  ignoredBy,
  isPlainPath,
  isPlainPattern,
  LETTER_CASE,
  notKeptApartBy,
  patternCovers,
  patternFits,
  patternsOverlap,
  respelled,
  respelledPattern,
  TRAILING_SLASH,
  UNKNOWN_READING,
  withoutCase,
  withoutSlash,
} from './path-spelling.ts';
import type { RequestTarget } from './request-target.ts';
import { isAtLeastAsStrict } from './strictness.ts';

/** What a rule is matched against. */
export interface MatchQuestion {
  readonly method: string;
  /** As in the Host field; a port does not count. */
  readonly host: string;
  readonly target: Pick<RequestTarget, 'segments' | 'encodedSlash'>;
}

/**
 * Why a rule does not apply to a request. `other_spelling`: the path differs from the rule's only in letter case or by a
 * trailing slash. `other_reading`: an upstream may read the path as one that another rule restricts.
 */
export type Misfit = 'path' | 'host' | 'method' | 'encoded_slash' | 'other_spelling' | 'other_reading';

export interface Tried {
  readonly rule: AccessRule;
  /** Undefined for the rule that matched. */
  readonly misfit: Misfit | undefined;
}

/** Requests that `rule` matches are refused where they are another spelling of paths of `stricter`. */
export interface SpellingConflict {
  readonly rule: AccessRule;
  readonly stricter: AccessRule;
}

/**
 * The rules, compiled once. First match wins, at a cost that follows the length of the path and not the number
 * of rules: a tree of segments for each host and one for all hosts, in which each branch knows its earliest rule.
 */
export interface CompiledRules {
  readonly rules: readonly AccessRule[];
  /** Some rule lets `%2F` stand. */
  readonly encodedSlash: boolean;
  /** Host names that rules speak of, in lower case. */
  readonly hosts: ReadonlySet<string>;
  /** Rules that would match other spellings of paths for which another rule asks for more. */
  readonly conflicts: readonly SpellingConflict[];
  match(question: MatchQuestion): AccessRule | undefined;
  /** The rules in their order up to the one that matches, and why each of the others does not. */
  trace(question: MatchQuestion): readonly Tried[];
}

interface Placed {
  readonly place: number;
  readonly rule: AccessRule;
  readonly host: string | undefined;
  /** Differences its upstream ignores: it matches all spellings. */
  readonly ignores: Differences;
  /** Its pattern without differences, by these. */
  readonly patterns: readonly (readonly PatternSegment[])[];
  rivals: Rivals | undefined;
}

/** Rules that ask for more than one rule does, and match paths of its in another spelling. */
interface Rivals {
  readonly rules: ReadonlySet<Placed>;
  /** Their patterns are the same in any spelling, so a path that is so too matches them as sent or not at all. */
  readonly plain: boolean;
  /** All rules, for paths without the differences that the upstream may ignore. */
  readonly trees: readonly Tree[];
}

/** Rules by host, for paths without some differences. */
interface Tree {
  readonly ignores: Differences;
  readonly everywhere: Branch;
  readonly byHost: Map<string, Branch>;
}

interface Branch {
  /** Place of the earliest rule at or below this branch. */
  earliest: number;
  readonly literal: Map<string, Branch>;
  any: Branch | undefined;
  /** Rules whose pattern ends here, and those that end in `/**` here. Both in order. */
  readonly ends: Placed[];
  readonly rests: Placed[];
}

const newBranch = (place: number): Branch => ({
  earliest: place,
  literal: new Map(),
  any: undefined,
  ends: [],
  rests: [],
});

/** The name in a Host field: no port, no trailing dot, lower case. */
export function hostName(host: string): string {
  const end = host.startsWith('[') ? host.indexOf(']') + 1 : host.indexOf(':');
  const name = (end > 0 ? host.slice(0, end) : host).toLowerCase();
  return name.endsWith('.') ? name.slice(0, -1) : name;
}

export function compileRules(rules: readonly AccessRule[]): CompiledRules {
  const all = rules.map(
    (rule, place): Placed => ({
      place,
      rule,
      host: rule.host === undefined ? undefined : hostName(rule.host),
      ignores: ignoredBy(rule.paths ?? UNKNOWN_READING),
      patterns: ALL_DIFFERENCES.map((ignored) => respelledPattern(rule.pattern, ignored)),
      rivals: undefined,
    }),
  );
  const hosts = new Set(all.flatMap(({ host }) => host ?? []));
  const trees = treesOf(all, 0);
  const respelledTrees = remembered((blurred: Differences) => treesOf(all, blurred));
  const conflicts = findRivals(all, respelledTrees);

  const matchAsSent = (question: MatchQuestion, segments: readonly string[]): Placed | undefined => {
    const { method } = question;
    const host = hosts.size === 0 ? '' : hostName(question.host);
    let found: Placed | undefined;
    for (const tree of trees) {
      const path = tree.ignores === 0 ? segments : respelled(segments, tree.ignores);
      const own = host === '' ? undefined : tree.byHost.get(host);
      if (own !== undefined) found = search(own, 0, path, method, found);
      found = search(tree.everywhere, 0, path, method, found);
    }
    return found;
  };

  const match = (question: MatchQuestion): AccessRule | undefined => {
    const { segments, encodedSlash } = question.target;
    const found = matchAsSent(question, segments);
    if (found === undefined) return undefined;
    const { rule, place } = found;
    if (rivalOf(found, question, segments) !== undefined) return undefined;
    const hasParameters = segments.some((segment) => segment.includes(';'));
    if (!encodedSlash && !hasParameters) return rule;

    // A rule that does not take `%2F` refuses it; a later and laxer one never gets to see it.
    if (encodedSlash && !rule.encodedSlash) return undefined;
    // To some upstreams `/admin%2Fx` is `/admin/x`: what an earlier rule would claim then is no other rule's.
    const isClaimed = (path: readonly string[]): boolean => {
      const other = matchAsSent(question, path);
      if (other !== undefined && other.place < place) return true;
      const isStricter = (one: Placed): boolean => one.place < place && !isAtLeastAsStrict(rule, one.rule);
      return findIn(respelledTrees(blurredBy(found)), question, path, isStricter) !== undefined;
    };
    const split = encodedSlash ? segments.flatMap((segment) => segment.split('/')) : segments;
    if (encodedSlash && alsoMerged(split).some(isClaimed)) return undefined;
    if (!hasParameters) return rule;

    // To some upstreams `/admin;x` is `/admin`, and `/;x/admin` too. Where readings lead to different rules, none counts.
    for (const bare of withoutParameters(segments))
      if (matchAsSent(question, bare) !== found || rivalOf(found, question, bare) !== undefined)
        return undefined;
    return encodedSlash && withoutParameters(split).some(isClaimed) ? undefined : rule;
  };

  return {
    rules,
    encodedSlash: rules.some((rule) => rule.encodedSlash),
    hosts,
    conflicts,
    match,
    trace(question) {
      const { segments } = question.target;
      const winner = match(question);
      const asSent = winner === undefined ? matchAsSent(question, segments) : undefined;
      const rival = asSent && rivalOf(asSent, question, segments);
      const tried: Tried[] = [];
      for (const placed of all) {
        const { rule } = placed;
        if (rule === winner) return [...tried, { rule, misfit: undefined }];
        const misfit = placed === rival ? 'other_spelling' : (misfitOf(placed, question) ?? 'other_reading');
        tried.push({ rule, misfit });
        // The first that would match decides, also when it decides against it.
        if (misfit === 'encoded_slash' || misfit === 'other_reading') break;
      }
      if (rival !== undefined && !tried.some(({ rule }) => rule === rival.rule))
        tried.push({ rule: rival.rule, misfit: 'other_spelling' });
      return tried;
    },
  };
}

/** Segments without `;parameters`. */
const withoutParameters = (segments: readonly string[]): (readonly string[])[] =>
  alsoMerged(segments.map((segment) => segment.split(';', 1)[0] ?? ''));

/** A path, and where it has empty segments, also as servers read it that merge slashes. */
function alsoMerged(segments: readonly string[]): (readonly string[])[] {
  const merged = segments.filter((segment, index) => segment !== '' || index === segments.length - 1);
  return merged.length === segments.length ? [segments] : [segments, merged];
}

function treesOf(all: readonly Placed[], ignored: Differences): Tree[] {
  const trees: Tree[] = [];
  for (const placed of all) {
    const ignores = ignored | placed.ignores;
    let tree = trees.find((one) => one.ignores === ignores);
    if (tree === undefined) trees.push((tree = { ignores, everywhere: newBranch(0), byHost: new Map() }));
    plant(rootFor(tree, placed), placed, patternOf(placed, ignores));
  }
  return trees;
}

function rootFor({ everywhere, byHost }: Tree, { host, place }: Placed): Branch {
  if (host === undefined) return everywhere;
  const root = byHost.get(host) ?? newBranch(place);
  byHost.set(host, root);
  return root;
}

/** Differences that the upstream of a rule ignores, or may ignore. */
const blurredBy = ({ rule }: Placed): Differences => notKeptApartBy(rule.paths ?? UNKNOWN_READING);

function remembered<Key, Value>(make: (key: Key) => Value): (key: Key) => Value {
  const known = new Map<Key, Value>();
  return (key) => {
    const value = known.get(key) ?? make(key);
    known.set(key, value);
    return value;
  };
}

/** Gives each rule its rivals: nearly all rules have none, and their requests are not looked at again. */
function findRivals(
  all: readonly Placed[],
  trees: (blurred: Differences) => readonly Tree[],
): SpellingConflict[] {
  const conflicts: SpellingConflict[] = [];
  const byFirst = Map.groupBy(all, firstLiteral);
  for (const placed of all) {
    const blurred = blurredBy(placed);
    if (blurred === 0) continue;
    const first = firstLiteral(placed);
    const near =
      first === undefined ? all : [...(byFirst.get(first) ?? []), ...(byFirst.get(undefined) ?? [])];
    const rivals = near.filter((other) => other !== placed && isRival(placed, other, blurred));
    if (rivals.length === 0) continue;
    placed.rivals = {
      rules: new Set(rivals),
      plain: rivals.every(({ rule }) => isPlainPattern(rule.pattern)),
      trees: trees(blurred),
    };
    for (const { rule } of rivals) conflicts.push({ rule: placed.rule, stricter: rule });
  }
  return conflicts;
}

/** In any spelling; undefined where a pattern begins with a wildcard or is `/`. */
function firstLiteral(placed: Placed): string | undefined {
  const [first] = patternOf(placed, LETTER_CASE | TRAILING_SLASH);
  return typeof first === 'object' ? first.literal : undefined;
}

function isRival(placed: Placed, other: Placed, blurred: Differences): boolean {
  const [{ rule }, { rule: stricter }] = [placed, other];
  if (isAtLeastAsStrict(rule, stricter)) return false;
  if (placed.host !== undefined && other.host !== undefined && placed.host !== other.host) return false;
  if (rule.methods !== undefined && stricter.methods?.isDisjointFrom(rule.methods) === true) return false;
  const ignored = blurred | other.ignores;
  if (!patternsOverlap(patternOf(placed, ignored), patternOf(other, ignored))) return false;
  // A rule that matches as sent whatever this one does is no other spelling of it: the first of the two wins.
  if (coversAsSent(other, placed)) return false;
  // Behind a rule that matches all of its paths, it is never reached.
  return placed.place > other.place || !coversAsSent(placed, other);
}

const coversAsSent = (wide: Placed, narrow: Placed): boolean =>
  wide.ignores === narrow.ignores &&
  (wide.host === undefined || wide.host === narrow.host) &&
  patternCovers(patternOf(wide, wide.ignores), patternOf(narrow, narrow.ignores));

const patternOf = ({ patterns }: Placed, ignored: Differences): readonly PatternSegment[] =>
  patterns[ignored] ?? [];

/** A rule that asks for more than the one found, and matches this path in another spelling only. */
function rivalOf(
  { rivals }: Placed,
  question: MatchQuestion,
  segments: readonly string[],
): Placed | undefined {
  if (rivals === undefined || (rivals.plain && isPlainPath(segments))) return undefined;
  const isOne = (one: Placed): boolean => rivals.rules.has(one) && !fitsAsSent(one, segments);
  return findIn(rivals.trees, question, segments, isOne);
}

/** Any of the rules looked for that matches this path, in the spellings of these trees. */
function findIn(
  trees: readonly Tree[],
  { host, method }: MatchQuestion,
  segments: readonly string[],
  isWanted: (placed: Placed) => boolean,
): Placed | undefined {
  const name = hostName(host);
  const isOne = (placed: Placed): boolean => isWanted(placed) && takesMethod(placed.rule, method);
  for (const { ignores, everywhere, byHost } of trees) {
    const path = (ignores & TRAILING_SLASH) === 0 ? segments : withoutSlash(segments);
    const own = byHost.get(name);
    const found =
      (own && searchAny(own, 0, path, ignores, isOne)) ?? searchAny(everywhere, 0, path, ignores, isOne);
    if (found !== undefined) return found;
  }
  return undefined;
}

const fitsAsSent = (placed: Placed, segments: readonly string[]): boolean =>
  patternFits(patternOf(placed, placed.ignores), respelled(segments, placed.ignores));

/** Any rule below `branch` that fits and is one of those looked for. */
function searchAny(
  branch: Branch,
  at: number,
  path: readonly string[],
  ignores: Differences,
  isOne: (placed: Placed) => boolean,
): Placed | undefined {
  const rest = branch.rests.find(isOne);
  if (rest !== undefined) return rest;
  const sent = path[at];
  if (sent === undefined) return branch.ends.find(isOne);
  const segment = (ignores & LETTER_CASE) === 0 ? sent : withoutCase(sent);
  const literal = branch.literal.get(segment);
  const found = literal && searchAny(literal, at + 1, path, ignores, isOne);
  if (found !== undefined || branch.any === undefined || segment === '') return found;
  return searchAny(branch.any, at + 1, path, ignores, isOne);
}

function plant(root: Branch, placed: Placed, pattern: readonly PatternSegment[]): void {
  let branch = root;
  for (const segment of pattern) {
    if (segment === '**') {
      branch.rests.push(placed);
      return;
    }
    branch = childFor(branch, segment, placed.place);
  }
  branch.ends.push(placed);
}

function childFor(branch: Branch, segment: Exclude<PatternSegment, '**'>, place: number): Branch {
  if (segment === '*') return (branch.any ??= newBranch(place));
  const known = branch.literal.get(segment.literal);
  if (known !== undefined) return known;
  const made = newBranch(place);
  branch.literal.set(segment.literal, made);
  return made;
}

/** The earliest rule below `branch` that fits and comes before `best`. */
function search(
  branch: Branch,
  at: number,
  path: readonly string[],
  method: string,
  best: Placed | undefined,
): Placed | undefined {
  if (best !== undefined && branch.earliest > best.place) return best;
  let found = firstFit(branch.rests, method, best);
  const segment = path[at];
  if (segment === undefined) return firstFit(branch.ends, method, found);
  const literal = branch.literal.get(segment);
  if (literal !== undefined) found = search(literal, at + 1, path, method, found);
  if (branch.any !== undefined && segment !== '') found = search(branch.any, at + 1, path, method, found);
  return found;
}

function firstFit(list: readonly Placed[], method: string, best: Placed | undefined): Placed | undefined {
  for (const placed of list) {
    if (best !== undefined && placed.place > best.place) return best;
    if (takesMethod(placed.rule, method)) return placed;
  }
  return best;
}

/** Everything but path and host, which the tree has settled. */
const takesMethod = ({ methods }: AccessRule, method: string): boolean =>
  methods === undefined || methods.has(method);

function misfitOf(placed: Placed, question: MatchQuestion): Misfit | undefined {
  const { rule, host } = placed;
  if (!fitsAsSent(placed, question.target.segments)) return 'path';
  if (host !== undefined && host !== hostName(question.host)) return 'host';
  if (!takesMethod(rule, question.method)) return 'method';
  return question.target.encodedSlash && !rule.encodedSlash ? 'encoded_slash' : undefined;
}
