import { afterEach, beforeEach, expect, inject, test } from 'vitest';
import { connect } from '../apiserver/api.ts';
import { followTutorial, type TutorialOptions } from '../documentation/tutorial.ts';
import { until } from '../support/until.ts';
import { createShell, type Shell } from './commands.ts';
import { createLocalVolume } from './local-volume.ts';

/** The namespace that the tutorials create. */
const NAMESPACE = 'shop';

let shell: Shell;
let count = 0;
beforeEach(async () => {
  count += 1;
  shell = createShell(`tutorial-${count}`);
  // The clusters of the tutorials have a default storage class.
  const items = createLocalVolume(`tutorial-${count}`, { isDefault: true });
  const input = JSON.stringify({ apiVersion: 'v1', kind: 'List', items });
  await shell.run('kubectl apply -f -', { input });
});
afterEach(async () => {
  const api = connect(inject('access'));
  const path = `/api/v1/namespaces/${NAMESPACE}`;
  await api.call('DELETE', path);
  await until('the namespace is gone', async () => (await api.call('GET', path)).status === 404, 180);
  await shell.run(`kubectl delete storageclass tutorial-${count}`);
});

/** The cluster exists and has the images, so the commands of kind and docker are left out. */
const interpret: TutorialOptions['interpret'] = ({ kind, text }) => {
  if (kind === 'text output' || kind === 'text nodes') return 'compare';
  if ((kind !== 'sh cluster' && kind !== 'sh nodes') || text.startsWith('kind ')) return undefined;
  return text.includes(' port-forward ') ? 'start' : 'execute';
};

test.each(['docs/tutorials/kubernetes-gateway.md', 'docs/tutorials/kubernetes-sidecar.md'])(
  '%s works as written',
  async (page) => {
    await followTutorial(page, {
      path: [`${shell.folder}/bin`],
      env: { KUBECONFIG: inject('kubeconfig') },
      interpret,
      keepsPorts: true,
    });
    const restarts = await shell.run(`kubectl -n ${NAMESPACE} get pods -o jsonpath='{.items[*].status..restartCount}'`);
    expect(restarts.split(' ').filter((value) => value !== '0')).toEqual([]);
  },
);
