import { newTraceparent } from '../../observability/trace.ts';
import type { Caller } from '../admission.ts';
import type { ForwardFacts, HeaderRules } from '../headers.ts';
import { fieldText } from './answer-text.ts';
import type { FieldBlock } from './grammar.ts';

/** What is written to the upstream for a request's fields. */
export interface WrittenFields {
  readonly text: string;
  readonly trace: string;
}

/**
 * Most requests of a connection have the same fields, to the letter, and the same caller. What the header rules make of
 * them is then the same too, but for the id and the trace: it is kept, with a gap for each.
 */
export class RepeatedFields {
  #rules: HeaderRules | undefined;
  #fields: FieldBlock | undefined;
  #caller: Caller | undefined;
  #forwardAuthorization = false;
  /** As the client gave it; undefined: a new one for each request. */
  #trace: string | undefined;
  #parts: readonly [string, string, string] | undefined;
  readonly #written = { text: '', trace: '' };

  /** Whom the facts name may not change between two calls with the same rules, but for the id, the caller and the rule. */
  write(rules: HeaderRules, fields: FieldBlock, facts: ForwardFacts): WrittenFields {
    const { caller, forwardAuthorization, requestId } = facts;
    const known =
      this.#parts !== undefined &&
      this.#rules === rules &&
      this.#fields === fields &&
      this.#caller === caller &&
      this.#forwardAuthorization === forwardAuthorization;
    if (!known) this.#remember(rules, fields, facts);
    const [before, between, after] = this.#parts ?? NO_PARTS;
    const trace = this.#trace ?? newTraceparent();
    this.#written.text = before + trace + between + requestId + after;
    this.#written.trace = trace;
    return this.#written;
  }

  #remember(rules: HeaderRules, fields: FieldBlock, facts: ForwardFacts): void {
    const { rawHeaders } = fields;
    const list = rules.forUpstream(rawHeaders, fields, facts);
    const { trace = '' } = facts;
    const [traceAt, idAt] = [list.lastIndexOf('traceparent') + 1, list.lastIndexOf('X-Request-Id') + 1];
    if (list[traceAt] !== trace || list[idAt] !== facts.requestId || traceAt > idAt)
      throw new Error('the header rules write one trace and then one id');
    const name = (at: number): string => `${list[at - 1]}: `;
    this.#parts = [
      fieldText(list.slice(0, traceAt - 1)) + name(traceAt),
      `\r\n${fieldText(list.slice(traceAt + 1, idAt - 1))}${name(idAt)}`,
      `\r\n${fieldText(list.slice(idAt + 1))}`,
    ];
    this.#trace = rawHeaders.includes(trace) ? trace : undefined;
    this.#rules = rules;
    this.#fields = fields;
    this.#caller = facts.caller;
    this.#forwardAuthorization = facts.forwardAuthorization;
  }
}

const NO_PARTS = ['', '', ''] as const;
