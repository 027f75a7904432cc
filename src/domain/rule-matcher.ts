import type { AccessRule, PatternSegment } from './access-rule.ts';
import type { RequestTarget } from './request-target.ts';

/** What a rule is matched against. */
export interface MatchQuestion {
  readonly method: string;
  /** As in the Host field; a port does not count. */
  readonly host: string;
  readonly target: Pick<RequestTarget, 'segments' | 'encodedSlash'>;
}

/** Why a rule does not apply to a request. */
export type Misfit = 'path' | 'host' | 'method' | 'encoded_slash' | 'other_reading';

export interface Tried {
  readonly rule: AccessRule;
  /** Undefined for the rule that matched. */
  readonly misfit: Misfit | undefined;
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
  match(question: MatchQuestion): AccessRule | undefined;
  /** The rules in their order up to the one that matches, and why each of the others does not. */
  trace(question: MatchQuestion): readonly Tried[];
}

interface Placed {
  readonly place: number;
  readonly rule: AccessRule;
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
  const everywhere = newBranch(0);
  const byHost = new Map<string, Branch>();
  rules.forEach((rule, place) => {
    const host = rule.host === undefined ? undefined : hostName(rule.host);
    const root = host === undefined ? everywhere : (byHost.get(host) ?? newBranch(place));
    if (host !== undefined) byHost.set(host, root);
    plant(root, { place, rule });
  });

  const matchAsSent = (question: MatchQuestion): AccessRule | undefined => {
    const own = byHost.size === 0 ? undefined : byHost.get(hostName(question.host));
    const first = own && search(own, 0, question, undefined);
    return search(everywhere, 0, question, first)?.rule;
  };
  const matchAs = (question: MatchQuestion, segments: readonly string[]): AccessRule | undefined =>
    matchAsSent({ ...question, target: { ...question.target, segments } });
  const match = (question: MatchQuestion): AccessRule | undefined => {
    const rule = matchAsSent(question);
    const { segments, encodedSlash } = question.target;
    if (rule === undefined) return undefined;
    if (encodedSlash) {
      // A rule that does not take `%2F` refuses it; a later and laxer one never gets to see it.
      if (!rule.encodedSlash) return undefined;
      // To some upstreams `/admin%2Fx` is `/admin/x`: what an earlier rule would claim then is no other rule's.
      const split = matchAs(
        question,
        segments.flatMap((segment) => segment.split('/')),
      );
      if (split !== undefined && rules.indexOf(split) < rules.indexOf(rule)) return undefined;
    }
    // To some upstreams `/admin;x` is `/admin`. Where the two readings lead to different rules, neither counts.
    if (!segments.some((segment) => segment.includes(';'))) return rule;
    const bare = segments.map((segment) => segment.split(';', 1)[0] ?? '');
    return matchAs(question, bare) === rule ? rule : undefined;
  };

  return {
    rules,
    encodedSlash: rules.some((rule) => rule.encodedSlash),
    hosts: new Set(byHost.keys()),
    match,
    trace(question) {
      const winner = match(question);
      const tried: Tried[] = [];
      for (const rule of rules) {
        if (rule === winner) return [...tried, { rule, misfit: undefined }];
        const misfit = misfitOf(rule, question) ?? 'other_reading';
        tried.push({ rule, misfit });
        // The first that would match decides, also when it decides against it.
        if (misfit === 'encoded_slash' || misfit === 'other_reading') break;
      }
      return tried;
    },
  };
}

function plant(root: Branch, placed: Placed): void {
  let branch = root;
  for (const segment of placed.rule.pattern) {
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
  question: MatchQuestion,
  best: Placed | undefined,
): Placed | undefined {
  if (best !== undefined && branch.earliest > best.place) return best;
  let found = firstFit(branch.rests, question, best);
  const segment = question.target.segments[at];
  if (segment === undefined) return firstFit(branch.ends, question, found);
  const literal = branch.literal.get(segment);
  if (literal !== undefined) found = search(literal, at + 1, question, found);
  if (branch.any !== undefined && segment !== '') found = search(branch.any, at + 1, question, found);
  return found;
}

function firstFit(
  list: readonly Placed[],
  question: MatchQuestion,
  best: Placed | undefined,
): Placed | undefined {
  for (const placed of list) {
    if (best !== undefined && placed.place > best.place) return best;
    if (takesMethod(placed.rule, question)) return placed;
  }
  return best;
}

/** Everything but path and host, which the tree has settled. */
const takesMethod = ({ methods }: AccessRule, { method }: MatchQuestion): boolean =>
  methods === undefined || methods.has(method);

function misfitOf(rule: AccessRule, question: MatchQuestion): Misfit | undefined {
  if (!pathFits(rule.pattern, question.target.segments)) return 'path';
  if (rule.host !== undefined && hostName(rule.host) !== hostName(question.host)) return 'host';
  if (!takesMethod(rule, question)) return 'method';
  return question.target.encodedSlash && !rule.encodedSlash ? 'encoded_slash' : undefined;
}

function pathFits(pattern: readonly PatternSegment[], segments: readonly string[]): boolean {
  for (const [index, wanted] of pattern.entries()) {
    if (wanted === '**') return segments.length >= index;
    const segment = segments[index];
    if (segment === undefined) return false;
    if (wanted === '*' ? segment === '' : wanted.literal !== segment) return false;
  }
  return segments.length === pattern.length;
}
