import { type AdminRequest, type GrantView, handleAdminRequest } from '../../admin/grants-api.ts';
import type { FormFields } from '../../pages/form.ts';
import { Fault } from '../../ports/fault.ts';
import {
  type ConsoleFormHandler,
  type ConsoleHandler,
  type ConsolePage,
  type ConsoleRequest,
  urlFor,
} from '../context.ts';
import {
  formatRevocationSubject,
  type GrantSearch,
  type GrantSearchResult,
  grantPage,
  grantsPage,
  isSearchField,
  revokePage,
  type SearchField,
} from '../views/grants.ts';
import { noticePage } from '../views/layout.ts';

const PAGE_SIZE = 100;
const SEARCH_MS = 2_000;
const MAX_TEXT = 1_024;

export const showGrants: ConsoleHandler = async (request) => {
  const search = readSearch(request.query);
  return grantsPage(request, search, await findGrants(request, search));
};

export const showGrant: ConsoleHandler = async (request) => {
  const found = await findGrant(request, request.query.get('id') ?? '');
  return found === undefined ? GRANT_NOT_FOUND : grantPage(request, found);
};

/** What a form revokes: one grant, or everything of a search. */
interface Selection {
  readonly by: SearchField | 'grant';
  readonly text: string;
}

/** Asks before anything is revoked. */
export const confirmRevocation: ConsoleHandler = async (request) => {
  const selection = readSelection(request.query.get('by'), request.query.get('q'));
  if (request.identity.role !== 'operator') return READ_ONLY;
  if (selection === undefined) return UNKNOWN_SELECTION;
  const { by, text } = selection;
  if (by !== 'grant') {
    const search: GrantSearch = { by, text, withEnded: false, after: undefined };
    const result = await findGrants(request, search);
    return revokePage(request, ...(await pinIdentity(request, selection, result)));
  }
  const grant = await findGrant(request, text);
  return grant === undefined
    ? GRANT_NOT_FOUND
    : revokePage(request, selection, { grants: [grant], next: undefined, problem: undefined });
};

/**
 * A person is revoked by the identity that is shown: another person may have the name by the time the form is submitted. After an
 * incomplete search, the grants that were not read may be of other people, so the name stays unless a directory knows whose it is.
 * The API then searches all grants, and refuses if several people match.
 */
async function pinIdentity(
  { deps }: ConsoleRequest,
  selection: Selection,
  result: GrantSearchResult,
): Promise<[Selection, GrantSearchResult]> {
  const { by, text } = selection;
  const identities = [...new Set(result.grants.map(({ identity }) => identity))];
  const [identity] = identities;
  if ((by !== 'name' && by !== 'email') || identity === undefined) return [selection, result];
  if (identities.length > 1) {
    const problem = { text: 'Several people match. Choose an identity:', identities };
    return [selection, { ...result, problem }];
  }
  if (result.next !== undefined) {
    const known = await deps.getApi()?.findIdentities(by === 'name' ? 'userName' : 'email', text);
    if (known?.length !== 1 || known[0] !== identity) return [selection, result];
  }
  return [{ by: 'identity', text: identity }, result];
}

export const revoke: ConsoleFormHandler = async (request, fields) => {
  const selection = readSelection(fields.get('by'), fields.get('q'));
  if (selection === undefined) return UNKNOWN_SELECTION;
  const { by, text } = selection;
  const isSingle = by === 'grant';
  const { status, body } = await callApi(request, {
    method: 'POST',
    path: isSingle ? `/grants/${text}/revoke` : '/revoke',
    ...(!isSingle && { selection: { [by]: text } }),
  });
  if (status === 200)
    return {
      redirect: isSingle ? urlFor('/grant', { id: text }) : urlFor('/grants', { by, q: text, ended: '1' }),
    };
  const { error_description: problem = 'Nothing was revoked.' } = body as { error_description?: string };
  return { ...noticePage('Not revoked', problem), status };
};

/** The form token is valid for this selection only. */
export const getRevocationSubject = (fields: FormFields): string =>
  formatRevocationSubject(fields.get('by') ?? '', fields.get('q') ?? '');

const GRANT_NOT_FOUND: ConsolePage = {
  ...noticePage('No such grant', 'No grant has this id. It may have ended, and its record may have been deleted.'),
  status: 404,
};
const UNKNOWN_SELECTION: ConsolePage = {
  ...noticePage('Nothing selected', 'Search for grants, and revoke from the result.'),
  status: 400,
};
const READ_ONLY: ConsolePage = {
  ...noticePage('Read-only access', 'You signed in as a viewer: you cannot revoke grants.'),
  status: 403,
};

function readSelection(by: string | null | undefined, text: string | null | undefined): Selection | undefined {
  const isKnown = by === 'grant' || isSearchField(by);
  if (!isKnown || text === null || text === undefined || text === '' || text.length > MAX_TEXT) return undefined;
  // A prefix is for searches only.
  return text.endsWith('*') || (by === 'grant' && !GRANT_ID.test(text)) ? undefined : { by, text };
}

function readSearch(query: URLSearchParams): GrantSearch {
  const by = query.get('by');
  return {
    by: isSearchField(by) ? by : 'name',
    text: (query.get('q') ?? '').trim().slice(0, MAX_TEXT),
    withEnded: query.get('ended') === '1',
    after: query.get('after') ?? undefined,
  };
}

const GRANT_ID = /^[A-Za-z0-9_-]{1,64}$/;

export async function findGrant(request: ConsoleRequest, id: string): Promise<GrantView | undefined> {
  if (!GRANT_ID.test(id)) return undefined;
  const { status, body } = await callApi(request, { method: 'GET', path: `/grants/${id}` });
  if (status === 503) throw new Fault('store_unavailable', 'the grant cannot be read');
  return status === 200 ? (body as GrantView) : undefined;
}

/** Up to about a page of grants; `next` continues. */
async function findGrants(
  request: ConsoleRequest,
  { by, text, withEnded, after }: GrantSearch,
): Promise<GrantSearchResult> {
  const { status, body } = await callApi(request, {
    method: 'GET',
    path: '/grants',
    query: new URLSearchParams({
      ...(text !== '' && { [by]: text }),
      state: withEnded ? 'all' : 'live',
      limit: String(PAGE_SIZE),
      ...(after !== undefined && { after }),
    }),
    searchTime: SEARCH_MS,
  });
  if (status !== 200) {
    const { error_description: problem = 'The search failed.', identities = [] } = body as {
      error_description?: string;
      identities?: readonly string[];
    };
    return { grants: [], next: undefined, problem: { text: problem, identities } };
  }
  const { grants, next } = body as { readonly grants: readonly GrantView[]; readonly next?: string };
  return { grants, next, problem: undefined };
}

/** The functions of the admin API, which also record what they do in the audit log. */
function callApi(
  { deps, identity, peer }: ConsoleRequest,
  request: Partial<AdminRequest> & Pick<AdminRequest, 'method' | 'path'>,
) {
  const api = deps.getApi();
  if (api === undefined) throw new Fault('store_unavailable', 'has not been reached yet');
  return handleAdminRequest(api, {
    query: new URLSearchParams(),
    by: identity.name,
    from: peer,
    ...request,
  });
}
