import type { Messages } from './english.ts';
import { createFormats } from './formats.ts';

const NEW_CODE = 'Starten Sie den Vorgang auf Ihrem Gerät erneut, um einen neuen Code zu erhalten.';

export const germanMessages: Messages = {
  language: 'de',

  ...createFormats('de-DE', {
    ago: 'gerade eben',
    ahead: 'in weniger als 1 Minute',
  }),
  formatStep: (step, count) => `Schritt ${step} von ${count}`,
  errorTitle: (title) => `Fehler: ${title}`,

  code: {
    title: 'Gerät verbinden',
    lead: 'Geben Sie den Code ein, den Ihr Gerät oder Ihre Anwendung anzeigt.',
    leadPrefilled: 'Prüfen Sie, ob Ihr Gerät oder Ihre Anwendung diesen Code anzeigt.',
    label: 'Code',
    hint: 'Acht Buchstaben, zum Beispiel BCDF-GHJK. Groß- und Kleinschreibung und der Bindestrich spielen keine Rolle.',
    wrong:
      'Dieser Code ist ungültig oder abgelaufen. Prüfen Sie Ihre Eingabe, oder starten Sie den Vorgang auf Ihrem Gerät erneut, um einen neuen Code zu erhalten.',
    missing: 'Geben Sie den Code ein, den Ihr Gerät anzeigt.',
    wrongLink:
      'Der Code im Link ist ungültig und wurde nicht übernommen. Geben Sie den Code ein, den Ihr Gerät anzeigt.',
  },

  signIn: {
    title: 'Anmelden',
    lead: 'Melden Sie sich an, um die Anfrage zu prüfen. Es wurde noch nichts genehmigt.',
    leadGrants: 'Melden Sie sich an, um die von Ihnen genehmigten Anwendungen und Geräte zu sehen.',
    leadCode: 'Melden Sie sich an, und geben Sie dann Ihren Code ein. Es wurde noch nichts genehmigt.',
    userName: 'Benutzername',
    password: 'Passwort',
    wrong: 'Benutzername oder Passwort ist falsch.',
    or: 'oder',
    certificate: 'Mit Zertifikat anmelden',
    certificateHint: 'Ihr Browser hat ein Zertifikat vorgelegt.',
    certificateWrong:
      'Mit diesem Zertifikat können Sie sich nicht anmelden. Versuchen Sie eine andere Anmeldemethode.',
    certificateMissing:
      'Ihr Browser hat kein Zertifikat vorgelegt. Versuchen Sie eine andere Anmeldemethode.',
    with: (provider) => `Mit ${provider} anmelden`,
    none: 'Mit diesem Browser können Sie sich nicht anmelden. Wenden Sie sich an Ihren Administrator.',
    cancelled: 'Die Anmeldung wurde nicht abgeschlossen. Bitte versuchen Sie es erneut.',
    notAccepted: 'Die Anmeldung ist fehlgeschlagen. Bitte versuchen Sie es erneut.',
    unknown: 'Ihr Konto hat hier keinen Zugriff. Wenden Sie sich an Ihren Administrator.',
  },

  redirectToProvider: {
    title: 'Weiterleitung …',
    formatLead: (provider) => `Sie werden zur Anmeldung zu ${provider} weitergeleitet.`,
  },
  signInComplete: { title: 'Angemeldet', lead: 'Sie werden weitergeleitet.' },

  review: {
    title: 'Diese Anfrage genehmigen?',
    requestsAccess: ' möchte in Ihrem Namen handeln.',
    codeLabel: 'Vergleichen Sie den Code',
    codeHint: 'Er muss mit dem Code auf Ihrem Gerät übereinstimmen.',
    may: 'Erlaubt wird:',
    technical: 'Technische Details',
    requestedAt: 'Angefragt',
    device: 'Gerätename',
    deviceHint: 'Angabe des Geräts, nicht überprüft',
    from: 'IP-Adresse',
    warning:
      'Genehmigen Sie die Anfrage nur, wenn Sie den Vorgang gerade selbst gestartet haben. Wenn Ihnen jemand den Code oder einen Link geschickt hat, lehnen Sie ab.',
    approve: 'Genehmigen',
    deny: 'Ablehnen',
    notYou: 'Nicht Sie? Abmelden',
  },

  authorization: {
    redirecting: { title: 'Weiterleitung …', lead: 'Sie werden zur Anmeldung weitergeleitet.' },
    returnsTo: 'Zurück zu',
    address: 'Adresse der Anwendung',
    audience: 'Für die API',
    formatClaimedName: (name) => `nennt sich „${name}“ und ist hier nicht registriert.`,
    unregistered: 'ist hier nicht registriert.',
    loopback: 'einer Anwendung auf diesem Computer',
    formatApp: (scheme) => `der Anwendung ${scheme} auf diesem Gerät`,
    formatRequestId: (id) => `Anfrage-ID: ${id}`,
    warning:
      'Genehmigen Sie nur, wenn Sie diese Seite gerade selbst aus der Anwendung geöffnet haben. Hat Ihnen jemand einen Link geschickt, lehnen Sie ab.',
    notices: {
      invalid: {
        title: 'Ungültige Anfrage',
        lead: 'Die Anfrage der Anwendung kann nicht verarbeitet werden. Es wurde nichts genehmigt. Wenden Sie sich an den Entwickler der Anwendung, wenn es erneut geschieht.',
      },
      notRegistered: {
        title: 'Ungültige Anfrage',
        lead: 'Diese Anwendung ist bei diesem Dienst nicht registriert, oder ihre Anfrage passt nicht zu ihrer Registrierung. Es wurde nichts genehmigt. Wenden Sie sich an den Entwickler der Anwendung oder an den Administrator dieses Dienstes.',
      },
      expired: {
        title: 'Anfrage abgelaufen',
        lead: 'Diese Anfrage ist zu alt oder wurde in einem anderen Browser begonnen. Es wurde nichts genehmigt. Kehren Sie zur Anwendung zurück, und beginnen Sie von vorn.',
      },
      decided: {
        title: 'Bereits beantwortet',
        lead: 'Diese Anfrage wurde bereits genehmigt oder abgelehnt. Kehren Sie zur Anwendung zurück. Wartet sie noch, beginnen Sie dort von vorn.',
      },
    },
  },

  notAllowed: {
    title: 'Sie können diese Anfrage nicht genehmigen',
    integration:
      'Sie haben keinen Zugriff auf diese Anwendung. Wenn Sie ihn benötigen, wenden Sie sich an Ihren Administrator.',
    scope: (excess) => `Diese Anwendung verlangt mehr Rechte, als Sie erteilen können: ${excess}.`,
    disabled: 'Ihr Konto ist deaktiviert.',
  },

  approved: {
    title: 'Genehmigt',
    lead: ' kann jetzt in Ihrem Namen handeln.',
    close: 'Sie können diese Seite schließen und zu Ihrem Gerät zurückkehren.',
  },
  denied: {
    title: 'Abgelehnt',
    lead: ' hat keinen Zugriff erhalten.',
    close: 'Sie können diese Seite schließen.',
  },
  signOut: 'Abmelden',
  signedInAs: 'Angemeldet als ',
  next: 'Weiter',
  expires: 'Läuft ab',

  grants: {
    title: 'Genehmigte Anwendungen und Geräte',
    lead: 'Diese Anwendungen und Geräte können in Ihrem Namen handeln. Widerrufen Sie den Zugriff, wenn Sie sie nicht mehr verwenden oder nicht kennen.',
    none: 'Keine Anwendung und kein Gerät kann in Ihrem Namen handeln.',
    pending: (name) =>
      `Sie haben ${name} genehmigt. Der Eintrag erscheint hier, sobald Ihr Gerät den Zugriff abgerufen hat, meist innerhalb weniger Sekunden.`,
    may: 'Erlaubt ist:',
    by: {
      device: 'Im Browser genehmigt',
      certificate: 'Mit Ihrem Zertifikat erteilt',
      exchange: 'Mit einem Token Ihres Identitätsanbieters erteilt',
      client: 'Der Anwendung selbst erteilt',
      code: 'Im Browser genehmigt',
    },
    created: 'Erteilt',
    lastRenewed: 'Zuletzt erneuert',
    neverRenewed: 'Noch nie',
    discontinued: 'Nicht mehr verfügbar',
    revokeLabel: 'Widerrufen …',
    formatRevokeLabel: (name) => `Widerrufen: Zugriff für ${name}`,
    more: 'Mehr anzeigen',
  },
  revoke: {
    title: 'Zugriff widerrufen?',
    lead: ' verliert diesen Zugriff sofort. Ihre anderen Genehmigungen bleiben bestehen.',
    confirm: 'Widerrufen',
    cancel: 'Abbrechen',
    done: (name) => `Der Zugriff für ${name} wurde widerrufen.`,
    missing: {
      title: 'Zugriff nicht gefunden',
      lead: 'Er ist möglicherweise abgelaufen oder wurde bereits widerrufen.',
    },
    back: 'Zurück zur Liste',
  },
  languageLabel: 'Sprache',
  enterAnotherCode: 'Anderen Code eingeben',
  startAgain: 'Von vorn beginnen',
  tryAgain: 'Erneut versuchen',

  alreadyApproved: {
    title: 'Bereits genehmigt',
    lead: `Diese Anfrage wurde bereits genehmigt. Wartet Ihr Gerät noch? ${NEW_CODE}`,
  },
  alreadyDenied: { title: 'Bereits abgelehnt', lead: `Diese Anfrage wurde bereits abgelehnt. ${NEW_CODE}` },
  closed: {
    title: 'Anfrage geschlossen',
    lead: `Diese Anfrage wurde nach zu vielen fehlgeschlagenen Anmeldungen geschlossen. ${NEW_CODE}`,
  },
  codeInvalid: { title: 'Ungültiger Code', lead: `Dieser Code ist ungültig oder abgelaufen. ${NEW_CODE}` },
  codeExpired: {
    title: 'Code abgelaufen',
    lead: `Codes sind nur wenige Minuten gültig. Es wurde nichts genehmigt. ${NEW_CODE}`,
  },
  withdrawn: {
    title: 'Nicht verfügbar',
    lead: 'Diese Anwendung ist nicht mehr verfügbar. Wenden Sie sich an Ihren Administrator.',
  },
  tooManyAttempts: {
    title: 'Zu viele Versuche',
    lead: (wait) => `Bitte versuchen Sie es ${wait} erneut.`,
    leadSignIn: (wait) =>
      `Zurzeit werden viele falsche Codes eingegeben. Ihrer kann richtig sein: Melden Sie sich zuerst an, und geben Sie ihn dann ein, oder versuchen Sie es ${wait} erneut.`,
  },
  expired: {
    title: 'Seite abgelaufen',
    lead: 'Zu Ihrer Sicherheit ist diese Seite nur kurze Zeit gültig. Sie benötigt Cookies. Es wurde nichts genehmigt.',
  },
  rejected: {
    title: 'Anfrage nicht angenommen',
    lead: 'Möglicherweise war die Seite zu lange oder in mehreren Tabs geöffnet. Es wurde nichts geändert.',
  },
  badRequest: {
    title: 'Ungültige Anfrage',
    lead: 'Die Anfrage konnte nicht gelesen werden. Es wurde nichts geändert.',
  },
  serviceUnavailable: {
    title: 'Vorübergehend nicht verfügbar',
    lead: 'Dieser Dienst ist vorübergehend nicht verfügbar.',
  },
  directoryUnavailable: {
    title: 'Anmeldung vorübergehend nicht möglich',
    lead: 'Der Anmeldedienst ist zurzeit nicht erreichbar.',
  },
  retryLater: {
    device: 'Ihr Code bleibt bis zu seinem Ablauf gültig. Bitte versuchen Sie es gleich noch einmal.',
    authorization:
      'Die Anfrage der Anwendung bleibt einige Minuten gültig. Bitte versuchen Sie es gleich noch einmal.',
    other: 'Bitte versuchen Sie es gleich noch einmal.',
  },
  overloaded: {
    title: 'Dienst ausgelastet',
    lead: 'Zurzeit melden sich viele Personen an. Bitte versuchen Sie es gleich noch einmal.',
  },
  internalError: {
    title: 'Etwas ist schiefgegangen',
    lead: 'Auf unserer Seite ist ein Fehler aufgetreten. Bitte versuchen Sie es erneut.',
    reference: (id) =>
      `Wenn der Fehler erneut auftritt, nennen Sie Ihrem Administrator diese Anfrage-ID: ${id}`,
  },
  notFound: { title: 'Seite nicht gefunden', lead: 'Prüfen Sie die Adresse.' },
  root: {
    api: {
      title: 'Dies ist eine API',
      lead: 'Programme verwenden diese Adresse mit einem Zugriffstoken. Ohne Token gibt es hier im Browser nichts zu sehen.',
    },
    pages: {
      title: 'Geräte und Anwendungen',
      lead: 'Unter dieser Adresse verbinden Sie Geräte und verwalten den Zugriff von Anwendungen.',
    },
    links: 'Suchen Sie eine dieser Seiten?',
  },
  methodNotAllowed: { title: 'Ungültige Anfrage', lead: 'Bitte beginnen Sie auf der ersten Seite.' },

  permissions: {
    read: 'sehen',
    view: 'sehen',
    list: 'auflisten',
    search: 'durchsuchen',
    write: 'ändern',
    update: 'ändern',
    edit: 'ändern',
    create: 'anlegen',
    add: 'hinzufügen',
    delete: 'löschen',
    remove: 'entfernen',
    upload: 'hochladen',
    download: 'herunterladen',
    send: 'senden',
    share: 'teilen',
    run: 'ausführen',
    execute: 'ausführen',
    start: 'starten',
    stop: 'anhalten',
    approve: 'genehmigen',
    manage: 'verwalten',
    admin: 'administrieren',
  },
  separator: '; ',
  quote: (word) => `„${word}“`,
  describePermissions: (verbs, resource) => `${resource} ${verbs}`,
  describeOtherPermissions: (permissions, resource) => `${resource} verwenden (${permissions})`,
  describeBareResource: (resource) => `${resource} verwenden`,
};
