import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createDeviceClient, DEVICE_GRANT, FORM } from '../support/device-client.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { type Reply, startGateway, type TestGateway } from '../support/test-gateway.ts';

/** Wire specification, section 1: request bodies. */
let gateway: TestGateway;
freezeClock(250);
beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway.close());

const REFUSED = { status: 400, json: { Error: 'invalid_request' } };

const postToken = (body: string | Buffer, headers: Record<string, string | string[]> = {}): Promise<Reply> =>
  gateway.request({
    path: '/authsvc/Authorize/Token',
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body,
  });
const refreshBody = (refreshToken: string, more: Readonly<Record<string, unknown>> = {}): string =>
  JSON.stringify({ client_id: 'report-runner', refresh_token: refreshToken, ...more });

test('wire 1: the media type is compared without its parameters and without case', async () => {
  for (const type of [
    'application/json; charset=utf-8',
    'Application/JSON',
    'application/json;charset="UTF-8"',
    'application/json ; boundary=x; charset=Utf-8',
    'application/json;',
  ]) {
    const { refresh_token } = await gateway.grant();
    expect((await postToken(refreshBody(refresh_token), { 'content-type': type })).status, type).toBe(200);
  }
  const steps = createDeviceClient(gateway);
  const codes = await steps.requestCodes();
  await steps.confirm(codes);
  const fields = { client_id: 'report-runner', grant_type: DEVICE_GRANT, device_code: codes.device_code };
  const reply = await postToken(new URLSearchParams(fields).toString(), {
    'content-type': `${FORM.toUpperCase()}; charset=utf-8`,
  });
  expect(reply.status, reply.text).toBe(200);
});

test('wire 1: another or no media type is invalid_request', async () => {
  const { refresh_token } = await gateway.grant();
  for (const type of [
    'text/plain',
    'application/jsonp',
    'application/json, text/plain',
    'json',
    '',
    'multipart/form-data; boundary=x',
  ])
    expect(await postToken(refreshBody(refresh_token), { 'content-type': type }), type).toMatchObject(REFUSED);
  expect((await gateway.refresh(refresh_token)).status).toBe(200);
});

test('wire 1: a repeated Content-Type is invalid_request, even if one of them would be accepted', async () => {
  const { refresh_token } = await gateway.grant();
  for (const types of [
    ['application/json', FORM],
    ['application/json', 'application/json'],
  ])
    expect(await postToken(refreshBody(refresh_token), { 'content-type': types })).toMatchObject(REFUSED);
  expect((await gateway.refresh(refresh_token)).status).toBe(200);
});

test('wire 1: a body of 16 KiB is read, a larger one is 413 with Error invalid_request, on every operation', async () => {
  const { refresh_token } = await gateway.grant();
  const small = refreshBody(refresh_token);
  const full = refreshBody(refresh_token, { pad: 'x'.repeat(16_384 - small.length - ',"pad":""'.length) });
  expect(full.length).toBe(16_384);
  expect((await postToken(full)).status).toBe(200);
  for (const path of ['/Authorize/Token', '/Authorize/Certificate', '/Authorize/Device'])
    for (const size of [16_385, 100_000, 1_048_576])
      for (const chunked of [false, true]) {
        const reply = await gateway.request({
          path: `/authsvc${path}`,
          method: 'POST',
          headers: {
            'content-type': 'application/json',
            ...(chunked ? { 'transfer-encoding': 'chunked' } : { 'content-length': String(size) }),
          },
          body: Buffer.alloc(size, ' '),
        });
        expect(reply, `${path} ${size}`).toMatchObject({ status: 413, json: { Error: 'invalid_request' } });
      }
});

test('wire 1: a charset other than UTF-8 is invalid_request', async () => {
  const { refresh_token } = await gateway.grant();
  for (const charset of ['utf-16', 'iso-8859-1', '"latin1"', 'utf-7', ''])
    expect(
      await postToken(refreshBody(refresh_token), { 'content-type': `application/json; charset=${charset}` }),
      charset,
    ).toMatchObject(REFUSED);
  const bytes = Buffer.from(refreshBody(refresh_token, { pad: 'é' }), 'latin1');
  expect(await postToken(bytes)).toMatchObject(REFUSED);
});

