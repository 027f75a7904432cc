import type { Language } from '../domain/language.ts';

// Made when a page first needs it: most processes never write one, and it takes megabytes of Node's own data.
let known: Intl.DateTimeFormat | undefined;
const dates = (): Intl.DateTimeFormat =>
  (known ??= new Intl.DateTimeFormat('en-GB', { dateStyle: 'long', timeZone: 'UTC' }));

/**
 * Everything the pages say, in English. Another language is another record of this type; the pages themselves
 * hold no words.
 */
export const english = {
  language: 'en' as Language,
  direction: 'ltr' as 'ltr' | 'rtl',

  and: (items: readonly string[]): string =>
    new Intl.ListFormat('en', { style: 'long', type: 'conjunction' })
      .format(items)
      .replace(', and ', ' and '),
  minutes: (seconds: number): string => {
    const minutes = Math.round(seconds / 60);
    if (seconds < 45) return 'less than a minute';
    return minutes <= 1 ? '1 minute' : `${minutes} minutes`;
  },
  ago: (time: string): string => `${time} ago`,
  /** A time long past, or to come: no need to be exact. */
  days: (seconds: number): string => {
    const [hours, days] = [Math.round(seconds / 3_600), Math.round(seconds / 86_400)];
    if (seconds < 5_400) return english.minutes(seconds);
    if (hours < 36) return `${hours} hours`;
    return `${days} days`;
  },
  date: (milliseconds: number): string => dates().format(milliseconds),
  step: (at: number, of: number): string => `Step ${at} of ${of}`,
  errorTitle: (title: string): string => `Error: ${title}`,

  code: {
    title: 'Connect a device',
    lead: 'Enter the code that your device or program is showing.',
    leadPrefilled: 'Check that this is the code your device or program is showing.',
    label: 'Code',
    hint: 'Eight letters, such as BCDF-GHJK. Capital or small, with or without the dash.',
    next: 'Continue',
    wrong:
      'This code does not work. It may be mistyped, or its time may have run out. Check it, or start again on your device to get a new one.',
    missing: 'Enter the code that your device is showing.',
  },

  signIn: {
    title: 'Sign in',
    lead: 'Sign in to see what is being asked for. Nothing is approved yet.',
    userName: 'User name',
    password: 'Password',
    next: 'Sign in',
    wrong: 'The user name or the password is not right. Please try again.',
    or: 'or',
    certificate: 'Use my certificate',
    certificateHint: 'Your browser has presented a certificate.',
    certificateWrong: 'This certificate cannot be used to sign in here. You can sign in with your password.',
    certificateMissing:
      'Your browser has not presented a certificate. You can sign in with your password instead.',
    otherCode: 'Enter another code',
    leadGrants: 'Sign in to see what you have approved.',
    leadCode: 'Sign in, then enter your code. Nothing is approved yet.',
    with: (provider: string): string => `Sign in with ${provider}`,
    /** Nothing on this machine can be signed in with. */
    none: 'There is no way to sign in here from this browser. Ask whoever manages it.',
    cancelled: 'The sign-in was not completed. Please try again.',
    notAccepted: 'The sign-in could not be accepted. Please try again.',
    unknown: 'You are signed in there, but not known here. Ask whoever manages this service.',
  },

  leaving: {
    title: 'One moment',
    lead: (provider: string): string => `You are being taken to ${provider} to sign in.`,
    next: 'Continue',
  },
  returned: {
    title: 'You are signed in',
    lead: 'You are being taken back.',
    next: 'Continue',
  },

  review: {
    title: 'Do you approve this?',
    asks: ' asks to act on your behalf.',
    codeLabel: 'Compare the code',
    codeHint: 'It must be the same as on your device.',
    may: 'It would be allowed to',
    technical: 'In technical terms',
    asked: 'Asked',
    from: 'From address',
    open: 'Open for',
    until: (time: string): string => `until ${time}`,
    warning:
      'Approve only if you started this yourself, just now. If somebody sent you the code or a link, deny it.',
    approve: 'Approve',
    deny: 'Deny',
    signedInAs: 'Signed in as ',
    notYou: 'Not you? Sign out',
  },

  notAllowed: {
    title: 'You cannot approve this',
    integration: 'You do not have access to this integration. Ask whoever manages it if you need it.',
    scope: (excess: string): string =>
      `You have access to this integration, but it asks for more than you may give: ${excess}.`,
    disabled: 'Your account is switched off.',
    withdrawn: 'What this device asks for is no longer available here.',
  },

  approved: {
    title: 'Approved',
    lead: ' can now act on your behalf.',
    close: 'You can close this page and return to your device.',
  },
  denied: {
    title: 'Denied',
    lead: ' was not given access.',
    close: 'You can close this page.',
  },
  signOut: 'Sign out',

  grants: {
    title: 'What you have approved',
    lead: 'These programs and devices can act on your behalf. Revoke what you do not need or do not know.',
    none: 'Nothing can act on your behalf at the moment.',
    awaited: (name: string): string =>
      `You have just approved ${name}. It appears here as soon as your device has fetched its access, usually within seconds.`,
    may: 'It is allowed to',
    byDevice: 'Approved in the browser',
    byCertificate: 'Made with your certificate',
    made: 'Made',
    used: 'Last used',
    unused: 'Not since',
    until: 'Ends',
    inTime: (time: string): string => `in ${time}`,
    gone: 'No longer offered here',
    choose: 'Revoke…',
    chooseNamed: (name: string): string => `Revoke what ${name} may do`,
    more: 'Show more',
    mine: 'What have I approved?',
  },
  revoke: {
    title: 'Revoke this?',
    lead: ' will no longer be able to act on your behalf, from now on and everywhere. Other programs keep what they have.',
    yes: 'Revoke',
    no: 'Keep it',
    done: (name: string): string => `Revoked: ${name} can no longer act on your behalf.`,
    missing: {
      title: 'This is not there any more',
      lead: 'It may have been revoked already, or its time is over.',
    },
    back: 'Back to the list',
  },
  languageLabel: 'Language',
  links: 'Further links',
  another: 'Enter another code',
  startAgain: 'Start again',
  tryAgain: 'Try again',

  spent: {
    title: 'Already approved',
    lead: 'This request has already been approved. If your device is still waiting, start again on the device to get a new code.',
  },
  alreadyDenied: {
    title: 'This request was denied',
    lead: 'Somebody has denied this request, and it stays denied. Start again on your device to get a new code.',
  },
  closed: {
    title: 'This request is closed',
    lead: 'There were too many failed sign-ins, so this request was closed. Start again on your device to get a new code.',
  },
  gone: {
    title: 'This code does not work',
    lead: 'Its time may have run out. Start again on your device to get a new code.',
  },
  ranOut: {
    title: 'The time has run out',
    lead: 'A code is good for a few minutes only. Nothing was approved. Start again on your device to get a new code.',
  },
  withdrawn: {
    title: 'Not available',
    lead: 'What this device asks for is no longer available here. Ask whoever manages it.',
  },
  tooMany: {
    title: 'Too many tries',
    lead: (wait: string): string => `Please wait a little (${wait}), then try again.`,
    leadSignIn: (wait: string): string =>
      `Many wrong codes are being entered at the moment. Your code may be right: sign in first, then enter it. Or wait a little (${wait}), then try again.`,
  },
  expired: {
    title: 'This page has run out',
    lead: 'For your safety the page works only for a short time, and only with cookies switched on. Nothing was approved.',
  },
  refused: {
    title: 'This could not be accepted',
    lead: 'What was sent did not come from this page in its present state. It may have been open for too long, or in several tabs. Nothing was changed.',
  },
  unreadable: {
    title: 'This could not be read',
    lead: 'What was sent could not be read. Nothing was changed.',
  },
  away: {
    title: 'Not available for a moment',
    lead: 'Something on our side is not working just now. It is not your mistake, and your code is still good until its time runs out. Please try again in a moment.',
  },
  directoryAway: {
    title: 'Signing in does not work for a moment',
    lead: 'What we sign people in with cannot be reached just now. It is not your mistake, and your code is still good until its time runs out. Please try again in a moment.',
  },
  busy: {
    title: 'Very busy just now',
    lead: 'Many people are signing in at the moment. It is not your mistake. Please try again in a moment.',
  },
  failed: {
    title: 'Something went wrong',
    lead: 'Something went wrong on our side. It is not your mistake. Please try again.',
    reference: (id: string): string => `If it happens again, tell us this number: ${id}`,
  },
  missingPage: { title: 'There is no such page', lead: 'Perhaps the address was mistyped.' },
  wrongMethod: { title: 'This page is used differently', lead: 'Please start from the first page.' },

  /** Permissions in plain words. What is not here is shown by its own name, in quotes. */
  permissions: {
    read: 'see',
    view: 'see',
    list: 'list',
    search: 'search',
    write: 'change',
    update: 'change',
    edit: 'change',
    create: 'create',
    add: 'add',
    delete: 'delete',
    remove: 'remove',
    upload: 'upload',
    download: 'download',
    send: 'send',
    share: 'share',
    run: 'run',
    execute: 'run',
    start: 'start',
    stop: 'stop',
    approve: 'approve',
    manage: 'manage',
    admin: 'administer',
  } as Readonly<Record<string, string>>,
  quoted: (word: string): string => `“${word}”`,
  mayDo: (verbs: string, resource: string): string => `${verbs} ${resource}`,
  mayUse: (resource: string): string => `use ${resource}, without any particular permission`,
};

export type Words = typeof english;
