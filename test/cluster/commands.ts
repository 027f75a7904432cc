import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, inject } from 'vitest';
import { clusterProgram } from '../../tools/chart/cluster.ts';
import { program } from '../../tools/chart/install.ts';
import { runChild } from '../support/child-process.ts';

/**
 * Runs shell commands like an operator: with kubectl, helm and gatehouse on the PATH, in a folder with the chart in `helm/`.
 * They run beside the load of a test, hence asynchronously.
 */
export interface Shell {
  readonly folder: string;
  /** Returns stdout; the command must succeed. */
  run(command: string, options?: { readonly input?: string; readonly seconds?: number }): Promise<string>;
  /** For commands that may fail. */
  attempt(command: string): Promise<{ readonly code: number | null; readonly stdout: string; readonly stderr: string }>;
  write(name: string, content: string): string;
}

const ROOT = join(import.meta.dirname, '../..');

export function createShell(name: string): Shell {
  const folder = join(inject('folder'), 'shells', name);
  mkdirSync(join(folder, 'bin'), { recursive: true });
  const gatehouse = `#!/bin/sh\nexec '${process.execPath}' '${join(ROOT, 'src/main.ts')}' "$@"\n`;
  writeFileSync(join(folder, 'bin/gatehouse'), gatehouse, { mode: 0o755 });
  symlinkSync(clusterProgram('kubectl'), join(folder, 'bin/kubectl'));
  symlinkSync(program('helm'), join(folder, 'bin/helm'));
  symlinkSync(join(ROOT, 'helm'), join(folder, 'helm'));
  const start = (command: string, input = '', seconds = 300) =>
    runChild(['bash', '--norc', '-euo', 'pipefail', '-c', command], {
      cwd: folder,
      input,
      seconds,
      env: {
        PATH: `${join(folder, 'bin')}:${process.env['PATH'] ?? ''}`,
        HOME: folder,
        KUBECONFIG: inject('kubeconfig'),
      },
    });
  return {
    folder,
    attempt: (command) => start(command),
    async run(command, { input, seconds } = {}) {
      const { code, stdout, stderr } = await start(command, input, seconds);
      expect({ command, code, stderr: code === 0 ? '' : `${stderr}${stdout}` }).toEqual({
        command,
        code: 0,
        stderr: '',
      });
      return stdout;
    },
    write(file, content) {
      writeFileSync(join(folder, file), content, { mode: 0o600 });
      return join(folder, file);
    },
  };
}
