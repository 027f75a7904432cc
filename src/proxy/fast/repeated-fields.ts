import { flat } from '../../observability/flat-text.ts';
import { Recent } from '../../observability/recent.ts';
import { newTraceparent } from '../../observability/trace.ts';
import type { Caller } from '../admission.ts';
import { type Credentials, readCredentials } from '../credentials.ts';
import type { ForwardFacts, HeaderRules } from '../headers.ts';
import { fieldText } from './answer-text.ts';
import { type FieldBlock, type HandOver, readFields } from './grammar.ts';

/** What is written to the upstream for a request's fields. */
export interface WrittenFields {
  readonly text: string;
  readonly trace: string;
}

/**
 * What the header rules make of the same fields of the same caller from the same place is the same each time, but for
 * the id and the trace: it is kept, with a gap for each.
 */
export class RepeatedFields {
  #rules: HeaderRules | undefined;
  #caller: Caller | undefined;
  #forwardAuthorization = false;
  #peer = '';
  #encrypted = false;
  #trustedPeer = false;
  /** As the client gave it; undefined: a new one for each request. */
  #trace: string | undefined;
  #parts: readonly [string, string, string] | undefined;
  /** Not before the second time: most that come but once never come again. */
  #inOnePiece = false;
  readonly #written = { text: '', trace: '' };

  write(rules: HeaderRules, fields: ReadFields, facts: ForwardFacts): WrittenFields {
    const { requestId } = facts;
    const known =
      this.#parts !== undefined &&
      this.#rules === rules &&
      this.#caller === facts.caller &&
      this.#forwardAuthorization === facts.forwardAuthorization &&
      this.#peer === facts.peer &&
      this.#encrypted === facts.encrypted &&
      this.#trustedPeer === facts.trustedPeer;
    if (!known) this.#remember(rules, fields, facts);
    else if (!this.#inOnePiece) this.#flatten();
    const [before, between, after] = this.#parts ?? NO_PARTS;
    const trace = this.#trace ?? newTraceparent();
    this.#written.text = before + trace + between + requestId + after;
    this.#written.trace = trace;
    return this.#written;
  }

  #flatten(): void {
    const [before, between, after] = this.#parts ?? NO_PARTS;
    this.#parts = [flat(before), flat(between), flat(after)];
    this.#inOnePiece = true;
  }

  #remember(rules: HeaderRules, fields: ReadFields, facts: ForwardFacts): void {
    const { rawHeaders } = fields;
    const list = rules.forUpstream(rawHeaders, fields, facts);
    const { trace = '' } = facts;
    const [traceAt, idAt] = [valueAt(list, 'traceparent'), valueAt(list, 'X-Request-Id')];
    if (list[traceAt] !== trace || list[idAt] !== facts.requestId || traceAt > idAt)
      throw new Error('the header rules write one trace and then one id');
    const name = (at: number): string => `${list[at - 1]}: `;
    this.#parts = [
      fieldText(list.slice(0, traceAt - 1)) + name(traceAt),
      `\r\n${fieldText(list.slice(traceAt + 1, idAt - 1))}${name(idAt)}`,
      `\r\n${fieldText(list.slice(idAt + 1))}`,
    ];
    this.#inOnePiece = false;
    this.#trace = rawHeaders.includes(trace) ? trace : undefined;
    this.#rules = rules;
    this.#caller = facts.caller;
    this.#forwardAuthorization = facts.forwardAuthorization;
    this.#peer = facts.peer;
    this.#encrypted = facts.encrypted;
    this.#trustedPeer = facts.trustedPeer;
  }
}

const NO_PARTS = ['', '', ''] as const;

/** The fields of a request, with what was made of them. */
export interface ReadFields extends FieldBlock {
  readonly credentials: Credentials;
  readonly written: RepeatedFields;
}

/** Requests mostly repeat the fields of earlier ones, to the letter: those of the last few hundred are known by heart. */
export interface FieldMemory {
  read(block: string): ReadFields | HandOver;
}

const SHELF = 512;
const LONGEST = 4_096;

export function fieldMemory(): FieldMemory {
  const recent = new Recent<ReadFields>(SHELF, LONGEST);
  return {
    read(block) {
      const known = recent.get(block);
      if (known !== undefined) return known;
      const read = readFields(block);
      if (typeof read === 'string') return read;
      const fields = {
        ...read,
        credentials: readCredentials(read.authorization),
        written: new RepeatedFields(),
      };
      recent.set(block, fields);
      return fields;
    },
  };
}

/**
 * Where the value of a field of ours stands. Names only: a client may write one of them as a value. The first: what a client
 * sends under these names is left out, and a name the operator has chosen comes later.
 */
function valueAt(list: readonly string[], name: string): number {
  let at = 0;
  while (at < list.length && list[at] !== name) at += 2;
  return at + 1;
}
