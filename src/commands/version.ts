import { readFileSync } from 'node:fs';
import { type Command, EXIT, writeJson } from './command.ts';

/** Of the package this file belongs to; the same place from src/ and from dist/. */
export function packageVersion(): string {
  const text = readFileSync(new URL('../../package.json', import.meta.url), 'utf8');
  return (JSON.parse(text) as { readonly version: string }).version;
}

export const command: Command = {
  name: 'version',
  summary: 'prints the version',
  usage: ['gatehouse version'],
  options: {},
  async run(context) {
    const { node, openssl } = process.versions;
    const version = packageVersion();
    if (context.json) writeJson(context, { gatehouse: version, node, openssl });
    else context.stdout(`gatehouse ${version} (Node ${node}, OpenSSL ${openssl})\n`);
    return EXIT.ok;
  },
};
