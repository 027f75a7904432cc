import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import * as v1 from '@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1';
import * as v1beta1 from '@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1beta1';
import { expect, test } from 'vitest';
import { parseAllDocuments } from 'yaml';

const FOLDER = join(import.meta.dirname, '../../deploy/ext-authz');
const MODELS = {
  'gateway.networking.k8s.io/v1': v1,
  'gateway.networking.k8s.io/v1beta1': v1beta1,
} as unknown as Readonly<Record<string, Readonly<Record<string, new (data: unknown) => { validate(): void }>>>>;

interface Manifest {
  readonly apiVersion: string;
  readonly kind: string;
}

const readManifests = (file: string): Manifest[] =>
  parseAllDocuments(readFileSync(join(FOLDER, file), 'utf8')).map((document) => {
    expect(document.errors).toEqual([]);
    return document.toJS() as Manifest;
  });

/** The schemas have all fields of the filter, but its type only in the experimental channel. */
const toStandardChannel = (manifest: Manifest): Manifest =>
  JSON.parse(JSON.stringify(manifest).replace('"type":"ExternalAuth"', '"type":"URLRewrite"')) as Manifest;

function validate(manifest: Manifest): void {
  const models = MODELS[manifest.apiVersion];
  if (models === undefined) return;
  const Model = models[manifest.kind];
  if (Model === undefined) throw new Error(`no schema of ${manifest.kind}`);
  new Model(toStandardChannel(manifest)).validate();
}

test.each(readdirSync(FOLDER))(
  '%s: the objects of the Gateway API match their schemas, and no check fails open',
  (file) => {
    for (const manifest of readManifests(file)) {
      expect([file, JSON.stringify(manifest).includes('"failOpen":true')]).toEqual([file, false]);
      validate(manifest);
    }
  },
);

test('a mistake in the filter of the Gateway API is found', () => {
  const text = JSON.stringify(readManifests('gateway-api.yaml')[0]);
  for (const [part, damaged] of [
    ['"GRPC"', '"grpc"'],
    ['"backendRef":', '"backend":'],
  ] as const) {
    expect(text).toContain(part);
    expect(() => validate(JSON.parse(text.replace(part, damaged)) as Manifest)).toThrow(/externalAuth/);
  }
});
