import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'vitest';
import { runCommand } from '../support/command-in-process.ts';
import { runGatehouse } from '../support/command-line.ts';
import { startGateway } from '../support/test-gateway.ts';

/** `count` processes request the same token shortly before it expires. */
export async function renewInShells(count: number): Promise<void> {
  const gateway = await startGateway();
  const home = mkdtempSync(join(tmpdir(), 'gatehouse-shells-'));
  try {
    const { alice } = gateway.users;
    writeFileSync(join(home, 'ca.pem'), gateway.ca.pem);
    writeFileSync(join(home, 'alice.pem'), alice.pem);
    writeFileSync(join(home, 'alice-key.pem'), alice.keyPem, { mode: 0o600 });
    const place = { env: { GATEHOUSE_HOME: join(home, 'kept') }, cwd: home };
    const service = ['--url', `https://localhost:${gateway.port}`, '--cacert', 'ca.pem'];
    const request = ['--client', 'report-runner', '--scope', 'files:read'];
    const certificate = ['--cert', 'alice.pem', '--key', 'alice-key.pem'];
    const login = await runCommand(['login', ...service, ...request, ...certificate], place);
    expect(login).toMatchObject({ code: 0, stderr: '' });

    const kept = join(home, 'kept/default.token.json');
    const { version, grant } = JSON.parse(readFileSync(kept, 'utf8')) as {
      version: number;
      grant: Record<string, unknown>;
    };
    // Like a token near its expiry, whose remaining lifetime is too short to return it.
    const now = Date.now() / 1_000;
    const old = { ...grant, obtained: now - 3_590, expires: now + 10 };
    writeFileSync(kept, JSON.stringify({ version, grant: old }), { mode: 0o600 });
    const shells = await Promise.all(
      Array.from({ length: count }, () => runGatehouse(['token'], { ...place, timeoutMs: 170_000 })),
    );
    expect(shells.map(({ code, stderr }) => ({ code, stderr }))).toEqual(
      Array.from({ length: count }, () => ({ code: 0, stderr: '' })),
    );
    expect(new Set(shells.map(({ stdout }) => stdout)).size).toBe(1);
    expect(shells[0]?.stdout.trim()).not.toBe(grant['accessToken']);
    expect(gateway.auditEvents('grant_refreshed')).toHaveLength(1);
  } finally {
    await gateway.close();
    rmSync(home, { recursive: true, force: true });
  }
}
