import type { Language } from '../../../domain/language.ts';
import { createFormats } from './formats.ts';

const NEW_CODE = 'Start again on your device to get a new code.';

/** All texts of the pages in English. The other languages are JSON files with the same members. */
export const englishMessages = {
  language: 'en' as Language,

  ...createFormats('en-GB', {
    ago: 'just now',
    ahead: 'in less than a minute',
  }),
  formatStep: (step: number, count: number): string => `Step ${step} of ${count}`,
  errorTitle: (title: string): string => `Error: ${title}`,

  code: {
    title: 'Connect a device',
    lead: 'Enter the code displayed by your device or app.',
    leadPrefilled: 'Check that your device or app displays this code.',
    label: 'Code',
    hint: 'Eight letters, for example BCDF-GHJK. Capitalization and the dash don’t matter.',
    wrong:
      'This code is invalid or has expired. Check it and try again, or start again on your device to get a new code.',
    missing: 'Enter the code displayed by your device.',
    wrongLink: 'The code in the link is not valid and was not used. Enter the code displayed by your device.',
  },

  signIn: {
    title: 'Sign in',
    lead: 'Sign in to review the request. Nothing has been approved yet.',
    leadGrants: 'Sign in to see the apps and devices you have approved.',
    leadCode: 'Sign in, then enter your code. Nothing has been approved yet.',
    userName: 'Username',
    password: 'Password',
    wrong: 'Incorrect username or password.',
    or: 'or',
    certificate: 'Sign in with a certificate',
    certificateHint: 'Your browser has presented a certificate.',
    certificateWrong: 'You can’t sign in with this certificate. Try another way to sign in.',
    certificateMissing: 'Your browser didn’t present a certificate. Try another way to sign in.',
    with: (provider: string): string => `Sign in with ${provider}`,
    none: 'You can’t sign in with this browser. Contact your administrator.',
    cancelled: 'Sign-in was not completed. Please try again.',
    notAccepted: 'Sign-in failed. Please try again.',
    unknown: 'Your account doesn’t have access here. Contact your administrator.',
  },

  redirectToProvider: {
    title: 'Redirecting…',
    formatLead: (provider: string): string => `You are being redirected to ${provider} to sign in.`,
  },
  signInComplete: { title: 'Signed in', lead: 'You are being redirected.' },

  review: {
    title: 'Approve this request?',
    requestsAccess: ' wants to act on your behalf.',
    codeLabel: 'Compare the code',
    codeHint: 'It must match the code on your device.',
    may: 'It will be able to:',
    technical: 'Technical details',
    requestedAt: 'Requested',
    device: 'Device name',
    deviceHint: 'As stated by the device, not verified',
    from: 'IP address',
    warning:
      'Approve only if you started this request yourself just now. If someone sent you the code or a link, deny it.',
    approve: 'Approve',
    deny: 'Deny',
    notYou: 'Not you? Sign out',
  },

  /** Apps that redirected the user here. */
  authorization: {
    redirecting: { title: 'Redirecting…', lead: 'You are being redirected to sign in.' },
    returnsTo: 'Returns to',
    /** Shown for an app that the administrator has not registered. */
    address: 'Address of the app',
    /** The API that the token is for. */
    audience: 'For the API',
    formatClaimedName: (name: string): string => `calls itself “${name}” and is not registered here.`,
    unregistered: 'is not registered here.',
    loopback: 'an app on this computer',
    formatApp: (scheme: string): string => `the app ${scheme} on this device`,
    /** By which the administrator finds it in the log. */
    formatRequestId: (id: string): string => `Request ID: ${id}`,
    warning:
      'Approve only if you opened this page from the app yourself just now. If someone sent you a link, deny it.',
    notices: {
      invalid: {
        title: 'Invalid request',
        lead: 'The app sent a request that can’t be processed. Nothing was approved. If it happens again, contact the app’s developer.',
      },
      notRegistered: {
        title: 'Invalid request',
        lead: 'This app isn’t registered with this service, or its request doesn’t match its registration. Nothing was approved. Contact the app’s developer or the administrator of this service.',
      },
      expired: {
        title: 'Request expired',
        lead: 'This request is too old, or was started in another browser. Nothing was approved. Return to the app and start again.',
      },
      decided: {
        title: 'Already answered',
        lead: 'This request has already been approved or denied. Return to the app. If it is still waiting, start again there.',
      },
    },
  },

  notAllowed: {
    title: 'You can’t approve this request',
    integration: 'You don’t have access to this app. If you need it, contact your administrator.',
    scope: (excess: string): string => `This app requests more access than you can grant: ${excess}.`,
    disabled: 'Your account is disabled.',
  },

  approved: {
    title: 'Approved',
    lead: ' can now act on your behalf.',
    close: 'You can close this page and return to your device.',
  },
  denied: { title: 'Denied', lead: ' was not given access.', close: 'You can close this page.' },
  signOut: 'Sign out',
  signedInAs: 'Signed in as ',
  next: 'Continue',
  expires: 'Expires',

  grants: {
    title: 'Approved apps and devices',
    lead: 'These apps and devices can act on your behalf. Revoke access for any that you no longer use or don’t recognize.',
    none: 'No apps or devices can act on your behalf.',
    pending: (name: string): string =>
      `You approved ${name}. It appears here once your device has picked up its access, usually within seconds.`,
    may: 'It can:',
    by: {
      device: 'Approved in the browser',
      certificate: 'Granted with your certificate',
      exchange: 'Granted with a token from your identity provider',
      client: 'Granted to the app itself',
      code: 'Approved in the browser',
    },
    created: 'Granted',
    lastRenewed: 'Last renewed',
    neverRenewed: 'Never',
    discontinued: 'No longer available',
    revokeLabel: 'Revoke…',
    formatRevokeLabel: (name: string): string => `Revoke access for ${name}`,
    more: 'Show more',
  },
  revoke: {
    title: 'Revoke access?',
    lead: ' will lose this access immediately. Your other approvals are not affected.',
    confirm: 'Revoke',
    cancel: 'Cancel',
    done: (name: string): string => `Access for ${name} was revoked.`,
    missing: { title: 'Access not found', lead: 'It may have expired or been revoked already.' },
    back: 'Back to the list',
  },
  languageLabel: 'Language',
  enterAnotherCode: 'Enter another code',
  startAgain: 'Start again',
  tryAgain: 'Try again',

  alreadyApproved: {
    title: 'Already approved',
    lead: `This request has already been approved. Is your device still waiting? ${NEW_CODE}`,
  },
  alreadyDenied: { title: 'Already denied', lead: `This request has already been denied. ${NEW_CODE}` },
  closed: {
    title: 'Request closed',
    lead: `This request was closed after too many failed sign-ins. ${NEW_CODE}`,
  },
  codeInvalid: { title: 'Invalid code', lead: `This code is invalid or has expired. ${NEW_CODE}` },
  codeExpired: {
    title: 'Code expired',
    lead: `Codes are valid for a few minutes only. Nothing was approved. ${NEW_CODE}`,
  },
  withdrawn: { title: 'Not available', lead: 'This app is no longer available. Contact your administrator.' },
  tooManyAttempts: {
    title: 'Too many attempts',
    lead: (wait: string): string => `Please try again ${wait}.`,
    leadSignIn: (wait: string): string =>
      `Many wrong codes are being entered right now. Yours may be correct: sign in first, then enter it, or try again ${wait}.`,
  },
  expired: {
    title: 'Page expired',
    lead: 'For your security, this page is valid for a short time only and requires cookies. Nothing was approved.',
  },
  rejected: {
    title: 'Request not accepted',
    lead: 'The page may have been open for too long or in several tabs. Nothing was changed.',
  },
  badRequest: { title: 'Invalid request', lead: 'The request could not be read. Nothing was changed.' },
  serviceUnavailable: {
    title: 'Temporarily unavailable',
    lead: 'This service is temporarily unavailable.',
  },
  directoryUnavailable: {
    title: 'Sign-in temporarily unavailable',
    lead: 'The sign-in service can’t be reached right now.',
  },
  /** After `serviceUnavailable` and `directoryUnavailable`: for a device, for an app that redirected the user here, and for other pages. */
  retryLater: {
    device: 'Your code remains valid until it expires. Please try again in a moment.',
    authorization: 'The app’s request remains valid for a few minutes. Please try again in a moment.',
    other: 'Please try again in a moment.',
  },
  overloaded: {
    title: 'Service busy',
    lead: 'Many people are signing in right now. Please try again in a moment.',
  },
  internalError: {
    title: 'Something went wrong',
    lead: 'An error occurred on our side. Please try again.',
    reference: (id: string): string => `If it happens again, give your administrator this request ID: ${id}`,
  },
  notFound: { title: 'Page not found', lead: 'Check the address.' },
  /** The page at `/`, on the host of the API and on a separate host of the pages. */
  root: {
    api: {
      title: 'This is an API',
      lead: 'Programs use this address with an access token. Without one, there is nothing to see here in a browser.',
    },
    pages: {
      title: 'Devices and apps',
      lead: 'This address is for connecting devices and for managing the access of apps.',
    },
    links: 'Looking for one of these pages?',
  },
  methodNotAllowed: { title: 'Invalid request', lead: 'Please start again from the first page.' },

  /** Verbs for permissions, in display order. Other permissions are named in quotation marks. */
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
  },
  /** Between sentences of a list in running text. */
  separator: '; ',
  quote: (word: string): string => `“${word}”`,
  describePermissions: (verbs: string, resource: string): string => `${verbs} ${resource}`,
  /** Permissions without a verb. */
  describeOtherPermissions: (permissions: string, resource: string): string => `use ${resource} (${permissions})`,
  describeBareResource: (resource: string): string => `use ${resource}`,
};

export type Messages = typeof englishMessages;
