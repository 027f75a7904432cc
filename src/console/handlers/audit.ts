import type { ConsoleHandler } from '../context.ts';
import { auditPage } from '../views/audit.ts';

const MAX_SHOWN = 100;
const MAX_TEXT = 256;

export const showAudit: ConsoleHandler = async ({ deps, query }) => {
  const text = (query.get('q') ?? '').trim().slice(0, MAX_TEXT);
  const { audit } = await deps.findRecent({ kind: 'audit', limit: MAX_SHOWN, ...(text !== '' && { text }) });
  return auditPage(text, audit, audit.length === MAX_SHOWN);
};
