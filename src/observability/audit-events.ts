/**
 * What the audit log records; the source of the table in docs/observability.md. An `act` changes what somebody may do.
 * A `refusal` is easily caused by strangers, in any number: when events must be lost, these go first.
 */
export const AUDIT_EVENTS = {
  grant_issued: act('A grant was made and its first tokens were handed out.'),
  grant_refreshed: act('A grant was refreshed.'),
  refresh_repeated: act('A refresh whose answer was lost was answered again, with the same tokens.'),
  refresh_rolled_forward: act('A refresh was carried on after the store had lost its last step.'),
  refresh_reuse: alarm(
    'A spent refresh token came back: two parties hold this grant. `action` tells what was done.',
  ),
  grant_revoked: act('A grant was ended. `by` tells how.'),
  grant_denied: refusal('The token service refused a request; `reason` tells why.'),
  device_asked: refusal('A device asked to be confirmed.'),
  device_confirmed: act('A person approved a device.'),
  device_denied: act('A person said no to a device.'),
  device_closed: alarm('Too many wrong passwords were typed for one device request: it was closed.'),
  device_code_replayed: alarm('A device code was shown again after it had been used.'),
  sign_in: act('A person signed in on the confirmation page.'),
  sign_in_failed: refusal('A sign-in failed.'),
  code_guess_failed: refusal('A device code was typed that does not exist.'),
  locked_out: refusal('Somebody tried too often and has to wait; `what` tells at what.'),
  certificate_names_differ: alarm('A certificate names its owner in two ways that do not agree.'),
  record_refused: alarm(
    'A record of the store failed authentication and is treated as absent: `kind` and `record` name it, `reason` is `mac_wrong` or `mac_missing`.',
  ),
  revocations_restored: alarm(
    'Revocations were missing from Redis and have been put back from memory; `count` says how many.',
  ),
  configuration_changed: act('Another configuration is in force.'),
  keys_changed: act('The signing and sealing keys are not those of before.'),
  admin_act: act('Somebody used the administration; `act` tells for what.'),
  service_started: act('A process serves from now on.'),
  service_stopped: act('A process ends.'),
} as const satisfies Record<string, AuditKind>;

export type AuditEvent = keyof typeof AUDIT_EVENTS;

export interface AuditKind {
  readonly kind: 'act' | 'refusal';
  readonly severity: 'info' | 'notice' | 'warning';
  readonly words: string;
}

export const kindOf = (event: AuditEvent): AuditKind => AUDIT_EVENTS[event];

function act(words: string): AuditKind {
  return { kind: 'act', severity: 'info', words };
}

function alarm(words: string): AuditKind {
  return { kind: 'act', severity: 'warning', words };
}

function refusal(words: string): AuditKind {
  return { kind: 'refusal', severity: 'notice', words };
}
