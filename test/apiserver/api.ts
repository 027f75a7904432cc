import { request } from 'node:https';
import { stringify } from 'yaml';
import type { Manifest } from '../chart/manifests.ts';

/** URL and credentials of an API server. */
export interface Access {
  readonly url: string;
  readonly ca: string;
  readonly token: string;
}

export interface ApiResponse {
  readonly status: number;
  /** Warnings in the response, such as deprecations and Pod Security violations. */
  readonly warnings: readonly string[];
  readonly body: { readonly message?: string; readonly [field: string]: unknown };
}

export interface Api {
  call(method: string, path: string, body?: string, type?: string): Promise<ApiResponse>;
  /** Server-side apply with strict field validation; nothing is stored with `dryRun`. */
  apply(object: Manifest, options?: { readonly namespace?: string; readonly dryRun?: boolean }): Promise<ApiResponse>;
  pathOf(object: Pick<Manifest, 'apiVersion' | 'kind'>, namespace: string | undefined): Promise<string>;
}

const LIMIT_MS = 60_000;

export function connect(access: Access): Api {
  const known = new Map<string, Promise<readonly Resource[]>>();
  const call: Api['call'] = (method, path, body, type) => send(access, method, path, body, type);

  const listResources = (apiVersion: string): Promise<readonly Resource[]> => {
    const path = apiVersion.includes('/') ? `/apis/${apiVersion}` : `/api/${apiVersion}`;
    const found = known.get(path) ?? call('GET', path).then(({ body }) => (body['resources'] ?? []) as Resource[]);
    known.set(path, found);
    return found;
  };

  const pathOf: Api['pathOf'] = async ({ apiVersion, kind }, namespace) => {
    const resources = await listResources(apiVersion);
    const resource = resources.find((candidate) => candidate.kind === kind && !candidate.name.includes('/'));
    if (resource === undefined) throw new Error(`the server has no resource ${apiVersion} ${kind}`);
    const base = apiVersion.includes('/') ? `/apis/${apiVersion}` : `/api/${apiVersion}`;
    const inside = resource.namespaced ? `/namespaces/${namespace ?? 'default'}` : '';
    return `${base}${inside}/${resource.name}`;
  };

  return {
    call,
    pathOf,
    apply: async (object, { namespace, dryRun = false } = {}) => {
      const path = await pathOf(object, object.metadata.namespace ?? namespace);
      const query = new URLSearchParams({
        fieldManager: 'gatehouse-test',
        fieldValidation: 'Strict',
        force: 'true',
        ...(dryRun && { dryRun: 'All' }),
      });
      const name = encodeURIComponent(object.metadata.name);
      return call('PATCH', `${path}/${name}?${query.toString()}`, stringify(object), 'application/apply-patch+yaml');
    },
  };
}

interface Resource {
  readonly name: string;
  readonly kind: string;
  readonly namespaced: boolean;
}

function send(
  { url, ca, token }: Access,
  method: string,
  path: string,
  body?: string,
  type = 'application/json',
): Promise<ApiResponse> {
  return new Promise((resolve, reject) => {
    const headers = {
      authorization: `Bearer ${token}`,
      accept: 'application/json',
      ...(body !== undefined && { 'content-type': type, 'content-length': Buffer.byteLength(body) }),
    };
    const sent = request(`${url}${path}`, { method, ca, headers, agent: false, timeout: LIMIT_MS }, (response) => {
      const chunks: Buffer[] = [];
      response.on('data', (chunk: Buffer) => chunks.push(chunk));
      response.on('error', reject);
      response.on('end', () => {
        const text = Buffer.concat(chunks).toString();
        const isJson = response.headers['content-type']?.includes('json') === true;
        resolve({
          status: response.statusCode ?? 0,
          warnings: [response.headers['warning'] ?? []].flat(),
          body: isJson ? (JSON.parse(text) as ApiResponse['body']) : { message: text },
        });
      });
    });
    sent.on('timeout', () => sent.destroy(new Error('no response in time')));
    sent.on('error', reject);
    sent.end(body);
  });
}
