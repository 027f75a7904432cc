import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';

const KEYS = join(import.meta.dirname, '../../src/tokens/keyring-file.ts');

/** Imports the program's own reader, switches to the user of the image, and reads the file. */
const READ = `
const { isReadableByOthers } = await import(process.argv[1]);
process.setgroups(JSON.parse(process.argv[3]));
process.setegid(65532);
process.seteuid(65532);
console.log(JSON.stringify(isReadableByOthers(process.argv[2])));
`;

interface MountedFile {
  readonly name: string;
  readonly mode: string;
  readonly owner: string;
  readonly groups?: readonly number[];
  /** `read-only`, like a kubelet: a writable tmpfs that is bind-mounted read-only into the container. */
  readonly mount?: 'read-only' | 'writable' | 'covered';
  readonly readByOthers: boolean;
}

const CASES: readonly MountedFile[] = [
  { name: 'by fsGroup', mode: '0440', owner: '0:65532', readByOthers: false },
  {
    name: 'through the fsGroup of a foreign pod',
    mode: '0440',
    owner: '0:1000',
    groups: [1000],
    readByOthers: false,
  },
  {
    name: 'by a volume in memory, mounted read-only',
    mode: '0444',
    owner: '0:0',
    mount: 'read-only',
    readByOthers: false,
  },
  { name: 'to a group we are not in', mode: '0440', owner: '0:1000', readByOthers: true },
  { name: 'to the group of root', mode: '0440', owner: '0:0', groups: [0], readByOthers: true },
  { name: 'writable by the group', mode: '0460', owner: '0:65532', readByOthers: true },
  { name: 'by the group, from another user', mode: '0440', owner: '1000:65532', readByOthers: true },
  {
    name: 'by everybody, in memory that can be written',
    mode: '0444',
    owner: '0:0',
    mount: 'writable',
    readByOthers: true,
  },
  {
    name: 'by everybody, in a writable place over a read-only one',
    mode: '0444',
    owner: '0:0',
    mount: 'covered',
    readByOthers: true,
  },
  { name: 'by everybody, on a disk', mode: '0444', owner: '0:0', readByOthers: true },
  {
    name: 'by everybody, mounted read-only but writable by mode',
    mode: '0446',
    owner: '0:0',
    mount: 'read-only',
    readByOthers: true,
  },
];

// Only root can switch users and mount.
const canMount = process.geteuid?.() === 0 && spawnSync('unshare', ['--mount', 'true']).status === 0;

describe.skipIf(!canMount)('a key file whose ownership was transferred', () => {
  test.each(CASES)('$name', ({ mode, owner, groups = [], mount, readByOthers }) => {
    const folder = mkdtempSync(join(tmpdir(), 'gatehouse-handed-'));
    const file = join(folder, 'keys.json');
    const script = [
      'set -e; chmod 0755 "$1"',
      ...(mount === undefined ? [] : ['mount -t tmpfs -o mode=0755 secret "$1"']),
      `echo x > "$2"; chown ${owner} "$2"; chmod ${mode} "$2"`,
      // A writable mount on top of it, which takes precedence.
      ...(mount === 'covered'
        ? [
            'mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; mount -t tmpfs -o mode=0755 over "$1"; echo x > "$2"; chmod 0444 "$2"',
          ]
        : []),
      ...(mount === 'read-only' ? ['mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"'] : []),
      'exec "$3" --input-type=module -e "$4" "$5" "$2" "$6"',
    ].join('\n');
    try {
      const { stdout, stderr } = spawnSync(
        'unshare',
        ['--mount', 'sh', '-c', script, 'sh', folder, file, process.execPath, READ, KEYS, JSON.stringify(groups)],
        { encoding: 'utf8', timeout: 30_000 },
      );
      expect([stdout.trim(), stderr]).toEqual([JSON.stringify(readByOthers), '']);
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });
});