test('wire 1: a compressed body is invalid_request', async () => {
  const { refresh_token } = await gateway.grant();
  const body = refreshBody(refresh_token);
  for (const coding of ['gzip', 'deflate', 'br', 'GZIP', 'identity, gzip'])
    expect(await postToken(gzipSync(body), { 'content-encoding': coding }), coding).toMatchObject(REFUSED);
  expect(await postToken(body, { 'content-encoding': 'gzip' })).toMatchObject(REFUSED);
  expect((await postToken(body, { 'content-encoding': 'identity' })).status).toBe(200);
});

test('wire 1: duplicate form fields are invalid_request', async () => {
  const steps = createDeviceClient(gateway);
  const codes = await steps.requestCodes();
  await steps.confirm(codes);
  const fields = new URLSearchParams({
    client_id: 'report-runner',
    grant_type: DEVICE_GRANT,
    device_code: codes.device_code,
  }).toString();
  for (const twice of ['client_id=report-runner', 'device_code=x', 'client%5fid=other', 'x=1&x=2'])
    expect(await postToken(`${fields}&${twice}`, { 'content-type': FORM }), twice).toMatchObject(REFUSED);
  expect((await postToken(fields, { 'content-type': FORM })).status).toBe(200);
});

test('wire 1: duplicate JSON keys are invalid_request, also when they are spelled differently or nested', async () => {
  const { refresh_token } = await gateway.grant();
  const pair = `"refresh_token":"${refresh_token}"`;
  for (const body of [
    `{"client_id":"report-runner","client_id":"other-app",${pair}}`,
    `{"client_id":"report-runner","client\\u005fid":"report-runner",${pair}}`,
    `{"client_id":"report-runner",${pair},${pair}}`,
    `{"client_id":"report-runner",${pair},"x":{"a":1,"a":2}}`,
  ])
    expect(await postToken(body)).toMatchObject(REFUSED);
  expect((await gateway.refresh(refresh_token)).status).toBe(200);
});

test('wire 1: values that are not strings are invalid_request', async () => {
  const { refresh_token } = await gateway.grant();
  for (const wrong of [[refresh_token], { a: refresh_token }, 7, true, null])
    expect(await gateway.refresh('x', { refresh_token: wrong }), JSON.stringify(wrong)).toMatchObject(REFUSED);
  for (const wrong of [['report-runner'], null, 0])
    expect(await gateway.refresh(refresh_token, { client_id: wrong })).toMatchObject(REFUSED);
});

test('wire 1: a body that is not a single JSON object is invalid_request', async () => {
  for (const body of [
    '',
    ' ',
    '{',
    '[]',
    'null',
    '"x"',
    '{}{}',
    "{'client_id':'x'}",
    '{"a":1,}',
    '['.repeat(8_000),
    '\u{feff}{}',
  ])
    expect(await postToken(body), body.slice(0, 10)).toMatchObject(REFUSED);
});

test('wire 1: a malformed form is invalid_request', async () => {
  for (const body of ['client_id=%', 'client_id=%zz', 'client_id=%ff&device_code=x'])
    expect(await postToken(body, { 'content-type': FORM }), body).toMatchObject(REFUSED);
});

test('wire 1: unknown extra fields are ignored', async () => {
  const { refresh_token } = await gateway.grant();
  const extra = { client_secret: 'x', scope: 7, nested: { a: [1] }, __proto__x: null, constructor: 'y' };
  expect((await gateway.refresh(refresh_token, extra)).status).toBe(200);
  expect((await postToken(`{"__proto__":{"client_id":"report-runner"},"refresh_token":"x"}`)).json).toMatchObject({
    Error_description: 'client_id is required.',
  });
});
